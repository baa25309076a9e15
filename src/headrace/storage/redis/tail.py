"""Batches in memory that follow one another: the newest ones of a log, or older ones that a read has brought."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from headrace.base.ids import Offset
from headrace.base.limits import REDIS_TAIL_BYTES_MAX

_DROPPED_MIN: Final = 1_000
"""Places at the front that are freed together."""


class Batches:
    """Whole batches in offset order; a `Fetched` too."""

    __slots__ = ("_base", "_data", "_ends", "_first")

    def __init__(self, base: int, batches: Iterable[tuple[int, bytes]] = ()) -> None:
        """Each with the offset after it."""
        self._base = base
        self._ends: list[int] = []
        self._data: list[bytes] = []
        self._first = 0
        for end, data in batches:
            self.add(end, data)

    @property
    def base_offset(self) -> int:
        return self._base

    @property
    def next_offset(self) -> int:
        return self._ends[-1] if len(self._ends) > self._first else self._base

    def add(self, end: int, data: bytes) -> None:
        self._ends.append(end)
        self._data.append(data)

    def drop_oldest(self) -> None:
        """Forget the first batch."""
        first = self._first
        self._base, self._data[first] = self._ends[first], b""
        self._first = first = first + 1
        if first >= _DROPPED_MIN and 2 * first >= len(self._ends):
            del self._ends[:first], self._data[:first]
            self._first = 0

    def drop_all(self) -> None:
        """Forget all batches."""
        self._base = self.next_offset
        self._ends, self._data, self._first = [], [], 0

    def cut_from(self, offset: int) -> None:
        """Forget batches that end above `offset`."""
        keep = bisect_right(self._ends, offset, lo=self._first)
        del self._ends[keep:], self._data[keep:]

    def above(self, offset: int) -> list[tuple[int, bytes]]:
        """Batches that end above `offset`, with the offset after each."""
        at = bisect_right(self._ends, offset, lo=self._first)
        return list(zip(self._ends[at:], self._data[at:], strict=True))

    def read(self, start: int, bytes_max: int, end: int, *, at_least_one: bool) -> memoryview:
        """As `Reading.read`, from a `start` at or above `base_offset`."""
        ends, data = self._ends, self._data
        first = at = bisect_right(ends, start, lo=self._first)
        size = 0
        while at < len(ends) and ends[at] <= end:
            size += len(data[at])
            if size > bytes_max and not (at_least_one and at == first):
                break
            at += 1
        return memoryview(data[first] if at == first + 1 else b"".join(data[first:at]))


class TailBudget:
    """The memory for the newest batches of all logs. The oldest flushed one is evicted first."""

    def __init__(self, bytes_max: int = REDIS_TAIL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[tuple[Tail, int, int]] = deque()
        self.size = 0
        """Bytes."""
        self.unflushed = 0
        """Bytes of batches of all logs that are not flushed."""

    def add(self, tail: Tail, end: int, size: int) -> None:
        self._kept.append((tail, end, size))
        self.size += size
        self.unflushed += size
        self.shrink()

    def shrink(self) -> None:
        """Evict flushed batches as long as there is too much."""
        while self.size > self._bytes_max and self._kept and self._kept[0][0].lets_go(self._kept[0][1]):
            self.size -= self._kept.popleft()[2]


class Tail:
    """The newest batches of one log. Loop-only."""

    __slots__ = ("_budget", "_gone", "batches", "flushed_end")

    def __init__(self, budget: TailBudget, end: Offset) -> None:
        self._budget = budget
        self._gone = False
        self.batches: Final = Batches(end)
        self.flushed_end = end

    def add(self, end: int, data: bytes) -> None:
        self.batches.add(end, data)
        self._budget.add(self, end, len(data))

    def lets_go(self, end: int) -> bool:
        """Whether the log's oldest batch, which ends at `end`, is evicted, or is not here any more."""
        if end > self.flushed_end and not self._gone:
            return False
        if self.batches.base_offset < end <= self.batches.next_offset:  # else it was cut, or forgotten
            self.batches.drop_oldest()
        return True

    def forget_below(self, offset: Offset) -> None:
        """Redis has other records than this below a flushed offset, by compaction: readers are to get those. The budget
        counts the bytes until it comes to them."""
        while self.batches.base_offset < offset:
            self.batches.drop_oldest()

    def flushed(self, end: Offset, size: int) -> None:
        """All below `end` is flushed, `size` bytes more than before."""
        self.flushed_end = end
        self._budget.unflushed -= size

    def drop(self, unflushed: int, *, is_read: bool = False) -> None:
        """The log is closed or has failed; `unflushed` of its bytes are in no log now. `is_read`: readers may still
        come for what is flushed. Otherwise all is freed now, and the budget counts it until it comes to it."""
        if not self._gone:
            self._gone = True
            self._budget.unflushed -= unflushed
        if not is_read:
            self.batches.drop_all()
