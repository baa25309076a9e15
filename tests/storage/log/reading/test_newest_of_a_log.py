"""Reads of a log from memory equal its files, whatever happens to them in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset
from headrace.storage.log.partition import LocalLog
from tests.storage.log.compaction.test_log_compaction import CONFIG, World, read_from
from tests.storage.log.log_world import SMALL, Twin, batch, flush, new_disk, open_log, read_all
from tests.storage.log.memory_disk import MemoryDisk
from tests.storage.log.recovery.test_log_damage import flip

ROOMY = replace(SMALL, segment_bytes=1 << 20)


def read_at_the_end(log: LocalLog) -> None:
    """From here on it has a reader that keeps up with it."""
    read_all(log)
    assert log.contents.newest._is_followed


def kept(log: LocalLog) -> int:
    return len(log.contents.newest)


def followed() -> tuple[MemoryDisk, Twin]:
    """A log with a batch in its file alone, and three more in memory too."""
    disk = new_disk()
    twin = Twin(open_log(disk, ROOMY))
    twin.append(batch(2, seed=1))
    read_at_the_end(twin.log)
    for number in range(2, 5):
        twin.append(batch(2, seed=number))
    flush(twin.log)
    assert kept(twin.log) == 3
    return disk, twin


def test_what_is_kept_is_given_without_a_read_of_the_file() -> None:
    disk, twin = followed()
    reads = disk.reads
    log = twin.log
    assert log.read(Offset(2), 4096, log.log_end_offset, at_least_one=True) == twin.bytes_from(2)
    assert disk.reads == reads
    assert log.read(Offset(3), 4096, log.log_end_offset, at_least_one=True) == twin.bytes_from(3), "amid a batch"
    assert log.read(Offset(2), 4096, Offset(4), at_least_one=True) == twin.stored[1].bytes, "no more than may be seen"
    assert read_all(log) == twin.bytes_from(0)


def test_what_was_cut_off_is_not_given_for_what_takes_its_place() -> None:
    _, twin = followed()
    twin.log.copying.truncate_to(Offset(4))
    assert kept(twin.log) == 0
    del twin.stored[2:]
    twin.append(batch(1, seed=7), batch(3, seed=8))  # as one, which is not kept
    assert read_all(twin.log) == twin.bytes_from(0)


def test_what_could_not_be_written_is_not_given_for_what_takes_its_place() -> None:
    disk, twin = followed()
    disk.full = True
    with pytest.raises(StorageFailure):
        twin.append(batch(1, seed=6))
    del twin.stored[-1]
    disk.full = False
    twin.append(batch(2, seed=7), batch(1, seed=8))
    assert read_all(twin.log) == twin.bytes_from(0)


def test_what_could_not_be_synced_is_let_go() -> None:
    disk, twin = followed()
    flushed = twin.log.flushed_end
    twin.append(batch(1, seed=6))
    ticket = twin.log.begin_flush()
    assert ticket is not None
    disk.failing = True
    with pytest.raises(OSError, match="sync failed"):
        ticket.sync()
    twin.log.fail_flush(ticket)
    assert kept(twin.log) == 0
    del twin.stored[-1]
    assert read_all(twin.log) == twin.bytes_from(0)
    assert twin.log.log_end_offset == flushed


def test_what_compaction_took_away_is_given_no_more() -> None:
    world = World(open_log(disk := new_disk(), replace(CONFIG, segment_bytes=1 << 20)), disk)
    world.append([(b"a", b"0")])
    read_at_the_end(world.log)
    for number in range(1, 5):
        world.append([(b"a", b"%d" % number)])
    world.close_segment()
    world.append([(b"b", b"last")])
    assert kept(world.log) == 5
    world.clean()
    assert list(read_from(world.log, 1)) == [4, 5]


def test_what_is_known_to_be_damaged_is_refused_as_by_the_file() -> None:
    disk, twin = followed()
    segment = twin.log.contents.segments[0]
    flip(disk, segment.path, len(twin.stored[0].bytes) + 70)
    examination = twin.log.examining.begin_examination(Offset(segment.base))
    assert examination is not None
    examination.run()
    assert examination.end(done=True)
    with pytest.raises(CorruptData):
        twin.log.read(Offset(2), 4096, twin.log.log_end_offset, at_least_one=True)


def test_where_something_is_not_kept_the_file_gives_all() -> None:
    """A reader that wants so many bytes would wait for what is there already."""
    _, twin = followed()
    twin.append(batch(1, seed=7), batch(1, seed=8))
    log = twin.log
    assert log.read(Offset(2), 4096, log.log_end_offset, at_least_one=True) == twin.bytes_from(2)


def test_a_closed_log_keeps_nothing() -> None:
    _, twin = followed()
    twin.log.close()
    assert kept(twin.log) == 0
