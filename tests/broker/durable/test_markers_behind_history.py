"""Transactions that were decided when they were exported, and whose markers lie behind what is in history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.base.ids import PartitionIndex
from headrace.broker.partitions.following import FollowerPartition
from headrace.storage.tier.producers import producers_of
from headrace.storage.tier.reader import Store
from tests import loops
from tests.broker.durable.test_recovery_from_history import exported, lose, recover, until_led, value
from tests.broker.group_broker import until
from tests.broker.in_transactions import Transactions, by_aiokafka, by_librdkafka
from tests.broker.moving import A, B, C, Moving, moving

GONE, BACK, ABORTED, PLAIN = 6, 7, 8, 9
"""Producers. The first writes no more once the log is lost; the third has aborted."""
SMALL = {"segment_bytes": "1024"}
DEADLINE_S = 150.0


def run(root: Path, work: Callable[[Moving], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), moving(root) as world:
            await work(world)

    loops.run(whole())


def verify(root: Path) -> Store:
    """All of history, as an operator does."""
    store = Store.open(f"file://{root / 'store'}")
    store.verify(store.topic("t"), PartitionIndex(0))
    return store


async def all_is_decided(world: Moving, copy: int, start: int) -> None:
    """On a copy that begins behind history, too: its readers wait for nothing."""
    leader, following = world.leading(B), world.partitions(copy).role(world.key)
    assert isinstance(following, FollowerPartition)
    end = leader.log.log_end_offset
    assert following.log.log_start_offset >= start
    await until(lambda: following.high_watermark == leader.high_watermark == end)
    assert leader.last_stable_offset == following.last_stable_offset == end
    assert following.producers.open_below(end) == leader.producers.open_below(end) == ()


def test_markers_that_are_lost_with_a_log_are_awaited_by_nobody(tmp_path: Path) -> None:
    """Neither by copies from before the first export of the new leader nor from after it, and history stays sound."""

    async def work(world: Moving) -> None:
        await world.make(A, **SMALL)
        old = Transactions(world.leading(A))
        for producer in (GONE, BACK, ABORTED):
            old.write(producer, value(producer))
        for producer in (GONE, BACK, ABORTED):
            old.mark(producer, committed=producer != ABORTED)
        await exported(world, A, 3)
        await lose(world, A)
        await recover(world, B)
        await until_led(world, B)
        assert world.leading(B).log.log_start_offset == 3
        await world.place(B, C, through=B)
        await all_is_decided(world, C, 3)
        await world.place(B, through=B)
        new = Transactions(world.leading(B))
        new.write(ABORTED, value(ABORTED, "again"))
        new.mark(ABORTED, committed=True)
        new.write(BACK, value(BACK, "again"))
        new.mark(BACK, committed=False)
        for number in range(2):
            new.write(PLAIN, value(PLAIN, str(number)), transactional=False)
        await exported(world, B, 8)
        await world.place(B, C, through=B)
        await all_is_decided(world, C, 3)
        seen = [value(GONE), value(BACK), value(ABORTED, "again"), value(PLAIN, "0"), value(PLAIN, "1")]
        await world.place(C, through=B)
        await until_led(world, C)
        address = str(world.cluster.address(C))
        assert await by_aiokafka(address, len(seen)) == seen
        assert await asyncio.to_thread(by_librdkafka, address, len(seen)) == seen

    run(tmp_path, work)
    store = verify(tmp_path)
    for entry in store.catalog(store.topic("t"), PartitionIndex(0)):
        footer = store.footer("t", 0, entry.descriptor)
        if footer.start_offset >= 3:
            assert {each[:3] for each in footer.aborted_transactions} <= {(BACK, 5, 6)}
            producers = producers_of(footer.producers)
            assert producers is not None
            assert set(producers.open_below(footer.end_offset + 1)) <= {(ABORTED, 3), (BACK, 5)}


def test_a_copy_that_did_not_see_a_transaction_begin_exports_how_it_ended(tmp_path: Path) -> None:
    """It begins behind the records, and has the markers."""

    async def work(world: Moving) -> None:
        await world.make(A, **SMALL)
        written = Transactions(world.leading(A))
        for producer in (GONE, ABORTED):
            written.write(producer, value(producer))
        written.write(ABORTED, b"small")
        for producer in (GONE, ABORTED):
            written.mark(producer, committed=False)
        await exported(world, A, 2)
        await world.place(A, C)
        await world.place(C)
        await until_led(world, C)
        assert world.leading(C).log.log_start_offset == 2
        new = Transactions(world.leading(C))
        for number in range(2):
            new.write(PLAIN, value(number), transactional=False)
        await exported(world, C, 5)
        seen = [value(0), value(1)]
        assert await by_aiokafka(str(world.cluster.address(C)), len(seen)) == seen

    run(tmp_path, work)
    store = verify(tmp_path)
    told = [
        [each[:3] for each in store.footer("t", 0, entry.descriptor).aborted_transactions]
        for entry in store.catalog(store.topic("t"), PartitionIndex(0))
    ]
    assert told[:3] == [[(GONE, 0, 3)], [(GONE, 0, 3), (ABORTED, 1, 4)], [(GONE, 0, 3), (ABORTED, 1, 4)]]
