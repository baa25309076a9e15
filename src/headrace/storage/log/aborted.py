"""The aborted transactions of one local log, in Kafka's `.txnindex` files: one beside each segment that has any.

An entry belongs to the segment that holds its marker. Entries of the active segment live in memory, in file format.
They are written when it is closed, and before any producer snapshot that covers their markers. A segment's file is
always written whole, so that a crash leaves the old one or the new one. Entries above the latest snapshot count for
nothing at a recovery, which reads the batches there again.

Loop-only, except where a method says otherwise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset
from headrace.base.limits import ABORTED_READ_AT_ONCE
from headrace.base.ports import Disk, File
from headrace.storage.log.checkpoints import read_file, write_file
from headrace.storage.log.contents import Contents
from headrace.storage.log.names import TRANSACTION_INDEX, numbered
from headrace.wire.transactions import ABORTED, VERSION, AbortedTransaction, decode_aborted, encode_aborted

_base_of: Final = attrgetter("base")
_LAST_OFFSET_AT: Final = 18
"""Position of the marker's offset in an entry."""


class Aborted:
    """An `AbortedIndex`."""

    __slots__ = ("_changed", "_contents", "_disk", "_held", "_joining", "_written", "active_bytes", "needs_writing")

    def __init__(self, disk: Disk, contents: Contents, written: Iterable[int]) -> None:
        self._disk = disk
        self._contents = contents
        self._written = set(written)
        """Bases of the segments that have a file."""
        self._held: dict[int, bytearray] = {}
        """All entries of the segments whose entries are not all written."""
        self._changed: set[int] = set()
        self._joining: dict[int, bool] = {}
        """Segments whose files are being joined, and whether some of their entries were never written."""
        self.active_bytes = 0
        """Bytes of the active segment's entries."""
        self.needs_writing = False
        """Entries of closed segments have changed: the next flush writes them."""

    @property
    def has_any(self) -> bool:
        return bool(self._held or self._written)

    def add(self, transaction: AbortedTransaction) -> None:
        with self._told():
            self._add(transaction)

    def _add(self, transaction: AbortedTransaction) -> None:
        base = self._contents.holding(transaction.last_offset).base
        held = self._hold(base)
        if not held or _last_offset(held, len(held) - ABORTED.size) < transaction.last_offset:
            held += ABORTED.pack(VERSION, *transaction)
            self._change(base)
            if self._is_last(base):
                self.active_bytes = len(held)

    def _hold(self, base: int) -> bytearray:
        held = self._held.get(base)
        if held is None:
            held = self._held[base] = bytearray(self._read(base) if base in self._written else b"")
        return held

    def _read(self, base: int) -> bytes:
        """Return the whole entries of a file. Raises OSError."""
        data = read_file(self._disk, self._path(base))
        return data[: len(data) - len(data) % ABORTED.size]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn an OSError into a StorageFailure."""
        try:
            yield
        except OSError as error:
            text = f"Aborted transactions of {self._contents.directory.name} cannot be read: {error}."
            raise StorageFailure(text) from error

    def _change(self, base: int) -> None:
        self._changed.add(base)
        self.needs_writing = self.needs_writing or not self._is_last(base)

    def _is_last(self, base: int) -> bool:
        return bool(self._contents.segments) and self._contents.segments[-1].base == base

    def _path(self, base: int) -> Path:
        return numbered(self._contents.directory, base, TRANSACTION_INDEX)

    @property
    def has_changed(self) -> bool:
        """Whether any entries still have to be written."""
        return bool(self._changed)

    # reading

    def between(self, start: Offset, end: Offset) -> Sequence[AbortedTransaction]:
        if start >= end:
            return []
        with self._told():
            return self.overlapping(start, end)

    def overlapping(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """As `between`. Raises OSError."""
        found: list[AbortedTransaction] = []
        first, last = max(bisect_right(self._contents.segments, start, key=_base_of) - 1, 0), -1
        for base in map(_base_of, self._contents.segments[first:]):
            if base not in self._held and base not in self._written:
                continue
            for each in self._ending_from(base, start):
                if each.first_offset < end and each.last_offset > last:
                    found.append(each)
                last = each.last_offset
                if each.last_stable_offset >= end:
                    return found
        return found

    def _ending_from(self, base: int, start: int) -> Iterator[AbortedTransaction]:
        """Iterate over a segment's entries whose markers are at `start` or above."""
        held = self._held.get(base)
        if held is not None:
            yield from decode_aborted(memoryview(bytes(held))[_first_ending(_Memory(held), start) :])
            return
        file = self._disk.open(self._path(base))
        try:
            entries = _InFile(file)
            for at in range(_first_ending(entries, start), entries.size, ABORTED_READ_AT_ONCE * ABORTED.size):
                yield from decode_aborted(entries.read(at, ABORTED_READ_AT_ONCE * ABORTED.size))
        finally:
            file.close()

    # cutting and dropping

    def forget_from(self, offset: Offset) -> None:
        with self._told():
            self.cut_at(offset)

    def cut_at(self, offset: int) -> None:
        """As `forget_from`. Raises OSError."""
        segments = self._contents.segments
        for base in sorted({*self._written, *self._held}):
            following = bisect_right(segments, base, key=_base_of)
            if following < len(segments) and segments[following].base <= offset:
                continue
            held = self._hold(base)
            kept = _first_ending(_Memory(held), offset)
            if kept < len(held):
                del held[kept:]
                self._change(base)
            elif not (base in self._changed or self._is_last(base)):
                del self._held[base]

    def drop(self, bases: Iterable[int]) -> None:
        """The segments with these bases are gone, and their files will be."""
        for base in bases:
            self._held.pop(base, None)
            self._written.discard(base)
            self._changed.discard(base)

    def join(self, into: int, bases: Iterable[int], bare: Collection[int] = ()) -> None:
        """One segment, which begins at `into`, has replaced those with these bases, without the transactions whose
        markers are `bare`. Raises OSError.
        """
        known = [base for base in sorted(bases) if base in self._held or base in self._written]
        joined = bytearray().join([self._hold(base) for base in known])
        if bare:
            joined = bytearray(encode_aborted(each for each in decode_aborted(joined) if each.last_offset not in bare))
        lacks_file = any(base in self._changed for base in known)
        self.drop(known)
        if known:
            self._held[into] = joined
            self._joining[into] = lacks_file

    def settle(self, into: int) -> None:
        """The segment that `join` named has its file (`join_files`)."""
        lacks_file = self._joining.pop(into, None)
        if lacks_file is None:
            return
        if self._held[into]:
            self._written.add(into)
        if lacks_file:
            self._change(into)
        else:
            del self._held[into]

    # writing

    def take_changed(self) -> dict[int, bytes]:
        """Return the entries of all changed segments, by their bases. They count as written until `take_back`."""
        taken = {base: bytes(self._held[base]) for base in self._changed}
        self._changed.clear()
        self.needs_writing = False
        return taken

    def take_back(self, taken: Iterable[int]) -> None:
        """Some of these were not written."""
        for base in taken:
            if base in self._held:
                self._change(base)

    def on_written(self, taken: Mapping[int, bytes]) -> None:
        """These are durable. Memory keeps the active segment's, and what has changed since."""
        for base, data in taken.items():
            if base not in self._held:
                continue  # the segment is gone
            if data:
                self._written.add(base)
            else:
                self._written.discard(base)
            if base not in self._changed and not (data and self._is_last(base)):
                del self._held[base]

    def write(self, taken: Mapping[int, bytes]) -> bool:
        """Write these files, and return whether there were any. Blocks; any thread. Raises OSError."""
        for base, data in taken.items():
            if data:
                write_file(self._disk, self._path(base), data)
            elif self._disk.exists(self._path(base)):
                self._disk.remove(self._path(base))
        return bool(taken)


def join_files(disk: Disk, directory: Path, into: int, bases: Iterable[int], bare: Collection[int] = ()) -> None:
    """Write the entries of these segments' files into that of their replacement, without those of `bare` markers.
    Blocks; raises OSError.
    """
    found: dict[int, AbortedTransaction] = {}
    for base in sorted({into, *bases}):
        path = numbered(directory, base, TRANSACTION_INDEX)
        if disk.exists(path):
            found |= {each.last_offset: each for each in decode_aborted(read_file(disk, path))}
    if found:
        path, entries = (
            numbered(directory, into, TRANSACTION_INDEX),
            [found[at] for at in sorted(found) if at not in bare],
        )
        if entries:
            write_file(disk, path, encode_aborted(entries))
        elif disk.exists(path):
            disk.remove(path)
        disk.sync_directory(directory)


class _Memory:
    __slots__ = ("_data", "size")

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self.size = len(data)

    def read(self, at: int, length: int) -> bytes:
        return bytes(self._data[at : at + length])


class _InFile:
    __slots__ = ("_file", "size")

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.size() - file.size() % ABORTED.size

    def read(self, at: int, length: int) -> bytes:
        return self._file.read(at, min(length, self.size - at))


def _last_offset(entries: bytes | bytearray, at: int) -> int:
    return int.from_bytes(entries[at + _LAST_OFFSET_AT : at + _LAST_OFFSET_AT + 8])


def _first_ending(entries: _Memory | _InFile, offset: int) -> int:
    """Position of the first entry whose marker is at `offset` or above. Raises CorruptData where an entry is cut."""
    low, high = 0, entries.size // ABORTED.size
    while low < high:
        middle = (low + high) // 2
        entry = entries.read(middle * ABORTED.size, ABORTED.size)
        if len(entry) < ABORTED.size:
            raise CorruptData("An index of aborted transactions was cut while it was read.")
        if _last_offset(entry, 0) < offset:
            low = middle + 1
        else:
            high = middle
    return low * ABORTED.size
