"""The laws of compaction.

A full read sees the same last record of every key as before. Records that stay keep their offsets, and a reader
anywhere continues. None of it depends on when the power goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import LAST_OFFSET, LeaderEpoch, Offset
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.engine.identity import LogConfig
from headrace.storage.keeping import with_records
from headrace.storage.log.compaction.cleaning import Cleaned, clean
from headrace.storage.log.names import CHECKPOINT, COMPACTION
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import (
    HEADER_BYTES,
    BatchHeader,
    check_batch,
    check_batches,
    decode_records,
    encode_batch,
    iterate_headers,
)
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.storage.log.log_world import DIRECTORY, NOW_MS, dropped, flush, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk, PowerCut
from tests.tiers import examples, long_only

CONFIG = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    retention_ms=-1,
    compact=True,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
Written = tuple[bytes | None, bytes | None]
"""Key and value."""

writes = st.tuples(st.sampled_from([b"a", b"b", b"c", b"long key " * 4]), st.none() | st.binary(max_size=40))
batches = st.lists(writes, min_size=1, max_size=4)


@dataclass
class World:
    """A compacted log, and all that was ever written to it."""

    log: LocalLog
    disk: MemoryDisk
    written: dict[int, Written] = field(default_factory=dict)
    now_ms: int = NOW_MS
    cleanings: int = 0

    def append(self, records: Iterable[Written], **kind: object) -> None:
        listed = [Record(at, self.now_ms + at, *each) for at, each in enumerate(records)]
        base = self.log.log_end_offset
        self.written.update({base + record.offset: (record.key, record.value) for record in listed})
        raw = encode_batch(listed, **kind)  # type: ignore[arg-type]
        self.log.append(raw, check_batches(raw), leader_epoch=LeaderEpoch(0), now_ms=self.now_ms)

    def close_segment(self) -> None:
        self.log.roll()
        flush(self.log)

    def clean(
        self,
        *,
        keys_max: int = 100,
        remembered: frozenset[int] = frozenset(),
        only: int = 1000,
        meanwhile: Callable[[], object] = lambda: None,
        tombstones_from: int = LAST_OFFSET,
        up_to: int = LAST_OFFSET,
    ) -> Cleaned:
        """A whole cleaning, or its first `only` swaps. `meanwhile` happens before each swap, and in its middle."""
        self.cleanings += 1
        begun = self.log.cleaning.begin_cleaning(
            self.now_ms,
            Offset(min(up_to, self.log.flushed_end)),
            remembered,
            f"{self.cleanings:016x}",
            tombstones_from=Offset(tombstones_from),
        )
        if begun is None:
            return Cleaned(clean_to=0, files=())
        cleaning = begun.work
        cleaned = clean(self.disk, replace(cleaning.job, keys_max=keys_max))
        cleaning.note(cleaned)
        for file in cleaned.files[:only]:
            if file.name is not None:
                meanwhile()
                cleaning.commit(file)
                self.log.compaction.install(cleaning)
                meanwhile()
                cleaning.settle()
                self.log.compaction.settled(cleaning)
        if len(cleaned.files) <= only:
            cleaning.conclude(cleaned)
        cleaning.discard()
        begun.end()
        return cleaned

    def delete_before(self, offset: int) -> None:
        self.log.delete_records_before(Offset(offset))

    def headers(self, start: int = 0) -> list[BatchHeader]:
        return [check_batch(raw, compacted=True) for raw in raw_from(self.log, start)]

    def last(self, below: int | None = None) -> dict[bytes | None, tuple[int, bytes]]:
        """Of each key the last offset and value, where that is no tombstone and was not deleted."""
        there = {at: each for at, each in self.written.items() if at >= self.log.log_start_offset}
        return last_of(there, self.log.log_end_offset if below is None else below)

    def check(self) -> None:
        """Check that the records read are among the written ones, in order, with the right last value of every key."""
        start = self.log.log_start_offset
        seen = {at: each for at, each in read_from(self.log, start).items() if at >= start}
        assert list(seen) == sorted(seen)
        assert all(self.written[offset] == found for offset, found in seen.items())
        assert last_of(seen, self.log.log_end_offset) == self.last()
        for offset in range(start, self.log.log_end_offset):
            rest = read_from(self.log, offset)
            assert [at for at in rest if at >= offset] == [at for at in seen if at >= offset]


def world(config: LogConfig = CONFIG, seed: int = 0) -> World:
    disk = new_disk(seed)
    return World(open_log(disk, config), disk)


def last_of(records: dict[int, Written], end: int) -> dict[bytes | None, tuple[int, bytes]]:
    found = {key: (offset, value) for offset, (key, value) in records.items() if offset < end}
    return {key: (offset, value) for key, (offset, value) in found.items() if value is not None}


def raw_from(log: LocalLog, start: int) -> Iterable[bytes]:
    """As a consumer reads: from where the batch before ended."""
    at = Offset(start)
    while part := bytes(log.read(at, 300, log.log_end_offset, at_least_one=True)):
        for position, header in iterate_headers(part):
            yield part[position : position + header.size]
            assert header.next_offset > at
            at = Offset(header.next_offset)


def read_from(log: LocalLog, start: int) -> dict[int, Written]:
    found: dict[int, Written] = {}
    for raw in raw_from(log, start):
        check_batch(raw, compacted=True)
        found.update({record.offset: (record.key, record.value) for record in decode_records(raw)})
    return found


@given(st.lists(batches, min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 100), st.sampled_from(Compression))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_read_last_of_every_key_is_as_before(
    written: list[list[Written]], every: int, keys_max: int, codec: Compression
) -> None:
    here = world()
    for at, records in enumerate(written):
        here.append(records, compression=codec)
        if at % every == 0:
            here.close_segment()
        if at % (every + 2) == 0:
            here.clean(keys_max=keys_max)
            here.check()
            here.now_ms += 600
    here.close_segment()
    while here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end):
        here.clean(keys_max=keys_max)
        here.check()
    seen = read_from(here.log, 0)
    assert len([key for key, value in seen.values() if value is not None]) == len(here.last()), "nothing else is left"
    here.log.close()
    here.log = open_log(here.disk, CONFIG)
    here.check()


class Lives:
    """A log through power cuts. `promised`: below it all is durable; `promised_start`: below it all is deleted."""

    def __init__(self, seed: int) -> None:
        self.here = world(seed=seed)
        self.promised = self.promised_start = 0

    def flush(self) -> None:
        flush(self.here.log)
        self.promised, self.promised_start = self.here.log.flushed_end, self.here.log.log_start_offset

    def delete_some(self, quarters: int) -> None:
        self.here.delete_before(self.here.log.flushed_end * quarters // 4)

    def step(self, what: str, records: list[Written]) -> None:
        here = self.here
        match what:
            case "append":
                here.append(records)
            case "flush":
                self.flush()
            case "roll":
                here.log.roll()
                self.flush()
            case "delete":
                self.delete_some(len(records))
                here.check()
            case "retention":
                here.log.apply_retention(here.now_ms, here.log.flushed_end)
            case "delete meanwhile":
                quarters = iter(range(1, len(records) + 1))

                def meanwhile() -> None:
                    self.delete_some(next(quarters, 0))
                    self.flush()
                    here.check()

                here.clean(meanwhile=meanwhile)
                here.check()
            case "clean":
                here.clean(keys_max=3 if len(records) == 1 else 100)
                here.check()
            case "half":
                here.clean(only=1)
                here.check()
            case _:
                here.now_ms += 600

    def crash(self, again_in: int) -> None:
        here = self.here
        for cut_in in (again_in, again_in + 3, -1):
            here.disk.power_cut()
            here.disk.cut_in = cut_in
            try:
                here.log = open_log(here.disk, CONFIG)
            except PowerCut:
                continue
            break
        here.disk.cut_in = -1
        assert here.log.log_end_offset >= self.promised
        assert here.log.log_start_offset >= self.promised_start
        here.written = {at: each for at, each in here.written.items() if at < here.log.log_end_offset}
        here.check()
        assert not [name for name in self.names() if name.endswith((".cleaned", ".swap"))]
        for segment in here.log.contents.segments:
            headers = [header for _, header in iterate_headers(bytes(here.disk.file(segment.path).data))]
            assert all(segment.base <= each.base_offset <= each.last_offset < segment.end for each in headers)
        self.promised, self.promised_start = here.log.log_end_offset, here.log.log_start_offset

    def names(self) -> list[str]:
        return self.here.disk.list_directory(DIRECTORY) if self.here.disk.is_directory(DIRECTORY) else []


STEPS = ["append", "append", "append", "append", "roll", "roll", "roll", "clean", "clean", "half", "flush", "later"]
STEPS += ["delete", "delete meanwhile", "retention"]
plans = st.lists(st.tuples(st.sampled_from(STEPS), batches), min_size=4, max_size=30)


@given(st.lists(st.tuples(plans, st.integers(1, 150), st.integers(1, 12)), min_size=1, max_size=3), st.integers(0, 999))
@settings(max_examples=examples(80), deadline=None, report_multiple_bugs=False)
def test_it_holds_whenever_the_power_goes(
    lives: list[tuple[list[tuple[str, list[Written]]], int, int]], seed: int
) -> None:
    life = Lives(seed)
    for plan, cut_in, again_in in lives:
        life.here.disk.cut_in = cut_in
        try:
            for what, records in plan:
                life.step(what, records)
        except PowerCut:
            pass
        life.crash(again_in)


@pytest.mark.parametrize("deletes", [pytest.param(0, marks=long_only), 5, pytest.param(12, marks=long_only)])
def test_every_operation_of_a_cleaning_may_be_the_last(deletes: int) -> None:
    """A cleaning is cut at each of its disk operations in turn, with several fates of unsynced data; also where records
    are deleted meanwhile."""

    def filled(seed: int) -> Lives:
        life = Lives(seed)
        for number in range(12):
            life.here.append([(b"%d" % (number % 3), b"v%d" % number)])
            life.step("roll", [])
        return life

    def clean(life: Lives) -> None:
        def delete() -> None:
            life.here.delete_before(deletes)
            life.flush()

        life.here.clean(meanwhile=delete if deletes else lambda: None)

    whole = filled(0)
    before = whole.here.disk.operations
    clean(whole)
    operations = whole.here.disk.operations - before
    for cut_in in range(1, operations + 1):
        for seed in range(6):
            life = filled(seed)
            life.here.disk.cut_in = cut_in
            with pytest.raises(PowerCut):
                clean(life)
            life.crash(1 + seed)


def test_tombstones_stay_for_their_time_and_then_go() -> None:
    here = world()
    here.append([(b"a", b"1"), (b"b", b"2")])
    here.append([(b"a", None)])
    here.close_segment()
    here.clean()
    assert read_from(here.log, 0) == {1: (b"b", b"2"), 2: (b"a", None)}
    (*_, header) = here.headers()
    assert header.base_timestamp == here.now_ms + 1000, "the horizon of KIP-534"
    for passed, left in ((999, {1, 2, 3}), (2, {1, 3, 4})):
        here.now_ms += passed
        here.append([(b"c", b"3")])
        here.close_segment()
        here.clean()
        assert read_from(here.log, 0).keys() - {3} == left - {3}
    here.check()


def test_a_tombstone_stays_behind_what_cannot_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key may have a value there."""
    here = world()
    monkeypatch.setattr("headrace.wire.batches.UNPACKED_RECORDS_MAX", 2)
    here.append([(b"b", b"1")])
    here.append([(b"b", None)])
    here.append([(b"a", b"1"), (b"c", b"2"), (b"d", b"3")])
    here.append([(b"a", None)])
    here.close_segment()
    for _ in range(3):
        here.clean()
        here.now_ms += 2000
        here.append([(b"e", b"3")])
        here.close_segment()
    assert (b"b", None) not in read_from(here.log, 0).values()
    here.check()


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(batches, st.booleans()), min_size=1, max_size=12), st.integers(0, 4))
@example([([(b"a", b"1")], False), ([(b"a", None)], True), ([(b"b", None)], True)], 1)
def test_history_and_the_log_behind_it_say_the_same_together(
    steps: list[tuple[list[Written], bool]], exported: int
) -> None:
    """Where history has all below some offset, and tombstones from there on stay."""
    here, seam = world(), LAST_OFFSET
    for number, (records, cleans) in enumerate(steps):
        if number == exported:
            seam = here.log.log_end_offset
        here.append(records)
        if cleans:
            here.close_segment()
            here.now_ms += 2000
            here.clean(tombstones_from=seam if seam < LAST_OFFSET else here.log.log_end_offset)
    seam = min(seam, here.log.log_end_offset)
    history = {at: each for at, each in here.written.items() if at < seam}
    behind = {at: each for at, each in read_from(here.log, seam).items() if at >= seam}
    assert last_of({**history, **behind}, here.log.log_end_offset) == last_of(here.written, here.log.log_end_offset)


def test_log_append_time_outlives_a_cleaning() -> None:
    config = replace(CONFIG, log_append_time=True)
    here = world(config)
    for records in ([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"c", None), (b"d", b"1")], [(b"d", b"2")]):
        here.append(records)
        here.close_segment()
        here.now_ms += 10
    times = {1: NOW_MS, 2: NOW_MS + 10, 3: NOW_MS + 10, 5: NOW_MS + 20}
    here.clean()
    for _ in range(2):
        here.check()
        assert all(header.is_log_append_time for header in here.headers())
        found = {each.offset: each.timestamp for raw in raw_from(here.log, 0) for each in decode_records(raw)}
        assert found == times
        looked_up = here.log.offset_for_timestamp(NOW_MS + 1)
        assert looked_up is not None
        assert (looked_up.offset, looked_up.timestamp) == (2, NOW_MS + 10)
        here.log.close()
        here.log = open_log(here.disk, config)


def test_records_of_committed_transactions_replace_others_and_are_replaced() -> None:
    here = world()
    here.append([(b"a", b"old")])
    here.append([(b"a", b"new")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    here.append([(b"\0\0\0\1", b"\0\0\0\0\0\0")], producer_id=1, producer_epoch=0, transactional=True, control=True)
    here.append([(b"b", b"old")], producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    here.append([(b"\0\0\0\1", b"\0\0\0\0\0\0")], producer_id=1, producer_epoch=0, transactional=True, control=True)
    here.append([(b"b", b"new")])
    here.close_segment()
    here.clean()
    assert list(read_from(here.log, 0)) == [1, 2, 4, 5]


@pytest.mark.parametrize("codec", Compression)
def test_a_producer_s_last_batches_stay_without_their_records(codec: Compression) -> None:
    here = world()
    for number in range(4):
        here.append([(b"a", b"%d" % number)], compression=codec, producer_id=7, producer_epoch=0, base_sequence=number)
    here.append([(b"a", b"last")])
    here.close_segment()
    here.clean(remembered=frozenset({2, 3}))
    assert [(each.base_offset, each.count, each.last_sequence) for each in here.headers()] == [
        (2, 0, 2),
        (3, 0, 3),
        (4, 1, -1),
    ]
    emptied = here.headers()[:2]
    assert [(each.size, each.attributes, each.base_timestamp) for each in emptied] == [(HEADER_BYTES, 0, -1)] * 2, (
        "as Kafka leaves them: where there is nothing to unpack, a codec stops its readers"
    )
    assert [each.max_timestamp for each in emptied] == [here.now_ms] * 2
    assert [each.base_offset for each, _ in here.log.batches_from(Offset(0))] == [2, 3, 4]
    assert here.log.max_timestamp() is not None
    here.append([(b"b", b"")])
    here.close_segment()
    here.clean(remembered=frozenset({3}))
    assert [each.base_offset for each in here.headers()] == [3, 4, 5]


def test_the_last_batch_of_a_log_stays_without_its_records_so_that_its_end_is_reached() -> None:
    """Only a tombstone whose producer set its horizon itself can go in the round that first sees it."""
    here = world()
    here.append([(b"a", b"1")])
    here.append([(b"a", None)])
    here.close_segment()
    *_, raw = raw_from(here.log, 0)
    (header,), records = [check_batch(raw)], decode_records(raw)
    here.log.copying.truncate_to(Offset(1))
    expired = with_records(header, records, 0)
    here.log.append(expired, check_batches(expired), leader_epoch=LeaderEpoch(0), now_ms=here.now_ms)
    here.close_segment()
    here.clean()
    for _ in range(2):
        assert read_from(here.log, 0) == {}
        assert [(each.next_offset, each.count) for each in here.headers()] == [(2, 0)]
        here.log.close()
        here.disk.remove(DIRECTORY / CHECKPOINT)
        here.log = open_log(here.disk, CONFIG)
        assert here.log.log_end_offset == 2, "no offset is given twice"
    here.append([(b"c", b"")])
    assert list(read_from(here.log, 0)) == [2]
    here.close_segment()
    here.append([(b"d", b"")])
    here.clean()
    assert [each.next_offset for each in here.headers()] == [3, 4], "it is the last no more"


def test_a_round_cut_short_is_noted_before_it_leaves_a_gap() -> None:
    here = world()
    for number in range(12):
        here.append([(b"%d" % (number % 2), b"v" * 200)])
        here.close_segment()
    here.clean(only=3)
    here.disk.remove(DIRECTORY / CHECKPOINT)
    here.log = open_log(here.disk, CONFIG)
    assert here.log.log_end_offset == 12
    here.check()


def test_what_the_keys_do_not_reach_is_left_alone() -> None:
    here = world()
    here.append([(b"a", b"1"), (b"b", b"1")])
    here.append([(b"c", None)])
    here.close_segment()
    assert here.clean(keys_max=2).clean_to == 2
    assert here.headers()[-1].base_timestamp < here.now_ms + 100, "no horizon yet"


def test_small_neighbours_become_one_segment_and_look_ups_by_time_find_what_is_left() -> None:
    here = world()
    for number in range(20):
        here.append([(b"%d" % (number % 2), b"v" * 20)])
        here.close_segment()
        here.now_ms += 100
    files = len(here.log.closed_segments())
    here.clean()
    here.clean()
    assert len(here.log.closed_segments()) < files / 3
    found = here.log.offset_for_timestamp(NOW_MS + 5)
    assert found is not None
    assert found.offset == 18
    newest = here.log.max_timestamp()
    assert newest is not None
    assert newest.offset == 19


def test_what_is_due() -> None:
    here = world(replace(CONFIG, min_cleanable_dirty_ratio=0.6))
    log = here.log

    def dirtiness(**config: object) -> float:
        log.reconfigure(replace(CONFIG, **config))  # type: ignore[arg-type]
        return log.cleaning.dirtiness(here.now_ms, log.flushed_end)

    here.append([(b"a", b"1")])
    flush(log)
    assert dirtiness() == 0, "never the active segment"
    here.close_segment()
    assert log.cleaning.dirtiness(here.now_ms, Offset(0)) == 0, "only below the high watermark"
    assert dirtiness() == 1
    assert dirtiness(compact=False) == 0
    assert dirtiness(min_compaction_lag_ms=50) == 0
    here.now_ms += 51
    assert dirtiness(min_compaction_lag_ms=50) == 1
    log.reconfigure(CONFIG)
    here.clean()
    assert dirtiness() == 0
    here.append([(b"b", b"2")])
    here.close_segment()
    assert dirtiness() == pytest.approx(0.5, abs=0.1)
    assert dirtiness(min_cleanable_dirty_ratio=0.6) == 0
    here.now_ms += 100
    assert dirtiness(min_cleanable_dirty_ratio=0.6, max_compaction_lag_ms=99) > 0


def test_an_empty_segment_does_not_say_how_long_a_log_waits() -> None:
    """A follower that skips offsets closes a segment without bytes."""
    here = world(replace(CONFIG, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=99))
    here.log.copying.skip_to(Offset(5), now_ms=here.now_ms)
    here.append([(b"a", b"1")])
    here.close_segment()
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 0
    here.now_ms += 100
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 1


def test_the_keys_of_one_cleaning_are_bounded() -> None:
    here = world()
    for number in range(9):
        here.append([(b"%d" % number, b"v")])
    here.close_segment()
    ends = []
    while here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end):
        ends.append(here.clean(keys_max=4).clean_to)
    assert ends == [4, 8, 9]


def test_what_is_deleted_before_or_during_a_cleaning_stays_so() -> None:
    here = world()
    for number in range(6):
        here.append([(b"%d" % (number % 2), b"v%d" % number), (b"only %d" % number, b"v")])
        here.log.roll()
        if number == 3:
            here.delete_before(3)  # nothing is synced yet, so that no file can go
            flush(here.log)
    flush(here.log)
    here.clean(meanwhile=lambda: here.delete_before(5))
    here.check()
    bases = [segment.base for segment in here.log.contents.segments]
    assert bases[:2] == [0, 2], "what lay below the start was not made part of another"
    assert here.log.log_start_offset == 5
    here.log.apply_retention(here.now_ms, here.log.flushed_end)
    assert here.log.contents.segments[0].base == 2
    here.check()
    flush(here.log)
    here.log.close()
    here.log = open_log(here.disk, CONFIG)
    assert here.log.log_start_offset == 5
    here.check()
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 0.0


def test_retention_waits_for_a_cleaning() -> None:
    here = world()
    for _ in range(3):
        here.append([(b"a", b"v")])
        here.close_segment()
    here.append([(b"a", b"v")])
    cleaning = here.log.cleaning.begin_cleaning(here.now_ms, here.log.flushed_end, frozenset(), "t")
    assert cleaning is not None
    here.log.reconfigure(replace(CONFIG, retention_bytes=0))
    assert dropped(here.log, here.now_ms, here.log.flushed_end) == []
    cleaning.end()
    assert len(dropped(here.log, here.now_ms, here.log.flushed_end)) == 3


def test_damage_and_a_stop_leave_the_log_as_it_was() -> None:
    here = world()
    here.append([(b"a", b"1")])
    here.append([(b"a", b"2")])
    here.close_segment()
    cleaning = here.log.cleaning.begin_cleaning(here.now_ms, here.log.flushed_end, frozenset(), "t")
    assert cleaning is not None
    with pytest.raises(Stopped):
        clean(here.disk, cleaning.work.job, stopping=lambda: True)
    here.disk.file(DIRECTORY / f"{0:020d}.log").data[65] ^= 1
    with pytest.raises(CorruptData):
        clean(here.disk, cleaning.work.job)
    cleaning.work.discard()
    cleaning.end()
    assert here.log.closed_segments()[0].size == here.log.size_bytes
    assert here.log.gaps_below == 0


def test_without_its_checkpoint_a_compacted_log_is_read_again_whole() -> None:
    here = world()
    for number in range(6):
        here.append([(b"%d" % (number % 2), b"v")])
        here.close_segment()
    here.clean()
    here.append([(b"z", b"v")])
    here.log.close()
    here.disk.remove(DIRECTORY / CHECKPOINT)
    here.log = open_log(here.disk, CONFIG)
    here.check()
    assert here.log.log_end_offset == 7
    here.log.close()
    for name, kept in ((CHECKPOINT, 0), (COMPACTION, 3)):
        here.disk.file(DIRECTORY / name).data[kept:] = b""
    assert "Nor is there a checkpoint" in (open_log(here.disk, CONFIG).read_only or "")


def test_a_cut_below_what_is_clean() -> None:
    here = world()
    for number in range(6):
        here.append([(b"%d" % (number % 2), b"v")])
        here.close_segment()
    here.clean()
    here.log.copying.truncate_to(Offset(5))
    assert here.log.log_end_offset == 5
    here.written = {at: each for at, each in here.written.items() if at < 5}
    here.append([(b"9", b"v")])
    here.close_segment()
    here.log.close()
    here.log = open_log(here.disk, CONFIG)
    assert list(read_from(here.log, 0)) == [4, 5]


def test_clients_may_not_send_what_only_compaction_writes() -> None:
    raw = encode_batch([Record(0, 1, b"a", b""), Record(2, 1, b"b", b"")])
    assert check_batch(raw, compacted=True).count == 2
    with pytest.raises(CorruptData):
        check_batch(raw)
