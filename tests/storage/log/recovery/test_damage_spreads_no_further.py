"""One damaged file costs its own content and nothing else. No other record is lost, skipped, deleted too early, or
given a used offset."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.compaction.cleaning import Cleaned, CleanedFile, clean
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import HEADER_BYTES, Record, encode_batch
from tests.storage.log.journal_world import Store, identity_of
from tests.storage.log.log_world import DIRECTORY, NOW_MS, SMALL, Twin, batch, flush, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk
from tests.storage.log.recovery.test_log_damage import (
    closed,
    examine,
    flip,
    offsets_of,
    position_of,
    read_on,
    read_one,
    readable,
)

BIG = 2 * 1024 * 1024
"""More than the journal takes of one log in one round."""


def kept_beside(disk: MemoryDisk) -> dict[str, bytes]:
    names = [name for name in disk.list_directory(DIRECTORY) if name.endswith(".damaged")]
    return {name: bytes(disk.file(DIRECTORY / name).data) for name in names}


# small files


def test_a_damaged_checkpoint_does_not_cost_a_log_whose_first_segments_were_deleted() -> None:
    disk, twin = closed()
    log = twin.log
    log.reconfigure(replace(SMALL, retention_bytes=900))
    log.apply_retention(NOW_MS, log.log_end_offset)
    flush(log)
    start = log.log_start_offset
    assert start > 0
    log.close()
    flip(disk, DIRECTORY / "checkpoint.json", 3)
    for _ in range(2):
        again = open_log(disk)
        assert (again.log_start_offset, again.log_end_offset) == (start, twin.end)
        assert readable(again, [each for each in twin.stored if each.base_offset >= start]) == list(
            range(start, twin.end)
        )
        disk.power_cut()


def test_a_log_that_was_flushed_does_not_begin_anew_where_its_stamp_is_damaged() -> None:
    """Nothing tells whose it is; but starting it over would give its offsets again."""
    disk, twin = closed()
    twin.log.close()
    flip(disk, DIRECTORY / "stamp.json", 30)
    for _ in range(2):
        with pytest.raises(StorageFailure, match=r"stamp\.json"):
            open_log(disk)
        assert disk.is_directory(DIRECTORY)
    flip(disk, DIRECTORY / "stamp.json", 30)
    assert open_log(disk).log_end_offset == twin.end


def test_a_journaled_log_does_not_begin_anew_where_its_stamp_is_damaged() -> None:
    disk = new_disk()
    store = Store(disk)
    log = store.open(identity_of(0), LogConfig())
    twin = Twin(log)
    for seed in range(6):
        twin.append(batch(seed=seed))
        store.flush(log)
        store.keep_up()
    flip(disk, log.directory / "stamp.json", 30)
    for _ in range(2):
        with pytest.raises(StorageFailure, match=r"stamp\.json"):
            Store(disk).open(identity_of(0), LogConfig())
    flip(disk, log.directory / "stamp.json", 30)
    assert Store(disk).open(identity_of(0), LogConfig()).log_end_offset == twin.end


# the end of the log


def journaled(*, big_after: bool = True) -> tuple[MemoryDisk, Store, Twin]:
    """Six journaled batches, and then one that was synced in the log's own file; then a kill."""
    disk = new_disk()
    store = Store(disk)
    twin = Twin(store.open(identity_of(0), LogConfig()))
    for seed in range(6):
        twin.append(batch(2, size=60, seed=seed))
        store.flush(twin.log)
        store.keep_up()
    if big_after:
        twin.append(batch(2, size=BIG, seed=9))
        store.flush(twin.log)
    assert twin.log.flushed_end == twin.end
    return disk, store, twin


@pytest.mark.parametrize("within", [5, HEADER_BYTES + 5])
@pytest.mark.parametrize("big_after", [False, True])
def test_what_the_journal_has_mends_the_logs_own_file_and_costs_nothing_behind_it(within: int, big_after: bool) -> None:
    disk, _, twin = journaled(big_after=big_after)
    path = twin.log.contents.segments[0].path
    sound = bytes(disk.file(path).data)
    disk.file(path).data[position_of(twin, 0, 5) + within] ^= 1
    again = Store(disk).open(identity_of(0), LogConfig())
    assert again.log_end_offset == twin.end
    assert readable(again, twin.stored) == list(range(twin.end))
    disk.power_cut()
    assert bytes(disk.file(path).data) == sound


def test_what_follows_a_header_of_zeros_is_kept_beside() -> None:
    """A lost sector tells nothing of where the next batch is."""
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    for seed in range(6):
        twin.append(batch(2, size=60, seed=seed))
    flush(twin.log)
    path = twin.log.contents.segments[0].path
    at = position_of(twin, 0, 2)
    disk.file(path).data[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
    tail = bytes(disk.file(path).data[at:])
    assert open_log(disk, LogConfig()).log_end_offset == twin.stored[2].base_offset
    assert list(kept_beside(disk).values()) == [tail]


def test_what_was_kept_beside_once_is_kept_when_it_happens_again() -> None:
    disk = new_disk()
    tails: list[bytes] = []
    for life in range(3):
        twin = Twin(open_log(disk, LogConfig()))
        for seed in range(4):
            twin.append(batch(2, size=60, seed=10 * life + seed))
        flush(twin.log)
        path = twin.log.contents.segments[0].path
        flip(disk, path, HEADER_BYTES + 5)
        tails.append(bytes(disk.file(path).data))
        assert open_log(disk, LogConfig()).log_end_offset == 0
    assert sorted(kept_beside(disk).values()) == sorted(tails)


def test_a_batch_that_vanished_is_known_after_a_kill_and_not_taken_for_the_end() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    for seed in range(6):
        twin.append(batch(2, size=60, seed=seed))
    flush(twin.log)
    at, gone = position_of(twin, 0, 2), twin.stored[2]
    node = disk.file(twin.log.contents.segments[0].path)
    del node.data[at : at + len(gone.bytes)]
    (damage,) = examine(twin.log)
    assert (damage.start, damage.end) == (4, 6)
    again = open_log(disk, LogConfig())
    assert again.log_end_offset == twin.end
    assert set(readable(again, twin.stored)) == set(range(twin.end)) - set(offsets_of([gone]))


# retention and look-ups by time

DAY_MS = 24 * 3600 * 1000


def timed() -> tuple[MemoryDisk, Twin]:
    """Several closed segments, one batch for each day."""
    disk = new_disk()
    twin = Twin(open_log(disk, SMALL))
    for number in range(12):
        twin.append(batch(2, size=60, times=(number * DAY_MS, number * DAY_MS + 1)), times=(number * DAY_MS,))
    flush(twin.log)
    twin.log.close()
    twin.log = open_log(disk, SMALL)
    return disk, twin


def test_a_damaged_time_index_has_nothing_deleted_too_early() -> None:
    disk, twin = timed()
    segments = twin.log.contents.segments
    path = segments[0].path.with_suffix(".timeindex")
    keeps_all = replace(SMALL, retention_ms=10 * DAY_MS)
    assert segments[0].max_timestamp_offset >= 0 or disk.size(path)
    for at in range(disk.size(path)):
        for damage in (0x01, 0x80, 0xFF, "cut"):
            copy = disk.copy()
            if isinstance(damage, int):
                copy.file(path).data[at] ^= damage
            else:
                del copy.file(path).data[at - at % 12 :]
            log = open_log(copy, keeps_all)
            with suppress(CorruptData):
                log.apply_retention(12 * DAY_MS, log.log_end_offset)
            assert log.log_start_offset == 0
            examine(log)
            log.apply_retention(12 * DAY_MS, log.log_end_offset)
            assert log.log_start_offset == 0
            log.apply_retention(13 * DAY_MS, log.log_end_offset)
            assert log.log_start_offset == segments[0].end


def test_a_damaged_time_index_leads_no_look_up_past_a_record() -> None:
    disk, twin = timed()
    path = twin.log.contents.segments[1].path.with_suffix(".timeindex")
    size = disk.size(path)
    assert size
    for at in range(size):
        for bit in (0x01, 0x80):
            copy = disk.copy()
            copy.file(path).data[at] ^= bit
            log = open_log(copy, SMALL)
            for number, stored in enumerate(twin.stored):
                try:
                    found = log.offset_for_timestamp(number * DAY_MS)
                except CorruptData:
                    continue
                assert found is not None
                assert found.offset == stored.base_offset, f"byte {at}"
            examine(log)
            for number, stored in enumerate(twin.stored):
                found = log.offset_for_timestamp(number * DAY_MS)
                assert found is not None
                assert found.offset == stored.base_offset, f"byte {at}, examined"


def test_a_segment_that_was_cut_to_nothing_is_damage_and_not_what_compaction_left() -> None:
    disk, twin = closed()
    first = twin.log.contents.segments[0]
    disk.file(first.path).data.clear()
    log = open_log(disk)
    for _ in range(2):
        with suppress(CorruptData):
            log.apply_retention(NOW_MS, log.log_end_offset)
        assert log.log_start_offset == 0
        assert read_on(log, 0) == []
        examine(log)


def test_a_compacted_segment_that_was_cut_to_nothing_is_damage_too() -> None:
    compacting = replace(SMALL, compact=True, min_cleanable_dirty_ratio=0.0)
    disk, twin = closed(config=compacting)
    assert is_cleaned(disk, twin.log)
    cleaning = twin.log.cleaning.begin_cleaning(NOW_MS, twin.log.flushed_end, frozenset(), "1" * 16)
    assert cleaning is not None
    cleaning.work.note(Cleaned(clean_to=twin.end, files=(CleanedFile(base=0, end=twin.end, name="x"),)))
    cleaning.end()
    twin.log.close()
    first = twin.log.contents.segments[0]
    disk.file(first.path).data.clear()
    log = open_log(disk, compacting)
    assert log.gaps_below > 0
    (damage,) = examine(log)
    assert (damage.start, damage.end) == (0, first.end)


def test_what_is_not_flushed_yet_is_no_damage() -> None:
    disk = new_disk()
    log = open_log(disk)
    twin = Twin(log)
    for seed in range(3):
        twin.append(batch(2, size=60, seed=seed))
    assert examine(log) == []


# indexes


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_of_the_segment_that_is_still_written_costs_nothing(suffix: str) -> None:
    config = LogConfig(index_interval_bytes=150)
    disk, twin = closed(config=config)
    twin.log.close()
    path = twin.log.contents.segments[-1].path.with_suffix(suffix)
    for at in range(disk.size(path)):
        for bit in (0x01, 0x80):
            copy = disk.copy()
            copy.file(path).data[at] ^= bit
            again = Twin(open_log(copy, config), list(twin.stored))
            again.append(batch(2, size=60, seed=50))
            flush(again.log)
            for stored in again.stored:
                with suppress(CorruptData):
                    assert read_one(again.log, stored.base_offset) == stored.bytes
            assert examine(again.log) == []
            again.append(batch(2, size=60, seed=51))
            flush(again.log)
            assert readable(again.log, again.stored) == list(range(again.end)), f"byte {at}"
            again.log.close()
            last = open_log(copy, config)
            assert readable(last, again.stored) == list(range(again.end)), f"byte {at}"


def test_a_damaged_index_of_a_damaged_segment_costs_no_more_than_the_damage() -> None:
    disk, twin = closed()
    segment = twin.log.contents.segments[1]
    path, lost = segment.path.with_suffix(".index"), twin.stored[3]
    assert lost.base_offset == segment.base
    for at in range(disk.size(path)):
        for bit in (0x01, 0x40, 0x80):
            copy = disk.copy()
            copy.file(path).data[at] ^= bit
            copy.file(segment.path).data[HEADER_BYTES + 5] ^= 1
            log = open_log(copy)
            examine(log)
            assert set(readable(log, twin.stored)) == set(range(twin.end)) - set(offsets_of([lost])), f"byte {at}"


# compaction and producers


def is_cleaned(disk: MemoryDisk, log: LocalLog) -> bool:
    try:
        cleaning = log.cleaning.begin_cleaning(NOW_MS, log.flushed_end, frozenset(), "0" * 16)
        assert cleaning is not None
        clean(disk, cleaning.work.job)
        cleaning.end()
    except CorruptData:
        return False
    return True


def test_compaction_does_not_make_a_gap_of_what_is_missing() -> None:
    """Or nobody would ever be told, and an older value of a key would stand for a newer one."""
    compacting = replace(SMALL, compact=True, min_cleanable_dirty_ratio=0.0)
    disk, twin = closed(config=compacting)
    assert is_cleaned(disk.copy(), open_log(disk.copy(), compacting))
    segments = twin.log.contents.segments
    for victim, segment in enumerate(segments[:-1]):
        stored = [each for each in twin.stored if segment.base <= each.base_offset < segment.end]
        for number in range(len(stored)):
            copy = disk.copy()
            at = sum(len(each.bytes) for each in stored[:number])
            del copy.file(segment.path).data[at : at + len(stored[number].bytes)]
            assert not is_cleaned(copy, open_log(copy, compacting)), f"batch {number} of segment {victim}"
        if victim:
            copy = disk.copy()
            copy.remove(segment.path)
            assert not is_cleaned(copy, open_log(copy, compacting)), f"segment {victim}"


def test_producers_are_not_rebuilt_from_damaged_headers() -> None:
    """A wrong sequence would have a batch that is yet to come taken for one that is there."""
    disk = new_disk()
    twin = Twin(open_log(disk))
    for sequence in range(12):
        record = Record(0, sequence, None, bytes(60))
        twin.append(encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence))
    flush(twin.log)
    twin.log.close()
    path = twin.log.contents.segments[0].path
    assert len(list(open_log(disk).batches_from(Offset(0)))) == 12
    for within in range(43, 57):  # producer id, epoch, sequence
        copy = disk.copy()
        flip(copy, path, within)
        log = open_log(copy)
        with pytest.raises(CorruptData):
            list(log.batches_from(Offset(0)))
        examine(log)
        assert [header.base_sequence for header, _ in log.batches_from(Offset(0))] == list(range(1, 12))
