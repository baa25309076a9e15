"""Reads a log that recovery refuses, because flushed records are gone and it is unknown how many.

Promises:
- It changes nothing, so that an operator may still put back the missing files.
- Each offset below the end of the remaining records is either read as it was written or known to be damaged.

Nothing may be appended: the next offsets may have been given to other records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Disk
from headrace.storage.log.checkpoints import (
    Checkpoint,
    Compacted,
    Stamp,
    decode_checkpoint,
    decode_compacted,
    read_file,
)
from headrace.storage.log.journal.journal import Recoverable
from headrace.storage.log.names import CHECKPOINT, COMPACTION, LOG, SNAPSHOT, offsets_of, segment_paths
from headrace.storage.log.reading.lookups import headers_from
from headrace.storage.log.recovery.damage import Examination
from headrace.storage.log.recovery.opening import Recovered, aborted_beside, lead_in
from headrace.storage.log.recovery.replaced import has_replaced
from headrace.storage.log.scan import checked_batches
from headrace.storage.log.segment import Segment


def salvage(
    disk: Disk, directory: Path, stamp: Stamp, index_interval: int, reason: str, journaled: Sequence[Recoverable] = ()
) -> Recovered:
    """Returns the readable part of the log. `reason` says why recovery refuses it. Reads every byte. Raises OSError."""
    names = disk.list_directory(directory)
    checkpoint, compacted = _read(disk, directory, names, stamp)
    lineages = [stamp.lineage, checkpoint.lineage, *(each.lineage for each in journaled)]
    lineage = max(lineages)  # void where the log is begun again
    found = Recovered(
        start=checkpoint.log_start,
        end=checkpoint.log_start,
        checkpoint=replace(checkpoint, lineage=lineage),
        lineage=lineage,
        compacted=compacted,
        read_only=reason,
        has_replaced=has_replaced(names),
    )
    bases = offsets_of(names, LOG)
    for base, end in pairwise(bases):
        found.segments.append(_closed(disk, directory, (base, end), compacted.gaps_below, index_interval))
    if bases:
        found.segments.append(_last(disk, directory, bases[-1], compacted.gaps_below, index_interval))
        found.end = Offset(max(found.end, found.segments[-1].end))
        if bases[0] > found.start:
            lead_in(found.segments[0], found.start, reason)
    for segment in found.segments:
        _take_epochs(disk, segment, found)
    found.aborted = aborted_beside(names, found.segments)
    found.snapshots = [Offset(offset) for offset in offsets_of(names, SNAPSHOT) if offset <= found.end]
    return found


def _read(disk: Disk, directory: Path, names: list[str], stamp: Stamp) -> tuple[Checkpoint, Compacted]:
    """The checkpoint and the note on compaction, as far as they can be read."""
    checkpoint, compacted = Checkpoint.at_segment(stamp.birth, stamp.birth), Compacted()
    try:
        if CHECKPOINT in names:
            checkpoint = decode_checkpoint(read_file(disk, directory / CHECKPOINT))
        if COMPACTION in names:
            compacted = decode_compacted(read_file(disk, directory / COMPACTION))
    except CorruptData:
        compacted = Compacted(gaps_below=checkpoint.segment, is_known=False, is_mended=False)
    return checkpoint, compacted


def _closed(disk: Disk, directory: Path, span: tuple[int, int], gaps_below: int, interval: int) -> Segment:
    """A closed segment with its damage, and its indexes in memory."""
    base, end = span
    seen = Segment.closed(directory, base, end, disk.size(segment_paths(directory, base)[0]))
    seen.index = bytearray()  # no index to compare with
    examination = Examination(disk, seen, gaps_below=gaps_below, interval=interval)
    while not examination.step():
        pass
    segment = examination.twin
    segment.size, segment.end, segment.damages = examination.size, end, tuple(examination.found)
    return segment


def _last(disk: Disk, directory: Path, base: int, gaps_below: int, interval: int) -> Segment:
    """The last segment up to its first batch that is not sound."""
    segment = Segment(directory, base)
    file = disk.open(segment.path)
    try:
        for _, header in checked_batches(file, 0, file.size(), base, -1, gaps_below):
            segment.add(header.last_offset, header.size, header.newest_time, interval)
    finally:
        file.close()
    return segment


def _take_epochs(disk: Disk, segment: Segment, found: Recovered) -> None:
    for header in headers_from(disk, [segment], max(segment.base, found.start)):
        found.epochs.assign(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
