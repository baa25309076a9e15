"""How fast something goes on, over a window of samples, as Kafka measures it for its quotas.

Promises: nothing but what the window holds counts, and a window that is not full counts as if it were, so that a burst
after silence is allowed as much as the window holds. Times are given, in monotonic seconds. Source: Kafka's Rate and
SampledStat; QuotaUtils for the wait.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Window(NamedTuple):
    samples: int
    """The last of which is being filled."""
    seconds: float
    """Of each."""

    @property
    def whole(self) -> float:
        """Seconds after which what was recorded counts no more."""
        return self.samples * self.seconds


class _Sample:
    __slots__ = ("last", "start", "total")

    def __init__(self, start: float) -> None:
        self.start = self.last = start
        self.total = 0.0


class SampledRate:
    """One."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def record(self, amount: float, now: float, window: Window) -> None:
        samples = self._samples
        if not samples or now - samples[-1].start >= window.seconds:
            samples.append(_Sample(now))
            if len(samples) > window.samples + 1:  # one more than the window has, for it may begin in the midst of one
                samples.popleft()
        samples[-1].total += amount
        samples[-1].last = now

    def measure(self, now: float, window: Window) -> tuple[float, float]:
        """How much in a second, and the seconds over which that was."""
        samples = self._samples
        while samples and now - samples[0].last >= window.whole:
            samples.popleft()
        elapsed = now - samples[0].start if samples else 0.0
        missing = window.samples - 1 - int(elapsed / window.seconds)
        elapsed = max(elapsed + max(missing, 0) * window.seconds, 0.001)
        return sum(sample.total for sample in samples) / elapsed, elapsed

    def wait_ms(self, limit: float, now: float, window: Window) -> float:
        """Milliseconds without more after which it is at the limit; 0: it is not above. Infinite where the limit is so
        small that no number says it."""
        rate, seconds = self.measure(now, window)
        return (rate - limit) / limit * seconds * 1000 if rate > limit else 0.0

    def is_idle(self, now: float, window: Window) -> bool:
        """Whether nothing of what was recorded counts any more."""
        return not self._samples or now - self._samples[-1].last >= window.whole
