"""A disk that fails: nothing that was not synced is ever acknowledged, and a failed sync is not tried again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import StorageFailure
from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.engine.identity import LogConfig
from headrace.wire.batches import check_batches
from tests.storage.log.log_world import NOW_MS, SMALL, Twin, batch, flush, new_disk, open_log, read_all
from tests.storage.log.memory_disk import MemoryDisk
from tests.tiers import examples


def written(config: LogConfig = SMALL) -> tuple[MemoryDisk, Twin, int]:
    """Flushed up to the third value; more is appended, in several segments."""
    disk = new_disk()
    twin = Twin(open_log(disk, config))
    for number in range(5):
        twin.append(batch(2, size=100, seed=number))
    flush(twin.log)
    flushed = twin.end
    for number in range(5, 12):
        twin.append(batch(2, size=100, seed=number))
    return disk, twin, flushed


def test_after_a_failed_sync_the_log_has_failed_and_its_unflushed_tail_is_gone() -> None:
    disk, twin, flushed = written()
    ticket = twin.log.begin_flush()
    assert ticket is not None
    disk.failing = True
    with pytest.raises(OSError, match="sync failed"):
        ticket.sync()
    twin.log.fail_flush(ticket)
    log = twin.log
    assert log.failed
    assert (log.flushed_end, log.log_end_offset) == (flushed, flushed)
    with pytest.raises(StorageFailure):
        twin.append(batch())
    syncs = disk.syncs
    assert not log.needs_flush
    assert log.begin_flush() is None
    log.roll()
    log.close()
    assert disk.syncs == syncs  # never again
    assert disk.open_files == 0
    assert read_all(open_log(disk_that_works(disk))) == twin.bytes_from(0)[: log.size_bytes]


def disk_that_works(disk: MemoryDisk) -> MemoryDisk:
    disk.failing = False
    return disk


def test_what_was_flushed_can_still_be_read() -> None:
    disk, twin, flushed = written()
    ticket = twin.log.begin_flush()
    assert ticket is not None
    disk.failing = True
    with pytest.raises(OSError, match="sync failed"):
        ticket.sync()
    twin.log.fail_flush(ticket)
    expected = b"".join(each.bytes for each in twin.stored if each.last_offset < flushed)
    assert read_all(twin.log) == expected
    assert not twin.log.read(Offset(flushed), 1000, Offset(flushed + 1), at_least_one=True)


@given(st.integers(0, 12))
@settings(max_examples=examples(30), deadline=None)
def test_whichever_sync_of_a_flush_fails_nothing_of_it_counts(good: int) -> None:
    disk, twin, flushed = written()
    twin.log.roll()
    twin.log.write_producer_snapshot(b"state", twin.log.log_end_offset)
    ticket = twin.log.begin_flush()
    assert ticket is not None
    disk.fail_after(good)
    try:
        ticket.sync()
    except OSError:
        twin.log.fail_flush(ticket)
        assert twin.log.flushed_end == flushed
        again = open_log(disk.copy())
        assert twin.bytes_from(0).startswith(read_all(again))
        assert again.log_end_offset >= flushed
    else:
        assert twin.log.finish_flush(ticket) == twin.end


def test_a_full_disk_refuses_the_append_and_leaves_no_part_of_it() -> None:
    disk, twin, _ = written(LogConfig())
    expected, end = twin.bytes_from(0), twin.end
    disk.full = True
    sent = batch(3, size=400)
    for _ in range(3):
        with pytest.raises(StorageFailure):
            twin.log.append(sent, check_batches(sent), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
    assert twin.log.log_end_offset == end
    assert not twin.log.failed
    disk.full = False
    twin.append(batch(2))
    flush(twin.log)
    disk.power_cut()
    assert read_all(open_log(disk, LogConfig())) == expected + twin.stored[-1].bytes


def test_a_full_disk_at_the_very_first_append_leaves_a_log_that_works_later() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk))
    sent = batch()
    disk.full = True
    with pytest.raises(StorageFailure):
        twin.log.append(sent, check_batches(sent), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
    disk.full = False
    twin.append(sent)
    flush(twin.log)
    disk.power_cut()
    assert read_all(open_log(disk)) == twin.bytes_from(0)


def test_a_recovery_that_cannot_sync_raises_and_counts_nothing() -> None:
    disk, twin, _ = written()
    disk.failing = True
    with pytest.raises(StorageFailure):
        open_log(disk)
    disk.failing = False
    again = open_log(disk)  # data that the kernel believes to be clean is written again
    expected = read_all(again)
    disk.power_cut()
    assert read_all(open_log(disk)) == expected == twin.bytes_from(0)


def test_a_close_that_cannot_sync_raises_and_the_next_life_checks() -> None:
    disk, twin, flushed = written()
    disk.failing = True
    with pytest.raises(StorageFailure):
        twin.log.close()
    assert disk.open_files == 0
    disk.failing = False
    disk.power_cut()
    again = open_log(disk)
    assert again.log_end_offset >= flushed
    assert twin.bytes_from(0).startswith(read_all(again))


def test_what_is_appended_while_a_flush_is_under_way_waits_for_the_next() -> None:
    disk, twin, _ = written()
    end = twin.end
    ticket = twin.log.begin_flush()
    assert ticket is not None
    for number in range(8):
        twin.append(batch(2, size=100, seed=number))  # rolls, too
    assert twin.log.begin_flush() is None
    ticket.sync()
    assert twin.log.finish_flush(ticket) == end
    assert twin.log.needs_flush
    flush(twin.log)
    disk.power_cut()
    assert read_all(open_log(disk)) == twin.bytes_from(0)


def test_with_flush_policy_os_an_append_counts_at_once_and_only_housekeeping_is_synced() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig(fsync=False, segment_bytes=600)))
    twin.append(batch())
    assert twin.log.flushed_end == twin.end
    flush(twin.log)  # the birth
    twin.append(batch())
    assert twin.log.begin_flush() is None
    for number in range(8):
        twin.append(batch(2, size=100, seed=number))
    flush(twin.log)
    assert len(twin.log.closed_segments()) >= 2
    twin.log.reconfigure(LogConfig(segment_bytes=600))
    flush(twin.log)
    disk.power_cut()
    assert read_all(open_log(disk)) == twin.bytes_from(0)
