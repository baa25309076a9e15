"""Readers of committed records read history and log as one stream, and see nothing of what was aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import Offset, PartitionIndex
from headrace.broker.partitions.aborted import AbortedReads
from headrace.storage.tier.format import SegmentFooter, decode_footer
from headrace.storage.tier.frontier import read_beginning
from headrace.storage.tier.marked import TransactionCheck
from headrace.storage.tier.packed import batches_of
from headrace.storage.tier.reader import Store
from headrace.wire.batches import end_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.transactions import AbortedTransaction, joined, overlapping
from tests.broker.durable.test_history_retention import history_of
from tests.broker.durable.test_merging import merge
from tests.broker.group_broker import until
from tests.broker.in_transactions import Transactions, by_aiokafka, by_headrace, by_librdkafka, interleaved
from tests.broker.tiered import Tiered, objects_in, tiered

READ_COMMITTED = 1
SMALL = {"segment_bytes": "14000"}


@asynccontextmanager
async def written(root: Path) -> AsyncIterator[tuple[Tiered, Transactions]]:
    async with asyncio.timeout(150), tiered(root) as here:
        if here.broker.image.topic("t") is None:
            await here.create(**SMALL)
        yield here, Transactions(here.partition)


async def all_is_in_history(here: Tiered) -> None:
    """Nothing but the open segment is left in the log."""
    partition = here.partition
    await until(lambda: partition.high_watermark == partition.log.log_end_offset)
    await until(lambda: len(list(partition.log.ranges())) == 1 and partition.log.log_start_offset > 0)


async def fetched(here: Tiered, offset: int, *, size: int = 1 << 20, version: int = 11) -> Any:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=10_000,
        min_bytes=1,
        max_bytes=size,
        isolation_level=READ_COMMITTED,
        session_epoch=-1,
        topics=(FetchTopic(topic="t", partitions=(wanted,)),),
    )
    return (await here.client.ask(version, request)).responses[0].partitions[0]


def listed(answer: Any) -> list[tuple[int, int]]:
    return [tuple(each) for each in answer.aborted_transactions]


async def test_clients_read_exactly_the_committed_records_from_history_and_log(tmp_path: Path) -> None:
    """Over many segments, in small fetches, and again after a restart."""
    expected: list[bytes] = []
    for start in range(2):
        async with written(tmp_path) as (here, transactions):
            if start == 0:
                expected = interleaved(transactions)
            await all_is_in_history(here)
            assert await by_aiokafka(here.client.address, len(expected)) == expected
            assert await asyncio.to_thread(by_librdkafka, here.client.address, len(expected)) == expected


@pytest.mark.parametrize("size", [1, 6_000, 1 << 20])
async def test_our_client_tells_the_states_of_records_in_history_and_log(tmp_path: Path, size: int) -> None:
    """They begin in history. One transaction is open: it begins in the log, and so does one that ended behind it."""
    async with written(tmp_path) as (here, transactions):
        expected = interleaved(transactions)
        transactions.write(7, b"open")
        transactions.write(8, b"after it")
        transactions.mark(8, committed=True)
        await all_is_in_history(here)
        everything = await by_headrace(here.client.address, int(here.partition.log.log_end_offset), size=size)
        states = {value: state for value, state in everything if state != "aborted"}
        assert states == dict.fromkeys(expected, "committed") | {b"open": "open", b"after it": "committed"}
        assert len(everything) == 122
        stable = int(here.partition.last_stable_offset)
        seen = await by_headrace(here.client.address, stable, size=size, committed_only=True)
        assert seen == [(value, "committed") for value in expected]


async def aborted_in_log(here: Tiered, transactions: Transactions) -> list[AbortedTransaction]:
    """Write many, and return those in the log's own index, before the records leave it for history."""
    index = transactions.partition.log.aborted
    assert index is not None
    interleaved(transactions)
    known = list(index.between(Offset(0), transactions.partition.log.log_end_offset))
    assert len(known) > 5
    await all_is_in_history(here)
    return known


async def differing(here: Tiered, known: Sequence[AbortedTransaction]) -> list[int]:
    """Offsets at which a fetch of history lists other transactions than the log did, on either road."""
    found = []
    for offset in range(0, int(here.partition.log.log_start_offset), 3):
        for version in (4, 11):
            answer = await fetched(here, offset, size=3000, version=version)
            wanted = overlapping(known, offset, end_of(bytes(answer.records)))
            if listed(answer) != [(each.producer_id, each.first_offset) for each in wanted]:
                found.append(offset)
    return found


async def test_every_fetch_of_history_lists_what_the_log_would_list(tmp_path: Path) -> None:
    """Also once its segments are merged."""
    async with written(tmp_path) as (here, transactions):
        known = await aborted_in_log(here, transactions)
        assert await differing(here, known) == []
        await merge(here)
        assert len(history_of(here).entries) == 2
        assert await differing(here, known) == []
    store = Store.open(f"file://{tmp_path / 'store'}")
    store.verify(store.topic("t"), PartitionIndex(0))


async def test_a_list_that_lacks_one_that_spans_segments_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the comparison above, and by `durable verify`: the planted exporter names only those that end in a segment."""
    monkeypatch.setattr(AbortedReads, "between", lambda *_: ())
    async with written(tmp_path) as (here, transactions):
        assert await differing(here, await aborted_in_log(here, transactions))


async def test_verification_reads_the_markers(tmp_path: Path) -> None:
    async with written(tmp_path) as (here, transactions):
        await aborted_in_log(here, transactions)
    objects = objects_in(tmp_path)
    store = Store(objects)
    segments = [entry.descriptor for entry in store.catalog(store.topic("t"), PartitionIndex(0))]
    bodies = [objects.get(segment.key) for segment in segments]
    footers = [decode_footer(body) for body in bodies]

    def problems(changed: Mapping[int, SegmentFooter]) -> list[str]:
        check, found = TransactionCheck(), list[str]()
        for at, (segment, body) in enumerate(zip(segments, bodies, strict=True)):
            batches = batches_of(body, footers[at])
            found += check.problems(changed.get(at, footers[at]), batches, is_thinned=segment.lacks_records)
        return found

    assert problems({}) == []
    tried = 0
    for at, footer in enumerate(footers):
        for one in footer.aborted_transactions:
            others = tuple(each for each in footer.aborted_transactions if each != one)
            ends_here = one.last_offset <= footer.end_offset
            if ends_here or (at > 0 and one.first_offset < footer.start_offset):
                assert problems({at: replace(footer, aborted_transactions=others)}), (at, one)
                tried += 1
            moved = one._replace(first_offset=one.first_offset + 1)
            assert problems({at: replace(footer, aborted_transactions=tuple(joined(others, [moved])))}), (at, one)
    assert tried > 5


async def test_a_log_behind_history_does_not_wait_for_markers_that_are_lost(tmp_path: Path) -> None:
    """A transaction that had ended when its records were exported counts as ended, where its marker is gone with the
    log behind them. One that nobody had ended is open."""
    async with written(tmp_path) as (here, transactions):
        transactions.write(1, b"x" * 10_000)
        transactions.write(2, b"y" * 10_000)
        transactions.mark(1, committed=False)
        transactions.mark(2, committed=True)
        await until(lambda: here.partition.history is not None and here.partition.history.next_offset == 1)
    objects = objects_in(tmp_path)
    catalog = Store(objects).catalog(Store(objects).topic("t"), PartitionIndex(0))
    assert read_beginning(objects, catalog, now_ms=0).producers.open_below(9) == ()
