"""A thread that notices when something holds the event loop, and logs the loop's stack, taken while it is held.

Promises:
- Every hold of the loop for more than twice LOOP_HELD_MS_MAX is noticed, and most of more than once that time.
- Each hold gets one log line, as far as LogLimit lets it through.
- A loop that only waits is not held: where the machine gives its thread no processor, nothing is logged.
- A turning loop pays for one timer: the thread sleeps until nobody has set the alarm again (`broker.alarm`).

For the real broker only: it reads the real clock. Where the system has no such alarm, nothing is watched. It only logs.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.runners
import selectors
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final, Self

from headrace.base.limits import LOOP_HELD_MS_MAX, LOOP_STACK_FRAMES_MAX
from headrace.broker.alarm import Alarm, has_alarms
from headrace.net.server.loglimit import LogLimit

WAITS_IN: Final = frozenset(module.__file__ for module in (asyncio.runners, asyncio.base_events, selectors))
"""Files of the innermost Python code while a loop waits."""
LOOP_HELD_SECONDS_MAX: Final = LOOP_HELD_MS_MAX / 1000


class Watchdog:
    """Watches the running loop while the `with` block lasts."""

    def __init__(self, held_seconds_max: float = LOOP_HELD_SECONDS_MAX) -> None:
        self._held_seconds_max = held_seconds_max
        self._log = LogLimit(time.monotonic)
        self._alarm = Alarm() if has_alarms() else None
        self._turned_at = 0.0
        """When the loop last set the alarm again."""
        self._spent_then = 0.0
        """The seconds of processor that the loop's thread had spent by then."""
        self._turned = threading.Event()
        """Set when the loop has turned since the thread began to wait for that."""
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._alarm is not None:
            self._loop = asyncio.get_running_loop()
            self._watched = threading.get_ident()
            self._spent = time.pthread_getcpuclockid(self._watched)
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

    def _turn(self, alarm: Alarm) -> None:
        """Note that the loop turns."""
        self._turned_at, self._spent_then = time.monotonic(), time.clock_gettime(self._spent)
        self._turned.set()
        alarm.set(2 * self._held_seconds_max)
        self._next = self._loop.call_later(self._held_seconds_max, self._turn, alarm)

    def _watch(self) -> None:
        assert self._alarm is not None
        while True:
            self._alarm.wait()
            since = self._turned_at
            self._turned.clear()
            if self._is_over:
                return
            if self._turned_at == since and time.monotonic() - since >= 2 * self._held_seconds_max:
                frame = sys._current_frames().get(self._watched)
                if not self._is_waiting(frame):
                    self._tell(since, frame)
                del frame

    def _is_waiting(self, frame: FrameType | None) -> bool:
        """Whether the thread runs no callback, and has not worked either: it is late to wake up."""
        worked = time.clock_gettime(self._spent) - self._spent_then >= self._held_seconds_max
        return frame is not None and frame.f_code.co_filename in WAITS_IN and not worked

    def _tell(self, since: float, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame, limit=LOOP_STACK_FRAMES_MAX) if frame is not None else []
        del frame
        self._turned.wait()
        self._log.warning(
            "the event loop was held",
            milliseconds=round((time.monotonic() - since) * 1000),
            frames=[f"{each.name} ({each.filename}:{each.lineno})" for each in stack],
        )
