"""The newest batches of a log, in memory, for readers that keep up with its end: they cost no read of the file.

Promises: what is given is what the log holds, verbatim; all logs together keep to a bound, and those that were
appended to the longest ago give way; of a log whose end nobody reads nothing is kept. Loop-only. Where a log is cut,
or what stands in its files changes, all of this is dropped.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.base.limits import NEWEST_BYTES_MAX, NEWEST_OF_ALL_BYTES_MAX
from headrace.storage.log.appending import Placed


class NewestOfAll:
    """What is kept of all logs of an engine, and the room that they share."""

    def __init__(self, bytes_max: int = NEWEST_OF_ALL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._all: OrderedDict[Newest, None] = OrderedDict()
        """Least recently appended to first."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def grown(self, newest: Newest, size: int) -> None:
        """So many bytes came to this one; the oldest make room."""
        self._size += size
        self._all[newest] = None
        self._all.move_to_end(newest)
        while self._size > self._bytes_max:
            next(iter(self._all)).drop()

    def shrunk(self, newest: Newest, size: int) -> None:
        self._size -= size
        if not newest.size:
            self._all.pop(newest, None)


class Newest:
    """What is kept of one log."""

    __slots__ = ("_batches", "_is_followed", "_of_all", "_unread", "size")

    def __init__(self, of_all: NewestOfAll) -> None:
        self._of_all = of_all
        self._batches: dict[int, tuple[int, bytes]] = {}
        """By base offset: the offset after it, and its bytes. Oldest first."""
        self.size = 0
        self._is_followed = False
        """A reader stood at the log's end, not long ago."""
        self._unread = 0
        """Bytes that came since one was here."""

    def follow(self) -> None:
        """A reader has reached the log's end: what comes next is kept for it."""
        self._is_followed = True
        self._unread = 0

    def add(self, placed: Placed, base: int) -> None:
        """It was appended at offset `base`. Several batches that came as one are left to the file."""
        if not self._is_followed or len(placed.headers) != 1:
            return
        self._unread += placed.size
        if self._unread > NEWEST_BYTES_MAX:
            self._is_followed = False
            self.drop()
            return
        self._batches[base] = (placed.end, b"".join(placed.buffers))
        self.size += placed.size
        self._of_all.grown(self, placed.size)
        while self.size > NEWEST_BYTES_MAX:
            _, oldest = self._batches.pop(next(iter(self._batches)))
            self.size -= len(oldest)
            self._of_all.shrunk(self, len(oldest))

    def read(self, start: int, max_bytes: int, end: int, *, at_least_one: bool) -> memoryview | None:
        """Whole batches from the one at `start`, below `end`, within `max_bytes`, but for the first where that is to be
        given anyway; None where they are not here."""
        found = self._batches.get(start)
        if found is None:
            return None
        parts: list[bytes] = []
        size = 0
        while found is not None and found[0] <= end:
            next_offset, data = found
            size += len(data)
            if size > max_bytes and (parts or not at_least_one):
                break
            parts.append(data)
            found = self._batches.get(next_offset)
        self._unread = 0
        if not parts:
            return None
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def drop(self) -> None:
        """Keep nothing of what is here now."""
        self._batches.clear()
        size, self.size = self.size, 0
        if size:
            self._of_all.shrunk(self, size)
