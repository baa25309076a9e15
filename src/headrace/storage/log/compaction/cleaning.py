"""The slow half of compaction: it makes files from closed segments, without the records that later ones replaced.

It runs anywhere, in a process of its own where there is one. It takes a job of plain values and a `Disk`. It writes
files named `.cleaned` and touches nothing else, so that it may be killed at any time.

Promises:
- Offsets, epochs, producers and the order of the kept records do not change.
- Memory is bounded by `COMPACTION_KEYS_MAX` keys and one batch.
- Of every key the last record below `clean_to` stays, except tombstones past their time.

Removed are:
- a record whose key has a later one below `clean_to`;
- a tombstone whose batch got a horizon that has passed (KIP-534: `delete.retention.ms` after the first cleaning, in the
  batch's base time);

- a record of an aborted transaction, whose key replaces nothing;
- a transaction's marker, `delete.retention.ms` after a cleaning that found none of its batches.

Kept although they might be removed are:
- records without a key;
- batches that cannot be decompressed, or would become too large, and all tombstones behind them.

A batch that loses all its records stays without them while a producer's state depends on it, and while it is the last.
Source: Kafka's Cleaner, for the semantics.
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
from headrace.storage.decided import Decided
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.keeping import Keeping, add_last
from headrace.storage.log.names import cleaned_name, numbered
from headrace.storage.log.scan import raw_batches
from headrace.storage.log.segment import RELATIVE_OFFSET_MAX
from headrace.wire.batches import BatchHeader
from headrace.wire.transactions import AbortedTransaction

WRITE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """One closed segment: it holds the offsets from `base` to `end`."""

    base: int
    end: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """All inputs of a cleaning."""

    directory: Path
    sources: tuple[SourceSegment, ...]
    """Contiguous, from the segment that holds the log's start."""
    dirty_from: int
    """Earlier cleanings reached this offset."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    """Neighbouring small segments are merged, up to this size in bytes."""
    remembered: frozenset[int]
    """Last offsets of batches that stay even without records. Producers' states depend on them, or they are the log's
    last batch and no open segment follows.
    """
    token: str
    """Marks the files of this job."""
    tombstones_from: int = LAST_OFFSET
    """Tombstones from this offset on stay, unless a later record replaces them."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """All aborted transactions with offsets in the sources."""
    gaps_below: int = 0
    """Earlier cleanings left gaps below this offset. Any other gap is damage."""
    keys_max: int = COMPACTION_KEYS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFile:
    """The replacement for the sources in its range: a file in the directory, or None where they stay as they are."""

    base: int
    end: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """The result of a cleaning. All its files are written, but not synced."""

    clean_to: int
    files: tuple[CleanedFile, ...]
    bare: tuple[int, ...] = ()
    """Offsets of the abort markers whose transactions have no batch any more."""


def _nothing(_: int) -> None:
    return


def clean(
    disk: Disk,
    job: CleaningJob,
    *,
    pace: Callable[[int], None] = _nothing,
    stopping: Callable[[], bool] = lambda: False,
) -> Cleaned:
    """Clean the segments of a job. Blocks. `pace` is called for every few bytes read or written, and may wait. Raises
    OSError, CorruptData, Stopped; then none of its files is of use.
    """
    return _Cleaner(disk, job, pace, stopping).run()


class _Cleaner:
    def __init__(self, disk: Disk, job: CleaningJob, pace: Callable[[int], None], stopping: Callable[[], bool]) -> None:
        self._disk = disk
        self._job = job
        self._pace = pace
        self._stopping = stopping
        self._last: dict[bytes, int] = {}
        """The last offset of each key in the dirty part."""
        self._clean_to = job.dirty_from
        self._decided = Decided(job.aborted)

    def run(self) -> Cleaned:
        self._read_keys()
        self._keeping = Keeping(
            last=self._last,
            clean_to=self._clean_to,
            now_ms=self._job.now_ms,
            delete_retention_ms=self._job.delete_retention_ms,
            tombstones_from=self._job.tombstones_from,
            decided=self._decided,
        )
        files = tuple(self._clean(group) for group in self._groups())
        return Cleaned(clean_to=self._clean_to, files=files, bare=tuple(self._decided.bare))

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
        """Read the keys as far as they fit in memory. The rest is left to the next cleaning."""
        job, last = self._job, self._last
        for source in job.sources:
            if source.end <= job.dirty_from:
                continue
            for header, raw in self._batches(source):
                if header.last_offset < job.dirty_from or header.is_control or self._decided.is_aborted(header):
                    continue
                if last and len(last) + header.count > job.keys_max:
                    self._clean_to = header.base_offset
                    return
                add_last(last, header, raw, self._decided)
            self._clean_to = source.end

    def _groups(self) -> Iterator[list[SourceSegment]]:
        """Yields groups of neighbouring segments that are small together."""
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
        """Write the kept batches. Returns False where all of them stay unchanged."""
        waiting: list[bytes] = []
        size, changed = 0, False
        for source in group:
            for header, raw in self._batches(source):
                kept = self._keeping.left(header, raw, self._job.remembered)
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
