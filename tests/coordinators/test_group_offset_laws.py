"""Laws of committed offsets: commits, deletes, forgotten topics and expiry, with the writes settling in their own time.

The oracle is the log itself: what the machine holds is, after every step, exactly what its durable part replays to.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import NO_EPOCH, Offset, TopicId, TopicPartition
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups import offsets, records
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.model import Commit, Group, GroupState, NamedPartition
from headrace.wire.errors import ErrorCode
from tests.coordinators.group_world import TOPIC_ID, World
from tests.tiers import examples

OTHER_TOPIC = TopicId(uuid.UUID(int=8))
HOUR_MS = 3_600_000

steps = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3), st.sampled_from([TOPIC_ID, OTHER_TOPIC])),
    st.tuples(st.just("commit"), st.integers(0, 3), st.just(TOPIC_ID)),
    st.tuples(st.just("settle"), st.just(0), st.just(TOPIC_ID)),
    st.tuples(st.just("settle"), st.just(0), st.just(TOPIC_ID)),
    st.tuples(st.just("settle badly"), st.just(0), st.just(TOPIC_ID)),
    st.tuples(st.just("refuse"), st.just(0), st.just(TOPIC_ID)),
    st.tuples(st.just("drop"), st.integers(0, 3), st.just(TOPIC_ID)),
    st.tuples(st.just("commit in transaction"), st.integers(0, 11), st.sampled_from([TOPIC_ID, OTHER_TOPIC])),
    st.tuples(st.just("end transaction"), st.integers(0, 5), st.just(TOPIC_ID)),
    st.tuples(st.just("delete"), st.just(0), st.just(TOPIC_ID)),
    st.tuples(st.just("forget"), st.just(0), st.sampled_from([TOPIC_ID, OTHER_TOPIC])),
    st.tuples(st.just("expire"), st.integers(0, 2), st.just(TOPIC_ID)),
    st.tuples(st.just("member"), st.just(0), st.just(TOPIC_ID)),
    st.tuples(st.just("crash"), st.just(0), st.just(TOPIC_ID)),
)


class History:
    def __init__(self) -> None:
        self.world = World(
            config=GroupConfig(offsets_retention_ms=HOUR_MS, group_initial_rebalance_delay_ms=0), autowrite=False
        )
        self.next_offset = 0

    def do(self, action: str, amount: int, topic_id: TopicId) -> None:
        world = self.world
        match action:
            case "commit":
                self.next_offset += 1
                world.commit({amount: self.next_offset}, topic_id=topic_id)
            case "commit in transaction":
                self.next_offset += 1
                world.commit_in_transaction(amount // 4, {amount % 4: self.next_offset}, topic_id=topic_id)
            case "end transaction":
                world.end(amount // 2, is_committed=amount % 2 == 0)
            case "settle":
                if world.in_flight:
                    world.settle()
            case "settle badly":
                if world.in_flight:
                    world.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            case "drop":
                waiter = world.waiter("g")
                partitions = (NamedPartition("t", amount), NamedPartition("t", 0))
                world.send("g", ev.DeleteOffsets(waiter=waiter, partitions=partitions))
            case "refuse":
                world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
            case "delete":
                world.delete()
            case "forget":
                world.send("g", ev.ForgetTopics(topic_ids=frozenset({topic_id})))
            case "expire":
                world.advance(amount * HOUR_MS // 2)
                world.send("g", ev.Expire())
            case "member":
                world.join(session_timeout_ms=6_000, rebalance_timeout_ms=6_000)
                world.advance(MANY)
            case "crash":
                world.crash()

    def check(self) -> None:
        group = self.world.groups.get("g")
        durable = self.world.replayed(self.world.durable).get("g")
        if group is None or group.state is GroupState.DEAD:
            assert durable is None or group is not None
            return
        assert dict(group.offsets) == ({} if durable is None else dict(durable.offsets))
        assert open_offsets(group) == ({} if durable is None else open_offsets(durable))
        assert group.recorded == (durable is not None and durable.recorded)


def open_offsets(group: Group) -> dict[int, dict[NamedPartition, Commit]]:
    return {each: {where: one.commit for where, one in own.items()} for each, own in group.open.items()}


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(steps, max_size=60))
def test_what_is_held_is_what_the_durable_log_says(script: list[tuple[str, int, TopicId]]) -> None:
    history = History()
    for action in script:
        history.do(*action)
        history.check()


def test_the_later_commit_in_the_log_stands() -> None:
    world = World(autowrite=False)
    world.commit({0: 10})
    world.commit({0: 5})
    world.settle()
    assert world.offset(0) == 10
    world.settle()
    assert world.offset(0) == 5, "an application may go back on purpose"


def test_a_commit_counts_once_it_is_durable_and_not_before() -> None:
    world = World(autowrite=False)
    waiter = world.commit({0: 10, 1: 20})
    assert world.offset(0) == -1
    assert waiter in world.waiting
    world.settle()
    assert world.committed(waiter) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (world.offset(0), world.offset(1)) == (10, 20)


def test_a_refused_write_is_answered_and_leaves_nothing() -> None:
    world = World(autowrite=False, refuse_next=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    waiter = world.commit({0: 10})
    assert world.committed(waiter) == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert world.groups == {}


def test_metadata_that_is_too_large_is_refused_for_its_partition_alone() -> None:
    world = World()
    waiter = world.commit({0: 10}, metadata="x" * 4097)
    assert world.committed(waiter) == (ErrorCode.OFFSET_METADATA_TOO_LARGE,)
    assert world.committed(world.commit({0: 10}, metadata="x" * 4096)) == (ErrorCode.NONE,)


def test_a_group_that_nobody_knows_takes_commits_without_a_generation_only() -> None:
    world = World()
    assert world.committed(world.commit({0: 1}, member_id="m", generation=4)) == (ErrorCode.GROUP_ID_NOT_FOUND,)
    assert world.groups == {}
    assert world.committed(world.commit({0: 1})) == (ErrorCode.NONE,)


@pytest.mark.parametrize("written_first", [True, False])
def test_deleting_takes_all_offsets_with_it_those_in_flight_too(written_first: bool) -> None:
    world = World(autowrite=False)
    world.commit({0: 10})
    if written_first:
        world.settle()
    deleted = world.delete()
    late = world.commit({1: 1})
    assert world.committed(late) == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    while world.in_flight:
        world.settle()
    assert world.replies[deleted] == ev.DeleteReply(error=ErrorCode.NONE)
    assert world.groups == {} == world.replayed()


def test_only_an_empty_and_known_group_can_be_deleted() -> None:
    world = World()
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.GROUP_ID_NOT_FOUND)
    world.join()
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.NON_EMPTY_GROUP)


def test_offsets_of_a_deleted_topic_are_forgotten_and_those_of_its_namesake_are_not() -> None:
    world = World()
    world.commit({0: 10, 1: 20})
    world.commit({1: 3}, topic_id=OTHER_TOPIC)
    world.send("g", ev.ForgetTopics(topic_ids=frozenset({TOPIC_ID})))
    assert (world.offset(0), world.offset(1)) == (-1, 3)


def test_offsets_expire_once_the_group_has_been_empty_for_the_retention_time() -> None:
    world = World(config=GroupConfig(offsets_retention_ms=HOUR_MS, group_initial_rebalance_delay_ms=0))
    member = world.joined(world.join(session_timeout_ms=6_000))
    world.sync(member.member_id, 1)
    world.commit({0: 10}, member_id=member.member_id, generation=1)
    for _ in range(1000):
        world.advance(5_000)
        world.heartbeat(member.member_id, 1)
    world.send("g", ev.Expire())
    assert world.offset(0) == 10, "it has members"
    world.leave(member.member_id)
    world.advance(HOUR_MS - 1)
    world.send("g", ev.Expire())
    assert world.offset(0) == 10
    world.advance(1)
    world.send("g", ev.Expire())
    assert world.groups == {} == world.replayed()


def test_partitions_expire_one_by_one_where_there_never_was_a_member() -> None:
    world = World(config=GroupConfig(offsets_retention_ms=HOUR_MS))
    world.commit({0: 10})
    world.advance(HOUR_MS // 2)
    world.commit({1: 20})
    world.advance(HOUR_MS // 2)
    world.send("g", ev.Expire())
    assert set(world.groups["g"].offsets) == {NamedPartition("t", 1)}


def subscription(*topics: str) -> bytes:
    """The consumer protocol's bytes, by hand: version 0, names, no user data."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def consumer(world: World, metadata: bytes, protocol_type: str = "consumer") -> ev.JoinReply:
    """A stable group of one."""
    member = world.joined(world.join(metadata=metadata, session_timeout_ms=1_000_000, protocol_type=protocol_type))
    world.sync(member.member_id, member.generation)
    return member


def test_offsets_that_are_deleted_are_gone_and_those_that_never_were_are_no_error() -> None:
    world = World()
    world.commit({0: 10, 1: 20})
    reply = world.delete_offsets(NamedPartition("t", 0), NamedPartition("t", 5))
    assert reply == ev.DeleteOffsetsReply(error=ErrorCode.NONE, partitions=(ErrorCode.NONE,) * 2)
    assert (world.offset(0), world.offset(1)) == (-1, 20)
    assert set(world.replayed()["g"].offsets) == {NamedPartition("t", 1)}


def test_offsets_of_what_members_subscribe_to_are_not_deleted() -> None:
    world = World()
    world.commit({0: 10})
    consumer(world, subscription("u"))
    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    reply = world.delete_offsets(NamedPartition("u", 0), NamedPartition("t", 0))
    assert reply.partitions == (subscribed, ErrorCode.NONE)
    assert world.offset(0) == -1


def test_offsets_of_members_that_nobody_understands_are_not_deleted() -> None:
    world = World()
    world.commit({0: 10})
    consumer(world, b"gibberish")
    assert world.delete_offsets(NamedPartition("t", 0)).partitions == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_offsets_of_a_group_that_is_not_of_consumers_are_deleted_once_it_is_empty() -> None:
    world = World()
    assert world.delete_offsets(NamedPartition("t", 0)).error is ErrorCode.GROUP_ID_NOT_FOUND
    world.commit({0: 10})
    member = consumer(world, subscription("u"), protocol_type="connect")
    assert world.delete_offsets(NamedPartition("t", 0)).error is ErrorCode.NON_EMPTY_GROUP
    world.leave(member.member_id)
    assert world.delete_offsets(NamedPartition("t", 0)).partitions == (ErrorCode.NONE,)
    assert world.offset(0) == -1


def test_a_stable_group_loses_what_it_no_longer_reads() -> None:
    """KIP-211: a topic that nobody subscribes to any more does not hold its offsets for ever."""
    world = World(config=GroupConfig(offsets_retention_ms=HOUR_MS, group_initial_rebalance_delay_ms=0))
    world.commit({0: 10})
    for topics, left in ((("t", "u"), 10), (("u",), -1)):
        member = consumer(world, subscription(*topics))
        for _ in range(10):
            world.advance(HOUR_MS // 10)
            world.heartbeat(member.member_id, member.generation)
        world.send("g", ev.Expire())
        assert world.offset(0) == left
        world.leave(member.member_id)


def test_a_stable_group_keeps_what_it_commits_again_while_it_is_looked_through() -> None:
    world = World(config=GroupConfig(offsets_retention_ms=HOUR_MS, group_initial_rebalance_delay_ms=0))
    world.commit({0: 10})
    member = consumer(world, subscription("u"))
    for _ in range(10):
        world.advance(HOUR_MS // 10)
        world.heartbeat(member.member_id, member.generation)
    world.autowrite = False
    world.commit({0: 11}, member_id=member.member_id, generation=member.generation)
    world.send("g", ev.Expire())
    while world.in_flight:
        world.settle()
    assert world.offset(0) == 11


def test_a_commit_that_is_on_too_few_replicas_counts_and_is_not_acknowledged() -> None:
    """It is in the log for good: what a restart would read is what is held."""
    world = World(autowrite=False)
    waiter = world.commit({0: 10})
    world.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.committed(waiter) == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert world.offset(0) == 10 == world.replayed()["g"].offsets[NamedPartition("t", 0)].offset


MANY = 200
BATCH_BYTES = 2_000


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "GROUP_TOMBSTONES_BYTES_MAX", BATCH_BYTES)


def many(world: World) -> list[NamedPartition]:
    """Committed by nobody in particular; their tombstones do not go into one batch."""
    world.commit(dict.fromkeys(range(MANY), 1))
    return [NamedPartition("t", index) for index in range(MANY)]


def batches(world: World) -> list[tuple[ev.GroupRecord, ...]]:
    return [effect.records for effect in world.effects_seen if isinstance(effect, ev.Append)]


@pytest.mark.usefixtures("small_batches")
def test_a_group_with_many_offsets_is_deleted_in_batches_and_goes_with_the_last() -> None:
    """At any point in between, the log holds a group with fewer offsets."""
    world = World()
    many(world)
    world.joined(world.join())
    member = next(iter(world.groups["g"].members))
    assert world.leave(member) == (ErrorCode.NONE,)
    world.autowrite, world.effects_seen = False, []
    waiter = world.delete()
    left = []
    while world.in_flight:
        assert waiter in world.waiting
        world.settle()
        left.append(len(world.replayed(world.durable)["g"].offsets) if world.in_flight else 0)
    assert world.replies[waiter] == ev.DeleteReply(error=ErrorCode.NONE)
    assert "g" not in world.groups
    assert not world.replayed()
    assert len(left) > 2
    assert left == sorted(left, reverse=True)
    for batch in batches(world):
        assert sum(len(key) for key, _ in map(records.encode, batch)) <= BATCH_BYTES


@pytest.mark.usefixtures("small_batches")
def test_a_deletion_that_is_refused_on_its_way_leaves_what_the_log_holds() -> None:
    world = World()
    many(world)
    world.autowrite = False
    waiter = world.delete()
    world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    world.settle()
    assert world.replies[waiter] == ev.DeleteReply(error=ErrorCode.NOT_ENOUGH_REPLICAS)
    group = world.groups["g"]
    assert 0 < len(group.offsets) < MANY
    assert group.offsets == world.replayed()["g"].offsets
    assert world.delete() in world.waiting, "it can be asked for again"


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("refused", [False, True])
def test_many_offsets_are_deleted_in_batches_and_told_once(refused: bool) -> None:
    world = World()
    named = many(world)
    world.autowrite, world.effects_seen = False, []
    if refused:
        world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    waiter = world.waiter("g")
    world.send("g", ev.DeleteOffsets(waiter=waiter, partitions=tuple(named)))
    assert (waiter in world.replies) == refused
    while world.in_flight:
        assert (waiter in world.replies) == refused
        world.settle()
    reply = world.replies[waiter]
    assert isinstance(reply, ev.DeleteOffsetsReply)
    assert reply.error is (ErrorCode.NOT_ENOUGH_REPLICAS if refused else ErrorCode.NONE)
    assert len(batches(world)) > 2
    held = world.groups["g"].offsets if refused else {}
    assert bool(held) == refused
    assert dict(held) == (dict(world.replayed()["g"].offsets) if refused else {})


def test_a_commit_for_a_namesake_that_is_on_its_way_survives_the_deleted_topic() -> None:
    """A tombstone, which comes later in the log, would take it too."""
    world = World(autowrite=False)
    old, new = TOPIC_ID, OTHER_TOPIC
    world.commit({0: 1, 1: 1}, topic_id=old)
    world.settle()
    world.commit({0: 2}, topic_id=new)
    world.send("g", ev.ForgetTopics(topic_ids=frozenset({old})))
    while world.in_flight:
        world.settle()
    assert (world.offset(0), world.offset(1)) == (2, -1)
    assert world.replayed()["g"].offsets == world.groups["g"].offsets


def test_a_commit_of_a_deleted_topic_that_is_on_its_way_goes_too() -> None:
    world = World(autowrite=False)
    old, new = TOPIC_ID, OTHER_TOPIC
    world.commit({0: 1}, topic_id=new)
    world.settle()
    world.commit({0: 2}, topic_id=old)
    world.send("g", ev.ForgetTopics(topic_ids=frozenset({old})))
    while world.in_flight:
        world.settle()
    assert world.offset(0) == -1


ROOM = 8
GROUPS = ("nobody", "empty", "g", "consumer")
members_of = st.sampled_from(["", "a", "b", "gone"])
offsets_of_one = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 99), st.sampled_from(["", "said", "x" * (ROOM + 1)])), max_size=3
)
requests = st.lists(st.tuples(members_of, st.integers(-1, 2), st.none() | st.just("one"), offsets_of_one), max_size=6)


def peopled(name: str) -> World:
    """A world with a group of this kind in it."""
    world = World(GroupConfig(group_initial_rebalance_delay_ms=0, offset_metadata_max_bytes=ROOM), autowrite=False)
    world.cluster = world.cluster.having(t=3)
    match name:
        case "empty":
            world.commit({0: 1}, group=name)
        case "g":
            world.join(name, new_member_id="a")
            world.join(name, new_member_id="b", instance_id="one")
            joined = world.joined(world.join(name, "a"))
            for member_id in ("a", "b"):
                world.sync(member_id, joined.generation, {"a": b"", "b": b""}, group=name)
        case "consumer":
            for member_id in ("a", "b"):
                world.send(name, joining(world.waiter(name), member_id))
    while world.in_flight:
        world.settle()
    world.advance(5)
    return world


def joining(waiter: int, member_id: str) -> ConsumerHeartbeat:
    own = frozenset[TopicPartition]()
    asked = {"rebalance_timeout_ms": 400, "subscribed": ("t",), "owned": own}
    return ConsumerHeartbeat(waiter=waiter, member_id=member_id, epoch=0, **asked)  # type: ignore[arg-type]


@given(st.sampled_from(GROUPS), requests, st.sampled_from(["taken", "too large together", "refused"]))
def test_commits_that_come_together_are_what_they_are_one_by_one(
    name: str, asked: list[tuple[str, int, str | None, list[tuple[int, int, str]]]], fate: str
) -> None:
    alone, together = peopled(name), peopled(name)
    shape = alone.cluster.shape("t")
    assert shape is not None
    events = [
        ev.CommitOffsets(
            alone.waiter(name),
            member_id,
            generation,
            tuple(
                ev.NewOffset(NamedPartition("t", index), shape.id, Offset(offset), NO_EPOCH, said)
                for index, offset, said in positions
            ),
            instance_id,
        )
        for member_id, generation, instance_id, positions in asked
        if positions
    ]
    if name == "nobody":
        fate = "taken"  # each goes by itself, and is refused by itself
    logged = len(alone.log)
    for event in events:
        together.waiter(name)
        if fate == "refused":
            alone.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
        alone.send(name, event)
    if fate == "refused":
        together.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS
    elif fate == "too large together" and len(alone.in_flight) > 1:
        together.refuse_next = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if events:
        together.send(name, ev.Commits(tuple(events)))
    assert together.log == alone.log
    assert fate != "refused" or len(together.log) == logged
    assert unwritten(together, name) == unwritten(alone, name)
    for world in (alone, together):
        while world.in_flight:
            world.settle()
    assert together.replies == alone.replies
    assert unwritten(together, name) == unwritten(alone, name)


def unwritten(world: World, name: str) -> Group | None:
    """But for how many appends it takes."""
    group = world.groups.get(name)
    return None if group is None else replace(group, writes={}, next_write=0)


def test_a_group_is_not_said_to_be_gone_before_that_is_durable() -> None:
    """Until then its offsets are given out, and the log may yet refuse the tombstones."""
    world = World(autowrite=False)
    world.commit({0: 5})
    world.settle()
    first = world.delete()
    assert world.offset(0) == 5
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    again = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.delete_offsets(NamedPartition("t", 0)) == ev.DeleteOffsetsReply(error=again)
    world.settle()
    assert world.replies[first] == ev.DeleteReply(error=ErrorCode.NONE)
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.GROUP_ID_NOT_FOUND)
