"""Old or excess data goes, whole segments at a time, and never comes back; records can be deleted and cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.engine.identity import LogConfig
from tests.storage.log.log_world import NOW_MS, SMALL, Twin, batch, dropped, flush, new_disk, open_log, read_all
from tests.storage.log.memory_disk import MemoryDisk
from tests.tiers import examples


def segmented(count: int = 8) -> tuple[MemoryDisk, Twin]:
    """One batch of 2 records in each segment, of time 1000, 2000, ..."""
    disk = new_disk()
    twin = Twin(open_log(disk))
    for number in range(count):
        twin.append(batch(2, times=(1000 * number + 500, 1000 * number + 1000)))
        twin.log.roll()
    flush(twin.log)
    return disk, twin


def test_segments_go_when_all_their_records_are_too_old() -> None:
    disk, twin = segmented()
    twin.log.reconfigure(replace(SMALL, retention_ms=3000))
    assert dropped(twin.log, 4000, Offset(100)) == []  # 1000 is not yet past it
    gone = dropped(twin.log, 6500, Offset(100))
    assert [(info.base_offset, info.next_offset, info.max_timestamp) for info in gone] == [
        (0, 2, 1000), (2, 4, 2000), (4, 6, 3000),
    ]  # fmt: skip
    assert twin.log.log_start_offset == 6
    assert disk.exists(gone[0].path)
    flush(twin.log)
    assert not disk.exists(gone[0].path)
    assert not disk.exists(gone[0].path.with_suffix(".index"))
    disk.power_cut()
    again = open_log(disk)
    assert again.log_start_offset == 6
    assert read_all(again) == twin.bytes_from(6)


def test_segments_go_when_the_log_holds_enough_without_them() -> None:
    _, twin = segmented()
    size = twin.log.size_bytes // 8
    twin.log.reconfigure(replace(SMALL, retention_bytes=3 * size))
    assert len(dropped(twin.log, NOW_MS, Offset(100))) == 5
    assert twin.log.size_bytes == 3 * size
    assert dropped(twin.log, NOW_MS, Offset(100)) == []


@given(st.integers(0, 17))
def test_nothing_goes_that_reaches_above_what_may(up_to: int) -> None:
    _, twin = segmented()
    twin.log.reconfigure(replace(SMALL, retention_ms=0, retention_bytes=0))
    gone = dropped(twin.log, NOW_MS, Offset(up_to))
    assert len(gone) == up_to // 2 if up_to < 16 else len(gone) == 8
    assert twin.log.log_start_offset <= up_to


def test_an_active_segment_that_is_all_too_old_is_closed_and_goes_next() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig(retention_ms=1000)))
    twin.append(batch(times=(5,)))
    flush(twin.log)
    assert dropped(twin.log, NOW_MS, Offset(1)) == []
    flush(twin.log)
    assert len(dropped(twin.log, NOW_MS, Offset(1))) == 1
    flush(twin.log)
    disk.power_cut()
    again = Twin(open_log(disk))
    assert (again.log.log_start_offset, again.log.log_end_offset) == (1, 1)
    again.append(batch(2))
    assert again.stored[0].base_offset == 1
    flush(again.log)
    assert read_all(again.log) == again.bytes_from(0)


def test_records_without_times_are_as_old_as_their_file() -> None:
    """As in Kafka (`LogSegment.largestTimestamp`). The disk says that all files were changed last at 0."""
    twin = Twin(open_log(new_disk(), LogConfig(retention_ms=NOW_MS)))
    twin.append(batch(times=(-1,)))
    twin.log.roll()
    flush(twin.log)
    assert dropped(twin.log, NOW_MS, Offset(1)) == []
    assert [info.base_offset for info in dropped(twin.log, NOW_MS + 1, Offset(1))] == [0]


def test_a_segment_is_closed_when_its_records_would_span_too_much_time() -> None:
    twin = Twin(open_log(new_disk(), LogConfig(segment_ms=100)))
    for time in (1000, 1050, 1100, 1101, 1150, 1202):
        twin.append(batch(times=(time,)))
    flush(twin.log)
    assert [info.base_offset for info in twin.log.closed_segments()] == [0, 3]


def test_a_segment_without_times_is_closed_by_the_wall_clock() -> None:
    twin = Twin(open_log(new_disk(), LogConfig(segment_ms=100)))
    for now in (1000, 1100, 1101):
        twin.append(batch(times=(-1,)), now_ms=now)
    flush(twin.log)
    assert [info.base_offset for info in twin.log.closed_segments()] == [0]


@given(st.integers(0, 30), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_deleted_records_stay_deleted(offset: int, clean: bool) -> None:
    disk, twin = segmented()
    start = twin.log.delete_records_before(Offset(offset))
    assert start == twin.log.log_start_offset == (offset if offset <= 16 else 0)
    flush(twin.log)
    if clean:
        twin.log.close()
    else:
        disk.power_cut()
    again = open_log(disk)
    assert again.log_start_offset == start
    assert read_all(again) == twin.bytes_from(start)


@given(st.integers(0, 17))
@settings(max_examples=examples(40), deadline=None)
def test_a_cut_log_ends_at_or_below_the_cut_and_goes_on_there(offset: int) -> None:
    disk, twin = segmented()
    twin.append(batch(2))
    twin.log.copying.truncate_to(Offset(offset))
    end = min(offset - offset % 2, 18)
    assert twin.log.log_end_offset == end
    twin.stored = [stored for stored in twin.stored if stored.last_offset < end]
    twin.epoch = 1
    twin.append(batch(3))
    flush(twin.log)
    disk.power_cut()
    again = open_log(disk)
    assert read_all(again) == twin.bytes_from(0)
    assert again.epoch_at(Offset(end)) == 1


@given(st.integers(0, 11))
@settings(max_examples=examples(30), deadline=None)
def test_a_log_that_is_cut_below_its_start_begins_anew_there(offset: int) -> None:
    """Also at the base of a segment that retention has dropped, but not yet removed."""
    disk, twin = segmented()
    twin.log.delete_records_before(Offset(11))
    twin.log.copying.truncate_to(Offset(offset))
    assert (twin.log.log_start_offset, twin.log.log_end_offset) == (offset, offset)
    again = Twin(twin.log, epoch=1)
    again.append(batch(3))
    flush(again.log)
    disk.power_cut()
    log = open_log(disk)
    assert log.log_start_offset == offset
    assert read_all(log) == again.stored[0].bytes


def test_only_the_two_newest_producer_snapshots_are_kept_and_none_above_a_cut() -> None:
    disk, twin = segmented()
    for number in range(4):
        twin.append(batch())
        twin.log.write_producer_snapshot(b"%d" % number, twin.log.log_end_offset)
        flush(twin.log)
    names = [name for name in disk.list_directory(twin.log.directory) if name.endswith(".snapshot")]
    assert names == [f"{19:020d}.snapshot", f"{20:020d}.snapshot"]
    assert open_log(disk).latest_producer_snapshot() == (20, b"3")
    twin.log.copying.truncate_to(Offset(19))
    assert twin.log.latest_producer_snapshot() == (19, b"2")
    assert open_log(disk).latest_producer_snapshot() == (19, b"2")


def test_no_snapshot_of_an_empty_log_is_kept() -> None:
    log = open_log(new_disk())
    log.write_producer_snapshot(b"", Offset(0))
    assert log.latest_producer_snapshot() is None
    assert not log.needs_flush


@pytest.mark.parametrize("epoch", range(-1, 9))
def test_the_end_of_an_epoch_is_kafkas_answer(epoch: int) -> None:
    twin = Twin(open_log(new_disk()))
    for twin.epoch in (2, 2, 4, 6):
        twin.append(batch(2))
    twin.log.assign_epoch(LeaderEpoch(7))
    known = {0: (0, 0), 1: (1, 0), 2: (2, 4), 3: (2, 4), 4: (4, 6), 5: (4, 6), 6: (6, 8), 7: (7, 8)}
    assert twin.log.end_offset_for_epoch(LeaderEpoch(epoch)) == known.get(epoch, (-1, -1))


def test_an_epoch_is_known_before_its_first_append_and_gives_way_if_it_has_none() -> None:
    twin = Twin(open_log(new_disk()))
    twin.append(batch())
    for epoch in (3, 5):
        twin.log.assign_epoch(LeaderEpoch(epoch))
    assert twin.log.epochs == ((0, 0), (5, 1))
    assert (twin.log.epoch_at(Offset(0)), twin.log.epoch_at(Offset(1))) == (0, 5)
