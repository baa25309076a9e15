"""Compacts durable history: small segments are merged, and compacted topics keep the last record of each key.

The leading brokers do it, one segment at a time, since only they may change a catalog (`SegmentsReplaced`). Readers are
not disturbed: replaced segments are removed later. Spark reads the same offsets from the store before and after, and
reports whether they agree: all records, or the last one of each key. After an interruption the work is requested again;
brokers that are done have nothing left to do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.durable import DurableLink
from headrace.net.client.errors import ClientError
from headrace.net.client.members import Members
from headrace.spark.brokers import Brokers
from headrace.spark.pipelines.meter import Meter, size_text
from headrace.spark.pipelines.spec import Compact
from headrace.spark.read.extent import PartitionRange, Sources
from headrace.spark.results import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLICY: Final = "cleanup.policy"
ALL_SQL: Final = "xxhash64(offset, timestamp, timestampType, key, value, headers)"
LAST_SQL: Final = "xxhash64(key, max_by(struct(offset, timestamp, value, headers), offset))"
SUM_SQL: Final = "sum(cast(hash as decimal(38, 0)))"

Digest = dict[tuple[int, str], str]
"""Digests by partition: of all its records (`all`), and of the last records of its keys (`last`)."""


@dataclass(slots=True)
class CompactedTopic:
    """The result for one topic."""

    name: str
    before: int = 0
    """Number of segments that were merged, or would be."""
    after: int = 0
    """Number of segments in their place."""
    bytes: int = 0
    unread: int = 0
    """In a dry run: number of other segments, which would have to be read to know what would stay."""
    problems: list[str] = field(default_factory=list)
    differs: list[int] = field(default_factory=list)
    """Partitions that read differently than before."""
    compared: bool = False

    @property
    def holds(self) -> bool:
        return not (self.problems or self.differs)

    @property
    def facts(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self, *, dry_run: bool) -> str:
        would = "would become" if dry_run else "became"
        said = f"{self.name}: {self.before} segments of {size_text(self.bytes)} {would} {self.after}"
        if self.unread:
            said += f"; {self.unread} others would be read, to keep the last record of each key"
        if self.compared:
            said += f"; partitions {self.differs} are read otherwise" if self.differs else "; read as before"
        return ". ".join([said, *self.problems])


class _Part(NamedTuple):
    """One partition, with the offsets that are read before and after."""

    where: PartitionRange
    bytes: int


def compact(
    session: Callable[[], SparkSession], spec: Compact, *, dry_run: bool = False, meter: Meter | None = None
) -> list[CompactedTopic]:
    """Compact the topics, and return the results. Raises UsageError, ClientError, DamagedHistory, DataLoss, and Spark's
    own exceptions.
    """
    meter = meter or Meter()
    sources = Sources(replace(spec.source, bootstrap=None))
    try:
        parts = [_Part(each, _bytes(each)) for each in sources.ranges() if each.start < each.end]
    finally:
        sources.close()
    assert spec.source.bootstrap is not None
    by_topic = defaultdict[str, list[_Part]](list)
    for part in parts:
        by_topic[part.where.topic.name].append(part)
    found = []
    for name, its in by_topic.items():
        compares = spec.compare and not dry_run
        size = sum(part.bytes for part in its)
        before = _digest(session(), spec, its, meter, f"{name}: as it is") if compares else {}
        meter.stage(f"{name}: compacting", size)
        with Brokers(spec.source.bootstrap, spec.source.security) as brokers:
            topic, is_compacted = brokers.begin(_compacted(brokers, name, its, dry_run, meter)).result()
        if compares:
            after = _digest(session(), spec, its, meter, f"{name}: as it is now")
            kind = "last" if is_compacted else "all"
            topic.differs = sorted(
                part
                for part in {each for each, _ in {*before, *after}}
                if before.get((part, kind)) != after.get((part, kind))
            )
            topic.compared = True
        found.append(topic)
    return found


def _bytes(each: PartitionRange) -> int:
    return 0 if each.catalog is None else sum(entry.descriptor.batch_bytes for entry in each.catalog)


async def _compacted(
    brokers: Brokers, name: str, parts: Sequence[_Part], dry_run: bool, meter: Meter
) -> tuple[CompactedTopic, bool]:
    """The topic's result, and whether the topic is compacted."""
    from headrace.net.client.admin import Admin

    topic = CompactedTopic(name)
    async with Cluster(brokers.bootstrap, security=brokers.security) as cluster:
        configs = await Admin(cluster).topic_configs(name)
        is_compacted = any(config.name == POLICY and "compact" in (config.value or "") for config in configs)
        for part in parts:
            try:
                answer = await _asked(cluster, part.where, execute=not dry_run)
            except ClientError as error:
                topic.problems.append(f"Partition {part.where.partition}: {error}")
                continue
            topic.before += answer["before"]
            topic.after += answer["after"]
            topic.bytes += answer["bytes"]
            topic.unread += answer.get("unread", 0)  # older brokers do not report it
            topic.problems.extend(answer["problems"])
            meter.done(0, part.bytes, segments=answer["before"])
    return topic, is_compacted


async def _asked(cluster: Cluster, part: PartitionRange, *, execute: bool) -> Mapping[str, Any]:
    """The answer of the partition's leader. Records newer than the plan replace nothing, so that the compared records
    stay the same. Raises ClientError, UsageError.
    """
    view = (await cluster.metadata((part.topic.name,))).topics[part.topic.name]
    leaders = {int(each.index): int(each.leader) for each in view.partitions}
    for broker in await Members(cluster).brokers():
        if broker.id == leaders.get(part.partition):
            async with DurableLink(broker.address, cluster.security) as link:
                answer = await link.merge(part.topic.id, part.partition, execute=execute, below=part.end)
            if not answer["has_store"]:
                raise UsageError(f"Broker {broker.id} has no durable store (durable.url): there is nothing to compact.")
            if part.partition not in answer["partitions"] and not answer["problems"]:
                raise ClientError("another broker leads it now: run the pipeline again")
            return answer
    raise ClientError("nobody leads it: see 'headrace doctor'")


def _digest(spark: SparkSession, spec: Compact, parts: Sequence[_Part], meter: Meter, stage: str) -> Digest:
    """Digests of the parts' offsets, as the store has them now."""
    size = sum(part.bytes for part in parts)
    meter.stage(stage, size)
    frame = _read(spark, spec, [part.where for part in parts])
    rows = frame.selectExpr("partition", f"{ALL_SQL} as hash")
    everything = rows.groupBy("partition").agg(_sql("count(*) as records"), _sql(f"{SUM_SQL} as sum"))
    last = frame.where("key is not null").groupBy("partition", "key")
    lasting = (
        last.agg(_sql(f"{LAST_SQL} as hash"), _sql("max_by(value, offset) as value"))
        .where("value is not null")
        .groupBy("partition")
        .agg(_sql("count(*) as records"), _sql(f"{SUM_SQL} as sum"))
    )
    found: Digest = {}
    with meter.working(spark, size):
        for kind, digests in (("all", everything), ("last", lasting)):
            for row in collected(digests):
                found[row["partition"], kind] = f"{row['records']}:{row['sum']}"
    records = sum(int(digest.split(":")[0]) for (_, kind), digest in found.items() if kind == "all")
    meter.done(records, size)
    return found


def _read(spark: SparkSession, spec: Compact, parts: Sequence[PartitionRange]) -> DataFrame:
    from headrace.spark.source import HeadraceDataSource

    spark.dataSource.register(HeadraceDataSource)
    assert spec.source.store is not None
    topic = parts[0].topic
    bounds = {
        name: json.dumps({topic.name: {str(part.partition): getattr(part, end) for part in parts}})
        for name, end in (("startingOffsets", "start"), ("endingOffsets", "end"))
    }
    assigned = json.dumps({topic.name: [part.partition for part in parts]})
    options = {"store": spec.source.store, "assign": assigned, "includeHeaders": "true", **bounds}
    return spark.read.format("headrace").options(**options).load()


def _sql(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)
