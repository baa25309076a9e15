"""When groups of one partition are to be woken: one alarm for each, the earliest that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class GroupTimers:
    """See the module. Loop-only. `wake` is called with the group's name, whose alarm is over by then."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, tuple[float, asyncio.Handle]] = {}
        """When, on the loop's clock; uvloop's own handle does not tell it of what is due at once."""
        self._closed = False

    def arm(self, group_id: str, at_ms: int) -> None:
        """Have the group woken by then; an earlier alarm that is set already will do."""
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
        """Nobody is woken any more."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, group_id: str) -> None:
        del self._timers[group_id]
        self._wake(group_id)


def elapsed_ms(seconds: float) -> int:
    """Whole milliseconds: of a time that was made of milliseconds, these (8.11 * 1000 is a little less than 8110)."""
    return int(round(seconds * 1000, 3))
