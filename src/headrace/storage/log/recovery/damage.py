"""Damage below the flushed end: finding it, noting it, and keeping the bytes that are left.

An `Examination` reads every byte of one segment. Wherever no sound batch stands in its place, the offsets up to the
next sound batch are a damaged range. Ranges are noted in `damaged.json`. The segment's file gets a second name,
`.log.damaged`, so that neither retention nor compaction ever removes the bytes; an operator may. Indexes that disagree
with the segment are rebuilt. Never changes a segment's bytes.

The next sound batch is searched where the damaged one states its end, then where the offset index has a batch. It is
never searched byte by byte, for a record may contain bytes that look like a batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.limits import (
    DAMAGES_PER_SEGMENT_MAX,
    EXAMINED_PER_STEP_BATCHES,
    EXAMINED_PER_STEP_BYTES,
    LIKELY_BATCHES_MAX,
    REQUEST_BYTES_MAX,
)
from headrace.base.ports import Buffer, Disk, File
from headrace.storage.log.checkpoints import decode_fields, encode_fields, read_file, write_file
from headrace.storage.log.names import DAMAGED, segment_paths
from headrace.storage.log.scan import CHECK_CHUNK_BYTES
from headrace.storage.log.segment import INDEX_ENTRY, TIME_ENTRY, Segment, SegmentDamage
from headrace.wire.batches import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch, check_batch, parse_header

DAMAGES: Final = "damaged.json"
MAGIC_AT: Final = 16
NEAR_BYTES: Final = 5
"""First bytes of an offset that show whether it is near another."""
NEAR: Final = 1 << 8 * (8 - NEAR_BYTES)


class Batches:
    """Checks the batches of a file one by one, at any position where one may begin."""

    def __init__(self, file: File, size: int) -> None:
        self.file = file
        self.size = size
        self._chunk, self._chunk_at = b"", 0

    def check(self, at: int, *, compacted: bool) -> BatchHeader | str:
        """The header of the sound batch at `at`, or a sentence on the problem there. Raises OSError."""
        try:
            size = parse_header(self._bytes(at, HEADER_BYTES)).size
            if not HEADER_BYTES <= size <= min(self.size - at, REQUEST_BYTES_MAX):
                return f"What should be a batch says {size} bytes; {self.size - at} are left."
            return check_batch(self._bytes(at, size), compacted=compacted)
        except CorruptBatch as error:
            return str(error)

    def stated_end(self, at: int) -> int:
        """The end that the batch at `at` states; -1 where it is impossible."""
        head = self._bytes(at, HEADER_BYTES)
        size = parse_header(head).size if len(head) == HEADER_BYTES else 0
        return at + size if HEADER_BYTES <= size <= self.size - at else -1

    def likely_from(self, at: int, offset: int) -> Iterator[int]:
        """Yields a few positions from `at` on where bytes look like a batch of an offset near `offset`. For callers
        that do no harm where it is none.
        """
        near = b"|".join(re.escape((offset + distance).to_bytes(8)[:NEAR_BYTES]) for distance in (0, NEAR))
        likely = re.compile(b"(?=(?:%b).{%d}%b)" % (near, MAGIC_AT - NEAR_BYTES, re.escape(bytes([MAGIC]))), re.DOTALL)
        left = LIKELY_BATCHES_MAX
        for start in range(at, min(self.size, at + REQUEST_BYTES_MAX), CHECK_CHUNK_BYTES):
            data = self.file.read(start, min(CHECK_CHUNK_BYTES + MAGIC_AT, self.size - start))
            for found in islice(likely.finditer(data), left):
                left -= 1
                yield start + found.start()

    def _bytes(self, at: int, length: int) -> Buffer:
        start = at - self._chunk_at
        if not 0 <= start <= start + length <= len(self._chunk):
            wanted = min(max(CHECK_CHUNK_BYTES, length), self.size - at)
            self._chunk, self._chunk_at, start = self.file.read(at, wanted), at, 0
        return memoryview(self._chunk)[start : start + length]


class Examination:
    """Examines one segment as it was when this was made, on the loop. `step` and `conclude` raise FileNotFoundError
    where the segment is gone.
    """

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        *,
        gaps_below: int,
        interval: int,
        end: Callable[[Examination, bool], Sequence[SegmentDamage]] | None = None,
        known: Sequence[SegmentDamage] = (),
        flushed: tuple[int, int] | None = None,
    ) -> None:
        """`known`: the damage of the whole log, as far as it is noted. `flushed`: offset and position up to which the
        segment is examined, since later bytes may still be cut off. None: all of it. `end` has the log heed the
        findings.
        """
        self.segment: Final = segment
        self.found = [damage for damage in segment.damages if damage.start < segment.base]
        """All damage of this segment, in order. A range of missing offsets before the segment comes first."""
        self._end, self.size = (segment.end, segment.size) if flushed is None else flushed
        """End of the batches, in bytes. It is less than the segment's size where something else follows the last
        offset.
        """
        self.size_before: Final = self.size
        self.bytes_stepped = 0
        """Bytes that the last step examined."""
        self.has_rebuilt = False
        """Whether the indexes were rebuilt."""
        self._disk = disk
        self._gaps_below = gaps_below
        self._interval = interval
        self._finish = end
        self._known = known
        self._in_memory = None if segment.index is None else bytes(segment.index)
        self._at, self._expected = 0, segment.base
        self._batches: Batches | None = None
        self.twin = Segment(segment.directory, segment.base)
        """The indexes as they should be."""
        self._entries: list[tuple[int, int]] = []
        self._times: dict[int, int] = {}
        self._last_time = -1
        self._index_is_right = True
        self._entry = 0

    # a step at a time

    def step(self) -> bool:
        """Read a little. Returns True once everything is read."""
        if self._batches is None:
            self._begin()
        batches, before = self._batches, self._at
        assert batches is not None
        for _ in range(EXAMINED_PER_STEP_BATCHES):
            if self._at >= self.size or self._at - before >= EXAMINED_PER_STEP_BYTES:
                break
            self._examine(batches)
        self.bytes_stepped = self._at - before
        if self._at < self.size:
            return False
        is_bare = self._in_memory is None and not self.size and bool(self._entries or self._times)
        if is_bare or max(self._expected, self._gaps_below) < self._end:
            self._note(self._expected, self._end, self.size, self.size, "Bytes at its end are missing.")
        self.close()
        return True

    def run(self) -> None:
        """Examine all of the segment, and conclude."""
        try:
            while not self.step():
                pass
        finally:
            self.close()
        self.conclude()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._batches is not None:
            self._batches.file.close()

    def _begin(self) -> None:
        file = self.segment.open(self._disk)
        self._batches = Batches(file, min(self.size, file.size()))
        self.size = self._batches.size
        if self._in_memory is not None:
            self._entries = list(_index_entries(self._in_memory))
            return
        _, index, times = segment_paths(self.segment.directory, self.segment.base)
        try:
            self._entries = list(_index_entries(read_file(self._disk, index)))
            data = read_file(self._disk, times)
            whole = len(data) - len(data) % TIME_ENTRY.size
            self._times = {relative: time for time, relative in TIME_ENTRY.iter_unpack(data[:whole])}
            self._last_time = max(self._times.values(), default=-1)
            self._index_is_right = whole == len(data)
        except FileNotFoundError:
            self._index_is_right = False

    def _examine(self, batches: Batches) -> None:
        """Examine one batch, or one damaged range."""
        at, expected = self._at, self._expected
        if expected >= self._end:  # later bytes are not part of the segment
            self.size = at
            return
        header = batches.check(at, compacted=expected < self._gaps_below)
        if isinstance(header, str):
            self._skip(batches, header)
        elif not expected <= header.base_offset <= max(expected, self._gaps_below) or header.next_offset > self._end:
            self._skip_misplaced(batches, header)
        else:
            self._check_entry(header)
            self.twin.add(header.last_offset, header.size, header.newest_time, self._interval)
            self._at, self._expected = at + header.size, header.next_offset

    def _skip_misplaced(self, batches: Batches, header: BatchHeader) -> None:
        """Handle a sound batch at another offset than the due one. Either the records before it are gone, or its
        offset, which no CRC covers, is wrong. The batch after it decides.
        """
        at, expected = self._at, self._expected
        reason = f"A batch at offset {header.base_offset} stands where offset {expected} should."
        after = batches.check(at + header.size, compacted=True) if at + header.size < self.size else None
        next_offset = after.base_offset if isinstance(after, BatchHeader) else self._end
        if expected < header.base_offset and header.next_offset == next_offset:
            self._note(expected, header.base_offset, at, at, reason)
        else:
            self._skip(batches, reason)

    def _skip(self, batches: Batches, reason: str) -> None:
        """Skip to the next sound batch."""
        for at in self._candidates(batches):
            header = batches.check(at, compacted=True)
            if (
                isinstance(header, BatchHeader)
                and self._expected < header.base_offset < header.next_offset <= self._end
            ):
                self._note(self._expected, header.base_offset, self._at, at, reason)
                return
        self._note(self._expected, self._end, self._at, self.size, reason)

    def _candidates(self, batches: Batches) -> Iterator[int]:
        end = batches.stated_end(self._at)
        if self._at < end < self.size and len(self.found) < DAMAGES_PER_SEGMENT_MAX:
            yield end
        if len(self.found) < DAMAGES_PER_SEGMENT_MAX:
            yield from (position for _, position in self._entries if self._at < position < self.size)

    def _note(self, start: int, end: int, position: int, resume: int, reason: str) -> None:
        damage = SegmentDamage(
            segment=self.segment.base, start=start, end=end, position=position, resume=resume, reason=reason
        )
        self.found.append(damage)
        self._at, self._expected = resume, end
        self.twin.size, self.twin.end = resume, end

    def _check_entry(self, header: BatchHeader) -> None:
        """Check that the indexes are right about this batch."""
        entries = self._entries
        while self._entry < len(entries) and entries[self._entry][1] < self._at:  # even an entry that leads into damage
            self._index_is_right = False
            self._entry += 1
        relative = header.last_offset - self.segment.base
        if self._entry < len(entries) and entries[self._entry][1] == self._at:
            self._index_is_right = self._index_is_right and entries[self._entry][0] == relative
            self._entry += 1
        if self._times.pop(relative, header.newest_time) != header.newest_time:
            self._index_is_right = False

    # after the last step

    @property
    def place(self) -> str:
        return str(self.segment.path)

    def end(self, *, done: bool) -> Sequence[SegmentDamage]:
        assert self._finish is not None, "a log began it"
        return self._finish(self, done)

    def conclude(self) -> None:
        """Make the findings durable, before they are applied."""
        if self._in_memory is None and not (self._index_is_right and self._all_entries_met()):
            self._rebuild_indexes()
        others = [damage for damage in self._known if damage.segment != self.segment.base]
        before = [damage for damage in self._known if damage.segment == self.segment.base]
        if self.found:
            path = self.segment.path
            with suppress(FileExistsError, PermissionError, NotImplementedError):
                self._disk.link(path, path.with_name(path.name + DAMAGED))
        if self.found != before:
            write_damages(self._disk, self.segment.directory, sorted([*others, *self.found], key=_start_of))

    def _all_entries_met(self) -> bool:
        times_met = bool(self.found) or (not self._times and self._last_time == self.twin.max_timestamp)
        return times_met and self._entry == len(self._entries)

    def _rebuild_indexes(self) -> None:
        self.has_rebuilt = True
        twin = self.twin
        assert twin.index is not None
        assert twin.times is not None
        twin.close_indexes()
        _, index, times = segment_paths(twin.directory, twin.base)
        write_file(self._disk, index, twin.index)
        write_file(self._disk, times, twin.times)
        self._disk.sync_directory(twin.directory)


def _start_of(damage: SegmentDamage) -> int:
    return damage.start


def _index_entries(data: bytes) -> Iterator[tuple[int, int]]:
    yield from INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % INDEX_ENTRY.size])


def write_damages(disk: Disk, directory: Path, damages: Sequence[SegmentDamage]) -> None:
    """Write the noted damage durably. Raises OSError."""
    write_file(disk, directory / DAMAGES, encode_fields({"damages": [asdict(damage) for damage in damages]}))
    disk.sync_directory(directory)


def read_damages(disk: Disk, directory: Path) -> list[SegmentDamage]:
    """The noted damage. Empty where the note cannot be read: all of it would be found again. Raises OSError."""
    try:
        fields = decode_fields(read_file(disk, directory / DAMAGES))
        return [SegmentDamage(**each) for each in fields["damages"]]
    except (CorruptData, KeyError, TypeError, json.JSONDecodeError):
        return []
