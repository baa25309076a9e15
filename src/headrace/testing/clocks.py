"""A clock that a test can move, for retention, sessions and timeouts: what waits for hours happens at once.

The broker's thread runs on an event loop whose time is this clock's, so that timers come due, too. A move of hours is
made in steps, with turns of the loop between them. The broker then lives through that time, if in a hurry: it is no
machine that stood still.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

from headrace.base.errors import UsageError

STEP_SECONDS: Final = 0.5
"""The first step of a move. Brokers miss each other only after several such."""
STEPS_MAX: Final = 400
"""A longer move has longer steps."""
TURNS: Final = 4
"""Of the loop, after each step."""


class MovableClock:
    """`base.ports.Clock` over the machine's clocks, ahead of them by what it was moved."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self._ahead_s * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def advance(self, by: timedelta | None = None, *, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the clock, and return once the broker has lived through that time. Blocks: not on the broker's loop.
        Raises UsageError for a move backwards, or where no broker runs by it."""
        total = (by or timedelta()).total_seconds() + hours * 3600 + minutes * 60 + seconds
        if total < 0:
            raise UsageError("A clock is moved ahead, never back.")
        if self._loop is None:
            raise UsageError("No broker runs by this clock: ask for the fixture headrace_clock beside its broker.")
        asyncio.run_coroutine_threadsafe(self._advance(total), self._loop).result()

    async def _advance(self, total: float) -> None:
        step = max(STEP_SECONDS, total / STEPS_MAX)
        left = total
        while left > 0:
            self._ahead_s += min(step, left)
            left -= step
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose time is this clock's. Its timers come due when the clock is moved."""
        self._loop = _MovedLoop(self)
        return self._loop


class _MovedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: MovableClock) -> None:
        super().__init__()
        self._clock = clock

    def time(self) -> float:
        return self._clock.monotonic()
