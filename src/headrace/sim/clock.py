"""The Clock port on virtual time."""

from __future__ import annotations

from typing import Final

from headrace.sim.loop import VirtualLoop

BORN_MS: Final = 1_700_000_000_000
"""Wall-clock milliseconds at virtual time 0."""


class SimClock:
    """Wall-clock and monotonic time of one machine. `jump_ms` moves the wall clock, which may jump."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return BORN_MS + self._ahead_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def jump_ms(self, by: int) -> None:
        """Move the wall clock by so many milliseconds, forward or back."""
        self._ahead_ms += by
