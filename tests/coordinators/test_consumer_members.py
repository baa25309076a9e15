"""Stories of single members of a consumer group (KIP-848): what each heartbeat is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.base.ids import TopicPartition
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import ConsumerHeartbeatReply, MemberState
from headrace.coordinators.groups.model import GroupState
from headrace.wire.errors import ErrorCode
from tests.coordinators.consumer_world import NOTHING, REBALANCE_MS, SESSION_MS, ConsumerWorld
from tests.coordinators.group_world import World


def settled(world: ConsumerWorld, count: int, **options: Any) -> list[Any]:
    clients = [world.client(**options) for _ in range(count)]
    world.quieten()
    return clients


def asked(world: ConsumerWorld, member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeatReply:
    waiter = world.waiter("g")
    world.send("g", ConsumerHeartbeat(waiter=waiter, member_id=member_id, epoch=epoch, **fields))
    reply = world.replies[waiter]
    assert isinstance(reply, ConsumerHeartbeatReply)
    return reply


def joins(world: ConsumerWorld, member_id: str, **fields: Any) -> ConsumerHeartbeatReply:
    whole = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed": ("t",), "owned": NOTHING}
    return asked(world, member_id, 0, **(whole | fields))


def test_a_partition_is_given_once_its_last_owner_says_that_it_gave_it_up() -> None:
    world = ConsumerWorld()
    (first,) = settled(world, 1)
    second = world.client()
    assert world.beat(second).assigned == NOTHING
    told = world.beat(first)
    assert told.assigned is not None
    assert len(told.assigned) == 2
    assert told.epoch == first.epoch
    assert world.group.members[first.id].state is MemberState.UNREVOKED_PARTITIONS
    assert world.beat(second).assigned is None
    first.take_up()
    assert world.beat(first).epoch == world.group.epoch
    assert world.beat(second).assigned == world.cluster.partitions(["t"]) - told.assigned


def test_who_names_what_it_is_to_give_up_still_has_it() -> None:
    world = ConsumerWorld()
    (first,) = settled(world, 1)
    second = world.client()
    world.beat(second)
    given_up = first.reading - (world.beat(first).assigned or NOTHING)
    for owned in (first.reading, frozenset([min(given_up)])):
        told = asked(world, first.id, first.epoch, owned=owned)
        assert told.epoch == first.epoch
        assert world.group.members[first.id].revoking == given_up
        assert world.beat(second).assigned is None
    assert asked(world, first.id, first.epoch, owned=NOTHING).epoch == world.group.epoch
    assert world.beat(second).assigned == given_up


def test_who_does_not_give_up_in_its_rebalance_timeout_is_out() -> None:
    world = ConsumerWorld()
    first, second = *settled(world, 1), world.client()
    world.beat(second)
    world.beat(first)
    world.advance(REBALANCE_MS - 1)
    world.beat(second)
    assert world.beat(first).error is ErrorCode.NONE
    world.advance(1)
    assert set(world.group.members) == {second.id}
    assert world.beat(first).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_a_session_is_out() -> None:
    world = ConsumerWorld()
    first, second = settled(world, 2)
    world.advance(SESSION_MS - 1)
    world.beat(second)
    assert set(world.group.members) == {first.id, second.id}
    world.advance(1)
    assert set(world.group.members) == {second.id}
    assert world.groups["g"].state is GroupState.ASSIGNING
    world.beat(second)
    world.quieten()
    assert [group.state for group in world.groups.values()] == [GroupState.STABLE]


def test_epochs_that_are_not_the_members_are_fenced() -> None:
    world = ConsumerWorld()
    (client,) = settled(world, 1)
    epoch = client.epoch
    assert asked(world, client.id, epoch + 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert asked(world, client.id, epoch - 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert asked(world, client.id, epoch - 1, owned=NOTHING).error is ErrorCode.NONE, "an answer was lost"
    world.cluster = world.cluster.having(t=5)
    world.beat(client)
    world.cluster = world.cluster.having(t=6)
    world.beat(client)
    assert client.epoch == epoch + 2
    assert asked(world, client.id, epoch, owned=NOTHING).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert asked(world, "nobody", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_whose_answer_was_lost_is_answered_again() -> None:
    world = ConsumerWorld()
    first = joins(world, "m")
    assert first.assigned == world.cluster.partitions(["t"])
    assert joins(world, "m") == first
    assert asked(world, "m", first.epoch).assigned is None


def committed(world: ConsumerWorld, member_id: str, epoch: int, *partitions: TopicPartition) -> ErrorCode:
    """The answer to its commits for these, all of one topic."""
    offsets: dict[int, int] = {each.partition: 5 for each in partitions}
    topic_id = partitions[0].topic_id
    (error,) = set(world.committed(world.commit(offsets, member_id=member_id, generation=epoch, topic_id=topic_id)))
    return error


def test_a_commit_that_crosses_the_answer_with_the_next_epoch_counts() -> None:
    """KIP-1251: the coordinator has raised the member's epoch, and the member has not heard of it yet."""
    world = ConsumerWorld()
    (client,) = settled(world, 1)
    epoch, own = client.epoch, sorted(client.reading)
    world.cluster = world.cluster.having(t=5)
    world.say(client)
    world.arrive(client)
    assert world.group.members[client.id].epoch == epoch + 1
    assert committed(world, client.id, epoch, *own) is ErrorCode.NONE
    (new,) = world.cluster.partitions(["t"]) - set(own)
    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert committed(world, client.id, epoch, *own, new) is stale, "which it has since the next epoch only"
    assert committed(world, client.id, epoch + 1, *own, new) is ErrorCode.NONE
    assert committed(world, client.id, epoch + 2, *own) is stale, "an epoch that it never had"


def test_a_commit_of_an_older_epoch_is_for_what_is_still_the_members() -> None:
    world = ConsumerWorld()
    first, second = *settled(world, 1), world.client()
    epoch, all_of_it = first.epoch, first.reading
    world.beat(second)
    world.beat(first)
    (*lost,) = sorted(all_of_it - (first.target or NOTHING))
    assert committed(world, first.id, epoch, *sorted(all_of_it)) is ErrorCode.NONE, "it is still to give some up"
    first.take_up()
    world.beat(first)
    assert committed(world, first.id, epoch, *sorted(first.reading)) is ErrorCode.NONE
    assert committed(world, first.id, epoch, lost[0]) is ErrorCode.STALE_MEMBER_EPOCH, "nobody's yet"
    world.beat(second)
    second.take_up()
    assert committed(world, first.id, epoch, lost[0]) is ErrorCode.STALE_MEMBER_EPOCH, "the other's"
    world.leave(second)
    world.quieten()
    assert first.reading == all_of_it
    assert committed(world, first.id, epoch, lost[0]) is ErrorCode.STALE_MEMBER_EPOCH, "its own again, but not since"
    assert committed(world, first.id, epoch, *sorted(all_of_it - set(lost))) is ErrorCode.NONE
    world.lose_broker()
    assert committed(world, first.id, epoch, lost[0]) is ErrorCode.STALE_MEMBER_EPOCH, "the log says so too"
    assert committed(world, first.id, epoch, *sorted(all_of_it - set(lost))) is ErrorCode.NONE


def test_a_commit_of_a_static_members_former_life_does_not_count() -> None:
    """It comes back to its partitions under its own id: what it sent before is not what it goes on from."""
    world = ConsumerWorld()
    static = world.client(instance_id="one")
    world.quieten()
    own, epoch = sorted(static.reading), static.epoch
    assert asked(world, static.id, -2, instance_id="one").epoch == -2
    assert committed(world, static.id, epoch, *own) is ErrorCode.STALE_MEMBER_EPOCH
    world.cluster = world.cluster.having(t=5)
    back = joins(world, static.id, instance_id="one")
    assert back.epoch == epoch + 1
    assert committed(world, static.id, epoch, own[0]) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(world, static.id, back.epoch, own[0]) is ErrorCode.NONE


def test_offsets_are_taken_from_members_at_their_epoch() -> None:
    world = ConsumerWorld()
    (client,) = settled(world, 1)
    assert world.committed(world.commit({0: 5}, member_id=client.id, generation=client.epoch)) == (ErrorCode.NONE,)
    for member_id, epoch, error in (
        (client.id, client.epoch - 1, ErrorCode.STALE_MEMBER_EPOCH),
        (client.id, client.epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
        (client.id, -1, ErrorCode.STALE_MEMBER_EPOCH),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert world.committed(world.commit({0: 1}, member_id=member_id, generation=epoch)) == (error,)
    world.leave(client)
    assert world.committed(world.commit({0: 7})) == (ErrorCode.NONE,), "of an empty group, by an administrator"
    assert world.offset(0) == 7


def test_a_static_member_comes_back_to_its_own_place() -> None:
    world = ConsumerWorld()
    other, static = world.client(), world.client(instance_id="one")
    world.quieten()
    share, epoch = static.reading, world.group.epoch
    assert asked(world, "new", 0, instance_id="one", owned=NOTHING).error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert asked(world, static.id, -2, instance_id="one").epoch == -2
    del world.clients[static.id]
    world.beat(other)
    back = joins(world, "new", instance_id="one")
    assert (back.error, back.assigned, back.epoch) == (ErrorCode.NONE, share, epoch)
    assert world.group.epoch == epoch
    assert asked(world, static.id, epoch, instance_id="one").error is ErrorCode.FENCED_INSTANCE_ID
    assert asked(world, static.id, epoch).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert asked(world, "new", epoch, instance_id="two").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert asked(world, "new", -1, instance_id="one").error is ErrorCode.NONE
    assert set(world.group.members) == {other.id}


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    world = ConsumerWorld()
    static = world.client(instance_id="one")
    world.quieten()
    assert world.leave(static, -2).error is ErrorCode.NONE
    world.advance(SESSION_MS)
    assert not world.group.members
    assert world.groups["g"].state is GroupState.EMPTY


def test_patterns_are_resolved_and_followed() -> None:
    world = ConsumerWorld()
    assert joins(world, "m", pattern="(").error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert joins(world, "m", subscribed=None, pattern="t|u.*").assigned == world.cluster.partitions(["t"])
    world.cluster = world.cluster.having(u1=2, v=2)
    epoch = world.group.members["m"].epoch
    assert asked(world, "m", epoch).assigned == world.cluster.partitions(["t", "u1"])
    assert asked(world, "m", epoch + 1, pattern="", subscribed=("v",)).epoch == epoch + 1, "it is to give up first"
    assert asked(world, "m", epoch + 1, owned=NOTHING).assigned == world.cluster.partitions(["v"])
    assert not world.group.patterns


def test_assignors_are_chosen_by_most_and_others_refused() -> None:
    world = ConsumerWorld("uniform", "range")
    assert joins(world, "m", assignor="rack").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert joins(world, "a", assignor="range").error is ErrorCode.NONE
    joins(world, "b")
    assert sorted(each.partition for each in world.group.targets["a"]) == [0, 1], "in a run"


def test_a_full_group_takes_nobody_in() -> None:
    world = ConsumerWorld()
    world.config = replace(world.config, consumer=replace(world.config.consumer, group_consumer_max_size=1))
    assert joins(world, "a").error is ErrorCode.NONE
    assert joins(world, "b").error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_heartbeat_is_answered_once_all_before_it_is_durable() -> None:
    world = ConsumerWorld(autowrite=False)
    client = world.client()
    for _ in range(2):
        world.say(client)
        world.arrive(client)
        world.miss(client)
    assert not world.replies
    world.settle()
    assert len(world.replies) == 2
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    assert joins(world, "m").error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert set(world.group.members) == {client.id}


def test_the_protocols_do_not_mix_but_an_empty_group_changes() -> None:
    world = ConsumerWorld()
    classic = world.joined(world.join(known_id=False))
    assert world.groups["g"].members
    assert joins(world, "m").error is ErrorCode.GROUP_ID_NOT_FOUND
    world.sync(classic.member_id, classic.generation)
    world.commit({0: 3}, member_id=classic.member_id, generation=classic.generation)
    assert World.leave(world, classic.member_id) == (ErrorCode.NONE,)
    assert joins(world, "m").error is ErrorCode.NONE
    assert world.offset(0) == 3
    assert world.joined(world.join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.heartbeat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    asked(world, "m", -1)
    assert world.joined(world.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE, "it is made a classic one"
    assert world.joined(world.join()).error is ErrorCode.NONE
    assert world.offset(0) == 3
    assert world.groups["g"].consumer is None
    assert world.replayed()["g"].consumer is None


def test_an_empty_group_is_deleted_with_all_its_records() -> None:
    world = ConsumerWorld()
    (client,) = settled(world, 1)
    world.commit({0: 5}, member_id=client.id, generation=client.epoch)
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.NON_EMPTY_GROUP)
    world.leave(client)
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.NONE)
    assert not world.groups
    assert not world.replayed()
    last = dict(world.log)
    assert not [key for key, value in last.items() if value is not None]
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.GROUP_ID_NOT_FOUND)


def test_offsets_of_a_group_that_has_just_become_empty_are_not_old() -> None:
    """They may have been committed long ago: an application that is started again continues where it was."""
    world = ConsumerWorld()
    (client,) = settled(world, 1)
    world.commit({0: 5}, member_id=client.id, generation=client.epoch)
    for _ in range(2):
        world.now_ms += world.config.offsets_retention_ms
        world.quieten()
        world.send("g", ev.Expire())
    assert world.offset(0) == 5
    world.leave(client)
    world.send("g", ev.Expire())
    assert world.offset(0) == 5
    world.crash()
    world.send("g", ev.Expire())
    assert world.offset(0) == 5
    world.now_ms += world.config.offsets_retention_ms
    world.send("g", ev.Expire())
    assert not world.groups
    assert not world.replayed()


def test_who_could_not_be_put_out_is_put_out_later() -> None:
    """The log refused it; nobody asks again, so the group does by itself, and not at once."""
    world = ConsumerWorld()
    (client,) = settled(world, 1)
    world.die(client)
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(SESSION_MS)
    assert set(world.group.members) == {client.id}
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(999)
    assert world.refuse_next is ErrorCode.NOT_ENOUGH_REPLICAS, "not tried again yet"
    world.refuse_next = ErrorCode.NONE
    world.advance(1)
    assert not world.group.members


def test_what_is_put_off_ends_later_and_no_later_than_for_who_is_heard_now() -> None:
    world = ConsumerWorld()
    client = world.client()
    world.beat(client)
    joined_ms = world.now_ms
    world.now_ms += SESSION_MS - 100
    world.send("g", ev.PutOff(by_ms=200))
    assert dict(world.group.sessions) == {client.id: joined_ms + SESSION_MS + 200}
    world.send("g", ev.PutOff(by_ms=10 * SESSION_MS))
    assert dict(world.group.sessions) == {client.id: world.now_ms + SESSION_MS}
    world.send("g", ev.PutOff(by_ms=10 * SESSION_MS))
    assert dict(world.group.sessions) == {client.id: world.now_ms + SESSION_MS}


def together(world: ConsumerWorld, *events: ConsumerHeartbeat) -> list[ConsumerHeartbeatReply]:
    heartbeats = tuple(replace(event, waiter=world.waiter("g")) for event in events)
    world.send("g", ev.ConsumerHeartbeats(heartbeats))
    told = [world.replies[heartbeat.waiter] for heartbeat in heartbeats]
    assert all(isinstance(reply, ConsumerHeartbeatReply) for reply in told)
    return [reply for reply in told if isinstance(reply, ConsumerHeartbeatReply)]


def joining(member_id: str, **fields: Any) -> ConsumerHeartbeat:
    whole = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed": ("t",), "owned": NOTHING}
    return ConsumerHeartbeat(**{"waiter": 0, "member_id": member_id, "epoch": 0, **whole, **fields})


def test_members_that_join_together_have_their_shares_at_once() -> None:
    world = ConsumerWorld()
    told = together(world, *(joining(f"m{number}") for number in range(4)))
    assert [len(reply.assigned or ()) for reply in told] == [1, 1, 1, 1]
    assert {reply.epoch for reply in told} == {world.group.epoch}
    assert sum(isinstance(effect, ev.Append) for effect in world.effects_seen) == 1
    assert world.groups["g"].state is GroupState.STABLE


def test_what_one_gives_up_another_of_the_same_turn_is_given() -> None:
    world = ConsumerWorld()
    first, second = *settled(world, 1), world.client()
    world.beat(second)
    told = world.beat(first)
    assert told.assigned is not None
    waits = ConsumerHeartbeat(waiter=0, member_id=second.id, epoch=second.epoch)
    gives = ConsumerHeartbeat(waiter=0, member_id=first.id, epoch=told.epoch, owned=told.assigned)
    answers = together(world, waits, gives)
    assert answers[0].assigned == world.cluster.partitions(["t"]) - told.assigned
    assert {answer.epoch for answer in answers} == {world.group.epoch}


def test_one_that_is_refused_takes_no_other_with_it() -> None:
    world = ConsumerWorld()
    told = together(world, joining("a"), ConsumerHeartbeat(waiter=0, member_id="nobody", epoch=3), joining("b"))
    assert [reply.error for reply in told] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert set(world.group.members) == {"a", "b"}


def test_where_the_log_takes_nothing_all_of_a_turn_are_told_and_nothing_is_changed() -> None:
    world = ConsumerWorld()
    settled(world, 1)
    before = world.group
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    told = together(world, joining("a"), joining("b"))
    assert [reply.error for reply in told] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert world.group.members == before.members
    assert world.group.targets == before.targets


def test_what_is_too_much_for_the_log_together_is_taken_one_by_one() -> None:
    world = ConsumerWorld()
    world.refuse_next = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    told = together(world, joining("a"), joining("b"))
    assert [reply.error for reply in told] == [ErrorCode.NONE, ErrorCode.NONE]
    assert set(world.group.members) == {"a", "b"}
    assert world.group.epoch == 2


def test_who_lost_its_place_to_another_of_the_same_turn_is_told() -> None:
    """A static member's place is taken while a heartbeat of its former life comes, without its name."""
    world = ConsumerWorld()
    joins(world, "old", instance_id="one")
    asked(world, "old", -2, instance_id="one")
    told = together(world, joining("new", instance_id="one"), ConsumerHeartbeat(waiter=0, member_id="old", epoch=-2))
    assert told[0].error is ErrorCode.NONE
    assert told[1].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(world.group.members) == {"new"}
