"""Wakes the names of one shard: one alarm for each, the earliest that was asked for.

Promise: where the broker stood still, or its event loop was held, an alarm waits as long again, within a limit. So no
session ends before the broker has read the heartbeats that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.limits import ALARM_GRACE_MS_MAX, ALARM_LATE_MS_MAX


class Timers:
    """See the module. Loop-only. `wake` is called with a name, once its alarm is over."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, tuple[float, asyncio.Handle]] = {}
        """When each alarm is due, on the loop's clock. The time is kept here because uvloop's handle of an alarm that
        is due at once does not tell it."""
        self._closed = False

    def arm(self, name: str, at_ms: int) -> None:
        """Wake the name by then. An earlier alarm that is set already stays."""
        at, armed = at_ms / 1000, self._timers.get(name)
        if self._closed or (armed is not None and armed[0] <= at):
            return
        if armed is not None:
            armed[1].cancel()
        due = max(at, self._loop.time())
        self._timers[name] = (at, self._loop.call_at(at, self._ring, name, due))

    def disarm(self, name: str) -> None:
        armed = self._timers.pop(name, None)
        if armed is not None:
            armed[1].cancel()

    def close(self) -> None:
        """Wake nothing any more."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, name: str, due: float) -> None:
        at, _ = self._timers.pop(name)
        now = self._loop.time()
        if (late := now - due) > ALARM_LATE_MS_MAX / 1000:
            again = now + min(late, ALARM_GRACE_MS_MAX / 1000)
            self._timers[name] = (at, self._loop.call_at(again, self._ring, name, again))
        else:
            self._wake(name)


def elapsed_ms(seconds: float) -> int:
    """Return whole milliseconds. A time that was made of whole milliseconds gives the same number (8.11 * 1000 is a
    little less than 8110)."""
    return int(round(seconds * 1000, 3))
