"""The next ranges of a pipeline: forward from its table's end, or backward in those before its beginning.

Promises that each portion keeps its limits, exactly in records and approximately in bytes, and that the claimed ranges
are the planned ones. Imports no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.spark.pipelines.tables.progress import Claim, State
from headrace.spark.read.extent import PartitionRange, Sources
from headrace.spark.read.follow import Limits
from headrace.spark.read.plan import bytes_of, cut_off, hot_sizes
from headrace.spark.read.positions import Positions


def claims_between(start: Positions, end: Positions) -> tuple[Claim, ...]:
    """Claims of every partition that advances from `start` to `end`, or is not in `start`. A partition without records
    claims an empty range, so that it is known from then on. Empty where `end` contains nothing new.
    """
    found = []
    for name, topic in end.items():
        before = start.get(name)
        known = before.next if before is not None and before.is_of(topic.id) else {}
        begun = {**known, **topic.begun}
        found += [
            Claim(name, topic.id, at, min(begun.get(at, 0), to), to)
            for at, to in topic.next.items()
            if at not in known or to > known[at]
        ]
    return tuple(found)


def first_claims(start: Positions) -> tuple[Claim, ...]:
    """Empty claims of a table that begins at `start`, so that a later run knows where to continue."""
    return tuple(
        Claim(name, topic.id, at, offset, offset) for name, topic in start.items() for at, offset in topic.next.items()
    )


def claims_of(ranges: Sequence[PartitionRange]) -> tuple[Claim, ...]:
    return tuple(Claim(each.topic.name, str(each.topic.id), each.partition, each.start, each.end) for each in ranges)


def holes(sources: Sources, state: State) -> list[PartitionRange]:
    """Existing ranges below the table's end that are not in it. Raises DamagedHistory, ClientError."""
    found = []
    for topic in sources.topics():
        catalogs = sources.catalogs(topic)
        for partition, extent in sources.extents(topic, catalogs).items():
            covered = state.covered.get((str(topic.id), partition))
            for low, high in covered.holes(extent.start) if covered is not None else ():
                if low < min(high, extent.end):
                    end = min(high, extent.end)
                    first = min(low, extent.start)
                    found.append(PartitionRange(topic, partition, low, end, catalogs[partition], first))
    return found


def sizes_of(sources: Sources, ranges: Sequence[PartitionRange]) -> list[float]:
    """Approximate bytes of each range. Asks brokers where there is something to fetch from them."""
    sizes = hot_sizes(sources, list(ranges))
    return [bytes_of(each, sizes) for each in ranges]


def portions(sources: Sources, ranges: Sequence[PartitionRange], limits: Limits) -> Iterator[list[PartitionRange]]:
    """The ranges in their order, cut so that each portion keeps to the limits."""
    sizes = hot_sizes(sources, list(ranges))
    left, portion = [*reversed(ranges)], list[PartitionRange]()
    room_bytes, room_records = _room(limits)
    while left:
        each = left.pop()
        end = min(each.end, each.start + room_records)
        if bytes_of(each, sizes) > room_bytes:
            end = min(end, cut_off(each, sizes, room_bytes))
        if end <= each.start and not portion:
            end = each.start + 1  # each portion makes progress
        if end > each.start:
            taken = each._replace(end=end)
            portion.append(taken)
            room_bytes -= bytes_of(taken, sizes)
            room_records -= end - each.start
        if end < each.end:
            left.append(each._replace(start=max(end, each.start)))
            yield portion
            portion = []
            room_bytes, room_records = _room(limits)
    if portion:
        yield portion


def _room(limits: Limits) -> tuple[float, int]:
    return (float("inf") if limits.bytes is None else limits.bytes, 2**62 if limits.records is None else limits.records)
