"""What a read covers: the data source's options, resolved against a store into one offset range per partition and cut
into tasks of even bytes.

Promises that the ranges are fixed here, once, so that every task reads what was there when the read was planned; a
range that the store does not hold is refused, never shortened. Imports no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex
from headrace.spark.columns import Columns
from headrace.storage.tier.mirror import MirroredTopic
from headrace.storage.tier.reader import SegmentSlice, Store

EARLIEST: Final = -2
LATEST: Final = -1
SLICE_BYTES: Final = 16 * 1024 * 1024
OPTIONS: Final = (
    "store",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "includeHeaders",
    "columns",
    "sliceBytes",
)

Offsets = Mapping[str, Mapping[int, int]]
"""Topic, partition, offset; EARLIEST and LATEST stand for the ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of ``spark.read.format("headrace")``."""

    store: str
    """URL of the store, as the broker's `durable.url`."""
    topics: tuple[str, ...]
    """Names or ids (option `topic`, several with commas)."""
    starting: Offsets
    ending: Offsets
    columns: Columns
    slice_bytes: int
    """Bytes of record batches that one task reads, about."""


class TaskPlan(NamedTuple):
    """What one task reads: slices of one partition, in offset order."""

    store: str
    topic: str
    partition: int
    slices: tuple[SegmentSlice, ...]


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Option names are taken in any case. Raises UsageError, naming the option."""
    given = {name.lower(): value for name, value in options.items()}
    if "path" in given:  # what load(path) sets
        given.setdefault("store", given.pop("path"))
    if unknown := set(given) - {name.lower() for name in OPTIONS}:
        raise UsageError(f"There is no option '{min(unknown)}'; there are: {', '.join(OPTIONS)}.")
    for name in ("store", "topic"):
        if not given.get(name, "").strip():
            raise UsageError(f"Option {name} is missing: .option('{name}', ...).")
    names = given.get("columns")
    headers = _boolean("includeHeaders", given.get("includeheaders", "false"))
    return ReadOptions(
        store=given["store"],
        topics=tuple(dict.fromkeys(name.strip() for name in given["topic"].split(",") if name.strip())),
        starting=_offsets("startingOffsets", given.get("startingoffsets", "earliest"), "earliest", EARLIEST),
        ending=_offsets("endingOffsets", given.get("endingoffsets", "latest"), "latest", LATEST),
        columns=Columns.select(names and [name.strip() for name in names.split(",")], headers=headers),
        slice_bytes=_positive("sliceBytes", given.get("slicebytes", str(SLICE_BYTES))),
    )


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"Option {name} must be true or false, not '{text:.50}'.")
    return text.lower() == "true"


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"Option {name} must be a positive number of bytes, not '{text:.50}'.")
    return int(text)


def _offsets(name: str, text: str, word: str, special: int) -> Offsets:
    """Either `word`, or JSON as Spark's Kafka source takes it: {"topic": {"0": 23, "1": -2}}."""
    if text.strip().lower() == word:
        return {}
    problem = UsageError(f'Option {name} must be {word} or {{"topic": {{"0": 23, "1": {special}}}}}, not {text:.200}')
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise problem from error
    if not isinstance(parsed, dict) or not all(isinstance(by_partition, dict) for by_partition in parsed.values()):
        raise problem
    for by_partition in parsed.values():
        for partition, offset in by_partition.items():
            if not partition.isdecimal() or type(offset) is not int or (offset < 0 and offset != special):
                raise problem
    return {topic: {int(p): offset for p, offset in by_partition.items()} for topic, by_partition in parsed.items()}


def plan_read(options: ReadOptions, store: Store) -> list[TaskPlan]:
    """The tasks of a read, empty where there is nothing to read. Raises UsageError, or DamagedHistory."""
    for name, offsets in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if unknown := set(offsets) - set(options.topics):
            raise UsageError(f"Option {name} names topic '{min(unknown)}', which option topic does not.")
    tasks: list[TaskPlan] = []
    for name in options.topics:
        topic = store.topic(name)
        named = {*options.starting.get(name, {}), *options.ending.get(name, {})}
        if beyond := [partition for partition in named if partition >= topic.partitions]:
            raise UsageError(f"Topic '{name}' has {topic.partitions} partitions, so there is no {beyond[0]}.")
        for partition in range(topic.partitions):
            tasks += _plan_partition(options, store, name, topic, PartitionIndex(partition))
    return tasks


def _plan_partition(
    options: ReadOptions, store: Store, name: str, topic: MirroredTopic, partition: PartitionIndex
) -> list[TaskPlan]:
    catalog = store.catalog(topic, partition)
    first, following = (catalog.start_offset, catalog.next_offset) if catalog.entries else (0, 0)
    start = options.starting.get(name, {}).get(partition, EARLIEST)
    end = options.ending.get(name, {}).get(partition, LATEST)
    start = first if start == EARLIEST else start
    end = following if end == LATEST else end
    if not first <= start <= end <= following:
        raise UsageError(
            f"Offsets {start} to {end} of topic '{topic.name}', partition {partition} were asked for; "
            f"the store holds {first} to {following} (end exclusive)."
        )
    slices = store.slices(topic.name, partition, catalog, start, end, slice_bytes=options.slice_bytes)
    return [
        TaskPlan(options.store, topic.name, partition, tuple(group)) for group in _groups(slices, options.slice_bytes)
    ]


def _groups(slices: list[SegmentSlice], limit: int) -> list[list[SegmentSlice]]:
    """Neighbours together while they hold no more than `limit` bytes, so that many small segments are one task."""
    groups: list[list[SegmentSlice]] = []
    size = 0
    for part in slices:
        length = part.end_position - part.position
        if not groups or size + length > limit:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += length
    return groups
