"""The ranges of a log in Redis, as its leader knows them, and their sizes: what retention drops and compaction covers.

A mark ends a range. Redis keeps it as an entry of the time index. `roll` may make a mark behind a batch that was sent
already, and Redis has none there. A later leader finds that range joined to the next one.

Promises: bytes are counted since the log began, so that no mark changes when others go. The newest time that Redis
keeps for the open range covers everything behind the last mark that Redis has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.base.ids import Offset
from headrace.base.limits import REDIS_RANGE_BYTES
from headrace.storage.engine.cutting import Range
from headrace.storage.engine.identity import LogConfig
from headrace.storage.redis.server_side.functions import IndexEntry


class Added(NamedTuple):
    """An append, as Redis is to note it."""

    timestamp: int
    """The highest since the last mark that Redis has."""
    ends_range: bool


class Ranges:
    """Loop-only, but for `marks`, which is replaced and never changed."""

    def __init__(self, marks: Sequence[IndexEntry], *, size: int, trimmed: int, newest_ms: int) -> None:
        """`newest_ms`: the highest timestamp behind the last mark; -1: none."""
        self.marks = tuple(marks)
        self.size = size
        """Bytes of all batches since the log began."""
        self.trimmed = trimmed
        """Bytes of those that are deleted."""
        self.open_newest_ms = newest_ms
        """The highest timestamp of the open range; -1: it is empty."""
        self._open_from_ms = newest_ms
        self._begun_ms: dict[Offset, int] = {}
        """The timestamps of the first batches of ranges, by their ends, as far as this leader saw them."""
        self._first_ms = -1
        """That of the open range; -1: it is empty, or was begun by another leader."""
        self._rolled_newest_ms = -1
        """The highest timestamp of ranges that Redis has no mark behind."""

    def add(self, end: Offset, size: int, time_ms: int, config: LogConfig) -> Added:
        """Count a batch that ends at `end`, in the open range."""
        self.size += size
        if self.open_newest_ms < 0:
            self._first_ms = time_ms
        self.open_newest_ms = max(self.open_newest_ms, time_ms)
        if self._open_from_ms < 0:
            self._open_from_ms = time_ms
        newest = max(self.open_newest_ms, self._rolled_newest_ms)
        is_full = self.size - self._open_position >= range_bytes_of(config)
        is_old = self.open_newest_ms - self._open_from_ms >= config.segment_ms
        if is_full or is_old:
            self._close(end)
            self._rolled_newest_ms = -1
        return Added(newest, is_full or is_old)

    def roll(self, end: Offset, start: Offset) -> None:
        """End the open range at the log's end, unless it is empty."""
        if end > (self.marks[-1].end if self.marks else start):
            self._rolled_newest_ms = max(self._rolled_newest_ms, self.open_newest_ms)
            self._close(end)

    def _close(self, end: Offset) -> None:
        self.marks += (IndexEntry(end, self.open_newest_ms, self.size),)
        if self._first_ms >= 0:
            self._begun_ms[end] = self._first_ms
        self._open_from_ms = self.open_newest_ms = self._first_ms = -1

    def oldest_ms(self, at: IndexEntry) -> int:
        """The timestamp at which a closed range begins. Where another leader began it, the newest one of the range
        before stands for it; of the first range, its own newest one."""
        if at.end in self._begun_ms:
            return self._begun_ms[at.end]
        before = [mark.timestamp for mark in self.marks if mark.end < at.end]
        return min(before[-1] if before else at.timestamp, at.timestamp)

    @property
    def _open_position(self) -> int:
        return self.marks[-1].position if self.marks else self.trimmed

    def closed(self) -> Iterator[tuple[IndexEntry, int]]:
        """Iterate over the marks, with the bytes of the range that each ends."""
        position = self.trimmed
        for mark in self.marks:
            yield mark, mark.position - position
            position = mark.position

    def all(self, start: Offset, end: Offset, flushed_end: Offset) -> list[Range]:
        """See `Retention.ranges`."""
        found, begun = list[Range](), start
        for mark, size in self.closed():
            found.append(Range(begun, mark.end, size, mark.end <= flushed_end))
            begun = mark.end
        if end > begun:
            found.append(Range(begun, end, self.size - self._open_position, False))
        return found

    def drop_below(self, start: Offset) -> list[IndexEntry]:
        """Forget ranges that end at `start` or below. Returns their marks."""
        count = sum(mark.end <= start for mark in self.marks)
        gone, self.marks = self.marks[:count], self.marks[count:]
        for mark in gone:
            self._begun_ms.pop(mark.end, None)
        if gone:
            self.trimmed = gone[-1].position
        return list(gone)

    def replace(self, clean_to: Offset, removed: int, index: Sequence[IndexEntry]) -> None:
        """Compaction has removed so many bytes below `clean_to`; these are the marks up to there."""
        self.marks = (*index, *(mark for mark in self.marks if mark.end > clean_to))
        self._begun_ms = {end: began for end, began in self._begun_ms.items() if end > clean_to}
        self.trimmed += removed


def range_bytes_of(config: LogConfig) -> int:
    """Return the size at which a range is ended."""
    return min(REDIS_RANGE_BYTES, config.segment_bytes)
