"""Ends a test that hangs, and its process where that does not help.

pytest-timeout's alarm raises in the main thread, once, and not at all where a C loop swallows what a callback raises.
After a failure it is off, so a teardown has no limit. So, first, work on an event loop has the test's own limit in the
loop (`limited`).

Second, a thread of its own watches each test from its setup to its teardown, and the end of the process. Beyond the
test's limit and a margin it prints the stacks of all threads and the failures so far. Then it kills the processes that
this one started, and ends it. Promises that it does so whatever the main thread does. Where that keeps the interpreter
to itself, the fault handler's own clock ends the process a little later.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import inspect
import os
import signal
import threading
import time
from collections.abc import Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import psutil
import pytest

from tools.run_tests import HUNG as HANGS

T = TypeVar("T")

HUNG: Final = 124
"""Exit code of a process that was ended so."""
PATIENCE: Final = 3
"""How many times as long a test has whose process makes way for others: by and by it gets what they leave."""
MARGIN_S: Final = 120.0
"""For a teardown after a test that took all of its time."""
ENDS_S: Final = 120.0
"""From the end of a test to the next one, or to the end of the process."""
HELD_S: Final = 30.0
"""After which the fault handler does it, where the thread could not."""
SHARE: Final = 0.95
"""Of its time, that a test has on an event loop: it ends before its alarm goes off."""

_ends: list[float] = []
"""When the alarm of the test that runs goes off, on the monotonic clock; empty: it has none."""


def left() -> float | None:
    """Seconds that the test that runs has on an event loop; None where it has no limit."""
    return max(0.0, _ends[-1] - time.monotonic()) * SHARE if _ends else None


async def limited(work: Coroutine[Any, Any, T]) -> T:
    """Run the work within the rest of the test's limit. Then the test's alarm is off, because it would end all tests
    while this one cleans up, or while its failure is reported. Hanging threads of the loop are left alone, or its end
    would wait."""
    loop, limit_s = asyncio.get_running_loop(), left()
    off = None if limit_s is None else loop.call_later(limit_s, signal.setitimer, signal.ITIMER_REAL, 0)
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await work
    finally:
        if off is not None:
            off.cancel()
        if limit.expired():
            signal.setitimer(signal.ITIMER_REAL, 0)  # where it ended before `off` had its turn
            loop.set_default_executor(ThreadPoolExecutor(1))


class Guard:
    """The plugin of one run of pytest, made where standard error is not captured."""

    def __init__(self, *, margin_s: float = MARGIN_S, ends_s: float = ENDS_S) -> None:
        self._margin_s = margin_s
        self._ends_s = ends_s
        self._stderr = os.dup(2)
        self._changed = threading.Condition()
        self._deadline: tuple[float, str] | None = None
        self._failed: list[str] = []
        threading.Thread(target=self._watch, name="guard of the tests", daemon=True).start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item | pytest.Collector]) -> None:
        """`items` has files, too, of which the pool collects the tests later (tests/pool.py)."""
        for item in items if os.getpriority(os.PRIO_PROCESS, 0) > 0 else ():
            if isinstance(item, pytest.Collector):
                continue
            own = item.get_closest_marker("timeout")
            limit = float(own.args[0] if own is not None else config.getoption("timeout") or config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(limit * PATIENCE), append=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._clear()
        try:
            return (yield)
        finally:
            _ends.clear()
            self._set(f"what came after {item.nodeid}", self._ends_s)

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        _ends[:] = [time.monotonic() + settings.timeout]
        self._set(item.nodeid, settings.timeout + self._margin_s)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _with_limit(item.obj)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid}, {report.when}:\n{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """pytest's fault handler has just stopped the clock, which is one for all."""
        with self._changed:
            self._wind()

    def pytest_enter_pdb(self) -> None:
        self._clear()

    def _set(self, what: str, limit_s: float) -> None:
        with self._changed:
            self._deadline = time.monotonic() + limit_s, what
            self._changed.notify()
            self._wind()

    def _clear(self) -> None:
        with self._changed:
            self._deadline = None
            faulthandler.cancel_dump_traceback_later()

    def _wind(self) -> None:
        if self._deadline is not None:
            left_s = max(0.0, self._deadline[0] - time.monotonic())
            faulthandler.dump_traceback_later(left_s + HELD_S, exit=True, file=self._stderr)

    def _watch(self) -> None:
        with self._changed:
            while True:
                if self._deadline is None:
                    self._changed.wait()
                    continue
                at, what = self._deadline
                if (left_s := at - time.monotonic()) <= 0:
                    self._end(what)
                self._changed.wait(left_s)

    def _end(self, what: str) -> None:
        try:
            self._tell(f"\n{HANGS}{what} ++++\n")
            faulthandler.dump_traceback(self._stderr, all_threads=True)
            for failure in self._failed:
                self._tell(f"---- failed before: {failure}\n")
            for line in _killed(psutil.Process()):
                self._tell(f"---- killed: {line}\n")
        finally:
            os._exit(HUNG)

    def _tell(self, text: str) -> None:
        os.write(self._stderr, text.encode(errors="replace"))


def _killed(process: psutil.Process) -> Iterator[str]:
    """The processes that it and its children started, which are killed, youngest last."""
    for each in process.children(recursive=True):
        try:
            line = f"{each.pid} {' '.join(each.cmdline())[:200]}"
            each.kill()
        except psutil.Error:
            continue
        yield line


def _with_limit(test: Any) -> Any:
    @functools.wraps(test)
    async def run(*args: Any, **named: Any) -> Any:
        return await limited(test(*args, **named))

    return run
