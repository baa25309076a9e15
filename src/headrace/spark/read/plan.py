"""The tasks of a read: one offset vector, cut into parts that are even in bytes, whatever the number of partitions.

Offsets that durable segments cover are read from the store; only the rest is fetched from brokers. Promises that the
parts hold each offset of the vector that filters accept once, in order within a partition. Reads the indexes of
segments that are cut, up to SPARK_FOOTERS_PLANNED_MAX of them. For more, bytes are assumed to be evenly distributed.
Imports no Spark.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from typing import Final, NamedTuple, TypeAlias

from headrace.base.ids import PartitionIndex, TopicId
from headrace.base.limits import SPARK_CATALOGS_AT_ONCE_MAX, SPARK_FOOTERS_PLANNED_MAX, SPARK_TASKS_MAX
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.spark.read.extent import PartitionRange, ReadTopic, Sources
from headrace.spark.read.filters import ALL, Wanted
from headrace.spark.read.repeats import Once
from headrace.storage.tier.format import IndexEntry
from headrace.storage.tier.reader import DamagedHistory, Store

SLACK: Final = 8
"""A task may exceed its share by one part in this many, so that a segment need not be cut for little."""
TASKS_EVEN: Final = 4
"""Tasks come in multiples of this number. With five tasks on two cores, one core would wait while the last task
runs.
"""
TASK_BYTES_EVEN_MIN: Final = 8 * 1024 * 1024
"""Tasks are not made smaller than this for evenness alone."""
BYTES_PER_OFFSET: Final = 100.0
"""Assumed where nothing is known."""


class Place(NamedTuple):
    """A partition, as a task knows it."""

    topic: str
    topic_id: TopicId
    partition: int


class StorePart(NamedTuple):
    """Offsets of one durable segment."""

    place: Place
    segment: SegmentDescriptor
    start: int
    end: int
    """Exclusive."""
    time_from_ms: int | None
    """Batches whose times are all earlier may be left out."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the segment is read."""
        return self.start <= self.segment.start_offset and self.segment.next_offset <= self.end


class HotPart(NamedTuple):
    """Offsets to fetch from brokers."""

    place: Place
    start: int
    end: int
    """Exclusive."""


Part: TypeAlias = StorePart | HotPart
Indexes: TypeAlias = Mapping[str, Sequence[IndexEntry]]


class Task(NamedTuple):
    """The parts that one task reads, in order."""

    parts: tuple[Part, ...]
    once: Mapping[Place, Once] = {}
    """The wanted offsets of each partition, where repeats are dropped. Parts before them are searched for the
    originals.
    """
    stream: str = ""
    """The stream that the task belongs to; empty for a batch read."""


class _Span(NamedTuple):
    """A part that is not cut yet, and its approximate bytes."""

    part: Part
    bytes: float


def plan_tasks(
    sources: Sources,
    ranges: Iterable[PartitionRange],
    wanted: Wanted = ALL,
    *,
    stream: str = "",
    task_bytes: float | None = None,
) -> list[Task]:
    """Tasks of about `task_bytes` each, or as the options say. Without such an option, their number suits two or four
    cores. Empty where there is nothing to read. Asks brokers for the size of logs to be read from them.
    """
    is_usual = task_bytes is None and sources.options.partition_bytes_max is None
    task_bytes = task_bytes or sources.options.task_bytes
    clipped = []
    for each in ranges:
        if wanted.has(each.topic.name, each.partition):
            start, end = wanted.clipped(each.start, each.end)
            if start < end:
                clipped.append(each._replace(start=start, end=end))
    if sources.options.repeat_window is not None:
        tasks = _whole_partitions(sources, clipped, sources.options.repeat_window, task_bytes)
        return [task._replace(stream=stream) for task in tasks]
    spans = [span for each in clipped for span in _durable_spans(each, wanted.time_from_ms)]
    spans += _hot_spans(sources, clipped)
    spans.sort(key=lambda span: (span.part.place.topic, span.part.place.partition, span.part.start))
    if not spans:
        return []
    total = sum(span.bytes for span in spans)
    wished = math.ceil(total / task_bytes)
    if is_usual:
        wished = max(wished, min(TASKS_EVEN * math.ceil(wished / TASKS_EVEN), int(total / TASK_BYTES_EVEN_MIN)))
    count = min(max(wished, sources.options.partitions_min), SPARK_TASKS_MAX)
    tasks = _packed(spans, total / count, {})
    cut = _cut_segments(tasks)
    return _packed(spans, total / count, _indexes(sources.store, cut)) if cut else tasks


def _whole_partitions(sources: Sources, ranges: Sequence[PartitionRange], window: int, task_bytes: float) -> list[Task]:
    """Each partition in one task, from `window` offsets before its range on. Small partitions share tasks."""
    further = [each._replace(start=max(min(each.first, each.start), each.start - window)) for each in ranges]
    once = {
        place_of(each.topic, each.partition): Once(each.start, looked.start)
        for each, looked in zip(ranges, further, strict=True)
    }
    spans = [span for each in further for span in _durable_spans(each, None)] + _hot_spans(sources, further)
    spans.sort(key=lambda span: (span.part.place.topic, span.part.place.partition, span.part.start))
    tasks: list[Task] = []
    size = 0.0
    for place, group in groupby(spans, key=lambda span: span.part.place):
        own = list(group)
        more, parts = sum(span.bytes for span in own), tuple(span.part for span in own)
        if tasks and size + more <= task_bytes:
            tasks[-1] = Task(tasks[-1].parts + parts, {**tasks[-1].once, place: once[place]})
            size += more
        else:
            tasks.append(Task(parts, {place: once[place]}))
            size = more
    return tasks


def place_of(topic: ReadTopic, partition: int) -> Place:
    return Place(topic.name, topic.id, partition)


def durable_parts(place: Place, catalog: PartitionCatalog, start: int, end: int) -> Iterator[StorePart]:
    """The parts of [start, end) that the catalog holds, in order."""
    start = max(start, catalog.readable_start)
    for entry in catalog.reaching(start):
        segment = entry.descriptor
        if segment.start_offset >= end:
            break
        first, following = max(start, int(segment.start_offset)), min(end, int(segment.next_offset))
        yield StorePart(place, segment, first, following, None)


def _durable_spans(each: PartitionRange, time_from_ms: int | None) -> Iterator[_Span]:
    if each.catalog is None:
        return
    for part in durable_parts(place_of(each.topic, each.partition), each.catalog, each.start, each.end):
        segment = part.segment
        if time_from_ms is not None:
            if segment.last_timestamp_ms < time_from_ms:
                continue
            part = part._replace(time_from_ms=time_from_ms)
        low, high = _bytes_about(segment, part.start), _bytes_about(segment, part.end)
        yield _Span(part, max(1.0, high - low))


def _bytes_about(segment: SegmentDescriptor, offset: int) -> float:
    """The offset's position in the segment, if all records are alike."""
    count = segment.next_offset - segment.start_offset
    return segment.batch_bytes * (offset - segment.start_offset) / count


def _hot_parts(each: PartitionRange) -> list[HotPart]:
    """Ranges below the catalog's beginning, or above its end."""
    place, catalog = place_of(each.topic, each.partition), each.catalog
    start, end = (each.end, each.end) if catalog is None else (catalog.readable_start, catalog.next_offset)
    found = ((each.start, min(each.end, start)), (max(each.start, end), each.end))
    return [HotPart(place, low, high) for low, high in found if low < high]


def _hot_spans(sources: Sources, ranges: list[PartitionRange]) -> list[_Span]:
    """Asks brokers only where there is something to fetch."""
    found = [(each, part) for each in ranges for part in _hot_parts(each)]
    sizes = hot_sizes(sources, [each for each, _ in found])
    return [_Span(part, max(1.0, sizes[part.place] * (part.end - part.start))) for _, part in found]


def hot_sizes(sources: Sources, ranges: list[PartitionRange]) -> Mapping[Place, float]:
    """Average bytes of an offset, from brokers, or from the history of the partition."""
    by_topic: dict[ReadTopic, list[PartitionRange]] = {}
    for each in ranges:
        by_topic.setdefault(each.topic, []).append(each)
    sizes = {}
    for topic, found in by_topic.items():
        ends = {PartitionIndex(each.partition): each.end for each in found}
        known_sizes = sources.brokers.bytes_per_offset(topic.name, ends) if sources.brokers is not None else {}
        for each in found:
            size = known_sizes.get(PartitionIndex(each.partition)) or _durable_size(each.catalog)
            sizes[place_of(topic, each.partition)] = size
    return sizes


def bytes_of(each: PartitionRange, sizes: Mapping[Place, float]) -> float:
    """Approximate bytes of a range. `sizes` are those of `hot_sizes`."""
    durable = sum(span.bytes for span in _durable_spans(each, None))
    hot = sum(part.end - part.start for part in _hot_parts(each))
    return durable + hot * sizes[place_of(each.topic, each.partition)]


def cut_off(each: PartitionRange, sizes: Mapping[Place, float], room: float) -> int:
    """The approximate offset at which its first `room` bytes end."""
    spans = [*_durable_spans(each, None)]
    place = place_of(each.topic, each.partition)
    spans += [_Span(part, sizes[place] * (part.end - part.start)) for part in _hot_parts(each)]
    for span in sorted(spans, key=lambda span: span.part.start):
        if span.bytes > room:
            return span.part.start + int((span.part.end - span.part.start) * room / span.bytes)
        room -= span.bytes
    return each.end


def _durable_size(catalog: PartitionCatalog | None) -> float:
    if catalog is None or not catalog.entries:
        return BYTES_PER_OFFSET
    return catalog.batch_bytes / (catalog.next_offset - catalog.start_offset)


def _cut_segments(tasks: list[Task]) -> list[StorePart]:
    """Segments of which several parts are read, with one part of each."""
    found: dict[str, list[StorePart]] = {}
    for task in tasks:
        for part in task.parts:
            if isinstance(part, StorePart):
                found.setdefault(part.segment.key, []).append(part)
    return [parts[0] for parts in found.values() if len(parts) > 1]


def _indexes(store: Store | None, parts: list[StorePart]) -> Indexes:
    """Indexes of the segments that are cut, by key. Unreadable ones are left out: the tasks will report them."""
    if store is None or len(parts) > SPARK_FOOTERS_PLANNED_MAX:
        return {}

    def index(part: StorePart) -> tuple[IndexEntry, ...]:
        try:
            return store.footer(part.place.topic, part.place.partition, part.segment).index
        except DamagedHistory:
            return ()

    with ThreadPoolExecutor(SPARK_CATALOGS_AT_ONCE_MAX) as pool:
        return {part.segment.key: found for part, found in zip(parts, pool.map(index, parts), strict=True) if found}


def _packed(spans: list[_Span], share: float, indexes: Indexes) -> list[Task]:
    """Put neighbours together, and cut large parts, so that each task has about `share` bytes."""
    tasks: list[list[Part]] = [[]]
    room = share
    for span in spans:
        for piece in _cut(span, room, share, indexes):
            if tasks[-1] and room - piece.bytes < -share / SLACK:
                tasks.append([])
                room = share
            tasks[-1].append(piece.part)
            room -= piece.bytes
    return [Task(tuple(parts)) for parts in tasks if parts]


def _cut(span: _Span, room: float, share: float, indexes: Indexes) -> list[_Span]:
    """Pieces of about `share` bytes, the first of `room` where that is worth it."""
    slack = share / SLACK
    marks, at = [0.0], room if room > slack else share
    while span.bytes - at > slack:
        marks.append(at)
        at += share
    if len(marks) == 1:
        return [span]
    part = span.part
    if isinstance(part, StorePart):
        begin = _bytes_about(part.segment, part.start)
        index = indexes.get(part.segment.key, ())
        offsets = [_offset_about(part.segment, index, begin + mark) for mark in marks[1:]]
    else:
        offsets = [part.start + round((part.end - part.start) * mark / span.bytes) for mark in marks[1:]]
    ends = [part.start, *(min(max(offset, part.start), part.end) for offset in offsets), part.end]
    pieces = zip(pairwise(ends), pairwise([*marks, span.bytes]), strict=True)
    return [
        _Span(part._replace(start=start, end=end), high - low) for (start, end), (low, high) in pieces if start < end
    ]


def _offset_about(segment: SegmentDescriptor, index: Sequence[IndexEntry], position: float) -> int:
    """The offset at a position in the segment."""
    if index:
        at = bisect_left(index, position, key=lambda entry: entry.position)
        return index[at].base_offset if at < len(index) else int(segment.next_offset)
    count = segment.next_offset - segment.start_offset
    return int(segment.start_offset) + round(count * position / segment.batch_bytes)
