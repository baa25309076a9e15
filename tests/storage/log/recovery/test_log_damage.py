"""A damaged middle: every offset is read as it was written or refused as damaged, and never skipped.

The bytes are kept in any case, and sound data can still be read and written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset
from headrace.storage.engine.faults import Damage, DamagedRange
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import HEADER_BYTES, check_batches, iterate_headers, parse_header
from tests.storage.log.log_world import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    Stored,
    Twin,
    batch,
    flush,
    new_disk,
    open_log,
    read_all,
)
from tests.storage.log.memory_disk import MemoryDisk
from tests.tiers import examples

EPOCH_BYTES = range(12, 16)
"""Neither the CRC nor the place in the log tells of a wrong leader epoch."""


def closed(batches: int = 12, config: LogConfig = SMALL) -> tuple[MemoryDisk, Twin]:
    """A log of several segments after a clean stop, opened again."""
    disk = new_disk()
    twin = Twin(open_log(disk, config))
    for number in range(batches):
        twin.append(batch(1 + number % 3, size=60, seed=number))
    flush(twin.log)
    twin.log.close()
    twin.log = open_log(disk, config)
    return disk, twin


def flip(disk: MemoryDisk, path: Path, at: int, bit: int = 1) -> None:
    """On the medium itself."""
    node = disk.file(path)
    node.data[at] ^= bit
    node.durable[at] ^= bit


def examine(log: LocalLog) -> list[Damage]:
    """All of it, as the broker does; gives what was found."""
    for base in log.examining.segments:
        examination = log.examining.begin_examination(base)
        assert examination is not None
        examination.run()
        examination.end(done=True)
    return list(log.damages)


def read_one(log: LocalLog, offset: int) -> bytes:
    return bytes(log.read(Offset(offset), 1, log.log_end_offset, at_least_one=True))


def readable(log: LocalLog, stored: list[Stored]) -> list[int]:
    """The offsets that are given, each of them as it was written; all others are refused."""
    given = []
    for each in stored:
        for offset in range(max(each.base_offset, log.log_start_offset), each.last_offset + 1):
            try:
                found = read_one(log, offset)
            except DamagedRange:
                continue
            assert found == each.bytes, f"offset {offset} is not what was written"
            given.append(offset)
    return given


def offsets_of(stored: list[Stored]) -> list[int]:
    return [offset for each in stored for offset in range(each.base_offset, each.last_offset + 1)]


def position_of(twin: Twin, segment: int, number: int) -> int:
    """Of a batch in its segment's file."""
    before = [each for each in twin.stored[:number] if each.base_offset >= segment]
    return sum(len(each.bytes) for each in before)


def read_on(log: LocalLog, start: int, max_bytes: int = 400) -> list[int]:
    """The offsets that a consumer sees which reads on, up to the end or to an error."""
    seen: list[int] = []
    while start < log.log_end_offset:
        try:
            data = log.read(Offset(start), max_bytes, log.log_end_offset, at_least_one=True)
        except CorruptData:
            break
        assert data, "nobody waits for what is there"
        for _, header in iterate_headers(data):
            seen += range(header.base_offset, header.last_offset + 1)
            start = header.next_offset
    return seen


def test_any_flipped_byte_costs_its_own_batch_and_no_other() -> None:
    disk, twin = closed()
    for segment in twin.log.contents.segments[:-1]:
        numbers = [at for at, each in enumerate(twin.stored) if segment.base <= each.base_offset < segment.end]
        for number in numbers:
            at, stored = position_of(twin, segment.base, number), twin.stored[number]
            for within in set(range(len(stored.bytes))) - set(EPOCH_BYTES):
                copy = disk.copy()
                copy.file(segment.path).data[at + within] ^= 0x40
                log = open_log(copy)
                damages = examine(log)
                lost = set(offsets_of(twin.stored)) - set(readable(log, twin.stored))
                assert set(offsets_of([stored])) <= lost, f"byte {within} of batch {number}"
                if within not in range(8, 12):  # the length, which says where the next one is
                    assert lost == set(offsets_of([stored]))
                assert [(each.start, each.end) for each in damages] == [(min(lost), max(lost) + 1)]


def test_a_reader_is_stopped_by_a_damaged_header_and_never_led_past_it() -> None:
    """Before anybody has examined anything."""
    disk, twin = closed()
    for segment in twin.log.contents.segments[:-1]:
        numbers = [at for at, each in enumerate(twin.stored) if segment.base <= each.base_offset < segment.end]
        for number in numbers:
            at = position_of(twin, segment.base, number)
            for within in (*range(12), 16, *range(23, 27)):  # offset, length, magic, last offset delta
                for bit in (0x01, 0x40, 0x80):
                    copy = disk.copy()
                    copy.file(segment.path).data[at + within] ^= bit
                    log = open_log(copy)
                    for start in range(twin.end):
                        seen = read_on(log, start)
                        first = next(each.base_offset for each in twin.stored if each.last_offset >= start)
                        assert seen == list(range(first, first + len(seen))), f"byte {within}, from {start}"


@pytest.mark.parametrize("kept", range(0, 500, 7))
def test_a_closed_segment_that_is_cut_is_missed_at_its_end(kept: int) -> None:
    disk, twin = closed()
    segment = twin.log.contents.segments[1]
    del disk.file(segment.path).data[kept:]
    log = open_log(disk)
    for start in range(twin.end):
        seen = read_on(log, start)
        assert seen == list(range(seen[0], seen[0] + len(seen))) if seen else True
        assert not seen or seen[0] <= start
    (damage,) = examine(log)
    given = readable(log, twin.stored)
    assert damage.end == segment.end
    assert set(given) == set(range(twin.end)) - set(range(damage.start, damage.end))
    assert read_on(log, damage.end) == list(range(damage.end, twin.end))


def test_a_batch_that_is_gone_from_the_middle_is_missed() -> None:
    disk, twin = closed(config=LogConfig(index_interval_bytes=1 << 20))
    twin.append(batch(1, seed=99))
    twin.log.roll()
    flush(twin.log)
    (segment,) = twin.log.contents.segments
    for number in range(1, 12):
        copy, stored = disk.copy(), twin.stored[number]
        at = position_of(twin, 0, number)
        del copy.file(segment.path).data[at : at + len(stored.bytes)]
        log = open_log(copy, LogConfig())
        for start in range(twin.end):
            for max_bytes in (1, 200, 400, 4000):
                seen = read_on(log, start, max_bytes)
                assert not seen or (seen[0] <= start and seen == list(range(seen[0], seen[0] + len(seen))))
        examine(log)
        assert set(readable(log, twin.stored)) == set(range(twin.end)) - set(offsets_of([stored]))


def test_a_segment_that_is_gone_is_missed() -> None:
    for victim in (0, 1):
        disk, twin = closed()
        segment = twin.log.contents.segments[victim]
        disk.remove(segment.path)
        log = open_log(disk)
        assert (log.log_start_offset, log.log_end_offset, log.failed) == (0, twin.end, False)
        examine(log)
        assert set(readable(log, twin.stored)) == set(range(twin.end)) - set(range(segment.base, segment.end))
        with pytest.raises(DamagedRange):
            read_one(log, segment.base)


def test_what_follows_a_closed_segments_last_batch_is_passed_over() -> None:
    disk, twin = closed()
    segment = twin.log.contents.segments[0]
    disk.file(segment.path).data += b"\xff" * 100
    log = open_log(disk)
    assert examine(log) == []
    assert read_all(log) == twin.bytes_from(0)


def test_a_file_that_shrinks_under_a_reader_is_told() -> None:
    disk, twin = closed()
    log = twin.log
    assert read_one(log, 0)
    del disk.file(log.contents.segments[0].path).data[:]
    for offset in range(log.contents.segments[0].end):
        with pytest.raises(CorruptData):
            read_one(log, offset)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_made_anew_and_leads_nobody_astray(suffix: str) -> None:
    disk, twin = closed()
    path = twin.log.contents.segments[0].path.with_suffix(suffix)
    sound = bytes(disk.file(path).data)
    assert sound
    for at in range(len(sound)):
        for bit in (0x01, 0x80):
            copy = disk.copy()
            copy.file(path).data[at] ^= bit
            log = open_log(copy)
            for start in range(twin.end):
                seen = read_on(log, start)
                assert not seen or seen[0] <= start
            assert examine(log) == []
            assert copy.file(path).data == sound, f"byte {at}"
            assert read_all(log) == twin.bytes_from(0)
            for offset, stored in ((each.base_offset, each) for each in twin.stored):
                assert read_one(log, offset) == stored.bytes


def test_a_look_up_by_time_never_answers_from_or_behind_damage() -> None:
    disk, twin = closed()
    segment, number = twin.log.contents.segments[0], 1
    at = position_of(twin, segment.base, number)
    disk.file(segment.path).data[at + HEADER_BYTES + 3] ^= 1
    log = open_log(disk)
    with pytest.raises(CorruptData):  # the very batch: its CRC is checked
        log.offset_for_timestamp(number)
    examine(log)
    with pytest.raises(DamagedRange):
        log.offset_for_timestamp(number)
    behind = twin.stored[-1]
    found = log.offset_for_timestamp(behind.times[0] if behind.times else 11)
    assert found is not None
    assert found.offset > twin.stored[number].last_offset


def test_damage_is_known_after_a_restart_and_forgotten_once_the_bytes_are_back() -> None:
    disk, twin = closed()
    path = twin.log.contents.segments[0].path
    flip(disk, path, 100)
    found = examine(twin.log)
    assert found
    disk.power_cut()
    log = open_log(disk)
    assert list(log.damages) == found
    with pytest.raises(DamagedRange):
        read_one(log, found[0].start)
    flip(disk, path, 100)
    assert examine(log) == []
    assert list(open_log(disk).damages) == []
    assert read_all(log) == twin.bytes_from(0)


def test_neither_retention_nor_compaction_takes_damaged_bytes_away() -> None:
    disk, twin = closed()
    segment = twin.log.contents.segments[0]
    flip(disk, segment.path, 100)
    damaged = bytes(disk.file(segment.path).data)
    log = open_log(disk)
    examine(log)
    compacting = replace(SMALL, compact=True, min_cleanable_dirty_ratio=0.0)
    log.reconfigure(compacting)
    assert log.cleaning.dirtiness(NOW_MS, log.log_end_offset) == 0, "compaction stops before the damage"
    log.reconfigure(replace(SMALL, retention_bytes=0))
    log.apply_retention(NOW_MS, log.log_end_offset)
    flush(log)
    assert not disk.exists(segment.path)
    kept = segment.path.with_name(segment.path.name + ".damaged")
    assert disk.file(kept).data == damaged
    disk.power_cut()
    again = open_log(disk)
    assert again.log_start_offset == segment.end or again.log_start_offset > segment.end
    assert disk.file(kept).data == damaged


def test_damage_in_what_is_still_written_survives_a_kill_and_costs_nothing_behind_it() -> None:
    config = LogConfig()
    disk = new_disk()
    twin = Twin(open_log(disk, config))
    for number in range(6):
        twin.append(batch(2, size=60, seed=number))
    flush(twin.log)
    (segment,) = twin.log.contents.segments
    disk.file(segment.path).data[position_of(twin, 0, 2) + HEADER_BYTES + 5] ^= 1
    (damage,) = examine(twin.log)
    assert (damage.start, damage.end) == (4, 6)
    twin.append(batch(2, size=60, seed=7))
    flush(twin.log)
    again = open_log(disk, config)
    assert again.log_end_offset == twin.end
    assert set(readable(again, twin.stored)) == set(range(twin.end)) - {4, 5}
    twin.log = again
    twin.append(batch(1, seed=8))
    flush(again)
    again.close()
    last = open_log(disk, config)
    assert set(readable(last, twin.stored)) == set(range(twin.end)) - {4, 5}


def test_what_is_appended_during_an_examination_is_read_after_it() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    twin.append(batch(2))
    for rolls in (False, True):
        examination = twin.log.examining.begin_examination(Offset(0))
        assert examination is not None
        assert twin.log.examining.begin_examination(Offset(0)) is None, "one at a time"
        twin.append(batch(3, seed=5))
        if rolls:
            twin.log.roll()
        examination.run()
        assert examination.end(done=True) == []
        assert read_all(twin.log) == twin.bytes_from(0)


def test_a_tail_that_is_cut_off_during_an_examination_is_no_damage() -> None:
    """A failed sync drops what was not flushed."""
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    twin.append(batch(2))
    flush(twin.log)
    twin.append(batch(3, seed=5))
    examination = twin.log.examining.begin_examination(Offset(0))
    assert examination is not None
    disk.fail_after(0)
    ticket = twin.log.begin_flush()
    assert ticket is not None
    with pytest.raises(OSError, match="sync failed"):
        ticket.sync()
    twin.log.fail_flush(ticket)
    disk.fail_after(-1)
    examination.run()
    assert examination.end(done=True) == []
    assert open_log(disk, LogConfig()).log_end_offset == 2


def test_recovery_keeps_beside_what_it_cuts_where_sound_batches_are_in_it() -> None:
    config = LogConfig()
    disk = new_disk()
    twin = Twin(open_log(disk, config))
    for number in range(4):
        twin.append(batch(2, size=60, seed=number))
    flush(twin.log)
    path = twin.log.contents.segments[0].path
    at = position_of(twin, 0, 1)
    flip(disk, path, at + HEADER_BYTES + 5)
    tail = bytes(disk.file(path).data[at:])
    for _ in range(2):
        log = open_log(disk, config)
        assert log.log_end_offset == 2
        assert disk.file(path.with_name(f"{path.name}.from-{at}.damaged")).data == tail
        disk.power_cut()


def test_recovery_keeps_nothing_of_a_torn_tail() -> None:
    disk, twin = closed(4, LogConfig())
    twin.append(batch(2, size=60, seed=9))
    path = twin.log.contents.segments[0].path
    del disk.file(path).data[-5:]
    open_log(disk, LogConfig())
    assert not [name for name in disk.list_directory(DIRECTORY) if name.endswith(".damaged")]


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: bytes(disk.file(DIRECTORY / name).data) for name in disk.list_directory(DIRECTORY)}


def test_where_the_flushed_end_is_gone_the_rest_is_read_and_nothing_is_changed() -> None:
    disk, twin = closed()
    path = twin.log.contents.segments[-1].path
    del disk.file(path).data[-1:]
    before = contents(disk)
    log = open_log(disk)
    assert log.read_only is not None
    end = log.log_end_offset
    assert end == twin.stored[-1].base_offset
    assert readable(log, [each for each in twin.stored if each.last_offset < end]) == list(range(end))
    with pytest.raises(StorageFailure):
        log.append(batch(), check_batches(batch()), leader_epoch=1, now_ms=NOW_MS)  # type: ignore[arg-type] # an epoch
    assert not log.needs_flush
    assert log.examining.begin_examination(Offset(0)) is None
    log.close()
    assert contents(disk) == before


def test_a_lost_leader_epoch_file_is_made_from_the_batches() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk))
    for number in range(9):
        twin.epoch = number // 4
        twin.append(batch(1, size=60, seed=number))
    flush(twin.log)
    twin.log.close()
    disk.file(DIRECTORY / "leader-epoch-checkpoint").data[0:1] = b"x"
    again = open_log(disk)
    assert again.read_only is None
    assert again.epochs == twin.log.epochs
    again.close()
    assert open_log(disk).epochs == twin.log.epochs


def victims(disk: MemoryDisk) -> list[Path]:
    names = disk.list_directory(DIRECTORY)
    return [DIRECTORY / name for name in names if name.endswith((".log", ".index", ".timeindex", "checkpoint"))]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 600), st.integers(1, 120)), max_size=4), st.integers(0, 2**32)
)
@settings(max_examples=examples(150), deadline=None)
def test_whatever_is_damaged_every_offset_is_given_as_it_was_or_refused(
    hits: list[tuple[int, int, int]], seed: int
) -> None:
    disk, twin = closed()
    twin.log.close()
    chance = Random(seed)
    for which, start, length in hits:
        files = victims(disk)
        data = disk.file(files[which % len(files)]).data
        start = start % (len(data) + 1)
        match chance.randrange(3):
            case 0:
                data[start : start + length] = chance.randbytes(min(length, len(data) - start))
            case 1:
                data[start : start + length] = bytes(min(length, len(data) - start))
            case _:
                del data[start:]
    flipped_epochs = read_epochs(disk)
    log = open_log(disk)
    if log.read_only is None:
        examine(log)
        assert log.log_end_offset == twin.end
    stored = [each for each in twin.stored if each.last_offset < log.log_end_offset]
    if flipped_epochs:
        return
    readable(log, stored)


def read_epochs(disk: MemoryDisk) -> bool:
    """Whether a batch now names another leader epoch, which nothing tells of."""
    logs = [path for path in victims(disk) if path.suffix == ".log"]
    data = b"".join(bytes(disk.file(path).data) for path in logs)
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = parse_header(data, at)
        if header.leader_epoch != 0:
            return True
        if header.size < HEADER_BYTES:
            return True
        at += header.size
    return False


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 5])
def test_what_is_appended_where_damage_was_cut_off_is_sound_and_damage_below_the_cut_is_known(offset: int) -> None:
    config = LogConfig()
    disk = new_disk()
    twin = Twin(open_log(disk, config))
    twin.append(*(batch(1, size=60, seed=seed) for seed in range(6)))
    flush(twin.log)
    twin.log.close()
    flip(disk, DIRECTORY / "00000000000000000000.log", position_of(twin, 0, 3) + HEADER_BYTES + 4)
    log = open_log(disk, config)
    (damage,) = examine(log)
    assert (damage.start, damage.end) == (3, 4)
    log.copying.truncate_to(Offset(offset))
    again = Twin(log, [stored for stored in twin.stored if stored.base_offset < offset], epoch=1)
    again.append(*(batch(1, size=60, seed=seed) for seed in range(offset, 6)))
    flush(log)
    expected = [number for number in range(6) if number != 3 or offset < 3]
    assert readable(log, again.stored) == expected
    assert list(log.damages) == ([] if offset < 3 else [damage])
    log.close()
    for _ in range(2):
        log = open_log(disk, config)
        assert readable(log, again.stored) == expected
        assert list(log.damages) == ([] if offset < 3 else [damage])
        disk.power_cut()
