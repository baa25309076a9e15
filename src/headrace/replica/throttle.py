"""A limit of bytes per second: a taker of more than there is pays it off before there is room again.

Promises: over any time, at most its seconds times the rate, a burst of one second, and the last piece are taken. The
last piece may be of any size. The caller gives the time, in monotonic seconds. Source: KIP-73, which measures over
windows instead.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.limits import THROTTLE_BURST_S


class Throttle(NamedTuple):
    """A rate and its state. `free_at`: when everything that was taken is paid off."""

    rate: float
    """Bytes per second."""
    free_at: float = 0.0

    def room(self, now: float) -> int:
        """Return the bytes that may be taken now; 0: none, before `wait_s` is over."""
        return max(0, int(self.rate * min(THROTTLE_BURST_S, now - self.free_at)))

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is room again, for a byte at least; 0: there is room."""
        return 0.0 if self.room(now) else max(0.0, self.free_at - now) + 1 / self.rate

    def taken(self, size: int, now: float) -> Throttle:
        """Return the throttle after `size` bytes are taken."""
        return self._replace(free_at=max(self.free_at, now - THROTTLE_BURST_S) + size / self.rate)

    def at_rate(self, rate: float, now: float) -> Throttle:
        """Return the throttle with another rate, at which the debt is paid off."""
        owed = (max(self.free_at, now - THROTTLE_BURST_S) - now) * self.rate
        return Throttle(rate, now + owed / rate)
