"""The audit: all durable history, read in parallel and proven, and compared with its brokers' view.

Promises that every object of every catalog is read whole. Each problem is reported with topic, partition, offset and
object. An audit that could not check something does not call it good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.base.errors import CorruptData, HeadraceError, UsageError
from headrace.base.ids import PartitionIndex
from headrace.base.limits import AUDIT_TASK_BYTES
from headrace.metadata.segments import PartitionCatalog
from headrace.spark.options import ReadOptions
from headrace.spark.pipelines.audit.examining import FINDING_SQL, Examined, Finding, examined, joined
from headrace.spark.pipelines.audit.unmirrored import Absent, absence_problems, absent_by_store
from headrace.spark.pipelines.meter import Meter
from headrace.spark.pipelines.spec import Audit
from headrace.spark.pipelines.tables.shaping import numbered
from headrace.spark.read.extent import ReadTopic, Sources
from headrace.spark.results import collected
from headrace.storage.objects import open_objects
from headrace.storage.tier.verifying import sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Findings = Mapping[tuple[str, int], Mapping[int, Finding]]


@dataclass(slots=True, kw_only=True)
class Audited:
    """The result for one partition."""

    topic: str
    partition: int
    start: int = -1
    end: int = -1
    """Exclusive."""
    segments: int = 0
    head: str = ""
    compared: bool = False
    """Whether brokers were asked."""
    problems: list[str] = field(default_factory=list)
    findings: dict[int, Finding] = field(default_factory=dict)
    """By the start offset of segments."""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.findings.values())

    @property
    def records(self) -> int:
        return sum(each.records for each in self.findings.values())

    @property
    def wrong(self) -> int:
        return len(self.problems) + sum(each.wrong - len(each.problems) for each in self.findings.values())


@dataclass(slots=True)
class Report:
    """The result of an audit. Times are in milliseconds since 1970."""

    name: str
    begun_ms: int
    ended_ms: int = 0
    partitions: list[Audited] = field(default_factory=list)
    dry: bool = False

    @property
    def holds(self) -> bool:
        return not any(each.problems for each in self.partitions)


def audit(
    session: Callable[[], SparkSession], spec: Audit, *, dry_run: bool = False, meter: Meter | None = None
) -> Report:
    """Run the audit; problems of history are in the report. Raises UsageError, ClientError, StorageFailure, and Spark's
    own exceptions.
    """
    if spec.source.store is None:
        raise UsageError("Key store of section [source] is missing: an audit reads durable history.")
    meter, report = meter or Meter(), Report(spec.name, _now_ms(), dry=dry_run)
    sources = Sources(spec.source)
    try:
        catalogs = dict(_catalogs(sources, report))
        work = _work(catalogs)
        size = sum(each.segment.object_bytes for part in work for each in part)
        meter.stage("audit", size)
        if dry_run:
            report.ended_ms = _now_ms()
            return report
        for each, findings in zip(report.partitions, _found(session, spec.source, work, report, meter), strict=True):
            each.findings = dict(findings)
        _judge(sources, catalogs, report)
    finally:
        sources.close()
    report.ended_ms = _now_ms()
    return report


Catalogs = Mapping[tuple[str, int], tuple[ReadTopic, PartitionCatalog]]


def _catalogs(sources: Sources, report: Report) -> Iterator[tuple[tuple[str, int], tuple[ReadTopic, PartitionCatalog]]]:
    """The sound catalogs. An unsound one is a problem of its partition."""
    topics = sources.topics()
    called = [topic.name for topic in topics]
    names = {topic.id: topic.name if called.count(topic.name) == 1 else str(topic.id) for topic in topics}
    for topic in topics:
        for partition in topic.partitions:
            audited = Audited(topic=names[topic.id], partition=partition)
            report.partitions.append(audited)
            try:
                catalog = sources.catalog(topic, partition)
            except CorruptData as error:
                audited.problems.append(sentence(error))
                continue
            if catalog is None:  # judged too: there may have been one
                catalog = PartitionCatalog.empty(topic.id, PartitionIndex(partition))
            else:
                audited.start, audited.end = catalog.readable_start, int(catalog.next_offset)
                audited.segments, audited.head = len(catalog.entries), catalog.head
            yield (audited.topic, partition), (topic, catalog)


def _work(catalogs: Catalogs) -> list[tuple[Examined, ...]]:
    """Segments of one partition after the other, in tasks of about AUDIT_TASK_BYTES."""
    found: list[tuple[Examined, ...]] = []
    task, size = list[Examined](), 0
    for (name, partition), (_, catalog) in catalogs.items():
        before = None
        for entry in catalog:
            if task and size + entry.descriptor.object_bytes > AUDIT_TASK_BYTES:
                found.append(tuple(task))
                task, size = [], 0
            task.append(Examined(name, partition, entry.descriptor, before))
            size += entry.descriptor.object_bytes
            before = entry.descriptor
    return [*found, tuple(task)] if task else found


def _found(
    session: Callable[[], SparkSession],
    source: ReadOptions,
    work: Sequence[tuple[Examined, ...]],
    report: Report,
    meter: Meter,
) -> Iterable[Mapping[int, Finding]]:
    """The findings of each partition of the report."""
    found: dict[tuple[str, int], dict[int, Finding]] = {(each.topic, each.partition): {} for each in report.partitions}
    if work:
        spark, size = session(), sum(each.segment.object_bytes for part in work for each in part)
        with meter.working(spark, size):
            for row in collected(numbered(spark, len(work), examining(source, work), FINDING_SQL)):
                finding = Finding.from_json(row["finding"])
                found[row["topic"], row["partition"]][row["start_offset"]] = finding
        records = sum(each.records for part in found.values() for each in part.values())
        meter.done(records, size, segments=sum(map(len, found.values())))
    return found.values()


def examining(source: ReadOptions, work: Sequence[tuple[Examined, ...]]) -> Callable[[int], Iterator[Any]]:
    url = source.store
    assert url is not None

    def look(number: int) -> Iterator[Any]:
        yield from examined(open_objects(url), work[number])

    return look


def _judge(sources: Sources, catalogs: Catalogs, report: Report) -> None:
    """Add the problems that only the driver can see."""
    absent: list[tuple[Audited, Absent]] = []
    for each in report.partitions:
        place = (each.topic, each.partition)
        if place not in catalogs:
            continue
        topic, catalog = catalogs[place]
        now = _gone_since(sources, topic, each, catalog)
        for start, finding in sorted(each.findings.items()):
            if start in now.entries or finding.whole:
                each.problems += [f"{each.topic}-{each.partition}: {problem}." for problem in finding.problems]
        unseen = [int(entry.descriptor.start_offset) for entry in catalog]
        missing = sorted(set(unseen) - set(each.findings))
        each.problems += [f"{each.topic}-{each.partition}: segment {start} was not looked at." for start in missing]
        each.problems += [f"{each.topic}-{each.partition}: {problem}." for _, problem in joined(each.findings)]
        lost: Absent | None = None
        if sources.brokers is not None:
            differing, lost = _beside_brokers(sources, topic, each, catalog)
            each.problems += differing
            each.compared = True
        elif catalog.end_offset < 0:
            lost = absent_by_store(sources, topic, each.partition)
        if lost is not None:
            absent.append((each, lost))
    since = absence_problems(sources, [lost for _, lost in absent], report.begun_ms)
    for (each, _), problem in zip(absent, since, strict=True):
        each.problems += [] if problem is None else [problem]


def _gone_since(sources: Sources, topic: ReadTopic, each: Audited, catalog: PartitionCatalog) -> PartitionCatalog:
    """The present catalog, where an object could not be read: retention may have removed it."""
    if all(finding.whole for finding in each.findings.values()):
        return catalog
    try:
        return sources.catalog(topic, each.partition) or catalog
    except CorruptData:
        return catalog


def _beside_brokers(
    sources: Sources, topic: ReadTopic, each: Audited, catalog: PartitionCatalog
) -> tuple[list[str], Absent | None]:
    from headrace.spark.pipelines.audit.brokers import problems_beside

    try:
        return problems_beside(sources, topic, PartitionIndex(each.partition), catalog)
    except HeadraceError as error:  # for this partition; the others' findings stand
        return [f"{each.topic}-{each.partition}: the brokers' view cannot be had: {str(error).rstrip('.')}."], None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
