"""The plan of `headrace group reset-offsets`: the offsets that a group is to read from. It requests offsets and changes
nothing.

Promises: planned offsets lie within each partition's present range, from its first offset to its end, as in Kafka's
tool. Of several partitions all are planned or none.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import PartitionIndex
from headrace.base.reading import INT_MAX, natural

if TYPE_CHECKING:
    from headrace.net.client.cluster import Cluster
    from headrace.net.client.groups import TopicPartition

DURATION: Final = re.compile(
    r"P(?:(?P<days>[0-9]+)D)?(?:T(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+(?:\.[0-9]+)?)S)?)?"
)
"""ISO 8601, as in Java's Duration, without signs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a reset: exactly one of these."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift: int | None = None
    timestamp_ms: int | None = None
    file: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One line of a plan."""

    topic: str
    partition: int
    current: int | None
    """The offset committed now; None: none is."""
    new: int


async def plan(
    cluster: Cluster, target: Target, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> list[Reset]:
    """The reset of each of these partitions."""
    from headrace.net.client.offsets import EARLIEST, LATEST, list_offsets

    resets = []
    for topic in sorted({one.topic for one in partitions}):
        wanted = [one for one in partitions if one.topic == topic]
        indexes = [one.partition for one in wanted]
        first = await list_offsets(cluster, topic, indexes, EARLIEST)
        end = await list_offsets(cluster, topic, indexes, LATEST)
        at = {} if target.timestamp_ms is None else await list_offsets(cluster, topic, indexes, target.timestamp_ms)
        for one in wanted:
            low, high = (found[_index(one)].offset for found in (first, end))
            current = committed.get(one)
            new = _wanted(target, one, current, low, high, at[_index(one)].offset if at else -1)
            resets.append(Reset(topic=topic, partition=one.partition, current=current, new=max(low, min(new, high))))
    return resets


def _index(one: TopicPartition) -> PartitionIndex:
    return PartitionIndex(one.partition)


def _wanted(target: Target, one: TopicPartition, current: int | None, low: int, high: int, at: int) -> int:
    """The new offset before it is limited to the partition's range. A partition without a committed offset counts as
    read to the end. A time after the last record means the end.
    """
    if target.earliest:
        return low
    if target.offset is not None:
        return target.offset
    if target.timestamp_ms is not None:
        return at if at >= 0 else high
    if target.file is not None:
        return target.file[one]
    if target.current:
        return high if current is None else current
    if target.shift is not None:
        if current is None:
            raise HeadraceError(
                f"Nothing is committed for partition {one.partition} of topic '{one.topic}', so there is nothing to "
                "shift: use --to-offset, or leave it out of --topic."
            )
        return current + target.shift
    return high


def parse_datetime(text: str) -> int:
    """`2026-01-31T12:00:00.000`, UTC unless it has a zone, in milliseconds since 1970. Raises UsageError."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--to-datetime {text} is no time: write it like 2026-01-31T12:00:00.000+01:00.") from None
    return max(0, round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))


def parse_duration(text: str, now_ms: int) -> int:
    """`P1DT2H30M`: the time that long ago, in milliseconds since 1970. Raises UsageError."""
    match = DURATION.fullmatch(text.upper())
    parts = {unit: float(value) for unit, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise UsageError(f"--by-duration {text} is no duration: write it like P1D, PT2H30M or PT15S.")
    try:
        return max(0, now_ms - round(timedelta(**parts).total_seconds() * 1000))
    except OverflowError:
        return 0


def parse_topics(texts: Sequence[str]) -> dict[str, tuple[int, ...] | None]:
    """`TOPIC` or `TOPIC:0,1`: partitions by topic; None: all. Raises UsageError."""
    found: dict[str, tuple[int, ...] | None] = {}
    for text in texts:
        topic, colon, indexes = text.partition(":")
        try:
            found[topic] = tuple(natural(index, INT_MAX) for index in indexes.split(",")) if colon else None
        except ValueError:
            raise UsageError(f"--topic {text} is not TOPIC or TOPIC:0,1: partitions are numbers.") from None
    return found


def read_file(path: Path) -> dict[TopicPartition, int]:
    """Offsets from lines of `topic,partition,offset`. Raises UsageError."""
    from headrace.net.client.groups import TopicPartition

    found = {}
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for number, line in enumerate(csv.reader(lines), 1):
                try:
                    topic, partition, offset = line
                    place, wanted = TopicPartition(topic, natural(partition, INT_MAX)), natural(offset)
                except ValueError:
                    raise UsageError(f"Line {number} of {path} is not TOPIC,PARTITION,OFFSET.") from None
                if place in found:
                    raise UsageError(f"Line {number} of {path} names partition {partition} of '{topic}' once more.")
                found[place] = wanted
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    return found
