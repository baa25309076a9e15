"""A timer on which a thread sleeps without the interpreter: the thread runs only if nobody sets the timer again in
time.

A thread that waits on an event or a condition has to take the interpreter's lock to see that nothing happened. A thread
that asks for that lock costs a busy event loop a system call for each callback. Linux only: timerfd_create(2), which
`os` has from Python 3.13 on.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from typing import Final

_CLOEXEC: Final = os.O_CLOEXEC
"""TFD_CLOEXEC has the same value, by the man page."""
_EXPIRATIONS_BYTES: Final = 8
_NANOS: Final = 1_000_000_000


class _Span(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = (("seconds", ctypes.c_long), ("nanos", ctypes.c_long))


class _Setting(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (("every", _Span), ("first", _Span))


def has_alarms() -> bool:
    """Whether this system has such timers."""
    return sys.platform == "linux"


class Alarm:
    """Set from one thread, waited for in another. Raises OSError where the system has no more timers."""

    def __init__(self) -> None:
        # a PyDLL call lets no other thread have the interpreter meanwhile
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "a timer could not be made")
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._setting = _Setting()
        self._pointer = ctypes.byref(self._setting)

    def set(self, seconds: float) -> None:
        """Ring after `seconds` (0: at once), instead of at the earlier time."""
        first = self._setting.first
        first.seconds, first.nanos = divmod(max(1, int(seconds * _NANOS)), _NANOS)
        self._libc.timerfd_settime(self._fd, 0, self._pointer, None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it rings, or for so long. Returns whether it rang."""
        if seconds is not None and not self._poll.poll(seconds * 1000):
            return False
        os.read(self._fd, _EXPIRATIONS_BYTES)
        return True

    def close(self) -> None:
        """Close the timer. Nobody waits any more."""
        os.close(self._fd)
