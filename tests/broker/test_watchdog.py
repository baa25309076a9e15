"""The watchdog names what holds the loop, and is silent about a loop that turns."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Any

from structlog.dev import ConsoleRenderer
from structlog.processors import JSONRenderer
from structlog.testing import capture_logs

from headrace.broker.watchdog import Watchdog


def hold_the_loop(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_what_holds_the_loop_is_named() -> None:
    named: list[MutableMapping[str, Any]] = []
    with capture_logs() as lines, Watchdog(held_seconds_max=0.05):
        while not named:  # the machine may hold it before, or keep the watchdog from looking in time
            hold_the_loop(0.4)
            await asyncio.sleep(0)
            named = [each for each in lines if any("hold_the_loop" in frame for frame in each["frames"])]
    line = named[0]
    assert line["event"] == "the event loop was held"
    assert line["milliseconds"] >= 50
    for renderer in (ConsoleRenderer(), JSONRenderer()):  # none of its facts has a meaning of its own to them
        assert "hold_the_loop" in renderer(None, "warning", dict(line))


async def test_a_loop_that_turns_is_let_alone_and_the_thread_ends_with_the_watch() -> None:
    before = threading.active_count()
    with capture_logs() as lines, Watchdog(held_seconds_max=30):
        for _ in range(100):
            await asyncio.sleep(0)
    assert not lines
    assert threading.active_count() == before


async def test_the_lines_are_limited() -> None:
    from headrace.base.limits import CAUSED_LOG_LINES_BURST_MAX
    from headrace.net.server.loglimit import LogLimit

    now = 0.0
    limit = LogLimit(lambda: now)
    with capture_logs() as lines:
        for _ in range(CAUSED_LOG_LINES_BURST_MAX + 7):
            limit.warning("caused")
        assert len(lines) == CAUSED_LOG_LINES_BURST_MAX
        now = 1.5
        limit.warning("caused")
    assert lines[-1]["left_out"] == 7


async def test_a_loop_that_only_waits_is_not_held_however_late_it_wakes() -> None:
    """As on a machine that is short of processors: its thread has nothing to do, and is not woken in time."""
    loop, loops_thread = asyncio.get_running_loop(), threading.get_ident()
    waits, seen = loop.create_future(), list[bool]()

    def is_waiting() -> bool:
        return watchdog._is_waiting(sys._current_frames().get(loops_thread))

    def look_until_it_waits() -> None:
        while not is_waiting():
            pass
        loop.call_soon_threadsafe(waits.set_result, None)

    with Watchdog(held_seconds_max=30) as watchdog:
        looker = threading.Thread(target=look_until_it_waits)
        looker.start()
        await waits
        looker.join()
        looker = threading.Thread(target=lambda: seen.append(is_waiting()))
        looker.start()
        while looker.is_alive():
            hold_the_loop(0.01)
    assert seen == [False]
