"""The rate of a replay: when the next portion may begin, so that no more is written in any time than is allowed.

Promises that by any moment no more than one portion beyond what the rate allows was written since it began, and that
time in which nothing came is not made up for. Time is whoever's calls it.
"""

from __future__ import annotations

from typing import Final

PORTION_S: Final = 1.0
"""For so long a portion lasts at the rate, at most, where records are not made more."""


class Pace:
    """Records and bytes a second, of which either may be None."""

    def __init__(self, records_per_second: float | None, bytes_per_second: float | None) -> None:
        self._records = records_per_second
        self._bytes = bytes_per_second
        self._free_at = float("-inf")

    def records_max(self, limit: int) -> int:
        """Of a portion."""
        return limit if self._records is None else max(1, min(limit, int(self._records * PORTION_S)))

    def bytes_max(self, limit: int | None) -> int | None:
        if self._bytes is None:
            return limit
        own = max(1, int(self._bytes * PORTION_S))
        return own if limit is None else min(limit, own)

    def wait_s(self, now: float) -> float:
        """Until the next portion may begin."""
        return max(0.0, self._free_at - now)

    def wrote(self, began: float, records: int, size: int) -> None:
        """A portion that began then."""
        spans = [0.0]
        if self._records is not None:
            spans.append(records / self._records)
        if self._bytes is not None:
            spans.append(size / self._bytes)
        self._free_at = began + max(spans)
