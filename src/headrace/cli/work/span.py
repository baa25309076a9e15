"""The span of a topic that `headrace consume` reads: where it starts and ends in each partition.

Promises: starts and ends lie within what a partition has, but for an offset in partitions that the user named. It
is asked for as it is, so that a record which is not there is an error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.base.errors import UsageError
from headrace.base.reading import is_natural, whole

if TYPE_CHECKING:
    from headrace.net.client.cluster import Cluster

_EARLIEST, _LATEST = -2, -1  # as ListOffsets has them
_NAMES = {"beginning": _EARLIEST, "earliest": _EARLIEST, "end": _LATEST, "latest": _LATEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where reading starts: at a time, at an offset, or before the end. One of them is set."""

    at: int | None = None
    """ListOffsets' timestamp: milliseconds since 1970, or one that stands for the earliest or the latest."""
    offset: int | None = None
    last: int | None = None
    """So many offsets before the end."""


def start_at_offset(text: str) -> Start:
    """`beginning`, `end`, `100`, or `-5` for the last five of each partition. Raises ValueError."""
    if (at := _NAMES.get(text.lower())) is not None:
        return Start(at=at)
    try:
        number = whole(text)
    except ValueError:
        raise ValueError("it is not beginning, end, or a whole number") from None
    return Start(offset=number) if number >= 0 and not text.startswith("-") else Start(last=-number)


def start_at_time(text: str) -> Start:
    """`earliest`, `latest`, or a time. Raises UsageError."""
    if (at := _NAMES.get(text.lower())) is not None:
        return Start(at=at)
    return Start(at=parse_time(text, "--from", "earliest, latest"))


def parse_time(text: str, option: str, others: str = "") -> int:
    """Milliseconds since 1970: of a time by ISO 8601 (UTC where it has no zone), or of a duration before now. A long
    number is taken as it is. Raises UsageError.
    """
    from headrace.operations.resetting import parse_duration

    if is_natural(text) and len(text) > len("20240501"):
        return int(text)
    try:
        if text[:1].upper() == "P":
            return parse_duration(text, time.time_ns() // 1_000_000)
        moment = datetime.fromisoformat(text)
    except (ValueError, UsageError):
        raise UsageError(
            f"{option} '{text}' is none of {others + ', ' if others else ''}a duration such as PT1H, "
            "and a time such as 2024-05-01T12:00:00Z."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


async def starts(
    cluster: Cluster, topic: str, partitions: Sequence[int], start: Start, *, named: bool, committed_only: bool
) -> dict[int, int]:
    """The first offset to read in each partition. `named`: the user has named these. `committed_only`: as in `ends`."""
    if start.offset is not None and named:
        return dict.fromkeys(partitions, start.offset)
    if start.at is not None:
        return await _at(cluster, topic, partitions, start.at, committed_only=committed_only)
    first = await _at(cluster, topic, partitions, _EARLIEST)
    end = await _at(cluster, topic, partitions, _LATEST, committed_only=committed_only)
    wanted = {index: end[index] - start.last if start.last is not None else start.offset or 0 for index in partitions}
    return {index: max(first[index], min(offset, end[index])) for index, offset in wanted.items()}


async def ends(
    cluster: Cluster, topic: str, partitions: Sequence[int], before_ms: int | None, *, committed_only: bool
) -> dict[int, int]:
    """The offset behind the last one to read in each partition: the present end, or the first record of a time. With
    `committed_only` the last stable offset is the end."""
    return await _at(
        cluster, topic, partitions, _LATEST if before_ms is None else before_ms, committed_only=committed_only
    )


async def _at(
    cluster: Cluster, topic: str, partitions: Sequence[int], at: int, *, committed_only: bool = False
) -> dict[int, int]:
    """The offset of the first record at or after a time; the end where there is none."""
    from headrace.net.client.offsets import list_offsets

    asked = await list_offsets(cluster, topic, partitions, at, committed_only=committed_only)
    found = {int(index): int(one.offset) for index, one in asked.items()}
    if missing := [index for index, offset in found.items() if offset < 0]:
        asked = await list_offsets(cluster, topic, missing, _LATEST, committed_only=committed_only)
        found |= {index: int(one.offset) for index, one in asked.items()}
    return found
