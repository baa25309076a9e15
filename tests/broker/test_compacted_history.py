"""Compacted topics whose segments are exported: the log is compacted behind its history, history when it is asked for,
and whoever reads either comes to the last value of every key."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

import pytest

from headrace.base.ids import Offset, PartitionIndex, TopicPartition
from headrace.broker.history_keeper import HistoryKeeper
from headrace.broker.merger import Merged
from headrace.broker.partition import Partition
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.reader import Store
from headrace.wire.batches import decode_records, encode_batch, iterate_headers
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests.broker.data_path import fetch, produce
from tests.broker.group_broker import until
from tests.broker.test_history_retention import history_of, mirrored
from tests.broker.test_merging import merge
from tests.broker.test_sweeper import exported
from tests.broker.tiered import TIME, Tiered, tiered

ZERO = PartitionIndex(0)
KEYS = 7
BIG = b"v" * 400
OFTEN = {"log.cleaner.backoff.ms": "5"}
COMPACTED = {
    "cleanup_policy": "compact",
    "durable_compacted_enable": "true",
    "min_cleanable_dirty_ratio": "0",
    "delete_retention_ms": "86400000",
}

Table = dict[bytes | None, bytes]


class Written:
    """A topic of keyed records, and what is to be read of it."""

    def __init__(self, here: Tiered, seed: int = 1) -> None:
        self.here = here
        self._random = Random(seed)
        self.end = 0
        self.table: Table = {}
        self.all: list[tuple[int, bytes | None, bytes | None]] = []

    async def write(self, batches: int) -> None:
        for _ in range(batches):
            records = [self._record(at) for at in range(2)]
            answer = await produce(self.here.client, "t", encode_batch(records))
            assert (answer.error_code, answer.base_offset) == (0, self.end)
            for at, record in enumerate(records):
                self.all.append((self.end + at, record.key, record.value))
                if record.value is None:
                    self.table.pop(record.key, None)
                else:
                    self.table[record.key] = record.value
            self.end += len(records)

    async def put(self, key: bytes, value: bytes | None) -> None:
        answer = await produce(self.here.client, "t", encode_batch([Record(0, TIME, key, value)]))
        assert (answer.error_code, answer.base_offset) == (0, self.end)
        self.all.append((self.end, key, value))
        self.end += 1
        self.table = table_of(self, self.end)

    def _record(self, at: int) -> Record:
        key = b"key %d" % self._random.randrange(KEYS)
        value = None if self._random.random() < 0.2 else b"%d " % (self.end + at) + b"v" * 150
        return Record(at, TIME + self.end + at, key, value)

    async def consumed(self) -> Table:
        """As a consumer that begins at the beginning has it in the end; that is where compaction has left something."""
        table: Table = {}
        offset = 0
        while offset < self.end:
            answer = await fetch(self.here.client, "t", offset, wait_ms=10_000)
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                assert not table, "it is on its way"
                offset = self.here.partition.start_offset
                continue
            assert answer.error_code == 0
            offset = apply(table, bytes(answer.records), offset)
        return table


def apply(table: Table, batches: bytes, offset: int) -> int:
    """Where to go on."""
    for at, header in iterate_headers(batches):
        for record in decode_records(batches[at : at + header.size]) if header.count else ():
            if record.value is None:
                table.pop(record.key, None)
            elif record.offset >= offset:
                table[record.key] = record.value
        offset = max(offset, header.next_offset)
    return offset


def stored(root: Path) -> tuple[Table, list[int], int]:
    """As a reader of the store has it, with no broker, at which offsets there are records, and the end; all of it
    proven."""
    store = Store.open(f"file://{root / 'store'}")
    topic = store.topic("t")
    found = store.verify(topic, ZERO)
    table: Table = {}
    offsets: list[int] = []
    for batch, header in store.batches(topic, ZERO, found.start_offset, found.end_offset + 1):
        offsets += [record.offset for record in decode_records(batch)] if header.count else []
        apply(table, bytes(batch), 0)
    return table, offsets, found.end_offset + 1


def is_led(here: Tiered) -> bool:
    topic = here.broker.image.topic("t")
    assert topic is not None
    key = TopicPartition(topic.id, ZERO)
    return isinstance(here.broker.parts.partitions.find(key, here.broker.image), Partition)


async def compacted(here: Tiered) -> None:
    """Wait until the log is."""
    await until(lambda: here.partition.log.is_compacted)


async def in_log(here: Tiered) -> list[tuple[int, bytes | None, bytes | None]]:
    """What the log has by itself."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = here.partition.log.log_start_offset
    while offset < here.partition.high_watermark:
        answer = await fetch(here.client, "t", offset, wait_ms=10_000)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            offset = here.partition.log.log_start_offset
            continue
        assert answer.error_code == 0
        for at, header in iterate_headers(answer.records):
            records = decode_records(answer.records[at : at + header.size]) if header.count else []
            found += [(each.offset, each.key, each.value) for each in records]
            offset = Offset(header.next_offset)
    return found


def table_of(written: Written, end: int) -> Table:
    table: Table = {}
    for offset, key, value in written.all:
        if offset >= end:
            break
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


async def test_log_and_history_are_compacted_and_lose_no_last_value(tmp_path: Path) -> None:
    async with asyncio.timeout(100):
        async with tiered(tmp_path, OFTEN) as here:
            await here.create(**COMPACTED)
            written = Written(here)
            await written.write(60)
            await exported(here, 100)
            await compacted(here)
            assert here.partition.log.gaps_below <= history_of(here).next_offset
            assert here.partition.start_offset == here.partition.log.log_start_offset, "it is read by itself"
            assert here.partition.is_read_alone
            await mirrored(here, tmp_path)
            table, offsets, end = stored(tmp_path)
            assert (table, offsets) == (table_of(written, end), list(range(offsets[0], end))), "as it was written"
            assert await written.consumed() == written.table
            merged = await merge(here)
            assert merged.problems == []
            assert merged.after >= 1
            await mirrored(here, tmp_path)
            table, offsets, end = stored(tmp_path)
            assert table == table_of(written, end)
            assert len(offsets) < end // 2
            await written.write(30)
            await exported(here, 160)
            assert await written.consumed() == written.table
            log = here.partition.log
            await until(lambda: 0 < log.log_start_offset <= history_of(here).log_start_offset)
        async with tiered(tmp_path, OFTEN) as here:
            written.here = here
            assert await written.consumed() == written.table
            assert (await merge(here)).problems == []
            await written.write(10)
            await exported(here, 180)
            await mirrored(here, tmp_path)
            table, _, end = stored(tmp_path)
            assert table == table_of(written, end)
            assert await written.consumed() == written.table


async def test_a_deleted_key_does_not_come_back_from_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tombstone is gone from the log, and history still has its value below that."""

    async def left_as_it_is(self: HistoryKeeper, partition: Partition) -> None:
        """History is not deleted."""

    monkeypatch.setattr(HistoryKeeper, "_apply_retention", left_as_it_is)
    async with asyncio.timeout(60), tiered(tmp_path, OFTEN) as here:
        await here.create(**{**COMPACTED, "delete_retention_ms": "0"})
        written = Written(here)
        special = {0: (b"gone", BIG), 20: (b"stays", 5 * BIG), 30: (b"gone", None)}
        log = here.partition.log
        while log.log_start_offset == 0 or (30, b"gone") in [each[:2] for each in await in_log(here)]:
            await written.put(*special.get(written.end, (b"other", b"%d" % written.end + BIG)))
        assert 0 < log.log_start_offset <= 20
        assert history_of(here).readable_start == 0
        assert await written.consumed() == written.table
        assert b"gone" not in written.table


async def test_the_log_is_not_compacted_before_history_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(60), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED, durable_enable="true")
        monkeypatch.setattr(here.broker.parts.tiering._exporter, "_next_span", lambda partition: None)  # type: ignore[union-attr]
        written = Written(here)
        await written.write(40)
        log = here.partition.log
        assert log.dirtiness(TIME, here.partition.last_stable_offset) > 0
        assert here.partition.cleanable_end == 0
        assert log.dirtiness(TIME, here.partition.cleanable_end) == 0


async def test_who_does_not_know_yet_how_far_history_goes_compacts_no_further(tmp_path: Path) -> None:
    """A copy of what was compacted elsewhere, by an image that is behind."""
    async with asyncio.timeout(60), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED)
        written = Written(here)
        await written.write(40)
        await exported(here, 60)
        await compacted(here)
        role, now = here.partition, history_of(here)
        first = next(iter(now)).descriptor
        role.history = PartitionCatalog.empty(*role.topic_partition).published(first)
        assert first.next_offset < role.log.gaps_below
        assert not role.is_exported
        assert role.cleanable_end in (0, first.next_offset)
        assert role.deletable_end == first.next_offset


async def test_a_topic_that_does_not_say_so_is_not_exported(tmp_path: Path) -> None:
    async with asyncio.timeout(60), tiered(tmp_path, OFTEN) as here:
        await here.create(**{**COMPACTED, "durable_compacted_enable": "false"})
        written = Written(here)
        await written.write(40)
        await compacted(here)
        assert not here.partition.is_exported
        assert here.partition.history is None
        assert await written.consumed() == written.table


async def test_a_log_that_was_compacted_before_is_not_exported(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        async with tiered(tmp_path, {**OFTEN, "durable.compacted.enable": "false"}) as here:
            known = {name: value for name, value in COMPACTED.items() if name != "durable_compacted_enable"}
            await here.create(**known)
            written = Written(here)
            await written.write(40)
            await compacted(here)
        async with tiered(tmp_path, {**OFTEN, "durable.compacted.enable": "true"}) as here:
            written.here = here
            assert here.partition.settings.durable
            assert not here.partition.is_exported
            assert await written.consumed() == written.table


async def test_compaction_of_history_stops_at_what_cannot_be_read(tmp_path: Path) -> None:
    """A tombstone behind it may be all that tells of a deletion."""
    async with asyncio.timeout(60), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED)
        written = Written(here)
        await written.write(60)
        await exported(here, 100)
        first = next(iter(history_of(here))).descriptor
        (tmp_path / "store" / first.key).write_bytes(b"damaged")
        merged: Merged = await merge(here)
        assert (merged.after, len(merged.problems)) == (0, 1)
        assert first.key in merged.problems[0]
        assert await written.consumed() == written.table


async def test_a_log_that_begins_behind_its_history_is_read_with_it_and_is_not_compacted(tmp_path: Path) -> None:
    """Its directory was lost: nothing of history's values may come back behind a tombstone that is gone."""
    async with asyncio.timeout(100):
        async with tiered(tmp_path, OFTEN) as here:
            await here.create(**{**COMPACTED, "delete_retention_ms": "0"}, durable_export_max_lag_ms="0")
            written = Written(here)
            await written.write(60)
            await exported(here, written.end)
        shutil.rmtree(tmp_path / "data" / "logs" / "t-0")
        async with tiered(tmp_path, OFTEN) as here:
            written.here = here
            await until(lambda: is_led(here))
            assert here.partition.log.log_start_offset == written.end
            assert here.partition.start_offset == history_of(here).readable_start < written.end
            assert await written.consumed() == written.table
            await written.write(60)
            assert here.partition.cleanable_end == 0
            assert await written.consumed() == written.table
            await exported(here, written.end)
            for _ in range(2):  # the second takes the tombstones of the first
                assert (await merge(here)).problems == []
                assert await written.consumed() == written.table
            await mirrored(here, tmp_path)
            assert stored(tmp_path)[0] == written.table
            assert not here.partition.log.is_compacted
