"""Decides how many of the oldest segments are due for removal, by age and by size. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from headrace.base.errors import CorruptData, NoRoom
from headrace.base.ids import Offset
from headrace.storage.engine.cutting import Range
from headrace.storage.engine.identity import LogConfig, held_locally
from headrace.storage.log.names import segment_files
from headrace.storage.log.segment import Segment, SegmentInfo
from headrace.storage.log.state import LocalState


def due(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_size: int,
    log_start: int,
    now_ms: int,
    up_to: int,
    gaps_below: int,
    written_ms: Callable[[Segment], int],
) -> int:
    """Return how many of the oldest of these closed, durable segments may be removed: none that reaches above `up_to`.

    A segment is due in each of these cases:
    - It lies below the log's start.
    - All its records are older than `retention_ms`.
    - Compaction has emptied it.
    - The log without it still holds `retention_bytes`.

    `written_ms`: see `is_old`.
    """
    count = 0
    for segment in segments:
        if not segment.synced or segment.end > up_to:
            break
        below = segment.end <= log_start
        is_bare = (
            not segment.size and segment.end <= gaps_below and not segment.damages
        )  # compaction left nothing in it
        old = is_old(segment, config, now_ms, written_ms) or is_bare
        surplus = config.retention_bytes >= 0 and log_size - segment.size >= config.retention_bytes
        if not (below or old or surplus):
            break
        log_size -= segment.size
        count += 1
    return count


def is_old(segment: Segment, config: LogConfig, now_ms: int, written_ms: Callable[[Segment], int]) -> bool:
    """Whether all records are older than `retention_ms`. Where none has a timestamp, the file's last change counts,
    which `written_ms` returns (as in Kafka: `LogSegment.largestTimestamp`).
    """
    if config.retention_ms < 0:
        return False
    newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 or not segment.size else written_ms(segment)
    return 0 <= newest_ms < now_ms - config.retention_ms


class LogRetention:
    """The old end of one log."""

    __slots__ = ("_log",)

    def __init__(self, log: LocalState) -> None:
        self._log: Final = log

    def ranges(self) -> list[Range]:
        log = self._log
        return [
            Range(Offset(segment.base), Offset(segment.end), segment.size, segment.synced)
            for segment in log.contents.segments
        ]

    def closed_segments(self) -> list[SegmentInfo]:
        """Closed segments that are flushed, in offset order. The first call for each may read 12 bytes."""
        log = self._log
        return [self._info(segment) for segment in log.contents.segments if segment.synced]

    def _info(self, segment: Segment) -> SegmentInfo:
        log = self._log
        with suppress(CorruptData):  # callers that need the times get the error
            segment.load_times(log.disk)
        return SegmentInfo(Offset(segment.base), Offset(segment.end), segment.path, segment.size, segment.max_timestamp)

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> Offset:
        log = self._log
        contents, config = log.contents, held_locally(log.config) if local else log.config
        if by_start_alone:
            config = replace(config, retention_ms=-1, retention_bytes=-1)
        closed, failure = self._with_times([segment for segment in contents.segments if segment.synced])
        active = contents.active
        if active is not None and log.log_end_offset <= up_to and is_old(active, config, now_ms, self._written_ms):
            with suppress(NoRoom):  # removing older segments makes room
                log.roll()
        count = due(
            closed,
            config,
            log_size=contents.size,
            log_start=log.log_start_offset,
            now_ms=now_ms,
            up_to=up_to,
            gaps_below=contents.gaps_below,
            written_ms=self._written_ms,
        )
        if count and before_drop is not None and log.compaction.cleaning is None:
            before_drop()
        self._drop(count)
        if failure is not None:
            raise failure
        return log.log_start_offset

    def _written_ms(self, segment: Segment) -> int:
        """When the segment's file was last written, in milliseconds; -1 where that is unknown, or nothing is written
        yet.
        """
        log = self._log
        try:
            return log.disk.modified_ms(segment.path)
        except OSError:
            return -1

    def _with_times(self, segments: list[Segment]) -> tuple[list[Segment], CorruptData | None]:
        """The segments before the first with a wrong time index, and the error of that one."""
        log = self._log
        for number, segment in enumerate(segments):
            try:
                segment.load_times(log.disk)
            except CorruptData as error:
                return segments[:number], error
        return segments, None

    def _drop(self, count: int) -> None:
        """Drop the oldest segments; none while a cleaning works on them. Their files are removed once the checkpoint
        with the new start is durable. Otherwise a crash could leave a gap: some removals would be durable and others
        not.
        """
        log = self._log
        if log.compaction.cleaning is not None:
            return
        dropped = log.contents.drop_first(count)
        if dropped:
            log.move_start(max(log.log_start_offset, Offset(dropped[-1].end)))
            for segment in dropped:
                log.unsynced.removals += segment_files(log.directory, segment.base)
            log.aborted.drop(segment.base for segment in dropped)

    def delete_records_before(self, offset: Offset) -> Offset:
        log = self._log
        if log.log_start_offset < offset <= log.log_end_offset:
            log.move_start(offset)
            below = [segment for segment in log.contents.segments if segment.synced and segment.end <= offset]
            self._drop(len(below))
        return log.log_start_offset
