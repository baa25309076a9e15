"""The rows that a query's filters leave to be read: topics, partitions, offsets, and a lower bound of times.

Leaves out only rows that no filter accepts. Spark checks each row again, so it sees the same rows as without this. A
filter that is not understood leaves all rows. There is no upper bound of times: a segment states its highest time, and
records may come late. Knows Spark's filters by the names of their classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Bounds: TypeAlias = tuple[float, float]
"""Inclusive."""
COLUMNS: Final = {"topic", "partition", "offset", "timestamp"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds on the wanted rows. They are inclusive; None: no bound."""

    topics: frozenset[str] | None = None
    partitions: Bounds = (-math.inf, math.inf)
    offsets: Bounds = (-math.inf, math.inf)
    time_from_ms: int | None = None

    def has(self, topic: str, partition: int) -> bool:
        low, high = self.partitions
        return (self.topics is None or topic in self.topics) and low <= partition <= high

    def clipped(self, start: int, end: int) -> tuple[int, int]:
        """Of the offsets from `start` up to `end` (exclusive), those that may be wanted."""
        low, high = self.offsets
        if low > high or low >= end or high < start:
            return start, start
        first = math.ceil(low) if low > start else start
        following = math.floor(high) + 1 if high < end else end
        return first, min(following, end)


ALL: Final = Wanted()


def wanted_by(filters: Iterable[Any]) -> Wanted:
    """The rows that all of Spark's filters (pyspark.sql.datasource.Filter) together leave."""
    found = ALL
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1 and path[0].lower() in COLUMNS and hasattr(each, "value"):
            found = _narrowed(found, path[0].lower(), type(each).__name__, each.value)
    return found


def _narrowed(wanted: Wanted, column: str, kind: str, value: Any) -> Wanted:
    if kind == "In":
        values = [item for item in value if item is not None]
        if not values:
            return wanted
    elif kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"):
        if value is None:
            return wanted
        values = [value]
    else:
        return wanted
    if column == "topic":
        return _topics(wanted, kind, values)
    if column == "timestamp":
        return _times(wanted, kind, values)
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in values):
        return wanted
    least, most = _bounds(kind, values)
    if column == "partition":
        return replace(wanted, partitions=_met(wanted.partitions, least, most))
    return replace(wanted, offsets=_met(wanted.offsets, least, most))


def _met(bounds: Bounds, least: float, most: float) -> Bounds:
    return max(bounds[0], least), min(bounds[1], most)


def _bounds(kind: str, values: list[Any]) -> Bounds:
    match kind:
        case "GreaterThan":
            return math.floor(values[0]) + 1, math.inf
        case "GreaterThanOrEqual":
            return math.ceil(values[0]), math.inf
        case "LessThan":
            return -math.inf, math.ceil(values[0]) - 1
        case "LessThanOrEqual":
            return -math.inf, math.floor(values[0])
        case _:
            return min(values), max(values)


def _topics(wanted: Wanted, kind: str, values: list[Any]) -> Wanted:
    if kind not in ("EqualTo", "EqualNullSafe", "In") or not all(isinstance(item, str) for item in values):
        return wanted
    named = frozenset(values)
    return replace(wanted, topics=named if wanted.topics is None else wanted.topics & named)


def _times(wanted: Wanted, kind: str, values: list[Any]) -> Wanted:
    if kind in ("LessThan", "LessThanOrEqual"):
        return wanted
    times = [_milliseconds(item) for item in values]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return wanted
    low = min(known)
    return replace(wanted, time_from_ms=low if wanted.time_from_ms is None else max(wanted.time_from_ms, low))


def _milliseconds(value: Any) -> int | None:
    """Milliseconds, rounded down; None for a value that is no moment in UTC."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - EPOCH) // timedelta(milliseconds=1)
