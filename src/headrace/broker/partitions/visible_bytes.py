"""Counts the bytes of a led partition that readers may see, as its high watermark rises. Loop-only."""

from __future__ import annotations

from collections import deque

from headrace.base.ids import Offset


class VisibleBytes:
    """Bytes are counted from the beginning of the leadership."""

    __slots__ = ("_flushed", "known")

    def __init__(self) -> None:
        self.known = 0
        """Bytes that were visible when this was last asked."""
        self._flushed: deque[tuple[Offset, int]] = deque()
        """Flushed ends that the high watermark has not reached, and the bytes appended below each."""

    def on_flushed(self, end: Offset, appended_bytes: int, *, at_once: bool) -> None:
        """Note a flush. `at_once`: the high watermark rises to its end with it, as nobody else is in sync."""
        if self._flushed or not at_once:
            self._flushed.append((end, appended_bytes))

    def on_visible(self, offset: Offset, appended_bytes: int) -> int:
        """Return how many more bytes are visible, now that the high watermark is at `offset`. It may be a little above
        the last flush that it has reached. `appended_bytes`: those below it, where no flush was noted."""
        below = appended_bytes
        if self._flushed:
            below = self.known
            while self._flushed and self._flushed[0][0] <= offset:
                below = self._flushed.popleft()[1]
        more, self.known = below - self.known, below
        return more
