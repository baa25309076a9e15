"""The quick half of compaction: it decides what is due in one log. `rounds` replaces its segments by cleaned files.

While a cleaning is out, no segment is dropped and nothing is cut.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.base.ids import Offset
from headrace.base.ports import Disk
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.aborted import Aborted, join_files
from headrace.storage.log.checkpoints import Compacted, encode_compacted, write_file
from headrace.storage.log.contents import Contents
from headrace.storage.log.names import COMPACTION, segment_files, segment_paths
from headrace.storage.log.segment import Segment
from headrace.wire.batches import HEADER_BYTES, parse_header

if TYPE_CHECKING:
    from headrace.storage.log.compaction.rounds import Round

NO_LAG_LIMIT: Final = 2**63 - 1


class Note:
    """The durable note of a log's gaps. Its methods block, in a worker thread, and raise OSError. A cleaning and a
    flush may call them at the same time.
    """

    __slots__ = ("_directory", "_disk", "_lock", "state")

    def __init__(self, disk: Disk, directory: Path, state: Compacted) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()
        self.state = state

    def raise_gaps(self, end: Offset) -> None:
        """Note that batches may be missing below `end`. Everything that the log has below it is durable."""
        with self._lock:
            if end > self.state.gaps_below:
                self._write(replace(self.state, gaps_below=end, is_known=True))

    def conclude(self, clean_to: Offset, *, is_mended: bool) -> None:
        """Note that the log is clean up to there. `is_mended`: everything left by older compactions was covered."""
        with self._lock:
            self._write(replace(self.state, clean_to=clean_to, is_mended=self.state.is_mended or is_mended))

    def lower(self, end: Offset) -> None:
        """Lower the note, because the log is about to be cut at `end`."""
        with self._lock:
            if end < self.state.gaps_below:
                self._write(replace(self.state, gaps_below=end, clean_to=min(end, self.state.clean_to)))

    def _write(self, state: Compacted) -> None:
        write_file(self._disk, self._directory / COMPACTION, encode_compacted(state))
        self._disk.sync_directory(self._directory)
        self.state = state


class Compaction:
    """Compaction of one log. `note` is the durable state; `cleaning` is the one under way."""

    __slots__ = ("_aborted", "_contents", "_directory", "_disk", "cleaning", "is_held", "note")

    def __init__(self, disk: Disk, directory: Path, contents: Contents, state: Compacted, aborted: Aborted) -> None:
        self._disk = disk
        self._directory = directory
        self._contents = contents
        self._aborted = aborted
        self.note = Note(disk, directory, state)
        self.cleaning: Round | None = None
        self.is_held = False
        """An examination reads a segment, which must not change meanwhile."""
        contents.gaps_below, contents.is_mended = state.gaps_below, state.is_mended

    @property
    def state(self) -> Compacted:
        return self.note.state

    def dirtiness(self, config: LogConfig, now_ms: int, start: int, up_to: int) -> float:
        """The fraction of the cleanable bytes that is not clean; 0 where no cleaning is due. The whole log counts as
        dirty where an older compaction may have left batches that clients cannot read. Raises OSError.
        """
        is_free = self.cleaning is None and not self.is_held
        segments = self._cleanable(config, now_ms, start, up_to) if is_free else []
        if self._can_be_mended(segments):
            return 1.0
        dirty = [each for each in segments if each.size and each.end > max(self.state.clean_to, start)]
        total, dirty_bytes = sum(segment.size for segment in segments), sum(segment.size for segment in dirty)
        if not dirty_bytes:
            return 0.0
        ratio = dirty_bytes / total
        return ratio if ratio > config.min_cleanable_dirty_ratio or self._is_late(dirty[0], config, now_ms) else 0.0

    def _cleanable(self, config: LogConfig, now_ms: int, start: int, up_to: int) -> list[Segment]:
        """Segments that are closed, durable, committed, sound, and old enough where a compaction lag is configured.
        Segments below the log's start are left out: they are about to be removed, and would stay as part of another
        segment.
        """
        found: list[Segment] = []
        for segment in self._contents.segments:
            if not segment.synced or segment.end > up_to or segment is self._contents.active or segment.damages:
                break
            if segment.end <= start:
                continue
            segment.load_times(self._disk)
            young = config.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
            if young and segment.end > self.state.clean_to:
                break
            found.append(segment)
        return found

    def _can_be_mended(self, segments: list[Segment]) -> bool:
        """Whether the log needs mending, and a round over these segments would mend all of it."""
        return not self.state.is_mended and bool(segments) and segments[-1].end >= self.state.gaps_below

    def _is_late(self, oldest: Segment, config: LogConfig, now_ms: int) -> bool:
        """Whether the first dirty batch has waited longer than allowed."""
        if config.max_compaction_lag_ms >= NO_LAG_LIMIT:
            return False
        file = oldest.open(self._disk)
        try:
            data = file.read(0, HEADER_BYTES)
        finally:
            file.close()
        return 0 <= parse_header(data).max_timestamp < now_ms - config.max_compaction_lag_ms

    def begin(
        self,
        config: LogConfig,
        now_ms: int,
        start: int,
        up_to: int,
        remembered: frozenset[int],
        token: str,
        tombstones_from: int,
    ) -> Round | None:
        """Take up the segments that can be cleaned; None where there are none. Raises OSError."""
        from headrace.storage.log.compaction.cleaning import CleaningJob, SourceSegment
        from headrace.storage.log.compaction.rounds import Round

        assert self.cleaning is None
        assert not self.is_held, "no examination is out"
        segments = self._cleanable(config, now_ms, start, up_to)
        dirty_from = max(self.state.clean_to, start, segments[0].base if segments else 0)
        if not any(segment.size and segment.end > dirty_from for segment in segments):
            if not self._can_be_mended(segments):
                return None
            dirty_from = segments[-1].end
        job = CleaningJob(
            directory=self._directory,
            sources=tuple(SourceSegment(base=each.base, end=each.end, size=each.size) for each in segments),
            dirty_from=dirty_from,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            remembered=remembered,
            token=token,
            tombstones_from=tombstones_from,
            aborted=tuple(self._aborted.overlapping(segments[0].base, segments[-1].end)),
            gaps_below=self.state.gaps_below,
        )
        self.cleaning = Round(self._disk, self._directory, job, segments, self.note, config.index_interval_bytes)
        return self.cleaning

    def install(self, cleaning: Round) -> None:
        """The loop starts to read the swap, which is now the durable segment."""
        assert cleaning is self.cleaning
        assert cleaning.swap is not None
        self._contents.gaps_below = max(self._contents.gaps_below, self.state.gaps_below)
        self._contents.replace(cleaning.replaced, cleaning.swap)
        self._aborted.join(cleaning.swap.base, [segment.base for segment in cleaning.replaced], cleaning.bare)

    def settled(self, cleaning: Round) -> None:
        """The swap has its own name, and its indexes are in files."""
        assert cleaning.swap is not None
        self._aborted.settle(cleaning.swap.base)
        cleaning.swap.swap = None
        cleaning.swap.index = cleaning.swap.times = None
        cleaning.swap = None

    def end(self, cleaning: Round) -> None:
        """The cleaning is over, complete or not."""
        assert cleaning is self.cleaning
        self._contents.gaps_below = max(self._contents.gaps_below, self.state.gaps_below)
        self._contents.is_mended = self.state.is_mended
        self.cleaning = None

    def lower(self, end: Offset) -> None:
        """The log is about to be cut at `end`. Blocks; raises OSError."""
        assert self.cleaning is None, "no cleaning is under way"
        self.note.lower(end)
        self._contents.gaps_below = min(self._contents.gaps_below, end)

    def forget(self) -> None:
        """The log was emptied: it has no gaps, and no note of any."""
        assert self.cleaning is None, "no cleaning is under way"
        self.note.state = Compacted()
        self._contents.gaps_below, self._contents.is_mended = 0, True


def finish_swap(disk: Disk, directory: Path, swap: Path, bases: list[int], bare: frozenset[int] = frozenset()) -> None:
    """Replace the segments with these bases, the swap's own among them, by a durable swap. Calling it again finishes
    whatever a crash left of it. The swap's indexes still have to be written.
    """
    own = int(swap.name.split("-")[0])
    join_files(disk, directory, own, bases, bare)
    for base in bases:
        log, index, times, aborted = segment_files(directory, base)
        for path in (index, times) if base == own else (index, times, aborted, log):
            if disk.exists(path):
                disk.remove(path)
    disk.sync_directory(directory)
    disk.rename(swap, segment_paths(directory, own)[0])
    disk.sync_directory(directory)
