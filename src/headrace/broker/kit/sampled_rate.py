"""A rate over a window of samples, as Kafka measures it for its quotas.

Promises: only what the window holds counts. A window that is not full counts as if it were, so that a burst after
silence may be as large as the window allows. Times are given by the caller, in monotonic seconds.

Source: Kafka's Rate and SampledStat; QuotaUtils for the wait.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Window(NamedTuple):
    samples: int
    """Samples in the window; the last one is being filled."""
    seconds: float
    """The length of each sample."""

    @property
    def whole(self) -> float:
        """Seconds after which a recorded amount counts no more."""
        return self.samples * self.seconds


class _Sample:
    __slots__ = ("last", "start", "total")

    def __init__(self, start: float) -> None:
        self.start = self.last = start
        self.total = 0.0


class SampledRate:
    """The rate of one measured quantity."""

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
        """Return the amount per second, and the seconds over which it was measured."""
        samples = self._samples
        while samples and now - samples[0].last >= window.whole:
            samples.popleft()
        elapsed = now - samples[0].start if samples else 0.0
        missing = window.samples - 1 - int(elapsed / window.seconds)
        elapsed = max(elapsed + max(missing, 0) * window.seconds, 0.001)
        return sum(sample.total for sample in samples) / elapsed, elapsed

    def wait_ms(self, limit: float, now: float, window: Window) -> float:
        """Return the milliseconds without traffic after which the rate is at the limit; 0 where it is not above.
        Infinite where the limit is too small for a number to express the wait."""
        rate, seconds = self.measure(now, window)
        return (rate - limit) / limit * seconds * 1000 if rate > limit else 0.0

    def is_idle(self, now: float, window: Window) -> bool:
        """Whether nothing that was recorded counts any more."""
        return not self._samples or now - self._samples[-1].last >= window.whole
