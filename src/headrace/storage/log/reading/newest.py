"""The newest batches of a log, in memory, for readers that keep up with its end: they cost no read of the file.

Promises: what is given is what the log holds, verbatim; all logs together keep to a bound, and what came first
gives way first; of a log whose end nobody reads nothing is kept. Loop-only. Where a log is cut,
or what stands in its files changes, all of this is dropped.
"""

from __future__ import annotations

from headrace.base.limits import NEWEST_BATCH_OVERHEAD_BYTES, NEWEST_UNREAD_BYTES_MAX
from headrace.storage.log.appending import Placed
from headrace.storage.log.reading.cache_budget import ReadCacheBudget


class Newest:
    """What is kept of one log."""

    __slots__ = ("_batches", "_is_followed", "_room", "_unread")

    def __init__(self, room: ReadCacheBudget[int]) -> None:
        self._room = room
        self._batches: dict[int, tuple[int, bytes]] = {}
        """By base offset: the offset after it, and its bytes."""
        self._is_followed = False
        """A reader stood at the log's end, not long ago."""
        self._unread = 0
        """Bytes that came since one was here."""

    def __len__(self) -> int:
        """Batches."""
        return len(self._batches)

    def follow(self) -> None:
        """A reader has reached the log's end: what comes next is kept for it."""
        self._is_followed = True
        self._unread = 0

    def add(self, placed: Placed, base: int) -> None:
        """It was appended at offset `base`. Several batches that came as one are left to the file."""
        if not self._is_followed or len(placed.headers) != 1:
            return
        self._unread += placed.size
        if self._unread > NEWEST_UNREAD_BYTES_MAX:
            self._is_followed = False
            self.drop()
            return
        self._batches[base] = (placed.end, b"".join(placed.buffers))
        self._room.add(self, base, placed.size + NEWEST_BATCH_OVERHEAD_BYTES)

    def read(self, start: int, max_bytes: int, end: int, *, at_least_one: bool) -> memoryview | None:
        """Whole batches from the one at `start`, below `end`, within `max_bytes`, but for the first where that is to be
        given anyway; None where they, or some of them, are not here."""
        found = self._batches.get(start)
        if found is None:
            return None
        parts: list[bytes] = []
        size, next_offset = 0, start
        while found is not None and found[0] <= end:
            next_offset, data = found
            size += len(data)
            if size > max_bytes and (parts or not at_least_one):
                break
            parts.append(data)
            found = self._batches.get(next_offset)
        self._unread = 0
        if not parts or (found is None and next_offset < end):
            return None
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def forget(self, base: int) -> None:
        """This batch gives way to newer ones."""
        self._batches.pop(base, None)

    def drop(self) -> None:
        """Keep nothing of what is here now."""
        self._batches.clear()
