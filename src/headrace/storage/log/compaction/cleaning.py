"""The slow half of compaction: from closed segments to files beside them that lack what later records replaced.

Runs anywhere, in a process of its own where there is one: it takes a job of plain values and a `Disk`, writes files
named `.cleaned` and touches nothing else, so that it may be killed at any time. It promises that offsets, epochs,
producers and the order of what stays are as they were; that memory is bounded by `COMPACTION_KEYS_MAX` keys and one
batch; and that of every key the last record below `clean_to` stays, save tombstones past their time.

What goes: a record whose key has a later one below `clean_to`; a tombstone whose batch was given its horizon
(KIP-534: `delete.retention.ms` after the first cleaning, in the batch's base time) before now. What stays although it
might go: control batches, tombstones of transactions (whether those were aborted is not asked, so their keys replace
nothing), records without a key, what cannot be unpacked, or into too much, and all tombstones behind that. A batch that
loses all its records stays without them while a producer's state rests on it, and while it is the last. Source:
Kafka's Cleaner, for the semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.ids import LAST_OFFSET
from headrace.base.limits import COMPACTION_KEYS_MAX
from headrace.base.ports import Disk, File
from headrace.storage.log.compaction.keeping import Keeping, add_last
from headrace.storage.log.names import cleaned_name, numbered
from headrace.storage.log.scan import raw_batches
from headrace.storage.log.segment import RELATIVE_OFFSET_MAX
from headrace.wire.batches import BatchHeader, parse_header

WRITE_BYTES: Final = 1024 * 1024


class Stopped(Exception):  # noqa: N818  # no error: it was asked for
    """It was asked to stop; what it wrote is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """One closed segment: it holds the offsets from `base` to `end`."""

    base: int
    end: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """All that a cleaning needs to know."""

    directory: Path
    sources: tuple[SourceSegment, ...]
    """From the segment that holds the log's start on, contiguous."""
    dirty_from: int
    """An earlier cleaning has been as far as here."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    """Segments that are small together become one, up to this size."""
    remembered: frozenset[int]
    """Last offsets of the batches that stay though nothing is left in them: those that producers' states rest on, and
    the last of the log, where no segment behind it is open."""
    token: str
    """Marks the files of this job."""
    tombstones_from: int = LAST_OFFSET
    """Tombstones from there on stay, unless a later record replaces them."""
    gaps_below: int = 0
    """Earlier cleanings have left gaps below it; any other is damage."""
    keys_max: int = COMPACTION_KEYS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFile:
    """What stands for the sources in its range: a file in the directory, or nothing where they stay as they are."""

    base: int
    end: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Complete and written, not synced."""

    clean_to: int
    files: tuple[CleanedFile, ...]


def _nothing(_: int) -> None:
    return


def clean(
    disk: Disk,
    job: CleaningJob,
    *,
    pace: Callable[[int], None] = _nothing,
    stopping: Callable[[], bool] = lambda: False,
) -> Cleaned:
    """Blocking. `pace` is told of every few bytes read or written, and may wait. Raises OSError, CorruptData, Stopped;
    then nothing that it wrote is of use."""
    return _Cleaner(disk, job, pace, stopping).run()


class _Cleaner:
    def __init__(self, disk: Disk, job: CleaningJob, pace: Callable[[int], None], stopping: Callable[[], bool]) -> None:
        self._disk = disk
        self._job = job
        self._pace = pace
        self._stopping = stopping
        self._last: dict[bytes, int] = {}
        """The last offset of each key in what is dirty."""
        self._clean_to = job.dirty_from

    def run(self) -> Cleaned:
        self._read_keys()
        self._keeping = Keeping(
            last=self._last,
            clean_to=self._clean_to,
            now_ms=self._job.now_ms,
            delete_retention_ms=self._job.delete_retention_ms,
            tombstones_from=self._job.tombstones_from,
        )
        groups = self._groups()
        return Cleaned(clean_to=self._clean_to, files=tuple(self._clean(group) for group in groups))

    def _batches(self, source: SourceSegment) -> Iterator[tuple[BatchHeader, bytes]]:
        file, expected = self._disk.open(numbered(self._job.directory, source.base, ".log")), source.base
        try:
            for header, raw in raw_batches(file, source.size):
                if self._stopping():
                    raise Stopped
                self._pace(header.size)
                self._check_place(source, expected, header.base_offset)
                expected = header.next_offset
                yield header, raw
            self._check_place(source, expected, source.end)
        finally:
            file.close()

    def _check_place(self, source: SourceSegment, expected: int, offset: int) -> None:
        if not expected <= offset <= max(expected, self._job.gaps_below):
            raise CorruptData(f"The segment at offset {source.base} goes from offset {expected} on to {offset}.")

    def _read_keys(self) -> None:
        """As far as the keys fit in memory; the rest is for another time."""
        job, last = self._job, self._last
        for source in job.sources:
            if source.end <= job.dirty_from:
                continue
            for header, raw in self._batches(source):
                if header.last_offset < job.dirty_from or header.is_control or header.is_transactional:
                    continue
                if last and len(last) + header.count > job.keys_max:
                    self._clean_to = header.base_offset
                    return
                add_last(last, header, raw)
            self._clean_to = source.end

    def _groups(self) -> Iterator[list[SourceSegment]]:
        """Neighbours that are small together."""
        group: list[SourceSegment] = []
        for source in self._job.sources:
            if source.base >= self._clean_to:
                break
            size = sum(each.size for each in group) + source.size
            if group and (size > self._job.segment_bytes or source.end - group[0].base > RELATIVE_OFFSET_MAX):
                yield group
                group = []
            group.append(source)
        if group:
            yield group

    def _clean(self, group: Sequence[SourceSegment]) -> CleanedFile:
        base, end = group[0].base, group[-1].end
        name = cleaned_name(base, end, self._job.token)
        path = self._job.directory / name
        file = self._disk.open(path, create=True)
        try:
            changed = self._write(file, group)
        finally:
            file.close()
        if changed or len(group) > 1:
            return CleanedFile(base=base, end=end, name=name)
        self._disk.remove(path)
        return CleanedFile(base=base, end=end, name=None)

    def _write(self, file: File, group: Sequence[SourceSegment]) -> bool:
        """Write what stays; False where that is everything, as it was."""
        waiting: list[bytes] = []
        size, changed = 0, False
        for source in group:
            for header, raw in self._batches(source):
                kept = self._filter(header, raw)
                changed = changed or kept is not raw
                if kept is not None:
                    waiting.append(kept)
                    size += len(kept)
                if size >= WRITE_BYTES:
                    self._pace(file.append(waiting))
                    waiting, size = [], 0
        if waiting:
            self._pace(file.append(waiting))
        return changed

    def _filter(self, header: BatchHeader, raw: bytes) -> bytes | None:
        """What stays of a batch: the very same bytes, others, or none."""
        kept = self._keeping.kept(header, raw)
        is_empty = not header.count if kept is raw else not parse_header(kept).count
        is_kept = not is_empty or header.is_control or header.base_offset >= self._clean_to
        return kept if is_kept or header.last_offset in self._job.remembered else None
