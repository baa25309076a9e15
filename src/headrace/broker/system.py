"""The real clock and real chance."""

from __future__ import annotations

import random
import time


class SystemClock:
    """`base.ports.Clock` over the machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def system_random() -> random.SystemRandom:
    """`base.ports.Random` from the operating system."""
    return random.SystemRandom()
