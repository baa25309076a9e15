"""One segment: a file of batches and its two sparse indexes, in Kafka's formats.

The indexes of the segment that is being written live in memory, in file format. They are written when it is closed, and
dropped from memory once they are durable. `Segment.add` alone decides where entries fall, so an index rebuilt from the
batches equals the written one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.ports import Disk, File
from headrace.native import SegmentState
from headrace.storage.engine.faults import Damage, DamagedRange
from headrace.storage.log.names import LOG, numbered, segment_paths
from headrace.storage.log.scan import headers_in
from headrace.wire.batches import BatchHeader

INDEX_ENTRY: Final = Struct(">ii")
"""Relative last offset of a batch, and the position of that batch."""
TIME_ENTRY: Final = Struct(">qi")
"""Highest timestamp so far, and the relative last offset of its batch."""
RELATIVE_OFFSET_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SegmentDamage(Damage):
    """Damage, and where it lies in a segment's file."""

    segment: int
    """Base offset of the segment that holds the range."""
    position: int
    """Position in the segment's file where the sound batches before the damage end."""
    resume: int
    """Position where sound batches begin again."""


class SegmentInfo(NamedTuple):
    """One closed segment. Nothing is appended to it any more."""

    base_offset: Offset
    next_offset: Offset
    path: Path
    size: int
    """Bytes."""
    max_timestamp: int
    """Highest timestamp of its records, in milliseconds; -1 where they have none."""


class Segment(SegmentState):
    """`size`, `end` and the indexes grow by `add`. The other fields are bookkeeping of its log."""

    __slots__ = (
        "damages",
        "directory",
        "index",
        "last_entry_time",
        "pins",
        "swap",
        "synced",
        "times",
        "times_known",
        "used",
    )

    file: File | None

    def __init__(self, directory: Path, base: int, *, created_ms: int = -1) -> None:
        self.directory = directory
        self.base = base
        self.end = base
        """Offset after its last record."""
        self.size = 0
        self.created_ms = created_ms
        self.first_timestamp = -1
        """Highest timestamp in the first batch."""
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        """Last offset of the first batch with the highest timestamp."""
        self.times_known = True
        """False: closed in an earlier life, and `max_timestamp` has to be read from the time index."""
        self.since_entry = 0
        self.last_entry_time = -1
        self.index: bytearray | None = bytearray()
        self.times: bytearray | None = bytearray()
        """None where the index is in its file."""
        self.synced = False
        """The segment is closed, and its batches and indexes are durable."""
        self.swap: Path | None = None
        """The file that holds its batches until they have the segment's own name. The loop then sets None."""
        self.damages: tuple[SegmentDamage, ...] = ()
        """Ranges that cannot be read, in order."""
        self.file: File | None = None
        self.pins = 0
        self.used = False

    @classmethod
    def closed(cls, directory: Path, base: int, end: int, size: int) -> Segment:
        """A segment that an earlier life closed and flushed."""
        segment = cls(directory, base)
        segment.end, segment.size = end, size
        segment.index = segment.times = None
        segment.times_known = False
        segment.synced = True
        return segment

    @property
    def path(self) -> Path:
        return numbered(self.directory, self.base, LOG)

    def open(self, disk: Disk) -> File:
        """Open the file of its batches, for the caller alone. Any thread may call it. Raises FileNotFoundError where it
        is gone.
        """
        if self.swap is not None:
            try:
                return disk.open(self.swap)
            except FileNotFoundError:
                pass  # renamed since then to the segment's own name
        return disk.open(self.path)

    def add(self, last_offset: int, size: int, max_timestamp: int, index_interval: int) -> None:
        """Note that a batch was written at the end. Index entries fall where Kafka's do: at the first batch after each
        interval.
        """
        assert self.index is not None
        assert self.times is not None
        if self.size == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.since_entry > index_interval:
            self.index += INDEX_ENTRY.pack(last_offset - self.base, self.size)
            self._add_time()
            self.since_entry = 0
        self.size += size
        self.since_entry += size
        self.end = last_offset + 1

    def indexes_are_full(self, bytes_max: int, to_come: int) -> bool:
        """Whether one of the indexes has no room within `bytes_max` for another entry after the `to_come` entries. The
        time index keeps one more, for its end.
        """
        assert self.index is not None
        assert self.times is not None
        index_full = len(self.index) + (1 + to_come) * INDEX_ENTRY.size > bytes_max
        return index_full or len(self.times) + (2 + to_come) * TIME_ENTRY.size > bytes_max

    def jitter(self, limit: int) -> int:
        """A number in [0, limit) that depends on this segment alone."""
        return crc32(f"{self.directory.name}/{self.base}".encode()) % limit if limit else 0

    def close_indexes(self) -> None:
        """Nothing will be added: end the time index with the segment's highest timestamp."""
        self._add_time()

    def _add_time(self) -> None:
        assert self.times is not None
        if self.max_timestamp > self.last_entry_time:
            self.times += TIME_ENTRY.pack(self.max_timestamp, self.max_timestamp_offset - self.base)
            self.last_entry_time = self.max_timestamp

    def resume(self, index: bytes, times: bytes, *, size: int, end: int) -> None:
        """Continue a segment whose first `size` bytes the given index entries cover."""
        self.index, self.times = bytearray(index), bytearray(times)
        last_position = INDEX_ENTRY.unpack_from(index, len(index) - INDEX_ENTRY.size)[1] if index else 0
        self.since_entry = size - last_position
        self.last_entry_time = TIME_ENTRY.unpack_from(times, len(times) - TIME_ENTRY.size)[0] if times else -1
        self.size, self.end = size, end

    # look-ups: any thread

    def position_below(self, disk: Disk, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`, at most an index interval away, with no damage
        between them. Raises DamagedRange where `offset` is damaged.
        """
        return self.entry_below(disk, offset)[0]

    def entry_below(self, disk: Disk, offset: int) -> tuple[int, int]:
        """As `position_below`, with the last offset of the batch there according to the index; -1 where the index has
        none.
        """
        relative = offset - self.base
        entry = _floor(self._entries(disk, self.index, 1), INDEX_ENTRY, relative)
        found = (0, -1) if entry is None else (int(entry[1]), self.base + entry[0])
        for damage in self.damages:
            if damage.start <= offset < damage.end:
                raise DamagedRange(f"Offsets {damage.start} to {damage.end - 1} are damaged. {damage.reason}")
            if damage.end <= offset and damage.resume > found[0]:
                found = (damage.resume, -1)
        return found

    def sound_up_to(self, offset: int) -> int:
        """Position up to which batches follow one another soundly, from the one that holds `offset`. Raises
        DamagedRange where no sound batch holds it.
        """
        for damage in self.damages:
            if offset < damage.start:
                return damage.position
            if offset < damage.end:
                raise DamagedRange(f"Offsets {damage.start} to {damage.end - 1} are damaged. {damage.reason}")
        return self.size

    def last_entry(self, disk: Disk, position: int, offset: int) -> int:
        """Position of the last batch in the index that begins at or below `position` and ends at or below `offset`; 0
        where there is none.
        """
        by_position = _floor(self._entries(disk, self.index, 1), INDEX_ENTRY, position, field=1)
        by_offset = _floor(self._entries(disk, self.index, 1), INDEX_ENTRY, offset - self.base)
        return min(by_position[1], by_offset[1]) if by_position and by_offset else 0

    def position_before_time(self, disk: Disk, timestamp: int) -> int:
        """Position of a batch before which all records are earlier than `timestamp`. Raises CorruptData where the time
        index is wrong.
        """
        entry = _floor(self._entries(disk, self.times, 2), TIME_ENTRY, timestamp - 1)
        if entry is None:
            return 0
        self._check_time(disk, entry[0], self.base + entry[1])
        return self.position_below(disk, self.base + entry[1])

    def load_times(self, disk: Disk) -> None:
        """Read `max_timestamp` of a segment from an earlier life. Raises CorruptData where the time index is wrong:
        otherwise records would be deleted too early, or not be found.
        """
        if self.times_known:
            return
        timestamp, offset = -1, -1
        entries = _FileEntries(disk, segment_paths(self.directory, self.base)[2])
        try:
            count = entries.size // TIME_ENTRY.size
            if count:
                timestamp, relative = TIME_ENTRY.unpack(entries.read((count - 1) * TIME_ENTRY.size, TIME_ENTRY.size))
                offset = self.base + relative
        finally:
            entries.close()
        with suppress(DamagedRange):  # then there is nothing to compare with
            if count:
                self._check_time(disk, timestamp, offset)
            if self.size and any(header.newest_time > timestamp for header in self._headers_near(disk, self.end - 1)):
                raise CorruptData(f"The time index of {self.path.name} lacks its last entry.")
        self.max_timestamp, self.max_timestamp_offset = timestamp, offset
        self.times_known = True

    def _check_time(self, disk: Disk, timestamp: int, last_offset: int) -> None:
        """Raises CorruptData unless a batch has this last offset and this highest timestamp."""
        for header in self._headers_near(disk, last_offset):
            if header.last_offset >= last_offset:
                if (header.last_offset, header.newest_time) == (last_offset, timestamp):
                    return
                break
        raise CorruptData(f"The time index of {self.path.name} is wrong about offset {last_offset}.")

    def _headers_near(self, disk: Disk, offset: int) -> Iterator[BatchHeader]:
        """Headers from a batch shortly before the one that holds `offset`."""
        file = self.open(disk)
        try:
            for _, header in headers_in(file, self.position_below(disk, offset), self.sound_up_to(offset)):
                yield header
        finally:
            file.close()

    def _entries(self, disk: Disk, memory: bytearray | None, which: int) -> _MemoryEntries | _FileEntries:
        if memory is not None:
            return _MemoryEntries(memory)
        return _FileEntries(disk, segment_paths(self.directory, self.base)[which])


class _MemoryEntries:
    """Entries that may still grow on another thread. `size` is read once, and growth never changes existing entries."""

    __slots__ = ("_data", "size")

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self.size = len(data)

    def read(self, at: int, length: int) -> bytes:
        return bytes(self._data[at : at + length])

    def close(self) -> None:
        return


class _FileEntries:
    """Entries of a closed segment, read one by one during a search."""

    __slots__ = ("_file", "size")

    def __init__(self, disk: Disk, path: Path) -> None:
        self._file = disk.open(path)
        self.size = self._file.size()

    def read(self, at: int, length: int) -> bytes:
        return self._file.read(at, length)

    def close(self) -> None:
        self._file.close()


def _floor(entries: _MemoryEntries | _FileEntries, form: Struct, key: int, field: int = 0) -> tuple[int, ...] | None:
    """The last entry whose field is at most `key`. All fields rise."""
    try:
        low, high = 0, entries.size // form.size
        found: tuple[int, ...] | None = None
        while low < high:
            middle = (low + high) // 2
            data = entries.read(middle * form.size, form.size)
            if len(data) != form.size:
                raise CorruptData("An index was cut while it was read.")
            entry = form.unpack(data)
            if entry[field] <= key:
                low, found = middle + 1, entry
            else:
                high = middle
        return found
    finally:
        entries.close()
