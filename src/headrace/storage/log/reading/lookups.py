"""Look-ups by time, and walks over headers. Any thread may call them: they open files of their own, which nothing else
closes.

A segment that retention removes meanwhile is skipped. Batches written after the look-up began may or may not be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.ids import LAST_OFFSET, LeaderEpoch, Offset
from headrace.base.ports import Disk, File
from headrace.storage.engine.faults import DamagedRange
from headrace.storage.engine.reading import FoundOffset, Walked
from headrace.storage.log.recovery.damage import Batches
from headrace.storage.log.scan import headers_in
from headrace.storage.log.segment import Segment
from headrace.wire.batches import BatchHeader, check_batch, small_records

NO_PRODUCER: Final = -1


def first_at_or_after(disk: Disk, segments: Sequence[Segment], timestamp: int, start: int) -> FoundOffset | None:
    """The first record at or above offset `start` whose timestamp is at least `timestamp`."""
    for segment in segments:
        try:
            segment.load_times(disk)
            if segment.max_timestamp < timestamp:
                continue
            position = max(segment.position_before_time(disk, timestamp), segment.position_below(disk, start))
            found = _search(disk, segment, position, timestamp, start)
        except FileNotFoundError:
            continue
        if found is not None:
            return found
    return None


def highest(disk: Disk, segments: Sequence[Segment], start: int) -> FoundOffset | None:
    """The first record at or above offset `start` with the highest timestamp; None where no record has one."""
    known: list[tuple[int, Segment]] = []
    for segment in segments:
        try:
            segment.load_times(disk)
            top = segment.max_timestamp if segment.base >= start else _highest_from(disk, segment, start)
        except FileNotFoundError:
            continue
        known.append((top, segment))
    top = max((timestamp for timestamp, _ in known), default=-1)
    if top < 0:
        return None
    return first_at_or_after(disk, [segment for timestamp, segment in known if timestamp == top], top, start)


def _highest_from(disk: Disk, segment: Segment, start: int) -> int:
    """The highest timestamp of the records from offset `start` on, in a segment that begins below it."""
    file, top = segment.open(disk), -1
    try:
        for at, header in _headers(file, segment, segment.position_below(disk, start)):
            if header.base_offset >= start:
                top = max(top, header.newest_time)
            elif header.last_offset >= start:
                records = small_records(_checked(file, at, header))
                if records is None:
                    top = max(top, header.newest_time)
                else:
                    top = max([top, *(record.timestamp for record in records if record.offset >= start)])
    finally:
        file.close()
    return top


def headers_from(disk: Disk, segments: Sequence[Segment], start: int, end: int = LAST_OFFSET) -> Iterator[BatchHeader]:
    """Yields the headers of batches that begin below `end`, from the batch that holds `start`. Known damage is skipped.
    Raises CorruptData where the bytes are no batches.
    """
    for _, _, header in _walk(disk, segments, start, end):
        yield header


def batches_from(disk: Disk, segments: Sequence[Segment], start: int, end: int = LAST_OFFSET) -> Iterator[Walked]:
    """As `headers_from`, with the bytes of control batches. Raises CorruptData, too, where a producer's batch fails its
    CRC.
    """
    for batches, at, header in _walk(disk, segments, start, end):
        if header.producer_id != NO_PRODUCER:
            problem = batches.check(at, compacted=True)
            if isinstance(problem, str):
                raise CorruptData(problem)
        yield Walked(header, batches.file.read(at, header.size) if header.is_control else b"")


def _walk(disk: Disk, segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[Batches, int, BatchHeader]]:
    """Yields the file of each batch, its position there, and its header."""
    for segment in segments:
        if segment.end <= start:
            continue
        for damage in segment.damages:
            if damage.start <= start < damage.end:
                start = damage.end
        file = segment.open(disk)
        try:
            batches = Batches(file, segment.size)
            for at, header in _headers(file, segment, segment.position_below(disk, start), passing_over=True):
                if header.last_offset < start:
                    continue
                if header.base_offset >= end:
                    return
                yield batches, at, header
        finally:
            file.close()


def place_of(
    disk: Disk, segments: Sequence[Segment], offset: Offset, start: Offset, gaps_below: int
) -> tuple[int, int, Offset]:
    """Where to cut so that nothing reaches above `offset`. Returns the segment's base (-1: before all of them), the
    position in it, and the offset at which the log then ends. Below `gaps_below` compaction may have left no batch.
    """
    if offset <= start:
        return -1, 0, offset
    for segment in segments:
        if segment.end <= offset:
            continue
        file = segment.open(disk)
        try:
            for at, header in headers_in(file, segment.position_below(disk, offset), segment.sound_up_to(offset)):
                if header.last_offset >= offset:
                    return segment.base, at, Offset(min(header.base_offset, offset))
        finally:
            file.close()
    if offset <= gaps_below and segments:  # no batch is at or above it
        last = [segment for segment in segments if segment.base <= offset][-1]
        return last.base, last.size, offset
    raise CorruptData(f"Offset {offset} is in none of the log's batches.")


def _search(disk: Disk, segment: Segment, position: int, timestamp: int, start: int) -> FoundOffset | None:
    file = segment.open(disk)
    try:
        for at, header in _headers(file, segment, position):
            if header.last_offset >= start:
                batch = _checked(file, at, header)  # checked even if it seems too early
                found = _search_batch(batch, header, timestamp, start) if header.max_timestamp >= timestamp else None
                if found is not None:
                    return found
    finally:
        file.close()
    return None


def _search_batch(batch: bytes, header: BatchHeader, timestamp: int, start: int) -> FoundOffset | None:
    records = small_records(batch)
    if records is None:  # its first offset: a reader from there misses no record
        return FoundOffset(
            Offset(max(header.base_offset, start)), header.max_timestamp, LeaderEpoch(header.leader_epoch)
        )
    for record in records:
        if record.timestamp >= timestamp and record.offset >= start:
            return FoundOffset(Offset(record.offset), record.timestamp, LeaderEpoch(header.leader_epoch))
    return None


def _headers(
    file: File, segment: Segment, position: int, *, passing_over: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Headers of a segment from a batch's position on. Raises DamagedRange at damage, where the wanted record may be,
    unless `passing_over` skips it.
    """
    for damage in segment.damages:
        if damage.position < position:
            continue
        yield from headers_in(file, position, damage.position)
        if not passing_over:
            raise DamagedRange(f"Offsets {damage.start} to {damage.end - 1} are damaged. {damage.reason}")
        position = damage.resume
    yield from headers_in(file, position, segment.size)


def _checked(file: File, at: int, header: BatchHeader) -> bytes:
    """Returns a whole batch whose CRC was checked. Raises CorruptData."""
    batch = file.read(at, header.size)
    check_batch(batch, compacted=True)
    return batch
