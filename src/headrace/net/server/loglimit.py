"""Limits log lines that strangers can cause: a burst, then a rate per second. The rest is counted.

Promises: the next line reports the number of lines left out (`left_out`). Never does: hold a line back for later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.base.limits import CAUSED_LOG_LINES_BURST_MAX, CAUSED_LOG_LINES_PER_SECOND_MAX
from headrace.logs import get_logger

log = get_logger(__name__)


class LogLimit:
    """A token bucket before the log. `now`: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens = float(CAUSED_LOG_LINES_BURST_MAX)
        self._filled_at = now()
        self._left_out = 0

    def warning(self, event: str, **facts: Any) -> None:
        """Log the line, or count it as left out."""
        now = self._now()
        refill = (now - self._filled_at) * CAUSED_LOG_LINES_PER_SECOND_MAX
        self._tokens = min(self._tokens + refill, float(CAUSED_LOG_LINES_BURST_MAX))
        self._filled_at = now
        if self._tokens < 1:
            self._left_out += 1
            return
        self._tokens -= 1
        if self._left_out:
            facts["left_out"], self._left_out = self._left_out, 0
        log.warning(event, **facts)
