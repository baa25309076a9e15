"""Wakes the groups of one partition: one alarm for each, the earliest that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class GroupTimers:
    """See the module. Loop-only. `wake` is called with the group's name, once its alarm is over."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, tuple[float, asyncio.Handle]] = {}
        """When each alarm is due, on the loop's clock. The time is kept here because uvloop's handle of an alarm that
        is due at once does not tell it."""
        self._closed = False

    def arm(self, group_id: str, at_ms: int) -> None:
        """Wake the group by then. An earlier alarm that is set already stays."""
        at, armed = at_ms / 1000, self._timers.get(group_id)
        if self._closed or (armed is not None and armed[0] <= at):
            return
        if armed is not None:
            armed[1].cancel()
        self._timers[group_id] = (at, self._loop.call_at(at, self._ring, group_id))

    def disarm(self, group_id: str) -> None:
        armed = self._timers.pop(group_id, None)
        if armed is not None:
            armed[1].cancel()

    def close(self) -> None:
        """Wake no group any more."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, group_id: str) -> None:
        del self._timers[group_id]
        self._wake(group_id)


def elapsed_ms(seconds: float) -> int:
    """Return whole milliseconds. A time that was made of whole milliseconds gives the same number (8.11 * 1000 is a
    little less than 8110)."""
    return int(round(seconds * 1000, 3))
