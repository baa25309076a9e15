"""The newest batches of a log, in memory, for readers that keep up with its end: they cost no read of the file.

Promises:
- Readers get what the log holds, verbatim.
- All logs together keep to a bound, and the oldest batches are dropped first.
- Nothing is kept of a log whose end nobody reads.

Loop-only. Everything is dropped where a log is cut, or the contents of its files change.
"""

from __future__ import annotations

from headrace.base.limits import NEWEST_BATCH_OVERHEAD_BYTES, NEWEST_UNREAD_BYTES_MAX
from headrace.storage.engine.placing import Placed
from headrace.storage.log.reading.cache_budget import ReadCacheBudget


class Newest:
    """The newest batches of one log."""

    __slots__ = ("_batches", "_is_followed", "_room", "_unread")

    def __init__(self, room: ReadCacheBudget[int]) -> None:
        self._room = room
        self._batches: dict[int, tuple[int, bytes]] = {}
        """Base offset to the offset after the batch, and its bytes."""
        self._is_followed = False
        """A reader stood at the log's end not long ago."""
        self._unread = 0
        """Bytes appended since a reader was last here."""

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def follow(self) -> None:
        """A reader has reached the log's end: keep the next batches for it."""
        self._is_followed = True
        self._unread = 0

    def add(self, placed: Placed, base: int) -> None:
        """Keep a batch that was appended at offset `base`. Several batches in one append are left to the file."""
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
        """Returns whole batches below `end`, within `max_bytes`, from the one at `start`. With `at_least_one` the first
        may exceed `max_bytes`. Returns None where any of them is not here.
        """
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
        """Remove this batch in favour of newer ones."""
        self._batches.pop(base, None)

    def drop(self) -> None:
        """Drop all batches."""
        self._batches.clear()
