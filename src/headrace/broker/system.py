"""The real clock and real randomness, and the interpreter's settings for a process that is only a broker."""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
import time
from typing import Final

from headrace.base.garbage import spare_the_collector

THREAD_TURN_SECONDS: Final = 0.001
"""How long a worker thread may keep the interpreter from the loop (Python's default: 5 ms). A piece of the loop's work
that takes as long as several such turns waits as often."""


class SystemClock:
    """`base.ports.Clock` over the machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def system_random() -> random.SystemRandom:
    """`base.ports.Random` from the operating system."""
    return random.SystemRandom()


def descriptors() -> tuple[int, int]:
    """Return the number of open file descriptors of this process, and their limit. Blocking. Raises OSError where the
    system does not say."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")), limit


def tune_interpreter() -> None:
    """Tune the interpreter. Call it once the broker serves, in the process that is only the broker.

    - Objects that exist now are never looked at again by the garbage collector.
    - Requests leave no cycles behind (tests/broker/upkeep/test_no_cycles.py), so the collector runs rarely.
    - The loop goes before worker threads.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    spare_the_collector()
    sys.setswitchinterval(THREAD_TURN_SECONDS)
