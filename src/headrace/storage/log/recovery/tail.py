"""The tail that recovery cuts off a log. It is kept if it is more than the torn tail of a power cut.

A torn tail is usual. Sound batches behind an unsound one may be unflushed writes that survived a power cut, or flushed
ones on a damaged disk. Nothing in the files tells the two apart. So such a tail is kept, under names that end with
`.damaged` and that Headrace never removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from headrace.base.ports import Disk
from headrace.storage.log.checkpoints import full_disks_told
from headrace.storage.log.names import DAMAGED, TEMPORARY, segment_paths
from headrace.storage.log.recovery.damage import Batches
from headrace.storage.log.scan import CHECK_CHUNK_BYTES
from headrace.storage.log.segment import Segment
from headrace.wire.batches import BatchHeader


class UnacceptedTail:
    """The bytes behind the accepted ones of the `last` segment, and the segments with these bases. Methods raise
    OSError. Calling a method again finishes whatever a crash left of it.
    """

    def __init__(self, disk: Disk, directory: Path, last: Segment | None, surplus: Sequence[int]) -> None:
        self._disk = disk
        self._directory = directory
        self._last = last
        self._surplus = surplus
        self._size = 0 if last is None else disk.size(last.path)

    def holds_sound_batches(self) -> bool:
        """Whether there are sound batches behind the first unsound one."""
        return any(self._disk.size(self._path(base)) for base in self._surplus) or self._goes_on()

    def _path(self, base: int) -> Path:
        return segment_paths(self._directory, base)[0]

    def _goes_on(self) -> bool:
        last = self._last
        if last is None or last.size >= self._size:
            return False
        file = self._disk.open(last.path)
        try:
            batches = Batches(file, self._size)
            places = chain([batches.stated_end(last.size)], batches.likely_from(last.size, last.end))
            found = (batches.check(at, compacted=True) for at in places if last.size <= at < self._size)
            return any(isinstance(each, BatchHeader) and each.base_offset > last.end for each in found)
        finally:
            file.close()

    def keep(self) -> None:
        """Keep the tail durably."""
        if self._last is not None and self._last.size < self._size:
            self._copy(self._last)
        for base in self._surplus:
            path = self._path(base)
            if (name := self._free_name(path.name, path, 0)) is not None:
                with suppress(PermissionError):
                    self._disk.link(path, self._directory / name)
        self._disk.sync_directory(self._directory)

    def _free_name(self, name: str, source: Path, start: int) -> str | None:
        """A free name for the bytes of a file from byte `start` on; None where they are kept already. A file kept by an
        earlier life is never replaced.
        """
        for number in count():
            found = f"{name}.{number}{DAMAGED}" if number else name + DAMAGED
            if not self._disk.exists(self._directory / found):
                return found
            if self._is_same(self._directory / found, source, start):
                return None
        raise AssertionError

    def _is_same(self, kept: Path, source: Path, start: int) -> bool:
        size = self._disk.size(kept)
        if size != self._disk.size(source) - start:
            return False
        one, other = self._disk.open(kept), self._disk.open(source)
        try:
            steps = range(0, size, CHECK_CHUNK_BYTES)
            return all(one.read(at, CHECK_CHUNK_BYTES) == other.read(start + at, CHECK_CHUNK_BYTES) for at in steps)
        finally:
            one.close()
            other.close()

    def _copy(self, segment: Segment) -> None:
        """Copy the tail of a segment: a second name would lose it with the cut."""
        name = self._free_name(f"{segment.path.name}.from-{segment.size}", segment.path, segment.size)
        if name is None:
            return
        temporary = self._directory / (name + TEMPORARY)
        with full_disks_told():
            target = self._disk.open(temporary, create=True)
        source = self._disk.open(segment.path)
        try:
            target.truncate(0)
            with full_disks_told():
                for at in range(segment.size, self._size, CHECK_CHUNK_BYTES):
                    target.append([source.read(at, min(CHECK_CHUNK_BYTES, self._size - at))])
            target.sync()
        finally:
            source.close()
            target.close()
        self._disk.rename(temporary, self._directory / name)

    def cut(self) -> bool:
        """Cut the last segment to its accepted size. Returns False where it has that size."""
        if self._last is None or self._last.size >= self._size:
            return False
        file = self._disk.open(self._last.path)
        try:
            file.truncate(self._last.size)
        finally:
            file.close()
        return True
