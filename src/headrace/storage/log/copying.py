"""A local log as a follower writes to it: a leader's batches with their offsets, and cuts where the two differ."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.storage.engine.appending import Appended
from headrace.storage.engine.cutting import NO_GAPS
from headrace.storage.engine.placing import place_verbatim
from headrace.storage.log.cutting import LogCuts
from headrace.wire.batches import BatchHeader, CorruptBatch, mend_emptied


class LocalCopying(LogCuts):
    """A `Copying`."""

    __slots__ = ()

    def append_verbatim(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        now_ms: int,
        gaps_below: Offset = NO_GAPS,
    ) -> Appended:
        log = self._log
        base = end = log.log_end_offset
        epoch, gaps = log.leader_epochs.latest, NO_GAPS
        begins: list[tuple[LeaderEpoch, Offset]] = []
        for _, header in headers:
            if not end <= header.base_offset <= max(end, gaps_below) or header.leader_epoch < epoch:
                raise CorruptBatch(f"A batch at {header.base_offset} does not go on where the log ends, at {end}.")
            epoch = LeaderEpoch(header.leader_epoch)
            begins.append((epoch, end))  # or inside the gap before it: never later than it truly began
            has_gap = header.base_offset != end or header.count != header.last_offset_delta + 1
            end = Offset(header.next_offset)
            gaps = end if has_gap else gaps
        if gaps:  # a leader of an older version may send them
            batches = mend_emptied(batches)
        log.write(place_verbatim(batches, headers, end), now_ms, gaps=gaps)
        for epoch, start in begins:
            log.begin_epoch(epoch, start)
        return Appended(base, end)

    def skip_to(self, offset: Offset, *, now_ms: int) -> None:
        log = self._log
        assert offset > log.log_end_offset, "there is something to skip"
        contents = log.contents
        try:
            if not contents.segments:  # the log's first segment
                log.open_segment(now_ms)
            log.close_active()  # the next batch begins a segment, and its name holds the offset
        except OSError as error:
            raise log.refused(error, contents.held_count) from error
        contents.segments[-1].end = offset
        log.drop_collected()
        log.note_gaps(offset)
        log.log_end_offset = offset
