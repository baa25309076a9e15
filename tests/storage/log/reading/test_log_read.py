"""Appended batches are read back verbatim, apart from base offset and leader epoch; reads equal those of a slow
twin."""

from __future__ import annotations

import tracemalloc
from functools import cache
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.segment import Segment
from headrace.wire.batches import (
    CRC_START,
    HEADER,
    BatchHeader,
    Record,
    check_batches,
    decode_records,
    encode_batch,
    parse_header,
)
from headrace.wire.compression import Compression, compress
from tests.storage.log.log_world import (
    DIRECTORY,
    IDENTITY,
    NOW_MS,
    SMALL,
    Stored,
    Twin,
    batch,
    flush,
    new_disk,
    open_log,
)
from tests.tiers import examples

sizes = st.integers(0, 250)
appends = st.lists(st.lists(st.tuples(st.integers(1, 4), sizes), min_size=1, max_size=3), min_size=1, max_size=14)


def filled(plan: list[list[tuple[int, int]]]) -> Twin:
    twin = Twin(open_log(new_disk()))
    for number, batches in enumerate(plan):
        twin.epoch += number % 3 == 2
        twin.append(*(batch(count, size=size, seed=number) for count, size in batches))
        if number % 4 == 3:
            flush(twin.log)
    return twin


def slow_read(twin: Twin, start: int, max_bytes: int, end: int, at_least_one: bool) -> bytes:
    """Batch by batch, from the list; ends where a segment ends."""
    bases = [segment.base for segment in twin.log.contents.segments]
    found: list[Stored] = []
    for stored in twin.stored:
        if stored.last_offset < start:
            continue
        room = sum(len(each.bytes) for each in found) + len(stored.bytes) <= max_bytes
        next_segment = bool(found) and stored.base_offset in bases
        if stored.last_offset >= end or next_segment or not (room or (at_least_one and not found)):
            break
        found.append(stored)
    return b"".join(each.bytes for each in found)


@given(appends)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_appended_is_read_back_verbatim(plan: list[list[tuple[int, int]]]) -> None:
    twin = filled(plan)
    assert twin.read_all() == twin.bytes_from(0)
    assert twin.log.size_bytes == len(twin.bytes_from(0))
    for stored in twin.stored:
        header = parse_header(stored.bytes)
        assert (header.base_offset, header.leader_epoch) == (stored.base_offset, stored.epoch)
        assert check_batches(stored.bytes)


@given(appends, st.data())
@settings(max_examples=examples(60), deadline=None)
def test_every_read_equals_the_slow_twins(plan: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    twin = filled(plan)
    for start in range(twin.end):
        max_bytes = data.draw(st.integers(0, 900))
        end = data.draw(st.integers(0, twin.end + 1))
        at_least_one = data.draw(st.booleans())
        for _ in range(2):  # the second time from a remembered position, where there is one
            got = twin.log.read(Offset(start), max_bytes, Offset(end), at_least_one=at_least_one)
            assert bytes(got) == slow_read(twin, start, max_bytes, end, at_least_one)


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_reads_of_many_small_batches_equal_the_slow_twins(data: st.DataObject) -> None:
    """So many that the index is asked where to cut."""
    twin = many_small()
    for _ in range(10):
        start = data.draw(st.integers(0, twin.end - 1))
        max_bytes = data.draw(st.integers(0, 40_000))
        end = data.draw(st.integers(start, twin.end))
        got = twin.log.read(Offset(start), max_bytes, Offset(end), at_least_one=True)
        assert bytes(got) == slow_read(twin, start, max_bytes, end, at_least_one=True)


def test_where_a_read_stopped_is_where_the_next_goes_on() -> None:
    """A position remembered under the wrong offset would make a reader skip records, whatever ended the read."""
    twin = many_small()
    contents = twin.log.contents
    for max_bytes in range(6_000, 8_000, 13):
        contents._positions.clear()
        twin.log.read(Offset(0), max_bytes, Offset(twin.end), at_least_one=True)
        for offset, found in contents._positions.items():
            assert found == contents.find(offset)


@cache
def many_small() -> Twin:
    """500 batches: closed segments, with their indexes in files, and an active one."""
    twin = Twin(open_log(new_disk(), LogConfig(segment_bytes=20_000, index_interval_bytes=500)))
    for number in range(500):
        twin.append(batch(1 + number % 3, size=number % 7, seed=number))
    flush(twin.log)
    return twin


@given(appends)
@settings(max_examples=examples(40), deadline=None)
def test_indexes_written_equal_indexes_rebuilt(plan: list[list[tuple[int, int]]]) -> None:
    twin = filled(plan)
    twin.log.roll()
    flush(twin.log)
    disk = twin.log.disk
    for info in twin.log.closed_segments():
        rebuilt = Segment(DIRECTORY, info.base_offset)
        for stored in twin.stored:
            if info.base_offset <= stored.base_offset < info.next_offset:
                header = parse_header(stored.bytes)
                rebuilt.add(header.last_offset, header.size, header.max_timestamp, SMALL.index_interval_bytes)
        rebuilt.close_indexes()
        for suffix, expected in ((".index", rebuilt.index), (".timeindex", rebuilt.times)):
            path = info.path.with_suffix(suffix)
            file = disk.open(path)
            written = file.read(0, file.size())
            file.close()
            disk.remove(path)
            assert expected is not None
            assert written == bytes(expected)
    twin.log.close()
    again = open_log(disk)  # the index files are gone: it rebuilds them
    for info in again.closed_segments():
        assert disk.exists(info.path.with_suffix(".index"))
    assert Twin(again).read_all() == twin.bytes_from(0)


def test_index_entries_lie_where_kafkas_do() -> None:
    """An entry for the first batch after each interval: its last offset and position (LogSegment.append)."""
    segment = Segment(DIRECTORY, 100)
    for number in range(6):
        segment.add(100 + 2 * number + 1, 100, (5, 3, 9, 9, 4, 7)[number], 150)
    assert segment.index is not None
    assert segment.times is not None
    numbers = [int.from_bytes(segment.index[at : at + 4], "big") for at in range(0, len(segment.index), 4)]
    assert numbers == [5, 200, 9, 400]
    assert segment.times == (9).to_bytes(8, "big") + (5).to_bytes(4, "big")


def test_a_reader_that_goes_on_costs_one_read_each_time() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    for number in range(50):
        twin.append(batch(2, size=500, seed=number))
    at, before = Offset(0), disk.reads
    twin.log.read(at, 1500, Offset(100), at_least_one=True)
    warm = disk.reads
    assert warm - before <= 2
    parts = 0
    at = Offset(2)
    while part := twin.log.read(at, 3000, Offset(100), at_least_one=True):
        at = Offset(check_batches(part)[-1][1].next_offset)
        parts += 1
    assert disk.reads - warm == parts


def test_an_append_is_one_write_and_changes_nothing_of_its_input() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    twin.append(batch())
    sent = bytearray(batch(3) + batch(2))
    before, appends_before = bytes(sent), disk.appends
    twin.log.append(sent, check_batches(sent), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
    assert disk.appends - appends_before == 1
    assert sent == before


def test_a_read_past_a_damaged_length_is_corrupt_data_and_the_log_is_not_cut() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    for number in range(4):
        twin.append(batch(2, seed=number))
    flush(twin.log)
    at = len(twin.stored[0].bytes) + 8
    disk.file(DIRECTORY / f"{0:020d}.log").data[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptData):
        twin.log.read(Offset(2), 10_000, Offset(8), at_least_one=True)
    assert bytes(twin.log.read(Offset(0), 100, Offset(8), at_least_one=True)) == twin.stored[0].bytes
    assert twin.log.log_end_offset == 8


def test_log_append_time_is_stamped_and_the_crc_holds() -> None:
    twin = Twin(open_log(new_disk(), LogConfig(log_append_time=True)))
    sent = batch(3, times=(5, 6, 7))
    appended = twin.log.append(sent, check_batches(sent), leader_epoch=LeaderEpoch(4), now_ms=NOW_MS)
    assert appended.log_append_time_ms == NOW_MS
    (_, header), *_ = check_batches(twin.log.read(Offset(0), 1000, Offset(3), at_least_one=True))
    assert header.is_log_append_time
    records = decode_records(twin.log.read(Offset(0), 1000, Offset(3), at_least_one=True))
    assert [record.timestamp for record in records] == [NOW_MS] * 3
    found = twin.log.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert (found.offset, found.timestamp, found.leader_epoch) == (0, NOW_MS, 4)


def test_a_follower_appends_verbatim_and_refuses_what_does_not_go_on() -> None:
    leader = Twin(open_log(new_disk()), epoch=5)
    leader.append(batch(2), batch(3))
    follower = open_log(new_disk())
    copied = leader.read_all()
    follower.copying.append_verbatim(copied, check_batches(copied), now_ms=NOW_MS)
    assert Twin(follower).read_all() == copied
    assert list(follower.epochs) == [(5, 0)]
    with pytest.raises(CorruptData):
        follower.copying.append_verbatim(copied, check_batches(copied), now_ms=NOW_MS)
    assert follower.log_end_offset == 5


def test_few_files_are_open_however_many_segments_are_read(tmp_path: Path) -> None:
    engine = LocalLogEngine(LocalDisk(), tmp_path / "logs", open_files_max=3)
    engine.start()
    log = engine.open(IDENTITY, LogConfig(segment_bytes=200))
    twin = Twin(log)
    for number in range(12):
        twin.append(batch(2, size=150, seed=number))
        flush(log)
    assert twin.read_all() == twin.bytes_from(0)
    assert sum(segment.file is not None for segment in log.contents.segments) <= 3
    log.close()


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 4)), min_size=1, max_size=12
    ),
    st.integers(0, 20),
)
@settings(max_examples=examples(80), deadline=None)
def test_look_ups_by_time_equal_a_scan_of_all_records(plan: list[tuple[list[int], int]], start: int) -> None:
    twin = Twin(open_log(new_disk()))
    records: list[tuple[int, int]] = []
    for times, codec in plan:
        sent = encode_batch(
            [Record(at, time, None, b"." * 60) for at, time in enumerate(times)], compression=Compression(codec)
        )
        records += ((twin.log.log_end_offset + at, time) for at, time in enumerate(times))
        twin.append(sent)
    twin.log.delete_records_before(Offset(min(start, len(records) - 1)))
    flush(twin.log)
    seen = [(offset, time) for offset, time in records if offset >= twin.log.log_start_offset]
    for wanted in range(43):
        expected = next(((offset, time) for offset, time in seen if time >= wanted), None)
        found = twin.log.offset_for_timestamp(wanted)
        assert (None if found is None else (found.offset, found.timestamp)) == expected
    highest = max(time for _, time in seen)
    top = twin.log.max_timestamp()
    assert top is not None
    assert (top.offset, top.timestamp) == next((offset, time) for offset, time in seen if time == highest)


def test_files_that_were_all_in_use_are_few_again_afterwards() -> None:
    disk = new_disk()
    files = SegmentFiles(disk, 4)
    disk.make_directory(DIRECTORY)
    segments = [Segment(DIRECTORY, base) for base in range(10)]
    for segment in segments[:8]:
        files.create(segment)
        segment.pins += 1
    assert disk.open_files == 8
    for segment in segments:
        segment.pins = 0
    files.create(segments[8])
    assert disk.open_files == 4
    assert segments[8].file is not None


def bomb(count: int, *, tail: bytes = b"") -> bytes:
    """A few hundred bytes that unpack to so many records of nothing."""
    payload = compress(Compression.ZSTD, bytes([12, 0, 0, 0, 1, 1, 0]) * count + tail)
    plain = BatchHeader(0, 49 + len(payload), 0, 2, 0, int(Compression.ZSTD), count - 1, 5, 5, -1, -1, -1, count)
    crc = crc32c(payload, crc32c(HEADER.pack(*plain)[CRC_START:]))
    return HEADER.pack(*plain._replace(crc=crc)) + payload


@pytest.mark.parametrize("batch_", [bomb(2_000_000), bomb(9, tail=bytes(200_000_000)), bomb(9, tail=b"no record")])
def test_a_look_up_by_time_does_not_unpack_a_bomb_and_leads_to_where_it_begins(batch_: bytes) -> None:
    """Nor does it take for damage what a client wrote so."""
    twin = Twin(open_log(new_disk(), LogConfig()))
    twin.append(batch(2, times=(1, 2)))
    twin.append(batch_)
    twin.append(batch(1, times=(9,)))
    tracemalloc.start()
    found = [twin.log.offset_for_timestamp(time) for time in (1, 4, 5)]
    highest = twin.log.max_timestamp()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each and each.offset for each in found] == [0, 2, 2]
    assert highest is not None
    assert highest.offset == twin.end - 1
    assert peak < 64 * 1024 * 1024
