"""Stories of groups that change their protocol with members in them (KIP-848): who is told what, and what is kept."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.limits import GROUP_CLASSIC_TOPICS_MAX, GROUP_UPGRADE_BYTES_MAX
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import MigrationPolicy
from headrace.coordinators.groups.consumer import migration
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.machine import UNWRITABLE_RETRY_MS
from headrace.coordinators.groups.consumer.model import ConsumerHeartbeatReply, MemberState
from headrace.coordinators.groups.model import Group, GroupState
from headrace.wire.data import CONSUMER_SUBSCRIPTION
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from tests.coordinators.consumer_world import NOTHING, REBALANCE_MS, SESSION_MS
from tests.coordinators.group_world import Cluster
from tests.coordinators.migration_world import ClassicClient, MigrationWorld
from tests.coordinators.test_consumer_members import asked, joining, joins, together

NONE = ErrorCode.NONE
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS


def settled(count: int, **options: Any) -> tuple[MigrationWorld, list[ClassicClient]]:
    """A stable classic group."""
    world = MigrationWorld(**options)
    members = [world.classic() for _ in range(count)]
    world.quieten()
    assert whole(world).state is GroupState.STABLE
    assert whole(world).consumer is None
    return world, members


def whole(world: MigrationWorld) -> Group:
    return world.groups["g"]


def beat(world: MigrationWorld, client: ClassicClient, **fields: Any) -> ErrorCode:
    return world.heartbeat(client.id, fields.get("generation", client.generation), instance_id=client.instance_id)


def reply(world: MigrationWorld, client: ClassicClient) -> ev.AnyReply:
    """To its JoinGroup."""
    world.lose_answer(client)
    world.act(client)
    assert client.awaits is not None
    return world.replies[client.awaits]


def test_a_heartbeat_that_joins_takes_the_members_of_a_classic_group_with_it() -> None:
    world, (first, second) = settled(2)
    generation, shares = whole(world).generation, (first.reading, second.reading)
    assert joins(world, "m").assigned == NOTHING, "all is somebody's"
    group = world.group
    assert {one.id: (one.epoch, one.assigned) for one in group.members.values() if one.classic} == {
        first.id: (generation, shares[0]),
        second.id: (generation, shares[1]),
    }
    assert (group.epoch, group.members["m"].epoch) == (generation + 1, generation + 1)
    assert not whole(world).members
    assert beat(world, first) is AGAIN
    assert beat(world, first, generation=generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.replayed()["g"].consumer is not None
    assert not world.replayed()["g"].recorded, "the record of the classic group is gone"


def test_classic_members_are_moved_to_what_the_coordinator_decides() -> None:
    world, (first,) = settled(1, eager=False)
    client = world.client()
    world.beat(client)
    assert beat(world, first) is AGAIN
    joined = reply(world, first)
    assert isinstance(joined, ev.JoinReply)
    assert (joined.error, joined.leader, joined.members) == (NONE, "", ())
    assert (joined.generation, joined.protocol) == (first.generation, "sticky"), "it is to give up first"
    world.act(first)
    world.act(first)
    assert first.awaits is not None
    world.act(first)
    assert len(first.reading) == 2
    assert first.rejoins, "a cooperative member joins again once it has given up"
    world.quieten()
    assert {len(share) for share in world.all_shares().values()} == {2}
    assert first.generation == world.group.epoch


def test_a_sync_for_what_was_chosen_before_the_change_is_told_to_join_again() -> None:
    """INCONSISTENT_GROUP_PROTOCOL would be fatal to its client."""
    world = MigrationWorld()
    metadata = world.classic().metadata(world.cluster)
    world.join(new_member_id="a", protocols=("sticky", "range"), metadata=metadata)
    world.join(new_member_id="b", protocols=("range",), metadata=metadata)
    joined = world.joined(world.join(member_id="a", protocols=("sticky", "range"), metadata=metadata))
    assert (joined.error, joined.protocol) == (NONE, "range")
    assert joins(world, "m").error is NONE

    def sync(generation: int, protocol: str) -> ev.SyncReply:
        waiter = world.waiter("g")
        world.send("g", ev.Sync(waiter=waiter, member_id="a", generation=generation, protocol=protocol, assignments={}))
        return world.synced(waiter)

    assert sync(joined.generation, "range").error is AGAIN
    joined = world.joined(world.join(member_id="a", protocols=("sticky", "range"), metadata=metadata))
    assert (joined.error, joined.protocol) == (NONE, "sticky")
    assert [sync(joined.generation, name).error for name in ("sticky", "range")] == [NONE, NONE]
    assert sync(joined.generation, "other").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_offsets_are_taken_from_classic_members_at_their_generation() -> None:
    world, (first,) = settled(1)
    world.beat(world.client())
    for generation, error in ((first.generation, NONE), (first.generation + 1, ErrorCode.ILLEGAL_GENERATION)):
        assert world.committed(world.commit({0: 5}, member_id=first.id, generation=generation)) == (error,)
    assert world.offset(0) == 5


def test_an_older_generation_is_taken_from_classic_members_for_what_is_their_own() -> None:
    """As an older epoch is from members of the consumer protocol (KIP-1251)."""
    world, (first,) = settled(1)
    world.beat(world.client())
    world.quieten()
    world.cluster = world.cluster.having(t=5)
    generation, own = first.generation, sorted(first.reading)
    world.quieten()
    assert first.generation == generation + 1
    for claimed, index, error in (
        (generation, own[0].partition, NONE),
        (generation, 4, ErrorCode.ILLEGAL_GENERATION),
        (0, own[0].partition, ErrorCode.ILLEGAL_GENERATION),
    ):
        waiter = world.commit({index: 7}, member_id=first.id, generation=claimed, topic_id=own[0].topic_id)
        assert world.committed(waiter) == (error,)


@pytest.mark.parametrize("policy", MigrationPolicy)
def test_the_policy_says_which_way_is_open(policy: MigrationPolicy) -> None:
    world, (first,) = settled(1, policy=policy)
    upgrades = policy in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)
    downgrades = policy in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)
    assert joins(world, "m").error is (NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    if not upgrades:  # another way to such a group: a classic member joins one of the consumer protocol
        world.go(first)
        assert joins(world, "m").error is NONE
        first = world.classic()
    world.act(first)
    for _ in range(12):
        world.advance(10)
        world.act(first)
    assert asked(world, "m", -1).error is NONE
    assert (whole(world).consumer is None) == downgrades
    world.quieten()
    assert first.reading == world.cluster.partitions(["t"]), "whatever the group is called"


def test_a_group_in_between_goes_on_under_another_policy() -> None:
    """The next coordinator may have another."""
    world, (first,) = settled(1)
    client = world.client()
    world.quieten()
    world.config = replace(world.config, migration=MigrationPolicy.DISABLED)
    world.lose_broker()
    world.quieten()
    assert len(first.reading) == len(client.reading) == 2
    world.leave(client)
    assert whole(world).consumer is not None
    world.quieten()
    assert first.reading == world.cluster.partitions(["t"])
    world.config = replace(world.config, migration=MigrationPolicy.BIDIRECTIONAL)
    assert joins(world, "m").error is NONE
    assert asked(world, "m", -1).error is NONE
    assert whole(world).consumer is None


@pytest.mark.parametrize("protocol", ["connect", "consumer"])
def test_only_what_can_be_read_is_taken_over(protocol: str) -> None:
    world = MigrationWorld()
    classic = world.joined(world.join(protocol_type=protocol))
    assert whole(world).members
    assert joins(world, "m").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.heartbeat(classic.member_id, classic.generation) is NONE


def test_who_waits_for_the_next_generation_is_sent_to_join_the_new_group() -> None:
    world, (first, second) = settled(2)
    third = world.classic()
    world.act(third)
    world.act(third)
    world.act(third)
    world.lose_answer(first)
    world.act(first)
    assert {first.awaits, third.awaits} <= world.waiting
    world.autowrite = False
    client = world.client()
    world.say(client)
    world.arrive(client)
    assert {first.awaits, third.awaits} <= world.waiting, "not before it is durable"
    world.settle()
    for each in (first, third):
        assert each.awaits is not None
        told = world.replies[each.awaits]
        assert isinstance(told, ev.JoinReply)
        assert told.error is AGAIN
    assert set(world.group.members) == {first.id, second.id, client.id}, "who has not had a generation comes again"
    world.autowrite = True
    world.quieten()
    assert len(world.group.members) == 4


def test_a_refused_upgrade_leaves_the_classic_group_as_it_was() -> None:
    world, (first, second) = settled(2)
    world.lose_answer(first)
    world.act(first)
    before = whole(world)
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    assert joins(world, "m").error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert replace(whole(world), next_write=0) == replace(before, next_write=0)
    assert first.awaits in world.waiting
    world.quieten()
    assert whole(world).consumer is None
    assert first.generation == second.generation


@pytest.mark.parametrize("goes", ["leaves", "is silent"])
def test_the_group_is_a_classic_one_again_when_the_last_of_the_new_protocol_goes(goes: str) -> None:
    world, (first, second) = settled(2)
    client = world.client()
    world.quieten()
    epoch = world.group.epoch
    shares = first.reading, second.reading
    world.commit({0: 3}, member_id=first.id, generation=epoch)
    if goes == "leaves":
        world.leave(client)
    else:
        world.die(client)
        for _ in range(10):
            world.advance(SESSION_MS // 10)
            assert beat(world, first) is beat(world, second) is (NONE if world.group.members else AGAIN)
    group = whole(world)
    assert (group.consumer, group.state, group.generation) == (None, GroupState.PREPARING, epoch)
    assert set(group.members) == {first.id, second.id}
    assert beat(world, first) is AGAIN
    assert (first.reading, second.reading) == shares
    assert world.offset(0) == 3
    replayed = world.replayed()["g"]
    assert (replayed.state, replayed.generation, replayed.consumer) == (GroupState.PREPARING, epoch, None)
    world.crash()
    assert beat(world, first) is AGAIN, "the next coordinator asks too"
    world.quieten()
    assert {len(one.reading) for one in (first, second)} == {2}
    assert whole(world).generation == epoch + 1


@pytest.mark.parametrize("eager", [True, False])
def test_a_group_is_not_classic_before_all_have_heard_of_its_last_epoch(eager: bool) -> None:
    """A rolling downgrade: one of the last instances has come, and within a heartbeat's interval of the others the last
    of the new protocol goes. They read what is to be another's."""
    world, before = settled(3, eager=eager)
    client = world.client()
    world.quieten()
    new = world.classic()
    for _ in range(6):
        world.act(new)
    assert {one.generation for one in before} == {new.generation - 1}
    assert all(one.reading for one in before)
    world.leave(client)
    for _ in range(12):
        world.act(new)  # the world looks that nobody reads what another does
    assert set(world.group.members) == {one.id for one in (*before, new)}
    assert [beat(world, one) for one in before] == [AGAIN] * 3
    world.quieten()
    assert whole(world).consumer is None
    assert {len(one.reading) for one in (*before, new)} == {1}


@pytest.mark.parametrize("eager", [True, False])
def test_who_never_follows_does_not_keep_a_group_from_being_classic(eager: bool) -> None:
    world, (first, second) = settled(2, eager=eager)
    client = world.client()
    world.beat(client)
    for _ in range(10):
        world.act(first)
    assert first.generation == world.group.epoch > second.generation
    world.leave(client)
    for _ in range(REBALANCE_MS // 100):
        assert set(world.group.members) == {first.id, second.id}
        assert beat(world, second) is AGAIN
        world.act(first)
        world.act(first)
        world.advance(100)
    assert second.id not in world.member_ids
    for _ in range(6):
        world.act(first)
    assert whole(world).consumer is None
    second.on_error(beat(world, second))
    world.quieten()
    assert {len(one.reading) for one in (first, second)} == {2}


def test_a_refused_downgrade_is_tried_again() -> None:
    world, _ = settled(1)
    client = world.client()
    world.quieten()
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    waiter = world.waiter("g")
    world.send("g", ConsumerHeartbeat(waiter=waiter, member_id=client.id, epoch=-1))
    told = world.replies[waiter]
    assert isinstance(told, ConsumerHeartbeatReply)
    assert told.error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert client.id in world.group.members
    world.leave(client)
    assert whole(world).consumer is None


def test_a_group_is_not_classic_before_its_members_have_heard_how_they_joined() -> None:
    """Otherwise a member would next report its partitions of an older generation, which is ignored."""
    world, (first,) = settled(1)
    client = world.client()
    world.beat(client)
    assert isinstance(reply(world, first), ev.JoinReply)
    world.leave(client)
    assert world.group.members[first.id].epoch == world.group.epoch - 1
    assert beat(world, first) is ErrorCode.ILLEGAL_GENERATION
    world.act(first)
    world.act(first)
    world.act(first)
    assert whole(world).consumer is None
    world.quieten()
    assert first.reading == world.cluster.partitions(["t"])


def test_a_group_is_not_classic_before_its_members_have_given_up_what_they_were_to() -> None:
    world, (first,) = settled(1, eager=False)
    client = world.client()
    world.beat(client)
    assert beat(world, first) is AGAIN
    first.rejoins = True
    world.act(first)
    world.act(first)
    assert isinstance(world.synced(world.sync(first.id, first.generation)), ev.SyncReply)
    world.leave(client)
    assert world.group.members[first.id].state is MemberState.UNREVOKED_PARTITIONS
    assert not world.group.syncs
    world.quieten()
    assert whole(world).consumer is None
    assert first.reading == world.cluster.partitions(["t"])


@pytest.mark.parametrize("goes", ["leaves", "is silent"])
def test_a_dead_consumers_partitions_are_free_though_the_log_will_not_take_the_classic_group(goes: str) -> None:
    """A record too large for one batch always will be: the group stays a consumer group without the member that
    left."""
    world, (first,) = settled(1)
    client = world.client()
    world.quieten()
    assert len(first.reading) == len(client.reading) == 2
    world.autowrite = False
    if goes == "leaves":
        world.send("g", ConsumerHeartbeat(waiter=world.waiter("g"), member_id=client.id, epoch=-1))
        del world.clients[client.id]
    else:
        world.die(client)
        for _ in range(9):
            world.advance(SESSION_MS // 10)
            beat(world, first)
        world.advance(SESSION_MS // 10)
    assert set(world.group.members) == {first.id}
    world.send("g", ev.Heartbeat(waiter=world.waiter("g"), member_id=first.id, generation=first.generation))
    assert whole(world).consumer is not None, "not before that is durable"
    world.refuse_next = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    world.settle()
    refused_ms = world.now_ms
    assert world.refuse_next is NONE, "a change of its own"
    assert set(world.group.members) == {first.id}
    world.quieten()
    assert whole(world).consumer is not None
    assert first.reading == world.cluster.partitions(["t"])
    while whole(world).consumer is not None:
        assert beat(world, first) is NONE
        world.advance(SESSION_MS - 1)
    assert 0 <= world.now_ms - refused_ms - UNWRITABLE_RETRY_MS < 2 * SESSION_MS, "tried again after a while"


def test_a_static_member_changes_its_protocol_and_back() -> None:
    world = MigrationWorld()
    other, static = world.classic(instance_id="other"), world.classic(instance_id="one")
    world.quieten()
    share = static.reading
    world.die_silently(static)
    back = joins(world, "m", instance_id="one")
    assert (back.error, back.assigned) == (NONE, share), "at once, and nobody else moves"
    assert world.group.members["m"].classic is None
    assert beat(world, static) is ErrorCode.FENCED_INSTANCE_ID
    late = world.commit({0: 1}, member_id=static.id, instance_id="one", generation=static.generation)
    assert world.committed(late) == (ErrorCode.FENCED_INSTANCE_ID,)
    heir = world.classic(instance_id="one")
    joined = reply(world, heir)
    assert isinstance(joined, ev.JoinReply)
    assert joined.error is NONE
    assert whole(world).consumer is not None, "it was the last of the new protocol, and is yet to ask for its share"
    for _ in range(5):
        world.act(heir)
        world.act(other)
    assert whole(world).consumer is None
    for epoch in (back.epoch, -1, -2):
        told = asked(world, "m", epoch, instance_id="one")
        assert told.error is ErrorCode.FENCED_INSTANCE_ID, "it is not to come again and take its place back"
    world.quieten()
    assert {len(one.reading) for one in (other, heir)} == {2}


def test_the_only_static_member_goes_back_alone() -> None:
    world = MigrationWorld()
    assert joins(world, "m", instance_id="one").error is NONE
    heir = world.classic(instance_id="one")
    for _ in range(3):
        world.act(heir)
    assert (whole(world).consumer, len(whole(world).members)) == (None, 1)
    world.quieten()
    assert heir.reading == world.cluster.partitions(["t"])


def test_a_static_place_is_not_taken_under_another_members_id() -> None:
    world = MigrationWorld()
    for member_id, fields in (("a", {"instance_id": "one"}), ("b", {})):
        assert joins(world, member_id, **fields).error is NONE
    asked(world, "a", -2, instance_id="one")
    before = world.group
    assert joins(world, "b", instance_id="one").error is ErrorCode.INVALID_REQUEST
    assert world.group == before
    assert joins(world, "c", instance_id="one").error is NONE


def test_who_was_put_out_and_has_not_heard_claims_nothing_under_its_old_id() -> None:
    world, (first, _) = settled(2, eager=False)
    world.beat(world.client())
    world.send("g", ev.Leave(waiter=world.waiter("g"), members=(ev.Leaver(first.id),)))
    joined = reply(world, first)
    assert isinstance(joined, ev.JoinReply)
    assert joined.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_steps_that_are_not_taken_in_time_put_a_member_out() -> None:
    world, (first, second) = settled(2)
    client = world.client()
    world.beat(client)
    assert beat(world, first) is AGAIN
    assert isinstance(reply(world, second), ev.JoinReply)
    assert (set(world.group.joins), set(world.group.syncs)) == ({first.id}, {second.id})
    world.advance(REBALANCE_MS - 1)
    assert {first.id, second.id} < set(world.group.members)
    world.advance(1)
    assert set(world.group.members) == {client.id}, "neither has joined, or asked for its assignment"


def test_classic_members_alone_in_a_consumer_group_follow_the_topics() -> None:
    """Nobody leads there, who would look; so the coordinator does."""
    world, (first,) = settled(1, policy=MigrationPolicy.UPGRADE)
    client = world.client()
    world.quieten()
    world.leave(client)
    world.quieten()
    assert whole(world).consumer is not None
    world.cluster = world.cluster.having(t=6)
    assert beat(world, first) is AGAIN
    world.quieten()
    assert first.reading == world.cluster.partitions(["t"])


def test_an_empty_consumer_group_that_a_classic_client_asks_once_keeps_the_start_of_its_retention() -> None:
    """The log says so too: who loads it counts on."""
    world = MigrationWorld()
    world.config = replace(world.config, offsets_retention_ms=10 * SESSION_MS)
    assert joins(world, "m").error is NONE
    world.commit({0: 3}, member_id="m", generation=1)
    world.advance(SESSION_MS - 1)
    asked(world, "m", 1)
    world.advance(8 * SESSION_MS)  # its session ends on the way, and the group is empty from then on
    assert whole(world).state is GroupState.EMPTY
    assert (
        world.joined(world.join(known_id=True, session_timeout_ms=SESSION_MS)).error
        is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert world.joined(world.join(known_id=True, session_timeout_ms=SESSION_MS)).error is ErrorCode.MEMBER_ID_REQUIRED
    world.advance(2 * SESSION_MS)
    world.send("g", ev.Expire())
    assert world.offset(0) == 3, "the commit is old, but the group was in use until nine seconds ago"
    world.crash()
    world.send("g", ev.Expire())
    assert world.offset(0) == 3
    world.advance(SESSION_MS)
    world.send("g", ev.Expire())
    assert "g" not in world.groups


def test_a_refused_first_heartbeat_leaves_an_empty_groups_retention() -> None:
    world, (first,) = settled(1)
    world.commit({0: 3}, member_id=first.id, generation=first.generation)
    world.go(first)
    since_ms = whole(world).since_ms
    world.advance(5_000)
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    assert joins(world, "m").error is ErrorCode.NOT_ENOUGH_REPLICAS
    group = whole(world)
    assert (group.since_ms, group.generation, group.protocol_type) == (since_ms, 2, "consumer")
    assert group.state is GroupState.EMPTY


def test_an_unrevoked_partition_of_a_cooperative_member_stays_its_own_over_an_upgrade() -> None:
    """It is reading it until it has heard that another is to have it."""
    world, (first,) = settled(1, eager=False)
    second = world.classic()
    for _ in range(3):
        world.act(second)
    first.rejoins = True
    for _ in range(3):
        world.act(first)
    world.act(second)
    world.act(second)
    assert whole(world).state is GroupState.STABLE
    assert len(first.reading) == 4, "it has not heard yet"
    client = world.client()
    assert world.beat(client).assigned == NOTHING
    member = world.group.members[first.id]
    assert (member.state, member.assigned | member.revoking) == (MemberState.UNREVOKED_PARTITIONS, first.reading)
    world.quieten()
    assert sorted(len(share) for share in world.all_shares().values()) == [1, 1, 2]


@pytest.mark.parametrize("eager", [True, False])
def test_a_newer_format_of_subscriptions_is_answered_in_the_newest_that_is_known(eager: bool) -> None:
    """As the format's rule is: a reader takes what it knows of a newer version."""

    class Newer(ClassicClient):
        def metadata(self, cluster: Cluster) -> bytes:
            return struct.pack(">h", 4) + super().metadata(cluster)[2:]

    world = MigrationWorld(eager=eager)
    first, second = (Newer(f"n{at}", eager=eager) for at in range(2))
    world.classics = {first.name: first, second.name: second}
    world.quieten()
    client = world.client()
    world.quieten()
    assert sorted(len(share) for share in world.all_shares().values()) == [1, 1, 2]
    world.leave(client)
    assert whole(world).consumer is None
    world.quieten()
    assert {len(one.reading) for one in (first, second)} == {2}


def subscribed(count: int, user_data: bytes = b"") -> bytes:
    said = ConsumerProtocolSubscription(topics=tuple(f"t{at}" for at in range(count)), user_data=user_data)
    data: bytes = CONSUMER_SUBSCRIPTION.encode(1, said)
    return data


def test_what_no_group_takes_is_refused_before_a_classic_group_is_looked_into() -> None:
    """Looking into a classic group is expensive, and any client could ask for it."""
    world = MigrationWorld()
    world.join(protocol_type="connect")
    assert joins(world, "m").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert joins(world, "m", assignor="no such").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert joins(world, "m", subscribed=None, pattern="(").error is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_classic_group_is_looked_into_once_for_all_who_come_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = settled(1, policy=MigrationPolicy.DISABLED)
    looked, upgraded = [], migration.upgraded

    def counted(*whole: Any) -> Any:
        looked.append(whole)
        return upgraded(*whole)

    monkeypatch.setattr(migration, "upgraded", counted)
    told = together(world, joining("a"), joining("b"), joining("c"))
    assert [reply.error for reply in told] == [ErrorCode.GROUP_ID_NOT_FOUND] * 3
    assert len(looked) == 1


@pytest.mark.parametrize("over", [0, 1])
def test_a_classic_group_that_is_too_large_for_a_batch_stays_classic(over: int) -> None:
    world = MigrationWorld()
    half = GROUP_UPGRADE_BYTES_MAX // 2
    metadata = subscribed(1, bytes(half - len(subscribed(1))))
    assert len(metadata) == half
    first = world.joined(world.join(metadata=metadata))
    world.join(metadata=metadata + bytes(over))
    world.join(member_id=first.member_id, metadata=metadata)
    assert len(whole(world).members) == 2
    error = ErrorCode.GROUP_ID_NOT_FOUND if over else NONE
    assert joins(world, "m").error is error
    assert (whole(world).consumer is None) == bool(over)


@pytest.mark.parametrize("over", [0, 1])
def test_a_classic_subscription_names_no_more_topics_than_can_be_looked_at(over: int) -> None:
    metadata = subscribed(GROUP_CLASSIC_TOPICS_MAX + over)
    world = MigrationWorld()
    world.join(metadata=metadata)
    assert joins(world, "m").error is (ErrorCode.GROUP_ID_NOT_FOUND if over else NONE)
    world = MigrationWorld()
    assert joins(world, "m").error is NONE
    joined = world.joined(world.join(metadata=metadata))
    assert joined.error is (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if over else NONE)


def test_the_numbers_of_generations_go_on_over_an_empty_group_of_either_kind() -> None:
    """An assignment that is being written for one of the classic group is not taken for one of the next."""
    world = MigrationWorld(autowrite=False)
    metadata = world.classic().metadata(world.cluster)

    def joined(name: str) -> ev.JoinReply:
        told = world.joined(world.join(new_member_id=name, metadata=metadata))
        assert told.error is NONE
        return told

    def leaves(name: str) -> None:
        world.send("g", ev.Leave(waiter=world.waiter("g"), members=(ev.Leaver(name),)))

    for _ in range(3):
        joined("a")
        leaves("a")
    old = joined("a")
    world.sync("a", old.generation, {"a": b"old"})
    leaves("a")
    for epoch in (0, -1):
        joining = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed": ("t",), "owned": NOTHING}
        fields: dict[str, Any] = joining if epoch == 0 else {}
        world.send("g", ConsumerHeartbeat(waiter=world.waiter("g"), member_id="m", epoch=epoch, **fields))
    assert world.group.epoch > old.generation
    assert not world.group.members
    world.join(metadata=metadata)  # makes it a classic group, and is to come again
    new = joined("b")
    assert new.generation > old.generation
    share = world.sync("b", new.generation, {"b": b"new"})
    while world.in_flight:
        world.settle()
    assert world.synced(share).assignment == b"new"
    assert world.replayed()["g"].members["b"].assignment == b"new"


def test_asking_for_an_assignment_over_and_over_does_not_put_off_when_to_join() -> None:
    """A member that never says what it gave up would keep it for ever."""
    world, (first,) = settled(1, eager=False)
    client = world.client()
    world.beat(client)
    assert beat(world, first) is AGAIN
    assert isinstance(reply(world, first), ev.JoinReply)
    assert world.group.members[first.id].state is MemberState.UNREVOKED_PARTITIONS
    assert beat(world, first) is AGAIN
    for _ in range(3):
        told = world.synced(world.sync(first.id, first.generation))
        assert told.error is NONE
        world.advance(REBALANCE_MS // 4)
        assert beat(world, first) is AGAIN
        world.beat(client)
    world.advance(REBALANCE_MS // 4)
    assert first.id not in world.group.members
    world.beat(client)
    client.take_up()
    assert client.reading == world.cluster.partitions(["t"])
