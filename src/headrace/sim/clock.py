"""The Clock port on virtual time."""

from __future__ import annotations

from typing import Final

from headrace.sim.loop import VirtualLoop

BORN_MS: Final = 1_700_000_000_000
"""Wall-clock milliseconds at virtual time 0."""


class SimClock:
    """Wall-clock and monotonic time of one machine. `jump_ms` moves the wall clock. `rate` is the speed of both clocks;
    1.0 is right."""

    def __init__(self, loop: VirtualLoop, *, rate: float = 1.0, started_ago: float = 0.0) -> None:
        self._loop = loop
        self._rate = rate
        self._started_ago = started_ago
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return BORN_MS + self._ahead_ms + int(self._loop.time() * self._rate * 1000)

    def monotonic(self) -> float:
        return self._started_ago + self._loop.time() * self._rate

    def jump_ms(self, by: int) -> None:
        """Move the wall clock by that many milliseconds, forward or back."""
        self._ahead_ms += by
