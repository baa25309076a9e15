"""So many bytes in a second, at most: who takes more than there is pays it off before there is any again.

Promises: over any time, no more is taken than its seconds times the rate, a burst of one second, and the last piece,
which may be of any size. Times are given, in monotonic seconds. Source: KIP-73, which measures over windows instead.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.limits import THROTTLE_BURST_S


class Throttle(NamedTuple):
    """`free_at`: when all that was taken is paid off."""

    rate: float
    """Bytes per second."""
    free_at: float = 0.0

    def room(self, now: float) -> int:
        """Bytes that may be taken now; 0: none, before `wait_s` is over."""
        return max(0, int(self.rate * min(THROTTLE_BURST_S, now - self.free_at)))

    def wait_s(self, now: float) -> float:
        """Seconds until there is room again, for a byte at least; 0: there is."""
        return 0.0 if self.room(now) else max(0.0, self.free_at - now) + 1 / self.rate

    def taken(self, size: int, now: float) -> Throttle:
        """After so many bytes."""
        return self._replace(free_at=max(self.free_at, now - THROTTLE_BURST_S) + size / self.rate)

    def at_rate(self, rate: float, now: float) -> Throttle:
        """With another rate: what is owed is paid off at that."""
        owed = (max(self.free_at, now - THROTTLE_BURST_S) - now) * self.rate
        return Throttle(rate, now + owed / rate)
