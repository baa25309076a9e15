"""A quantity that comes at a rate, is kept up to a burst, and may be overdrawn by one use of it.

Source: Kafka's TokenBucket (KIP-599). Times are given by the caller, in monotonic seconds.
"""

from __future__ import annotations


class TokenBucket:
    """Full at first. A new rate or burst holds from then on."""

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """`rate`: per second, above 0."""
        self.rate, self.burst = rate, burst
        self._tokens, self._at = burst, now

    def _fill(self, now: float) -> None:
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now

    def is_overdrawn(self, now: float) -> bool:
        """Whether more was used than there was."""
        self._fill(now)
        return self._tokens < 0

    def use(self, amount: float, now: float) -> None:
        """Take this amount, be it there or not."""
        self._fill(now)
        self._tokens -= amount

    def wait_ms(self, now: float) -> int:
        """Milliseconds until it is overdrawn no more."""
        self._fill(now)
        return max(0, round(-self._tokens / self.rate * 1000))

    def is_full(self, now: float) -> bool:
        """Whether nothing of what was used counts any more."""
        self._fill(now)
        return self._tokens >= self.burst
