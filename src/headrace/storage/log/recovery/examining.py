"""A local log as the examiner sees it: one segment at a time is read whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.base.ids import Offset
from headrace.storage.log.recovery.damage import Examination
from headrace.storage.log.segment import Segment, SegmentDamage
from headrace.storage.log.state import LocalState


class LocalExamining:
    """An `Examinable`."""

    __slots__ = ("_log",)

    def __init__(self, log: LocalState) -> None:
        self._log: Final = log

    @property
    def segments(self) -> Sequence[Offset]:
        log = self._log
        return [Offset(segment.base) for segment in log.contents.segments if segment.end > segment.base]

    def segment_of(self, offset: Offset) -> Offset:
        log = self._log
        return Offset(log.contents.holding(offset).base)

    def begin_examination(self, base: Offset) -> Examination | None:
        log = self._log
        contents, compaction = log.contents, log.compaction
        if (
            log.read_only is not None
            or contents.held_size
            or not contents.segments
            or compaction.cleaning is not None
            or compaction.is_held
        ):
            return None
        segment = contents.holding(base)
        if segment.base != base:
            return None
        compaction.is_held = True
        return Examination(
            log.disk,
            segment,
            gaps_below=contents.gaps_below,
            interval=log.config.index_interval_bytes,
            end=self._end_examination,
            known=log.damages,
            flushed=None if segment.end <= log.flushed_end else self._flushed_in(segment),
        )

    def _flushed_in(self, segment: Segment) -> tuple[int, int]:
        """The flushed end of a segment that is only partly flushed, as offset and position."""
        log = self._log
        return (log.flushed_end, log.flushed_position) if segment.base < log.flushed_end else (segment.base, 0)

    def _end_examination(self, examination: Examination, done: bool) -> Sequence[SegmentDamage]:
        log = self._log
        log.compaction.is_held = False
        segment, contents = examination.segment, log.contents
        if not done or segment not in contents.segments:
            return []
        known = segment.damages
        has_grown = segment.size != examination.size_before or segment is contents.active
        contents.heed(segment, examination.found, segment.size if has_grown else examination.size)
        if segment is contents.active:
            contents.correct_indexes(examination.twin, log.config.index_interval_bytes)
        elif examination.has_rebuilt:
            segment.times_known, segment.max_timestamp = False, -1
        return [damage for damage in examination.found if damage not in known]
