"""Compacted topics whose segments are exported: the log is compacted behind its history, and history on request. Every
reader of either reaches the last value of every key."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.ids import Offset, PartitionIndex, TopicPartition
from headrace.base.ports import Objects
from headrace.broker.durable import exporter, merger
from headrace.broker.durable.history_keeper import HistoryKeeper
from headrace.broker.partitions import bounds
from headrace.broker.partitions.partition import Partition
from headrace.broker.upkeep import cleaner
from headrace.controller.asks.history import DeleteHistory
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.compact import Keys, compact_segments, compactable
from headrace.storage.tier.reader import Store
from headrace.wire.batches import decode_records, encode_batch, iterate_headers
from headrace.wire.durable import MergeTotals
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.records import Record
from tests.broker.data_path import fetch, produce
from tests.broker.durable.test_history_retention import Counted, history_of, mirrored
from tests.broker.durable.test_merging import merge
from tests.broker.durable.test_sweeper import exported
from tests.broker.group_broker import until
from tests.broker.local_logs import local
from tests.broker.tiered import TIME, Tiered, tiered
from tests.broker.upkeep.test_compaction import Ear

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

NOT_YET = {"min_compaction_lag_ms": str(2**63 - 1)}
"""The log is not compacted, until `compact_now`."""

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


async def alter(here: Tiered, name: str, value: str) -> None:
    """A config of the topic."""
    config = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=(config,))
    answer = await here.client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))
    assert answer.responses[0].error_code == 0


async def all_exported(here: Tiered) -> PartitionCatalog:
    """All closed segments."""
    await exported(here, 1)
    await until(lambda: history_of(here).next_offset == local(here.partition.log).closed_segments()[-1].next_offset)
    return history_of(here)


async def compact_now(here: Tiered) -> None:
    """Wait until the closed part of the log is exported and compacted. It happens in one round, with none before or
    after. So a segment in which nothing stays is not merged with its neighbour."""
    assert here.partition.log.gaps_below == 0
    held, wanted = local(here.partition.log), await all_exported(here)
    await alter(here, "min.compaction.lag.ms", "0")
    await until(lambda: held.gaps_below > 0 and held.compaction.cleaning is None)
    assert held.cleaning.dirtiness(TIME, wanted.mirrored_end) == 0


async def keeps_house(here: Tiered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until retention of history, and of the log, has had its turn from the beginning, twice."""
    assert here.broker.parts.durable.exports is not None
    keeper, turns = here.broker.parts.durable.exports.keeper, 0
    apply_all, keep_house = HistoryKeeper._apply_all, Partition.keep_house
    kept = 0

    async def counted(self: HistoryKeeper) -> None:
        nonlocal turns
        await apply_all(self)
        turns += self is keeper

    def kept_house(self: Partition, *args: Any, **named: Any) -> None:
        nonlocal kept
        keep_house(self, *args, **named)
        kept += self is here.partition

    with monkeypatch.context() as patched:
        patched.setattr(HistoryKeeper, "_apply_all", counted)
        patched.setattr(Partition, "keep_house", kept_house)
        await until(lambda: turns >= 3)
        before = kept
        await until(lambda: kept >= before + 2)


async def compacted(here: Tiered) -> None:
    """Wait until the log is."""
    await until(lambda: here.partition.log.gaps_below > 0)


async def in_log(here: Tiered) -> list[tuple[int, bytes | None, bytes | None]]:
    """The records in the log itself."""
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
    async with asyncio.timeout(150):
        async with tiered(tmp_path, OFTEN) as here:
            await here.create(**COMPACTED, **NOT_YET)
            written = Written(here)
            await written.write(60)
            await exported(here, 100)
            await compact_now(here)
            await until(lambda: 0 < here.partition.log.log_start_offset <= history_of(here).log_start_offset)
            assert here.partition.log.gaps_below <= history_of(here).mirrored_end
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


async def test_what_lies_above_a_bound_replaces_nothing_below_it(tmp_path: Path) -> None:
    """As who compares history before and after asks for it, in the middle of a segment."""
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED, **NOT_YET)
        written = Written(here)
        await written.write(60)
        await exported(here, 100)
        exports, key = here.broker.parts.durable.exports, here.partition.topic_partition
        assert exports is not None
        for bound in (50, 70):
            merged = await exports.merger.merge(key.topic_id, None, execute=True, below=Offset(bound))
            assert (merged.problems, merged.after > 0) == ([], True)
            await mirrored(here, tmp_path)
            _, offsets, end = stored(tmp_path)
            assert end >= 100
            last = {key: offset for offset, key, _ in written.all[:bound]}
            assert offsets == [*sorted(last.values()), *range(bound, end)]


async def test_a_deleted_key_does_not_come_back_from_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tombstone is gone from the log, and history still has its value below that. (No test can wait until the log
    begins above 0 while more comes. The rest of the first segment may have been merged with the next.)"""

    async def left_as_it_is(self: HistoryKeeper, partition: Partition) -> None:
        """History is not deleted."""

    monkeypatch.setattr(HistoryKeeper, "_apply_retention", left_as_it_is)
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**{**COMPACTED, "delete_retention_ms": "0"}, **NOT_YET)
        written = Written(here)
        special = {0: (b"gone", BIG), 20: (b"stays", 5 * BIG), 30: (b"gone", None)}

        async def put_to(end: int) -> None:
            while written.end < end:
                await written.put(*special.get(written.end, (b"other", b"%d" % written.end + BIG)))

        await put_to(50)
        await exported(here, 40)
        await compact_now(here)
        log = here.partition.log
        await until(lambda: 0 < log.log_start_offset <= 20)
        while (30, b"gone") in [each[:2] for each in await in_log(here)]:
            await put_to(written.end + 1)
        assert log.log_start_offset <= 20
        assert history_of(here).readable_start == 0
        assert await written.consumed() == written.table
        assert b"gone" not in written.table


async def test_the_log_is_not_compacted_before_history_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED, durable_enable="true")
        monkeypatch.setattr(here.broker.parts.durable.exports.exporter, "_next_span", lambda partition: None)  # type: ignore[union-attr]
        written = Written(here)
        await written.write(40)
        log = here.partition.log
        assert local(log).cleaning.dirtiness(TIME, here.partition.last_stable_offset) > 0
        assert here.partition.cleanable_end == 0
        assert local(log).cleaning.dirtiness(TIME, here.partition.cleanable_end) == 0


async def test_who_does_not_know_yet_how_far_history_goes_compacts_no_further(tmp_path: Path) -> None:
    """A copy of what was compacted elsewhere, by an image that is behind."""
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
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
        assert role.cleanable_end in (0, first.start_offset), "the last segment, its only one, may not be in the mirror"
        assert bounds.deletable_end(role) == first.next_offset


async def test_a_topic_that_does_not_say_so_is_not_exported(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**{**COMPACTED, "durable_compacted_enable": "false"})
        written = Written(here)
        await written.write(40)
        await compacted(here)
        assert not here.partition.is_exported
        assert here.partition.history is None
        assert await written.consumed() == written.table


class Errors:
    """Errors of an exporter for partitions that it does not export."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def error(self, event: str, *, topic: str, history_end: int, **_: Any) -> None:
        self.told.append((topic, history_end))

    def info(self, *_: Any, **__: Any) -> None:
        """Of no interest."""


async def test_a_log_that_was_compacted_before_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Errors()
    monkeypatch.setattr(exporter, "log", errors)
    async with asyncio.timeout(150):
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
            await until(lambda: bool(errors.told))
            await keeps_house(here, monkeypatch)
            assert errors.told == [("t", 0)], "once"


async def test_compaction_of_history_stops_at_what_cannot_be_read(tmp_path: Path) -> None:
    """A tombstone behind it may be all that tells of a deletion."""
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED)
        written = Written(here)
        await written.write(60)
        await exported(here, 100)
        first = next(iter(history_of(here))).descriptor
        (tmp_path / "store" / first.key).write_bytes(b"damaged")
        merged: MergeTotals = await merge(here)
        assert (merged.after, len(merged.problems)) == (0, 1)
        assert first.key in merged.problems[0]
        assert await written.consumed() == written.table


async def test_a_log_that_begins_behind_its_history_is_read_with_it_and_is_not_compacted(tmp_path: Path) -> None:
    """Its directory was lost: nothing of history's values may come back behind a tombstone that is gone."""
    async with asyncio.timeout(150):
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
            assert here.partition.log.gaps_below == 0


def seen_with_store(root: Path, found: Sequence[tuple[int, bytes | None, bytes | None]]) -> Table:
    """As Spark has it: history, as far as the mirror tells of it, and what is `found` in the log behind that."""
    table, _, end = stored(root)
    for offset, key, value in found:
        if offset >= end:
            table.pop(key, None)
            if value is not None:
                table[key] = value
    return table


async def test_the_log_is_compacted_no_further_than_the_mirror_goes(tmp_path: Path) -> None:
    """A reader of the store continues in the log at the end of the mirror."""
    store = Counted(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN, objects=store) as here:
        await here.create(**{**COMPACTED, "delete_retention_ms": "0"})
        written = Written(here)
        await written.write(30)
        await exported(here, 40)
        await mirrored(here, tmp_path)
        store.keeps_mirror = True
        end = history_of(here).next_offset
        await written.write(20)
        await exported(here, end + 1)
        assert history_of(here).next_offset > end
        assert here.partition.cleanable_end == end == history_of(here).mirrored_end
        assert seen_with_store(tmp_path, await in_log(here)) == written.table
        store.keeps_mirror = False
        await until(lambda: here.partition.cleanable_end > end)


async def test_where_nothing_is_exported_any_more_tombstones_stay_behind_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History still has the values that they delete."""
    ear = Ear()
    monkeypatch.setattr(cleaner, "log", ear)
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**{**COMPACTED, "delete_retention_ms": "0"})
        written = Written(here)
        await written.put(b"gone", BIG)
        await written.write(30)
        await exported(here, 40)
        await mirrored(here, tmp_path)
        await alter(here, "durable.enable", "false")
        await until(lambda: not here.partition.is_exported)
        await mirrored(here, tmp_path)
        tombstone = written.end
        await written.put(b"gone", None)
        for _ in range(2):
            seen = max(ear.clean_to, tombstone)
            while ear.clean_to <= seen:
                await written.write(1)
        assert history_of(here).next_offset <= tombstone, "what is compacted is not exported"
        assert seen_with_store(tmp_path, await in_log(here)) == written.table
        assert await written.consumed() == written.table
        assert b"gone" not in written.table


BOTH = {**COMPACTED, "cleanup_policy": "compact,delete", **NOT_YET}


async def test_retention_counts_what_is_left_of_a_compacted_log_and_not_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last values that the log has room for do not go because history has more."""
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**BOTH)
        written = Written(here)
        await written.put(b"stays", BIG)
        await written.write(60)
        await exported(here, 100)
        await compact_now(here)
        size = here.partition.log.size_bytes
        assert size < history_of(here).batch_bytes // 2
        await alter(here, "retention.bytes", str(size))
        await keeps_house(here, monkeypatch)
        assert (here.partition.start_offset, history_of(here).log_start_offset) == (0, 0)
        assert await written.consumed() == written.table
        await alter(here, "retention.bytes", "1")
        await until(lambda: here.partition.start_offset >= history_of(here).next_offset)
        assert here.partition.log.log_start_offset == here.partition.start_offset


async def test_retention_of_a_compacted_log_does_not_show_what_history_has_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the log would continue in history, where the tombstones of records that it has read may be gone."""
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**BOTH)
        written = Written(here)
        await written.write(60)
        await exported(here, 100)
        assert (await merge(here)).problems == []
        history, size = history_of(here), here.partition.log.size_bytes
        assert history.batch_bytes + size // 4 < size
        await alter(here, "retention.bytes", str(size // 2))
        await keeps_house(here, monkeypatch)
        assert (here.partition.log.log_start_offset, here.partition.start_offset) == (0, 0)
        await alter(here, "retention.ms", "1")
        await until(lambda: history_of(here).log_start_offset >= 100)
        await until(lambda: here.partition.log.log_start_offset == history_of(here).log_start_offset)


class Passes:
    """The progress of a merger's passes."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def info(self, event: str, **told: Any) -> None:
        if "passes" in event:
            self.ends.append(told["compacted_to"])


async def test_a_history_of_more_keys_than_fit_in_memory_is_compacted_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes()
    monkeypatch.setattr(merger, "Keys", partial(Keys, keys_max=3))
    monkeypatch.setattr(merger, "log", passes)
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED, **NOT_YET)
        written = Written(here)
        await written.write(60)
        before = await all_exported(here)
        last = {key: offset for offset, key, _ in written.all if offset < before.next_offset}
        merged = await merge(here)
        assert merged.problems == []
        assert len(passes.ends) > 2
        assert passes.ends == sorted(set(passes.ends))
        await mirrored(here, tmp_path)
        table, offsets, end = stored(tmp_path)
        kept = [each for each in offsets if each < before.mirrored_end]
        assert kept == sorted(each for each in last.values() if each < before.mirrored_end)
        assert table == table_of(written, end)
        assert merged.before == len([each for each in before if each.descriptor.start_offset < before.last_start])
        assert merged.after == len(
            [each for each in history_of(here) if each.descriptor.next_offset <= before.last_start]
        )
        assert merged.bytes == before.batch_bytes - list(before)[-1].descriptor.batch_bytes


async def test_who_asks_what_would_be_done_is_told_how_much_would_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED, **NOT_YET)
        written = Written(here)
        await written.write(60)
        before = await all_exported(here)
        small = len(before.entries) - 1
        told = await merge(here, execute=False)
        assert (told.before, told.after, told.unread) == (small, 1, 0)
        monkeypatch.setattr(merger, "compactable", partial(compactable, bytes_max=1))
        told = await merge(here, execute=False)
        assert (told.before, told.after, told.unread) == (0, 0, small)
        assert history_of(here).entries == before.entries, "nothing was done"
        merged = await merge(here)
        assert 0 < merged.before == merged.after <= small
        assert merged.unread == 0


async def test_what_is_deleted_of_history_while_it_is_compacted_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning goes, by an event of the same leader, between the reading of a group and its replacement."""
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED, **NOT_YET)
        written = Written(here)
        await written.write(60)
        loop, second = asyncio.get_running_loop(), list(await all_exported(here))[1].descriptor
        its = here.partition.topic_partition
        ask = DeleteHistory(
            topic_id=its.topic_id,
            partition=its.partition,
            leader_epoch=here.partition.leader_epoch,
            log_start_offset=second.start_offset,
        )

        def interrupted(*args: Any, **named: Any) -> SegmentDescriptor | None:
            monkeypatch.undo()
            made = compact_segments(*args, **named)
            submit = here.broker.parts.control.submit(ask)
            assert asyncio.run_coroutine_threadsafe(submit, loop).result() is None
            return made

        monkeypatch.setattr(merger, "compact_segments", interrupted)
        merged = await merge(here)
        assert merged.problems == []
        assert merged.after > 0
        assert history_of(here).start_offset == second.start_offset
        await mirrored(here, tmp_path)
        table, _, end = stored(tmp_path)
        kept = table_of(written, end).items()
        assert table == {key: value for key, value in kept if last_of(written, key, end) >= second.start_offset}


def last_of(written: Written, key: bytes | None, end: int) -> int:
    return max(offset for offset, each, _ in written.all if each == key and offset < end)


async def test_nothing_is_read_of_a_history_that_may_not_be_compacted_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reads(DirectoryObjects):
        count = 0

        def get(self, key: str) -> bytes:
            self.count += key.startswith("clusters/")
            return super().get(key)

    store = Reads(LocalDisk(), tmp_path / "store")
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN, objects=store) as here:
        await here.create(**COMPACTED)
        written = Written(here)
        await written.write(40)
        await exported(here, 60)
        before = store.count
        with monkeypatch.context() as patched:
            patched.setattr("headrace.controller.durable.CATALOG_LINKS_MAX", 0)
            merged = await merge(here)
            assert (merged.after, len(merged.problems), store.count) == (0, 1, before)
        assert (await merge(here)).problems == []
        assert store.count > before


async def test_a_round_ends_where_its_topic_is_compacted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OFTEN) as here:
        await here.create(**COMPACTED)
        written = Written(here)
        await written.write(40)
        await exported(here, 60)
        read, end = Keys.read, asyncio.get_running_loop()

        def interrupted(self: Keys, objects: Objects, *rest: Any) -> None:
            read(self, objects, *rest)
            asyncio.run_coroutine_threadsafe(alter(here, "cleanup.policy", "delete"), end).result()
            monkeypatch.undo()

        monkeypatch.setattr(Keys, "read", interrupted)
        merged = await merge(here)
        assert (merged.after, len(merged.problems)) == (0, 1)
        # Ordinary merges and retention may begin at once. They leave each segment with all of its records.
        kept = [each.descriptor for each in history_of(here)]
        assert [each.records for each in kept] == [each.end_offset - each.start_offset + 1 for each in kept]


async def test_history_of_a_topic_that_does_not_say_so_is_merged_as_it_is(tmp_path: Path) -> None:
    """It is compacted by the broker's own policy, after it was exported."""
    async with asyncio.timeout(150):
        async with tiered(tmp_path, OFTEN) as here:
            await here.create(min_cleanable_dirty_ratio="0", local_retention_bytes="-1")
            written = Written(here)
            await written.write(40)
            await exported(here, 60)
        async with tiered(tmp_path, {**OFTEN, "log.cleanup.policy": "compact"}) as here:
            written.here = here
            assert here.partition.settings.compact
            end = history_of(here).mirrored_end
            assert (await merge(here)).after > 0
            await mirrored(here, tmp_path)
            _, offsets, _ = stored(tmp_path)
            assert offsets[:end] == list(range(end))
            assert await written.consumed() == written.table
