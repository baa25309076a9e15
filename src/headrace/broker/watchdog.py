"""A thread that sees when something holds the event loop, and says what: the loop's stack, taken while it is held.

Promises: whatever holds the loop for twice LOOP_HELD_MS_MAX is noticed, most of what holds it for longer than once; one
log line for each, and no more of them than LogLimit lets through. For the real broker only: it reads the real clock.
Never does: anything about it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final, Self

from headrace.base.limits import LOOP_HELD_MS_MAX, LOOP_STACK_FRAMES_MAX
from headrace.net.loglimit import LogLimit

LOOP_HELD_SECONDS_MAX: Final = LOOP_HELD_MS_MAX / 1000


class Watchdog:
    """Watches the running loop from `with` to its end."""

    def __init__(self, held_seconds_max: float = LOOP_HELD_SECONDS_MAX) -> None:
        self._held_seconds_max = held_seconds_max
        self._log = LogLimit(time.monotonic)
        self._beat = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._held_seconds_max):
            self._beat.clear()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._beat.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._beat.wait(self._held_seconds_max) and not self._over.is_set():  # whose end waits for this
                self._tell(asked, sys._current_frames().get(self._watched))

    def _tell(self, asked: float, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame, limit=LOOP_STACK_FRAMES_MAX) if frame is not None else []
        del frame
        while not self._beat.wait(self._held_seconds_max) and not self._over.is_set():
            pass
        self._log.warning(
            "the event loop was held",
            milliseconds=round((time.monotonic() - asked) * 1000),
            frames=[f"{each.name} ({each.filename}:{each.lineno})" for each in stack],
        )
