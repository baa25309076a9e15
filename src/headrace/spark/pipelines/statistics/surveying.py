"""Statistics of topics: size, rate, keys, lag of durable history, and forecasts.

Promises that the numbers are of one moment's offsets, and that every record is counted once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from headrace.base.errors import UsageError
from headrace.base.ids import TopicId
from headrace.net.client.errors import ClientError
from headrace.net.client.groups import TopicPartition
from headrace.spark.pipelines.meter import Meter
from headrace.spark.pipelines.spec import Statistics
from headrace.spark.pipelines.statistics.counting import COLUMNS, COUNT_SQL, HOUR, KEY, counted
from headrace.spark.pipelines.statistics.retaining import Retention
from headrace.spark.pipelines.tables.ranges import sizes_of
from headrace.spark.pipelines.tables.shaping import numbered, read_by
from headrace.spark.read.columns import Columns
from headrace.spark.read.extent import PartitionRange, Sources
from headrace.spark.read.plan import plan_tasks
from headrace.spark.results import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE_HOURS: Final = 7 * 24
"""Number of hours that a topic's rate is computed from: its last ones, by its records' own times."""
FORECAST_DAYS: Final = (30, 365)
HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class PartitionCounts:
    """Counts of one partition."""

    start: int = 0
    end: int = 0
    """Exclusive."""
    lag: int | None = None
    """Offsets that are not durable yet; None where brokers or store were not asked."""
    records: int = 0
    bytes: int = 0
    """Bytes of keys and values."""


@dataclass(slots=True)
class TopicCounts:
    """Counts of one topic."""

    name: str
    partitions: dict[int, PartitionCounts] = field(default_factory=dict)
    keyless: int = 0
    empty: int = 0
    largest: int = 0
    """Bytes of the largest record."""
    hours: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Records and bytes, by the hour since 1970 of their times."""
    keys: int = 0
    """Number of different keys."""
    top: list[tuple[bytes, int, int]] = field(default_factory=list)
    """The most frequent keys, with records and bytes."""
    groups: dict[str, int] = field(default_factory=dict)
    """Offsets that each consumer group still has to read, by its name, in the partitions that it has committed."""
    groups_unknown: int = 0
    """Groups of the cluster whose positions were unavailable."""
    retention: Retention | None = None
    """None where no brokers were asked."""
    stored: float = 0.0
    """Approximate bytes as stored."""
    now_ms: int = 0
    """When `stored` was measured."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions.values())

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions.values())

    @property
    def skew(self) -> float:
        """Records of the largest partition relative to the mean. 1 means even, and is also used where there are no
        records.
        """
        if not self.records:
            return 1.0
        return max(each.records for each in self.partitions.values()) * len(self.partitions) / self.records

    @property
    def bytes_per_day(self) -> float:
        """Bytes per day over its last RATE_HOURS, or its lifetime if that is shorter."""
        if not self.hours:
            return 0.0
        last = max(self.hours)
        first = max(min(self.hours), last - RATE_HOURS + 1)
        return sum(size for hour, (_, size) in self.hours.items() if hour >= first) / (last - first + 1) * 24

    @property
    def forecast(self) -> dict[int, int]:
        """Bytes in that many days, where nothing is deleted and the rate stays."""
        return {days: round(self.bytes + days * self.bytes_per_day) for days in FORECAST_DAYS}

    @property
    def stored_per_day(self) -> float:
        """As `bytes_per_day`, but as stored."""
        return self.bytes_per_day * self.stored / self.bytes if self.bytes else 0.0

    @property
    def settles_at(self) -> int | None:
        """Bytes, as stored, that it settles at with this rate; None where that is unknown, or it grows on."""
        if self.retention is None:
            return None
        return self.retention.settles_at(len(self.partitions), self.stored_per_day)

    @property
    def deletes_in_days(self) -> float | None:
        """Days until retention deletes its first records; None where that is unknown, or never."""
        if self.retention is None:
            return None
        largest = max((each.bytes for each in self.partitions.values()), default=0) / max(1, self.bytes)
        per_day, held = self.stored_per_day * largest, self.stored * largest
        return self.retention.deletes_in_days(per_day, held, self._oldest_ms, self.now_ms)

    @property
    def _oldest_ms(self) -> int | None:
        """Time of the oldest records except one in a hundred: records out of order in time do not make a segment
        due.
        """
        up_to = zip(self.hours, accumulate(count for count, _ in self.hours.values()), strict=True)
        return next((hour * HOUR_MS for hour, records in up_to if records * 100 > self.records), None)


@dataclass(slots=True)
class Survey:
    """The result for all requested topics."""

    name: str
    begun_ms: int
    ended_ms: int = 0
    topics: list[TopicCounts] = field(default_factory=list)


def survey(
    session: Callable[[], SparkSession], spec: Statistics, *, dry_run: bool = False, meter: Meter | None = None
) -> Survey:
    """Run the survey. Raises UsageError, ClientError, DamagedHistory, DataLoss, and Spark's own exceptions."""
    meter, found = meter or Meter(), Survey(spec.name, time.time_ns() // 1_000_000)
    sources = Sources(spec.source)
    try:
        vector = sources.vector()
        ranges = [each for each in vector if each.start < each.end]
        sizes = sizes_of(sources, ranges)
        size = sum(sizes)
        meter.stage("statistics", size)
        topics = _topics(sources, vector)
        for each, stored in zip(ranges, sizes, strict=True):
            topics[each.topic.name].stored += stored
        _ask_brokers(sources, topics, found.begun_ms)
        tasks = [] if dry_run else plan_tasks(sources, ranges)
    finally:
        sources.close()
    if tasks:
        spark = session()
        read = read_by(spec.source, Columns.select(COLUMNS, headers=False), tasks)
        frame = numbered(spark, len(tasks), lambda number: counted(read(number)), COUNT_SQL).persist()
        try:
            with meter.working(spark, size):
                _count(topics, frame)
                _rank(topics, frame, spec.top)
        finally:
            with suppress(Exception):  # a lost session keeps nothing
                frame.unpersist()
        meter.done(sum(each.records for each in topics.values()), size, topics=len(topics))
    found.topics = [topics[name] for name in sorted(topics)]
    found.ended_ms = time.time_ns() // 1_000_000
    return found


def _topics(sources: Sources, vector: Sequence[PartitionRange]) -> dict[str, TopicCounts]:
    """Counts for all topics that are read, even empty ones. Raises UsageError for two topics of one name, which a store
    may have.
    """
    topics, ids = dict[str, TopicCounts](), dict[str, TopicId]()
    for each in vector:
        if ids.setdefault(each.topic.name, each.topic.id) != each.topic.id:
            raise UsageError(f"Two topics are called '{each.topic.name}': count one of a name, given by its id.")
        topic = topics.setdefault(each.topic.name, TopicCounts(each.topic.name))
        lag = None
        if sources.brokers is not None and sources.store is not None:
            lag = each.end - max(each.start, 0 if each.catalog is None else int(each.catalog.next_offset))
        topic.partitions[each.partition] = PartitionCounts(each.start, each.end, lag and max(0, lag))
    return topics


def _ask_brokers(sources: Sources, topics: dict[str, TopicCounts], now_ms: int) -> None:
    """Add the groups' progress, and the retention."""
    for topic in topics.values():
        topic.now_ms = now_ms
    if sources.brokers is None:
        return
    for topic in topics.values():
        with suppress(ClientError):
            topic.retention = Retention.of(sources.brokers.configs(topic.name))
    unknown = 0
    with suppress(ClientError):
        for group, committed in sources.brokers.committed():
            unknown += committed is None
            _count_left(topics, group, committed or {})
    for topic in topics.values():
        topic.groups_unknown = unknown


def _count_left(topics: dict[str, TopicCounts], group: str, committed: Mapping[TopicPartition, int]) -> None:
    for (name, index), offset in committed.items():
        if name in topics and (partition := topics[name].partitions.get(index)) is not None:
            left = max(0, partition.end - max(offset, partition.start))
            topics[name].groups[group] = topics[name].groups.get(group, 0) + left


def _count(topics: dict[str, TopicCounts], frame: DataFrame) -> None:
    from pyspark.sql import functions as f

    hours: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    sums = [f.sum(name).alias(name) for name in ("records", "bytes", "keyless", "empty")]
    by_hour = frame.where(f.col("kind") == HOUR).groupBy("topic", "partition", "hour")
    for row in collected(by_hour.agg(*sums, f.max("largest").alias("largest"))):
        topic = topics[row["topic"]]
        partition = topic.partitions[row["partition"]]
        partition.records += row["records"]
        partition.bytes += row["bytes"]
        topic.keyless += row["keyless"]
        topic.empty += row["empty"]
        topic.largest = max(topic.largest, row["largest"])
        hours[row["topic"]][row["hour"]][0] += row["records"]
        hours[row["topic"]][row["hour"]][1] += row["bytes"]
    for name, found in hours.items():
        topics[name].hours = {hour: (found[hour][0], found[hour][1]) for hour in sorted(found)}


def _rank(topics: dict[str, TopicCounts], frame: DataFrame, top: int) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    grouped = frame.where(f.col("kind") == KEY).groupBy("topic", "key")
    keys = grouped.agg(f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))
    order = Window.partitionBy("topic").orderBy(f.desc("records"), f.desc("bytes"), "key")
    ranked: DataFrame = keys.withColumn("rank", f.row_number().over(order))
    for row in collected(ranked.where(f.col("rank") <= top).orderBy("topic", "rank")):
        topics[row["topic"]].top.append((bytes(row["key"]), row["records"], row["bytes"]))
    for row in collected(keys.groupBy("topic").agg(f.count("*").alias("keys"))):
        topics[row["topic"]].keys = row["keys"]


def document(found: Survey) -> dict[str, Any]:
    """The survey as JSON. A key is text where it is printable, else hexadecimal digits after ``0x``."""
    return {
        "name": found.name,
        "begun_ms": found.begun_ms,
        "ended_ms": found.ended_ms,
        "topics": [_as_json(each) for each in found.topics],
    }


def _as_json(topic: TopicCounts) -> dict[str, Any]:
    partitions = [
        {"partition": number, **{name: getattr(each, name) for name in PartitionCounts.__slots__}}
        for number, each in sorted(topic.partitions.items())
    ]
    return {
        "topic": topic.name,
        "records": topic.records,
        "bytes": topic.bytes,
        "largest": topic.largest,
        "keyless": topic.keyless,
        "empty": topic.empty,
        "keys": topic.keys,
        "skew": round(topic.skew, 3),
        "bytes_per_day": round(topic.bytes_per_day),
        "forecast": {str(days): size for days, size in topic.forecast.items()},
        "stored": round(topic.stored),
        "settles_at": topic.settles_at,
        "deletes_in_days": None if topic.deletes_in_days is None else round(topic.deletes_in_days, 2),
        "groups": dict(sorted(topic.groups.items())),
        "groups_unknown": topic.groups_unknown,
        "top": [{"key": key_text(key), "records": count, "bytes": size} for key, count, size in topic.top],
        "partitions": partitions,
    }


def key_text(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"
