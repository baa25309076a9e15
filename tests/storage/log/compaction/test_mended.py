"""Emptied batches with a codec, which older compactions left and clients cannot read.

They are given to no reader, go with the next cleaning, and are accepted from no leader.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.log.checkpoints import decode_fields, encode_fields, read_file, write_file
from headrace.storage.log.names import COMPACTION, segment_paths
from headrace.wire.batches import BatchHeader, check_batches, encode_batch, parse_header
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.storage.log.compaction.test_log_compaction import CONFIG, World, raw_from, world
from tests.storage.log.log_world import DIRECTORY, flush, open_log
from tests.storage.log.memory_disk import MemoryDisk
from tests.wire.emptied import PACKED, as_left_by_older, unreadable, unreadable_in

KEPT = frozenset({2, 3})
"""Last offsets of batches that stay, emptied."""


def compacted_by_older(codec: Compression) -> World:
    """Offsets 2 and 3 are emptied batches of a producer, 4 and 5 are records, and the segment with 5 is open."""
    here = world()
    for number in range(4):
        here.append([(b"a", b"%d" % number)], compression=codec, producer_id=7, producer_epoch=0, base_sequence=number)
    here.append([(b"a", b"last")])
    here.close_segment()
    here.append([(b"b", b"v")])
    here.clean(remembered=KEPT)
    here.log.close()
    age(here.disk, codec)
    here.log = open_log(here.disk, CONFIG)
    return here


def age(disk: MemoryDisk, codec: Compression) -> None:
    """Make of the compacted segment, and of the note, what an older version had written."""
    segment, *_ = segment_paths(DIRECTORY, 0)
    older = as_left_by_older(read_file(disk, segment), codec)
    assert unreadable_in(older) == len(KEPT)
    write_file(disk, segment, older)
    note = noted(disk)
    del note["is_mended"]
    write_file(disk, DIRECTORY / COMPACTION, encode_fields(note))
    disk.sync_directory(DIRECTORY)


def noted(disk: MemoryDisk) -> dict[str, Any]:
    return dict(decode_fields(read_file(disk, DIRECTORY / COMPACTION)))


def on_disk(here: World) -> bytes:
    return read_file(here.disk, segment_paths(DIRECTORY, 0)[0])


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("max_bytes", [61, 130, 4096])
def test_no_reader_is_given_it(codec: Compression, max_bytes: int) -> None:
    here = compacted_by_older(codec)
    for start in range(6):
        for _ in range(2):  # as read, and as kept for who reads the same again
            found = bytes(here.log.read(Offset(start), max_bytes, here.log.log_end_offset, at_least_one=True))
            assert found
            check_batches(found, gaps_below=6)
            assert unreadable_in(found) == 0
    assert unreadable_in(on_disk(here)) == len(KEPT), "it is read from there"
    here.check()


@pytest.mark.parametrize("codec", PACKED)
def test_the_next_cleaning_mends_it_though_nothing_is_dirty(codec: Compression) -> None:
    here = compacted_by_older(codec)
    before = list(raw_from(here.log, 0))
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 1.0
    here.clean(remembered=KEPT)
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 0.0, "once"
    assert unreadable_in(on_disk(here)) == 0
    assert list(raw_from(here.log, 0)) == before, "as it was given before"
    here.log.close()
    here.log = open_log(here.disk, CONFIG)
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 0.0, "for good"
    assert list(raw_from(here.log, 0)) == before
    here.check()


def test_it_is_mended_also_behind_what_the_keys_reach() -> None:
    here = compacted_by_older(Compression.LZ4)
    for number in range(6, 12):
        here.append([(b"%d" % number, b"v")])
    here.close_segment()
    here.append([(b"c", b"v")])
    rounds = 0
    while here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end):
        here.clean(keys_max=2, remembered=KEPT)
        rounds += 1
    assert rounds > 1
    assert unreadable_in(on_disk(here)) == 0
    here.check()


def test_a_log_that_was_never_compacted_owes_nothing() -> None:
    here = world()
    here.append([(b"a", b"1")])
    here.close_segment()
    here.append([(b"b", b"1")])
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 1.0
    here.clean()
    assert noted(here.disk)["is_mended"] is True
    assert here.log.cleaning.dirtiness(here.now_ms, here.log.flushed_end) == 0.0


def test_a_copy_takes_it_mended_from_an_older_leader() -> None:
    here = world()
    first = encode_batch([Record(0, 1, b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0, leader_epoch=0)
    led = first + unreadable(parse_header(first)._replace(base_offset=1), Compression.GZIP)
    headers = check_batches(led, gaps_below=2)
    here.log.copying.append_verbatim(led, headers, now_ms=here.now_ms, gaps_below=Offset(2))
    flush(here.log)
    given = bytes(here.log.read(Offset(0), 4096, here.log.log_end_offset, at_least_one=True))
    assert (unreadable_in(given), unreadable_in(on_disk(here))) == (0, 0)
    (kept, emptied) = [header for _, header in check_batches(given, gaps_below=2)]
    assert (kept.count, emptied.count, emptied.producer_id, emptied.leader_epoch) == (1, 0, 7, LeaderEpoch(0))
    assert fields(emptied) == fields(headers[1][1]), "all else is the leader's"


def fields(header: BatchHeader) -> BatchHeader:
    return header._replace(attributes=0, base_timestamp=0, crc=0)
