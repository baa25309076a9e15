"""For how long a broker may answer from what it knows, as if nobody else could have been made to lead what it led.

Promises: while it is held, no other leader has acknowledged anything that this broker does not know. It begins when a
heartbeat left that the controller took, after which all that was decided by then was replayed here. Whoever is made to
lead after that has this broker in its ISR, and acknowledges nothing without it until the broker is fenced (which takes
a session, of which a controller that is replaced is taken to have been silent for a part) or has been left behind
(`replica.lag.time.max.ms`). Does not hold for what takes a leader out of the ISR at once: see decision 0028.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from headrace.base.limits import CLOCK_ERROR_MAX, LEASE_WAIT_MS_MAX, REPLACED_SESSION_PART_MAX


def lease_s(session_s: float, lag_max_s: float) -> float:
    """How long a lease lasts where sessions do so long and followers may be so far behind."""
    return min((1 - REPLACED_SESSION_PART_MAX) * session_s, lag_max_s) * (1 - CLOCK_ERROR_MAX)


class Lease:
    """See the module. Loop-only. `ask` sends a heartbeat, which extends the lease where it is taken."""

    def __init__(self, seconds: float, ask: Callable[[], Awaitable[object]]) -> None:
        self.seconds = seconds
        self._ask = ask
        self._from = -math.inf
        self._over_at: float | None = None
        """When it was held last, where it is not."""
        self._asked: asyncio.Future[object] | None = None
        self._on_regained: list[Callable[[float], None]] = []

    @property
    def is_held(self) -> bool:
        return asyncio.get_running_loop().time() - self._from < self.seconds

    def on_regained(self, callback: Callable[[float], None]) -> None:
        """Have it called, in the turn of the loop in which the lease is held again, with the seconds without it."""
        self._on_regained.append(callback)

    def extend(self, asked_at: float) -> None:
        """A heartbeat that left at that time, in the loop's time, was taken."""
        if self._over_at is None and not self.is_held:
            self._over_at = self._from + self.seconds
        self._from = max(self._from, asked_at)
        if self._over_at is not None and self.is_held:
            lapse_s, self._over_at = asyncio.get_running_loop().time() - self._over_at, None
            if lapse_s < math.inf:  # else it was never held before
                for callback in self._on_regained:
                    callback(lapse_s)

    def end(self) -> None:
        """This broker takes its leave."""
        self._from, self.seconds = -math.inf, 0.0
        if self._asked is not None:
            self._asked.cancel()

    async def renew(self) -> None:
        """Ask now, and wait for that, LEASE_WAIT_MS_MAX at most; whoever comes meanwhile waits for the same answer."""
        if self.seconds <= 0:
            return
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self._ask())
        await asyncio.wait([self._asked], timeout=LEASE_WAIT_MS_MAX / 1000)
