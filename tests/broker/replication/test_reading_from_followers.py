"""KIP-392: the leader sends a consumer to the replica in its rack, and that one gives what is committed and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import BrokerId, LeaderEpoch, Offset
from headrace.broker.partitions.following import FollowerPartition
from headrace.metadata.config_table import RACK_AWARE
from headrace.storage.log.segment import SegmentDamage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, delete_records, produce
from tests.broker.group_broker import RawClient, until
from tests.broker.partitions.test_following import as_led, copied
from tests.broker.replication_world import World, decoded, replicating

RACKS = {1: "a", 2: "b", 3: "c"}
FOREVER_MS = 2**31 - 1


def run(directory: Path, work: Callable[[World], Awaitable[None]], *, selector: str = RACK_AWARE) -> None:
    async def whole() -> None:
        configs = {**BY_HAND, "replica.selector.class": selector}
        async with replicating(directory, configs, RACKS) as world:
            await work(world)

    loops.run(whole())


async def fetch(
    world: World,
    broker: int,
    offset: int,
    rack: str,
    *,
    epoch: int = -1,
    wait_ms: int = 0,
    version: int = 11,
    session: tuple[int, int] = (0, -1),
    client: RawClient | None = None,
) -> Any:
    """By either road: without a session by the short one."""
    wanted = FetchPartition(0, epoch, offset, partition_max_bytes=1 << 20)
    topics = (FetchTopic(topic="t", topic_id=world.key("t").topic_id, partitions=(wanted,)),)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        rack_id=rack,
    )
    client = client or await world.client(broker)
    return (await client.ask(version, request)).responses[0].partitions[0]


async def with_records(world: World, count: int) -> tuple[int, list[int]]:
    """A topic of three replicas, all of which know so many records to be committed; its leader, and its followers."""
    await world.make("t")
    leader, followers = world.leader("t"), world.followers("t")
    for number in range(count):
        assert (await produce(await world.client(leader), "t", batch(b"%d" % number))).error_code == 0
    for each in followers:
        await until(lambda each=each: world.copy(each, "t").visible_end == count)  # type: ignore[misc]
    return leader, followers


@pytest.mark.parametrize("version", [11, 13, 17])
def test_the_leader_sends_to_the_readers_rack_and_that_replica_serves(tmp_path: Path, version: int) -> None:
    async def work(world: World) -> None:
        leader, followers = await with_records(world, 3)
        for session in ((0, -1), (0, 0)):
            for follower in followers:
                sent = await fetch(world, leader, 1, RACKS[follower], version=version, session=session)
                told = (sent.error_code, sent.preferred_read_replica, bytes(sent.records or b""), sent.high_watermark)
                assert told == (0, follower, b"", 3)
                got = await fetch(world, follower, 1, RACKS[follower], version=version, session=session)
                assert (got.error_code, got.preferred_read_replica, got.high_watermark) == (0, -1, 3)
                assert decoded(got.records) == [(1, b"1"), (2, b"2")]
            for rack in (RACKS[leader], "elsewhere", ""):
                got = await fetch(world, leader, 0, rack, version=version, session=session)
                assert (got.error_code, got.preferred_read_replica) == (0, -1)
                assert decoded(got.records)[0] == (0, b"0")

    run(tmp_path, work)


def test_nobody_is_sent_anywhere_unless_that_is_configured(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        leader, (follower, _) = await with_records(world, 1)
        got = await fetch(world, leader, 0, RACKS[follower])
        assert (got.preferred_read_replica, decoded(got.records)) == (-1, [(0, b"0")])

    run(tmp_path, work, selector="")


def test_who_names_no_rack_is_served_by_the_leader_alone(tmp_path: Path) -> None:
    """It takes whom it asks for the leader."""

    async def work(world: World) -> None:
        _, (follower, _) = await with_records(world, 1)
        for version in (10, 11, 17):
            assert (await fetch(world, follower, 0, "", version=version)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(tmp_path, work)


def test_who_is_fenced_or_out_of_sync_or_lacks_the_offset_is_not_named(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        leader, (follower, _) = await with_records(world, 1)

        async def named() -> int:
            found: int = (await fetch(world, leader, 1, RACKS[follower])).preferred_read_replica
            return found

        assert await named() == follower
        await world.fence(follower)
        assert await named() == -1
        await world.unfence(follower)
        await world.in_sync("t")
        assert await named() == follower
        with world.held(follower):
            await produce(await world.client(leader), "t", batch(b"1"), acks=1)
            await until(lambda: world.role(leader, "t").log.flushed_end == 2)
            sent = await fetch(world, leader, 2, RACKS[follower])
            assert sent.preferred_read_replica == -1, "it has not flushed so far"
            assert (await fetch(world, leader, 1, RACKS[follower])).preferred_read_replica == follower

    run(tmp_path, work)


def test_a_follower_gives_nothing_that_is_not_committed(tmp_path: Path) -> None:
    """Though it has it: another replica in sync has not."""

    async def work(world: World) -> None:
        leader, (follower, other) = await with_records(world, 1)
        with world.held(other):
            await produce(await world.client(leader), "t", batch(b"1"), acks=1)
            await world.until_end("t", 2, leader, follower)
            got = await fetch(world, follower, 0, RACKS[follower])
            assert (got.high_watermark, decoded(got.records)) == (1, [(0, b"0")])
            beyond = await fetch(world, follower, 2, RACKS[follower])
            assert (beyond.error_code, beyond.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
            client = await world.another_client(follower)
            waiting = asyncio.ensure_future(
                fetch(world, follower, 1, RACKS[follower], wait_ms=FOREVER_MS, client=client)
            )
            await until(lambda: len(world.copy(follower, "t").fetches) == 1)
            assert not waiting.done()
        assert decoded((await waiting).records) == [(1, b"1")]

    run(tmp_path, work)


def test_who_is_ahead_of_what_a_follower_knows_waits_for_it(tmp_path: Path) -> None:
    """It comes from the leader, of which the follower hears a little later."""

    async def work(world: World) -> None:
        _, (follower, _) = await with_records(world, 2)
        copy = world.copy(follower, "t")
        copy._sight.reported = copy._sight._shown = Offset(1)
        client = await world.another_client(follower)
        waiting = asyncio.ensure_future(fetch(world, follower, 2, RACKS[follower], wait_ms=FOREVER_MS, client=client))
        await until(lambda: len(copy.fetches) == 1)
        copy.on_marks(Offset(2), Offset(0))
        got = await waiting
        assert (got.error_code, got.high_watermark, bytes(got.records or b"")) == (0, 2, b"")

    run(tmp_path, work)


def test_a_reader_of_a_follower_belongs_to_one_epoch(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        leader, followers = await with_records(world, 1)
        follower = followers[-1]
        for epoch, error in ((1, ErrorCode.UNKNOWN_LEADER_EPOCH), (0, ErrorCode.NONE)):
            assert (await fetch(world, follower, 0, RACKS[follower], epoch=epoch)).error_code == error
        client = await world.another_client(follower)
        waiting = asyncio.ensure_future(
            fetch(world, follower, 1, RACKS[follower], epoch=0, wait_ms=FOREVER_MS, client=client)
        )
        await until(lambda: len(world.copy(follower, "t").fetches) == 1)
        await world.fence(leader)
        assert world.leader("t") == followers[0], "the other leads now"
        over = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE)  # it hears of it from the leader, too
        assert (await waiting).error_code in over
        assert (await fetch(world, follower, 0, RACKS[follower], epoch=0)).error_code == over[0]
        await until(lambda: world.copy(follower, "t").visible_end == 1)
        assert decoded((await fetch(world, follower, 0, RACKS[follower], epoch=1)).records) == [(0, b"0")]

    run(tmp_path, work)


def test_a_follower_that_becomes_the_leader_or_no_replica_lets_its_readers_go(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        leader, (follower, _) = await with_records(world, 1)
        client = await world.another_client(follower)
        waiting = asyncio.ensure_future(fetch(world, follower, 1, RACKS[follower], wait_ms=FOREVER_MS, client=client))
        await until(lambda: len(world.copy(follower, "t").fetches) == 1)
        await world.fence(leader)
        assert world.leader("t") == follower
        lets_go = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE)
        assert (await waiting).error_code in lets_go, "the last: the old leader fell silent before the image came"

    run(tmp_path, work)


def test_who_does_not_hear_of_the_leader_says_that_it_does_not_know(tmp_path: Path) -> None:
    """Otherwise it would hide records committed meanwhile for as long as the reader stays."""

    async def work(world: World) -> None:
        leader, (follower, _) = await with_records(world, 1)
        client = await world.another_client(follower)
        waiting = asyncio.ensure_future(fetch(world, follower, 1, RACKS[follower], wait_ms=FOREVER_MS, client=client))
        await until(lambda: len(world.copy(follower, "t").fetches) == 1)
        await world.cluster.brokers[follower].parts.replication.copying.stop()
        assert (await waiting).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        again = await fetch(world, follower, 0, RACKS[follower], wait_ms=FOREVER_MS)
        assert again.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        sent = await fetch(world, leader, 0, RACKS[follower])
        assert sent.preferred_read_replica == -1, "who copies no more is not named"

    run(tmp_path, work)


def test_what_a_follower_has_deleted_or_damaged_is_read_elsewhere(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        leader, (follower, _) = await with_records(world, 4)
        copy = world.copy(follower, "t")
        copy.log.delete_records_before(Offset(1))
        damage = SegmentDamage(segment=0, start=1, end=2, position=0, resume=0, reason="planted")
        (segment,) = copy.log.contents.segments  # type: ignore[attr-defined]
        segment.damages = (damage,)
        copy.on_damage()
        for offset in (0, 1):
            refused = await fetch(world, follower, offset, RACKS[follower], wait_ms=FOREVER_MS)
            assert refused.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert decoded((await fetch(world, follower, 2, RACKS[follower])).records)[0] == (2, b"2")
        heard = lambda: world.leading("t").isr.leader.followers[BrokerId(follower)].readable_from == 2  # type: ignore[union-attr]  # noqa: E731
        await until(heard)
        named = [(await fetch(world, leader, offset, RACKS[follower])).preferred_read_replica for offset in range(4)]
        assert named == [-1, -1, follower, follower]

    run(tmp_path, work)


def test_what_the_leader_deletes_is_gone_from_followers_too(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        leader, (follower, _) = await with_records(world, 3)
        await delete_records(await world.client(leader), "t", [2])
        await until(lambda: world.copy(follower, "t").log.log_start_offset == 2)
        got = await fetch(world, follower, 2, RACKS[follower])
        assert (got.log_start_offset, decoded(got.records)) == (2, [(2, b"2")])
        assert (await fetch(world, follower, 1, RACKS[follower])).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await fetch(world, leader, 1, RACKS[follower])).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(tmp_path, work)


# one copy by itself


def with_batches(count: int) -> FollowerPartition:
    copy = copied()
    for base in range(count):
        copy.append(as_led(base))
    return copy


def refusal(copy: FollowerPartition, offset: int) -> ErrorCode:
    return copy.check_position(Offset(offset), -1)


async def test_how_far_a_copy_shows_never_falls_and_never_passes_its_end() -> None:
    copy = with_batches(5)
    await copy._flusher.idle()
    assert refusal(copy, 0) is ErrorCode.OFFSET_NOT_AVAILABLE, "nobody has told"
    shown = []
    for told in (0, 3, 2, 9, 4):
        copy.on_marks(Offset(told), Offset(0))
        shown.append(copy.visible_end)
    assert shown == [0, 3, 3, 5, 5]
    assert [refusal(copy, offset) for offset in (0, 5, 6)] == [0, 0, ErrorCode.OFFSET_NOT_AVAILABLE]
    await copy._flusher.idle()


async def test_a_copy_shows_nothing_before_it_has_been_level_with_the_leader() -> None:
    """Its broker may have shown more in this epoch, from a disk that it has lost since."""
    copy = with_batches(3)
    await copy._flusher.idle()
    copy.on_marks(Offset(5), Offset(0))
    assert refusal(copy, 0) is ErrorCode.OFFSET_NOT_AVAILABLE
    for base in (3, 4):
        copy.append(as_led(base))
    assert refusal(copy, 0) is ErrorCode.OFFSET_NOT_AVAILABLE, "it is not flushed"
    await copy._flusher.idle()
    assert (refusal(copy, 0), copy.visible_end) == (0, 5)
    copy.on_marks(Offset(9), Offset(0))
    assert (refusal(copy, 5), copy.visible_end) == (0, 5), "it has been, and may fall behind"


async def test_what_an_earlier_leader_told_counts_for_nothing_in_the_next_epoch() -> None:
    """It may have committed what an unclean election has lost since."""
    copy = with_batches(5)
    await copy._flusher.idle()
    copy.on_marks(Offset(5), Offset(0))
    copy.follow(BrokerId(3), LeaderEpoch(1))
    assert refusal(copy, 0) is ErrorCode.OFFSET_NOT_AVAILABLE
    copy.on_marks(Offset(2), Offset(0))
    assert copy.visible_end == 2
    assert copy.high_watermark == 5, "as what is to be kept goes by"
    assert bytes(copy.read(Offset(1), 1000, committed_only=False, at_least_one=True)) == as_led(1)
    assert copy.read(Offset(2), 1000, committed_only=True, at_least_one=True) == b""
    await copy._flusher.idle()
