"""The open segment files of one engine. Their number is bounded: the least recently used are closed first (second
chance).

Only calls on the loop may close files other than the requested one. Files that a flush works on are pinned.
"""

from __future__ import annotations

from headrace.base.ports import Disk, File
from headrace.storage.log.segment import Segment


class SegmentFiles:
    """Opens and closes `Segment.file`."""

    __slots__ = ("_disk", "_limit", "_open")

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._open: dict[Segment, None] = {}

    def get(self, segment: Segment, *, may_close: bool = True) -> File:
        """The segment's file, opened if need be. A worker thread passes `may_close=False`. Raises OSError."""
        segment.used = True
        return segment.file or self._add(segment, segment.open(self._disk), may_close)

    def create(self, segment: Segment) -> File:
        """Create an empty file. An existing file of that name is from before a crash and is cut to nothing. Raises
        OSError.
        """
        file = self._disk.open(segment.path, create=True)
        if file.size():
            file.truncate(0)
        return self._add(segment, file, True)

    def close(self, segment: Segment) -> None:
        """Idempotent."""
        self._open.pop(segment, None)
        file, segment.file = segment.file, None
        if file is not None:
            file.close()

    def _add(self, segment: Segment, file: File, may_close: bool) -> File:
        while may_close and len(self._open) >= self._limit and self._close_one():
            pass
        segment.file = file
        self._open[segment] = None
        return file

    def _close_one(self) -> bool:
        """Close the first file that is not pinned and was not used since the last look. Returns False if all are
        pinned: then one file too many is open. The flusher never pins so many at once.
        """
        for segment in 2 * list(self._open):
            if not (segment.pins or segment.used):
                self.close(segment)
                return True
            segment.used = False
            self._open.pop(segment, None)
            self._open[segment] = None
        return False
