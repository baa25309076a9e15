"""The time for which a broker may answer from its own state, as if nobody else could lead its partitions.

Promises: while the lease is held, no other leader has acknowledged anything that this broker does not know. This does
not hold where a leader leaves the ISR at once: see decision 0028.

The lease begins when a heartbeat was sent that the controller accepted and after which this broker replayed all earlier
decisions. A leader that is elected later has this broker in its ISR. It acknowledges nothing without this broker until
one of two things happens:
- The controller fences this broker, which takes a session. Where this broker was the controller and is replaced, a part
  of the session already counts as silence.
- The leader finds that this broker has been behind for `replica.lag.time.max.ms`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from headrace.base.limits import CLOCK_ERROR_MAX, LEASE_WAIT_MS_MAX, REPLACED_SESSION_PART_MAX


def lease_s(session_s: float, lag_max_s: float) -> float:
    """Return the seconds that a lease lasts, given the session's length and how long followers may be behind."""
    return min((1 - REPLACED_SESSION_PART_MAX) * session_s, lag_max_s) * (1 - CLOCK_ERROR_MAX)


class Lease:
    """See the module. Loop-only. `ask` sends a heartbeat, which extends the lease where the controller accepts it."""

    def __init__(self, seconds: float, ask: Callable[[], Awaitable[object]]) -> None:
        self.seconds = seconds
        self._ask = ask
        self._from = -math.inf
        self._over_at: float | None = None
        """When the lease ended; None while it is held."""
        self._asked: asyncio.Future[object] | None = None
        self._on_regained: list[Callable[[float], None]] = []

    @property
    def is_held(self) -> bool:
        return asyncio.get_running_loop().time() - self._from < self.seconds

    def on_regained(self, callback: Callable[[float], None]) -> None:
        """Call `callback` in the turn of the loop in which the lease is held again, with the seconds without it."""
        self._on_regained.append(callback)

    def extend(self, asked_at: float) -> None:
        """Extend the lease: the controller accepted a heartbeat that was sent at `asked_at`, in the loop's time."""
        if self._over_at is None and not self.is_held:
            self._over_at = self._from + self.seconds
        self._from = max(self._from, asked_at)
        if self._over_at is not None and self.is_held:
            lapse_s, self._over_at = asyncio.get_running_loop().time() - self._over_at, None
            if lapse_s < math.inf:  # else it was never held before
                for callback in self._on_regained:
                    callback(lapse_s)

    def end(self) -> None:
        """Give the lease up for good: this broker leaves."""
        self._from, self.seconds = -math.inf, 0.0
        if self._asked is not None:
            self._asked.cancel()

    async def renew(self) -> bool:
        """Send a heartbeat now and wait for its answer, at most LEASE_WAIT_MS_MAX. Callers that come meanwhile wait for
        the same answer. Returns whether the controller accepted one that was sent after this call."""
        called_at = asyncio.get_running_loop().time()
        if self.seconds <= 0:
            return False
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self._ask())
        await asyncio.wait([self._asked], timeout=LEASE_WAIT_MS_MAX / 1000)
        return self._from >= called_at
