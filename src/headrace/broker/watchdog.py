"""A thread that notices when something holds the event loop, and logs the loop's stack, taken while it is held.

Promises:
- Every hold of the loop for more than twice LOOP_HELD_MS_MAX is noticed, and most of more than once that time.
- The first one is logged at once. Those of the next WATCHDOG_SUMMARY_S are logged together, in one line with the worst.
- A loop that only waits is not held. Nor is one whose thread waited for a processor, and would else have turned in
  time. The machine is short of processors then, and the log says that instead.
- A turning loop pays for one timer: the thread sleeps until nobody has set the alarm again (`broker.alarm`).
- Of the stack, frames of asyncio, of the command line and of what runs them are left out.
- While it is taken, no garbage is collected. Before Python 3.12 that may happen wherever an object is made, such as a
  frame. It runs Python code, and the loop may go on meanwhile. Then `f_back` gives what lies now where the frame was,
  of any type, or the interpreter stops for ever (CPython's issue 106883).

For the real broker only: it reads the real clock. Where the system has no such alarm, nothing is watched. It only logs.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.runners
import gc
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final, NamedTuple, Self, TypeAlias

from headrace.base.limits import LOOP_HELD_MS_MAX, LOOP_STACK_FRAMES_MAX, WATCHDOG_SUMMARY_S
from headrace.broker.alarm import Alarm, has_alarms
from headrace.logs import get_logger

log = get_logger(__name__)

WAITS_IN: Final = frozenset(module.__file__ for module in (asyncio.runners, asyncio.base_events, selectors))
"""Files of the innermost Python code while a loop waits."""
LOOP_HELD_SECONDS_MAX: Final = LOOP_HELD_MS_MAX / 1000
AROUND: Final = ("__main__", "asyncio", "click", "headrace.cli", "runpy", "threading", "typer", "uvloop")
"""Modules whose frames say nothing of what holds the loop."""
STARVED: Final = "the machine had no processor for the event loop"
HELD: Final = "the event loop was held"
_NANOS_PER_MS: Final = 1_000_000
_STATISTICS_BYTES: Final = 128
Stack: TypeAlias = Sequence[tuple[FrameType, int]]
"""The frames of a thread, the innermost first, and their lines."""


class Spent(NamedTuple):
    """Times of a thread since its start, in nanoseconds."""

    worked: int
    queued: int
    """The time that it was ready to run and waited for a processor; 0 where the system does not tell."""


class Hold(NamedTuple):
    """One time in which the loop did not turn, in milliseconds."""

    lasted: float
    worked: float
    """The processor's time that its thread had."""
    queued: float
    frames: tuple[str, ...]
    is_starved: bool
    """Whether the thread was kept from working, rather than at work or blocked in a call."""


@dataclass(slots=True)
class Summary:
    """The holds of one kind since the last line."""

    times: int = 0
    all_ms: float = 0.0
    worst: Hold | None = None

    def add(self, hold: Hold) -> None:
        self.times += 1
        self.all_ms += hold.lasted
        if self.worst is None or hold.lasted > self.worst.lasted:
            self.worst = hold


class Summaries:
    """The log of holds: the first at once, then one line of each kind for a span of time. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held, self._starved = Summary(), Summary()
        self._next = now()
        """When the next line may come."""

    def add(self, hold: Hold) -> None:
        (self._starved if hold.is_starved else self._held).add(hold)
        self.tell_due()

    def due_in_s(self) -> float | None:
        """Return the seconds until there is something to tell; None: there is nothing."""
        if self._held.worst is None and self._starved.worst is None:
            return None
        return max(0.0, self._next - self._now())

    def tell_due(self) -> None:
        if self.due_in_s() == 0:
            self.tell()

    def tell(self) -> None:
        """Log what there is, whenever it is due."""
        for event, summary in ((HELD, self._held), (STARVED, self._starved)):
            if (worst := summary.worst) is None:
                continue
            log.warning(
                event,
                milliseconds=round(worst.lasted),
                processor_ms=round(worst.worked),
                waited_ms=round(worst.queued),
                times=summary.times,
                all_ms=round(summary.all_ms),
                **({"frames": list(worst.frames)} if event == HELD else {}),
            )
        self._held, self._starved = Summary(), Summary()
        self._next = self._now() + WATCHDOG_SUMMARY_S


class Watchdog:
    """Watches the running loop while the `with` block lasts."""

    def __init__(self, held_seconds_max: float = LOOP_HELD_SECONDS_MAX) -> None:
        self._held_seconds_max = held_seconds_max
        self._summaries = Summaries(time.monotonic)
        self._alarm = Alarm() if has_alarms() else None
        self._last_turn = 0.0, b""
        """When the loop last set the alarm again, and what its thread had spent by then (`spent_in`)."""
        self._turned = threading.Event()
        """Set when the loop has turned since the thread began to wait for that."""
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._alarm is not None:
            self._loop = asyncio.get_running_loop()
            self._watched = threading.get_ident()
            self._statistics = statistics_of(self._watched, threading.get_native_id())
            self._turn(self._alarm)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._alarm is not None:
            self._next.cancel()
            self._is_over = True
            self._turned.set()
            self._alarm.set(0)
            self._thread.join()
            self._alarm.close()
            self._summaries.tell()

    def _turn(self, alarm: Alarm) -> None:
        """Note that the loop turns."""
        self._last_turn = time.monotonic(), self._statistics()
        self._turned.set()
        alarm.set(2 * self._held_seconds_max)
        self._next = self._loop.call_later(self._held_seconds_max, self._turn, alarm)

    def _watch(self) -> None:
        assert self._alarm is not None
        while True:
            rang = self._alarm.wait(self._summaries.due_in_s())
            since, spent = last_turn = self._last_turn
            self._turned.clear()
            if self._is_over:
                return
            if not rang:
                self._summaries.tell_due()
            elif self._last_turn is last_turn and time.monotonic() - since >= 2 * self._held_seconds_max:
                self._look(since, spent_in(spent))

    def _look(self, since: float, before: Spent) -> None:
        """Look at a loop that does not turn, and wait until it does."""
        stack = stack_of(self._watched)
        was_idle = self._is_waiting(stack, before)
        frames = () if was_idle else tuple(shown(stack))
        del stack
        self._turned.wait()
        after = spent_in(self._statistics())
        lasted, queued = (time.monotonic() - since) * 1000, (after.queued - before.queued) / _NANOS_PER_MS
        self._summaries.add(
            Hold(
                lasted=lasted,
                worked=(after.worked - before.worked) / _NANOS_PER_MS,
                queued=queued,
                frames=frames,
                is_starved=was_idle or lasted - queued < 2 * self._held_seconds_max * 1000,
            )
        )

    def _is_waiting(self, stack: Stack, before: Spent) -> bool:
        """Whether the thread runs no callback, and has not worked either: it is late to wake up."""
        worked_s = (spent_in(self._statistics()).worked - before.worked) / 1e9
        return bool(stack) and stack[0][0].f_code.co_filename in WAITS_IN and worked_s < self._held_seconds_max


def statistics_of(thread: int, native: int) -> Callable[[], bytes]:
    """Return a function that reads what the thread has spent, as `spent_in` takes it. It is cheap, for the loop calls
    it: one system call, and nothing is taken apart."""
    try:
        descriptor = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        clock = time.pthread_getcpuclockid(thread)
        return lambda: b"%d 0" % time.clock_gettime_ns(clock)
    return _Statistics(descriptor).read


class _Statistics:
    """The kernel's statistics of one thread (Documentation/scheduler/sched-stats.rst)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> bytes:
        return os.pread(self._descriptor, _STATISTICS_BYTES, 0)

    def __del__(self) -> None:
        os.close(self._descriptor)


def spent_in(statistics: bytes) -> Spent:
    worked, queued = statistics.split()[:2]
    return Spent(int(worked), int(queued))


def stack_of(thread: int) -> Stack:
    """Return the frames of a thread that runs on, the innermost first, and their lines. See the module."""
    collects = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread)
        return [] if frame is None else list(traceback.walk_stack(frame))
    finally:
        if collects:
            gc.enable()


def shown(stack: Stack) -> Iterator[str]:
    """Iterate over the innermost frames that say what holds the loop, the outermost first."""
    found = [(each, line) for each, line in stack if not _is_around(each)]
    for each, line in reversed(found[:LOOP_STACK_FRAMES_MAX]):
        yield f"{each.f_code.co_name} ({each.f_code.co_filename}:{line})"


def _is_around(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return any(module == name or module.startswith(f"{name}.") for name in AROUND)
