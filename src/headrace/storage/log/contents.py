"""The segments of one log: writing at the end, reading anywhere, cutting at both ends. Knows nothing of durability.

Invariants:
- Segments are in offset order.
- Only the last may be active (`active` is that one, or None).
- Each segment's `size` bytes are whole batches, whatever its file holds beyond them.

Loop-only. Raises OSError as the disk does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.limits import READ_POSITIONS_REMEMBERED_MAX
from headrace.base.ports import Disk
from headrace.native import ContentsState
from headrace.storage.engine.identity import LogConfig
from headrace.storage.engine.placing import Placed
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.reading.cutting import cut, first_batch
from headrace.storage.log.reading.newest import Newest
from headrace.storage.log.reading.repeat_reads import RepeatReads
from headrace.storage.log.scan import headers_in
from headrace.storage.log.segment import RELATIVE_OFFSET_MAX, Segment, SegmentDamage
from headrace.wire.batches import HEADER_BYTES, LENGTH_END, BatchHeader, mend_emptied

BATCHES_WALKED: Final = 64
"""Batches of one read that are walked before the index is used."""
_NOTHING: Final = memoryview(b"")
_base_of = attrgetter("base")


class Contents(ContentsState):
    """See the module."""

    __slots__ = (
        "_disk",
        "_drops",
        "_files",
        "_held",
        "_positions",
        "again",
        "directory",
        "gaps_below",
        "is_mended",
        "newest",
        "segments",
        "swaps",
    )

    active: Segment | None

    def __init__(
        self,
        disk: Disk,
        files: SegmentFiles,
        directory: Path,
        segments: list[Segment],
        newest: Newest,
        again: RepeatReads,
    ) -> None:
        self._disk = disk
        self._files = files
        self.directory: Final = directory
        self.segments = segments
        self.active = segments[-1] if segments and segments[-1].index is not None else None
        self.size = sum(segment.size for segment in segments)
        self._held: list[tuple[Placed, int]] = []
        """Batches that still have to be written to the active segment, with their offsets."""
        self.held_size = 0
        """Bytes of the held batches."""
        self.gaps_below = 0
        """Below this offset compaction may have removed whole batches, even the last ones of the log."""
        self.is_mended = True
        """False: below `gaps_below` there may be emptied batches that clients cannot read. Readers get them mended."""
        self.swaps = 0
        """How often segments were replaced by compacted ones. A look-up that ran meanwhile is repeated."""
        self._positions: dict[int, tuple[Segment, int]] = {}
        """Positions where readers stopped: offset to segment and position."""
        self.newest: Final = newest
        self.again: Final = again
        self._drops = 0
        """How often the data kept for readers was dropped. A cut, in a worker thread, may overtake a read."""

    # writing

    def is_full(self, config: LogConfig, placed: Placed, now_ms: int) -> bool:
        """Whether the active segment, with the batches held for it, must be closed before these batches are added."""
        active = self.active
        if active is None or not active.size:
            return False
        if active.created_ms < 0:
            active.created_ms = now_ms
        if active.first_timestamp >= 0:
            age = placed.max_timestamp - active.first_timestamp
        else:
            age = now_ms - active.created_ms
        jitter_ms, left_ms = config.segment_jitter_ms, config.segment_ms - age
        return (
            active.size + self.held_size + placed.size > config.segment_bytes
            or left_ms < 0
            or (left_ms < jitter_ms and left_ms < active.jitter(min(jitter_ms, config.segment_ms)))
            or active.indexes_are_full(config.segment_index_bytes, len(self._held))
            or placed.end - active.base > RELATIVE_OFFSET_MAX
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been written to the active segment yet."""
        return self.active is None or not self.active.size

    def open_segment(self, base: int, now_ms: int) -> None:
        """Begin a segment at the log's end."""
        assert self.active is None
        segment = Segment(self.directory, base, created_ms=now_ms)
        self._files.create(segment)
        self.segments.append(segment)
        self.active = segment

    def close_active(self) -> Segment:
        """Close the active segment: nothing is written to it any more."""
        closed, self.active = self.active, None
        assert closed is not None
        closed.close_indexes()
        return closed

    def hold(self, placed: Placed, base: int) -> None:
        """Hold batches, which begin at offset `base`, for the active segment. `write_out` writes them."""
        if placed.has_place:
            base = placed.headers[0].base_offset
        self.newest.add(placed, base)  # first, since it allocates memory
        self._held.append((placed, base))
        self.held_size += placed.size

    def write_out(self, interval: int) -> None:
        """Write the held batches to the active segment, with one append. If that fails, `undo_write` has to follow."""
        held, active = self._held, self.active
        if not held:
            return
        assert active is not None
        buffers = held[0][0].buffers
        if len(held) > 1:
            buffers = [buffer for placed, _ in held for buffer in placed.buffers]
        (active.file or self._files.get(active)).append(buffers)
        for placed, base in held:
            for header in placed.headers:
                base = (header.base_offset if placed.has_place else base) + header.last_offset_delta + 1
                newest = header.max_timestamp if header.count else -1  # emptied batches come from a compacted leader
                active.add(base - 1, LENGTH_END + header.batch_length, newest, interval)
        self.size += self.held_size
        self._let_go()

    def _let_go(self) -> None:
        self._held = []
        self.held_size = 0

    @property
    def held_count(self) -> int:
        """Number of held appends."""
        return len(self._held)

    def drop_held(self) -> None:
        """Drop the held batches without writing them."""
        self._let_go()

    def undo_write(self, kept: int) -> None:
        """Cut off the remains of a failed `write_out`. The first `kept` of the held appends stay held."""
        del self._held[kept:]
        self.held_size = sum(placed.size for placed, _ in self._held)
        self._drop_read()
        if self.active is not None:
            self._files.get(self.active).truncate(self.active.size)

    # reading

    def read(self, start: int, max_bytes: int, end: int, *, at_least_one: bool) -> memoryview:
        """See `PartitionLog.read`. Costs one `File.read` where a reader continues from where it stopped, and none where
        another reader has just read the same range.
        """
        if (found := self.again.find(start, max_bytes, end)) is not None:
            return found
        drops = self._drops
        known = self._positions.get(start)
        place = known if known is not None and known[1] < known[0].size else self.find(start)
        if place is None:
            return _NOTHING
        segment, position = place
        file = self._files.get(segment)
        left = (segment.sound_up_to(start) if segment.damages else segment.size) - position
        data = file.read(position, min(max(max_bytes, HEADER_BYTES), left))
        gaps = self.gaps_below
        base = int.from_bytes(data[:8])
        if len(data) < HEADER_BYTES or ((base > start or (known is place and base < start)) and start >= gaps):
            raise CorruptData(f"There is no batch with offset {start} where it should be, in {segment.path.name}.")
        next_offset: int | None
        size, next_offset, finished = cut(data, max_bytes, start, end, batches_max=BATCHES_WALKED, gaps_below=gaps)
        if not finished:
            size, next_offset = self._cut_small(segment, position, data, max_bytes, (size, next_offset), end)
        if not size and at_least_one:
            wanted, next_offset = first_batch(data)
            if not HEADER_BYTES <= wanted <= left:
                raise CorruptData(f"The batch at offset {start} says {wanted} bytes; {left} are left in its segment.")
            if next_offset > segment.end:
                raise CorruptData(f"The batch at offset {start} goes on to {next_offset}; its segment does not.")
            if next_offset > end:
                return _NOTHING
            if wanted > len(data):
                data = file.read(position, wanted)
            size, next_offset, _ = cut(data, wanted, start, end, gaps_below=gaps)
        position += size
        if size and next_offset is not None and (position < segment.size or segment is self.active):
            self._remember(next_offset, segment, position)
            if position == segment.size:
                self.newest.follow()
        given = memoryview(data)[:size]
        if base < gaps and not self.is_mended:
            given = memoryview(mend_emptied(given))
        is_at_end = position == segment.size
        if 0 < size <= max_bytes and (segment is not self.active if is_at_end else _is_full(data, size, max_bytes)):
            until = end if next_offset is None else next_offset
            self.again.add(start, max_bytes, given, until, held=len(data))
        if drops != self._drops:
            self.again.drop()
            self._positions.clear()
        return given

    def read_held(self, start: int, max_bytes: int, end: int, *, at_least_one: bool) -> memoryview:
        """As `read`, for held batches that the disk has no room for."""
        data = b"".join(buffer for placed, _ in self._held for buffer in placed.buffers)
        gaps = self.gaps_below
        skipped = cut(data, len(data), self.segments[-1].end, start, gaps_below=gaps).size
        size, _, _ = cut(data, skipped + max_bytes, start, end, at=skipped, gaps_below=gaps)
        if size == skipped and at_least_one:
            wanted, _ = first_batch(data[skipped:])
            size, _, _ = cut(data, skipped + wanted, start, end, at=skipped, gaps_below=gaps)
        return memoryview(data)[skipped:size]

    def _cut_small(
        self, segment: Segment, position: int, data: bytes, limit: int, known: tuple[int, int], end: int
    ) -> tuple[int, int | None]:
        """Handle many small batches: leap over those that the index shows to be whole, below `limit` and below `end`.
        Where no batch follows the leap, the offset that it reached is unknown.
        """
        at, next_offset = known
        leap = segment.last_entry(self._disk, position + min(len(data), limit) - 1, end - 1) - position
        size, reached, _ = cut(data, limit, next_offset, end, at=max(at, leap), gaps_below=self.gaps_below)
        return size, None if size == leap > at else reached

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        positions = self._positions
        positions[offset] = (segment, position)
        if len(positions) > READ_POSITIONS_REMEMBERED_MAX:
            del positions[next(iter(positions))]

    def find(self, offset: int) -> tuple[Segment, int] | None:
        """Segment and position of the batch that holds `offset`, or of the next batch where compaction left a gap. None
        where it left no batch up to the log's end.
        """
        first = max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)
        for segment in self.segments[first:]:
            if segment.end <= offset:
                continue
            file = self._files.get(segment)
            position, last_offset = segment.entry_below(self._disk, offset)
            due = -1 if position else segment.base
            for at, header in headers_in(file, position, segment.sound_up_to(offset)):
                if header.last_offset != last_offset >= 0 or header.base_offset != due >= self.gaps_below:
                    raise CorruptData(f"What should be the batch at offset {due}, in {file.path.name}, is another.")
                if header.last_offset >= offset:
                    return segment, at
                due, last_offset = header.next_offset, -1
            if offset >= self.gaps_below:
                break
        if offset < self.gaps_below:
            return None
        raise CorruptData(f"Offset {offset} is in none of the batches of {self.directory.name}.")

    def _drop_read(self) -> None:
        """Drop everything kept for readers: it may differ from the log's contents from now on."""
        self._drops += 1
        self.newest.drop()
        self.again.drop()

    # damage

    def holding(self, offset: int) -> Segment:
        """The segment that holds `offset`, or the nearest one. At least one segment must exist."""
        return self.segments[max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)]

    def heed(self, segment: Segment, damages: Sequence[SegmentDamage], size: int) -> None:
        """From now on, reads of the segment avoid these damaged ranges, and everything beyond `size`."""
        segment.damages = tuple(damages)
        self.size -= segment.size - size
        segment.size = size
        self._positions.clear()
        self._drop_read()

    def correct_indexes(self, twin: Segment, interval: int) -> None:
        """Replace the active segment's indexes by those of its examined `twin` where they disagree; they may be an
        earlier life's. That is rare. The batches that came since the examination are then walked on the loop.
        """
        active = self.active
        assert active is not None
        assert active.index is not None
        assert active.times is not None
        assert twin.index is not None
        assert twin.times is not None
        if active.index.startswith(twin.index) and active.times.startswith(twin.times):
            return
        with suppress(CorruptData):
            for _, header in headers_in(self._files.get(active), twin.size, active.size):
                twin.add(header.last_offset, header.size, header.newest_time, interval)
            active.index, active.times = twin.index, twin.times
            active.since_entry, active.last_entry_time = twin.since_entry, twin.last_entry_time

    # compaction

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replace the segments that were compacted by the new one. Files stay as they are."""
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == old, "nothing was dropped meanwhile"
        self.segments = [*self.segments[:at], new, *self.segments[at + len(old) :]]
        self.size += new.size - sum(segment.size for segment in old)
        for segment in old:
            self._files.close(segment)
        self._positions.clear()
        self._drop_read()
        self.swaps += 1  # last: a thread that reads the new number sees the new segments

    # cutting

    def drop_first(self, count: int) -> list[Segment]:
        """Forget the oldest segments. Their files stay."""
        dropped, self.segments = self.segments[:count], self.segments[count:]
        return self._forget(dropped)

    def cut(self, base: int, position: int, end: int) -> list[Segment]:
        """Forget everything after `position` of the segment that begins at `base`, where offset `end` would be. Returns
        the segments that are gone whole. Files stay as they are, and so do the indexes: they may point beyond the end.
        """
        self._let_go()
        keep = bisect_right(self.segments, base, key=_base_of)
        dropped, self.segments = self.segments[keep:], self.segments[:keep]
        if self.segments and self.segments[-1].base == base:
            self.size -= self.segments[-1].size - position
            self.segments[-1].size, self.segments[-1].end = position, end
        return self._forget(dropped)

    def drop_tail(self, end: int, position: int) -> None:
        """Forget everything from offset `end` on, at `position` of the segment that holds it. As far as the disk
        allows, cut it off the files too. The kernel may hold as clean what it never wrote, and a recovery would believe
        it.
        """
        holding = [segment for segment in self.segments if segment.base < end]
        if holding and holding[-1].end <= end:
            position = holding[-1].size
        dropped = self.cut(holding[-1].base if holding else -1, position, end)
        with suppress(OSError):
            for segment in dropped:
                self._disk.remove(segment.path)
            if holding:
                self._files.get(holding[-1]).truncate(position)

    def reopen_last(self, base: int, interval: int) -> None:
        """Called after a cut. Make the segment that begins at `base`, where it exists, the active one again, with its
        file cut and synced. Blocks.
        """
        if not self.segments or self.segments[-1].base != base:
            return
        old = self.segments[-1]
        self._files.close(old)
        segment = Segment(self.directory, base)
        file = self._disk.open(segment.path)
        try:
            file.truncate(old.size)
            file.sync()
            kept = [damage for damage in old.damages if damage.resume <= old.size and damage.end <= old.end]
            for damage in kept:
                _add(segment, headers_in(file, segment.size, damage.position), interval)
                segment.size, segment.end = damage.resume, damage.end
            _add(segment, headers_in(file, segment.size, old.size), interval)
            segment.damages = tuple(kept)
        finally:
            file.close()
        self.segments[-1] = self.active = segment

    def _forget(self, dropped: list[Segment]) -> list[Segment]:
        for segment in dropped:
            self.size -= segment.size
            self._files.close(segment)
            if segment is self.active:
                self.active = None
        self._positions.clear()
        self._drop_read()
        return dropped

    def close(self) -> None:
        """Close the files, except those that a flush still works on. Drop the held batches. Idempotent."""
        self._let_go()
        self._drop_read()
        for segment in self.segments:
            if not segment.pins:
                self._files.close(segment)


def _is_full(data: bytes, size: int, limit: int) -> bool:
    """Whether a read of `size` bytes of `data` ended because the next batch would exceed `limit`. Otherwise it ended
    for another reason, and a moment later it may go further.
    """
    following = size + LENGTH_END
    return following > len(data) or following + int.from_bytes(data[following - 4 : following]) > limit


def _add(segment: Segment, headers: Iterable[tuple[int, BatchHeader]], interval: int) -> None:
    for _, header in headers:
        segment.add(header.last_offset, header.size, header.newest_time, interval)
