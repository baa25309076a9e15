"""The rate of a replay: it decides when the next portion may begin.

Promises that at any moment at most one portion more than the rate allows has been written since the beginning. Idle
time is not made up for. The caller provides the time.
"""

from __future__ import annotations

from typing import Final

PORTION_S: Final = 1.0
"""Maximum seconds that a portion lasts at the rate, unless a function makes more records."""


class Pace:
    """Records and bytes per second; either may be None."""

    def __init__(self, records_per_second: float | None, bytes_per_second: float | None) -> None:
        self._records = records_per_second
        self._bytes = bytes_per_second
        self._free_at = float("-inf")

    def records_max(self, limit: int) -> int:
        """Maximum records of a portion."""
        return limit if self._records is None else max(1, min(limit, int(self._records * PORTION_S)))

    def bytes_max(self, limit: int | None) -> int | None:
        if self._bytes is None:
            return limit
        own = max(1, int(self._bytes * PORTION_S))
        return own if limit is None else min(limit, own)

    def wait_s(self, now: float) -> float:
        """Seconds until the next portion may begin."""
        return max(0.0, self._free_at - now)

    def wrote(self, began: float, records: int, size: int) -> None:
        """Note a portion that began at `began`."""
        spans = [0.0]
        if self._records is not None:
            spans.append(records / self._records)
        if self._bytes is not None:
            spans.append(size / self._bytes)
        self._free_at = began + max(spans)
