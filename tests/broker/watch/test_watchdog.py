"""The watchdog names what holds the loop, and is silent about a loop that turns."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.dev import ConsoleRenderer
from structlog.processors import JSONRenderer
from structlog.testing import capture_logs

from headrace.base.limits import WATCHDOG_SUMMARY_S
from headrace.broker.watchdog import STARVED, Hold, Summaries, Watchdog, shown, spent_in, stack_of


def hold_the_loop(seconds: float) -> None:
    """By work: with nobody else on the machine it lasts so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_what_holds_the_loop_is_named() -> None:
    named: list[MutableMapping[str, Any]] = []
    while not named:  # the machine may hold it before, or keep the watchdog from looking in time
        with capture_logs() as lines, Watchdog(held_seconds_max=0.05):
            hold_the_loop(0.4)
            await asyncio.sleep(0)
        named = [each for each in lines if any("hold_the_loop" in frame for frame in each.get("frames", ()))]
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


def test_what_comes_within_a_minute_is_told_in_one_line_with_the_worst() -> None:
    now = 0.0
    summaries = Summaries(lambda: now)

    def hold(lasted: float, *, queued: float = 0.0) -> Hold:
        return Hold(
            lasted=lasted, worked=lasted - queued, queued=queued, frames=(f"{lasted:g}",), is_starved=bool(queued)
        )

    with capture_logs() as lines:
        assert summaries.due_in_s() is None
        summaries.add(hold(50))
        for lasted in (70, 300, 60):
            now += 10
            summaries.add(hold(lasted))
        summaries.add(hold(400, queued=390))
        assert len(lines) == 1, "the first is told at once"
        assert summaries.due_in_s() == WATCHDOG_SUMMARY_S - 30
        now = WATCHDOG_SUMMARY_S
        summaries.tell_due()
        now += WATCHDOG_SUMMARY_S
        summaries.tell_due()
    first, held, starved = lines
    assert (first["milliseconds"], first["times"]) == (50, 1)
    assert (held["milliseconds"], held["times"], held["all_ms"], held["frames"]) == (300, 3, 430, ["300"])
    assert starved["event"] == STARVED
    assert (starved["milliseconds"], starved["processor_ms"], starved["waited_ms"]) == (400, 10, 390)
    assert "frames" not in starved


@pytest.fixture
def rival() -> Iterator[None]:
    """Another process is busy on the only processor that this thread may use."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    turns = f"import os\nos.sched_setaffinity(0, {one})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", turns])
    os.sched_setaffinity(0, one)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        process.kill()
        process.wait()


@contextmanager
def giving_way() -> Iterator[None]:
    """All others come first on this thread's processor."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such scheduling")
def test_a_thread_that_gets_no_processor_is_told_as_that(rival: None) -> None:
    async def work() -> list[MutableMapping[str, Any]]:
        told = list[MutableMapping[str, Any]]()
        with capture_logs() as lines, Watchdog(held_seconds_max=0.005):
            while not told:
                with giving_way():
                    hold_the_loop(0.001)
                await asyncio.sleep(0)
                told = [each for each in lines if each["event"] == STARVED]
        return told

    line = asyncio.run(work())[0]
    assert line["milliseconds"] >= 10
    assert line["processor_ms"] <= 10 or line["milliseconds"] - line["waited_ms"] <= 10
    assert "frames" not in line


def test_frames_of_what_runs_the_loop_are_left_out() -> None:
    frames = list[str]()

    async def look() -> None:
        frames.extend(shown(stack_of(threading.get_ident())))

    asyncio.run(look())
    assert frames[-2].startswith("look (")
    assert not any("asyncio" in each for each in frames)


async def test_a_loop_that_only_waits_is_not_held_however_late_it_wakes() -> None:
    """As on a machine that is short of processors: its thread has nothing to do, and is not woken in time."""
    loop, loops_thread = asyncio.get_running_loop(), threading.get_ident()
    waits, seen = loop.create_future(), list[bool]()

    def is_waiting() -> bool:
        before = spent_in(watchdog._last_turn[1])
        return watchdog._is_waiting(stack_of(loops_thread), before)

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


GOES_ON_WHILE_LOOKED_AT = """
import asyncio, gc, sys, threading
from headrace.broker.watchdog import Watchdog

__name__ = "what_holds"  # frames of __main__ are left out
goes_on, is_elsewhere = threading.Event(), threading.Event()
kept = []

def on_collection(phase, _):
    if phase == "stop":
        kept.append(lambda: None)  # so that the next object is one too many
    elif threading.current_thread().name == "watchdog" and sys._getframe(1).f_code.co_name == "walk_stack":
        goes_on.set()
        is_elsewhere.wait()

def hold(depth):
    hold(depth - 1) if depth else goes_on.wait(0.3)

def go_elsewhere(depth, a="", b="", c="", d="", e="", f="", g="", h="", i="", j="", k="", l="", m="", n=""):
    "Its frames lie where those were."
    go_elsewhere(depth - 1) if depth else (is_elsewhere.set(), threading.Event().wait(0.1))

async def work():
    gc.freeze()
    gc.callbacks.append(on_collection)
    with Watchdog(held_seconds_max=0.02):
        gc.set_threshold(1)
        hold(30)
        go_elsewhere(60)
        gc.set_threshold(1_000)
        await asyncio.sleep(0)

asyncio.run(work())
"""


def test_a_stack_is_taken_whole_though_garbage_is_due() -> None:
    """Before Python 3.12, the collector may let the loop go on in the middle of `f_back`."""
    command = [sys.executable, "-c", GOES_ON_WHILE_LOOKED_AT]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert (done.returncode, "Exception in thread" in told, "hold (" in told) == (0, False, True), told
