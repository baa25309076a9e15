"""Reads the current values of a broker's metrics.

Promises:
- Loop-only, but for the function that `collect` returns.
- Others have the loop every METRICS_PARTITIONS_PER_TURN_MAX partitions. The values of one partition are of one moment,
  those of all partitions are not.
- Counters never fall while the process lives, but a deleted topic has no more counters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.base.limits import METRICS_PARTITIONS_PER_TURN_MAX
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.metrics.catalog import METRICS, Kind
from headrace.broker.metrics.led_before import LedBefore
from headrace.broker.metrics.requests import BOUNDS_MS, RequestCounts, Times, api_name
from headrace.broker.partitions.condition import Condition
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.broker.requests.quotas import ClientQuotas
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.net.server.authentication import AuthenticationCounts
from headrace.net.server.request_budget import Gauge
from headrace.wire.ailments import KINDS
from headrace.wire.errors import error_of

T = TypeVar("T")
Labels = Sequence[str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The parts of a broker whose metrics are read."""

    node: BrokerId
    partitions: Partitions
    flusher: Flusher
    metadata: MetadataDriver
    quotas: ClientQuotas
    gauge: Gauge
    authentication: AuthenticationCounts
    counts: RequestCounts
    led_before: LedBefore
    condition: Condition
    room: DiskRoom


class _Looked:
    """The result of one look over all partitions."""

    def __init__(self) -> None:
        self.messages: dict[str, int] = {}
        self.bytes: dict[str, int] = {}
        self.leaders = self.replicas = self.under_replicated = self.under_min_isr = self.failed = 0
        self.commits = 0
        self.fetches: set[object] = set()
        self.sizes: list[Sample] = []
        self.starts: list[Sample] = []
        self.ends: list[Sample] = []


class Collector:
    """One per broker whose metrics are asked for."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._shrinks = self._expands = 0
        watched.metadata.subscribe(self._on_delta)

    def _on_delta(self, delta: ImageDelta) -> None:
        for before, after in delta.changed_topics():
            if before is None or after is None or before.partitions is after.partitions:
                continue
            for was, now in zip(before.partitions, after.partitions, strict=False):
                if was is not now and self._watched.node in (was.leader, now.leader) and was.isr != now.isr:
                    self._shrinks += bool(set(was.isr) - set(now.isr))
                    self._expands += bool(set(now.isr) - set(was.isr))

    async def collect(self) -> Callable[[], list[Metric]]:
        """Read every metric of the catalog once. Returns a function that puts them together, in any thread."""
        began = time.perf_counter()
        looked = _Looked()
        image = self._watched.metadata.image
        self._add_before(looked, image)
        async for replica in _in_turns(self._watched.partitions.replicas):
            self._look(replica, looked, image)
        nobody_leads = 0
        async for topic in _in_turns(list(image.topics.values())):
            nobody_leads += sum(partition.leader == NO_LEADER for partition in topic.partitions)
        found = {**dict(self._of_partitions(looked)), **dict(self._of_cluster(image, nobody_leads))}
        found.update(self._of_requests())
        found["headrace_scrape_seconds"] = [((), time.perf_counter() - began)]
        times, flushes = self._times(), self._flushes()
        return lambda: [*_families(found), times, flushes]

    def _add_before(self, looked: _Looked, image: MetadataImage) -> None:
        for topic, (messages, size) in self._watched.led_before.of(image).items():
            looked.messages[topic], looked.bytes[topic] = messages, size

    def _look(self, replica: Replica, looked: _Looked, image: MetadataImage) -> None:
        topic, key = replica.topic, replica.topic_partition
        labels = (topic, str(key.partition))
        looked.sizes.append((labels, replica.log.size_bytes))
        looked.starts.append((labels, replica.start_offset))
        looked.ends.append((labels, replica.log.log_end_offset))
        looked.replicas += 1
        looked.failed += replica.has_failed
        looked.fetches.update(replica.fetches)
        if not isinstance(replica, Partition):
            return
        looked.leaders += 1
        looked.commits += replica.parked_commits
        looked.messages[topic] = looked.messages.get(topic, 0) + replica.appended_records
        looked.bytes[topic] = looked.bytes.get(topic, 0) + replica.appended_bytes
        known = image.partition(key)
        if known is not None:
            looked.under_replicated += len(known.isr) < len(known.replicas)
            looked.under_min_isr += len(known.isr) < replica.settings.min_insync_replicas

    def _of_partitions(self, looked: _Looked) -> Iterator[tuple[str, list[Sample]]]:
        for name, by_topic in (("messagesin", looked.messages), ("bytesin", looked.bytes)):
            yield f"kafka_server_brokertopicmetrics_{name}", [((topic,), n) for topic, n in sorted(by_topic.items())]
        for name, number in (
            ("leadercount", looked.leaders),
            ("partitioncount", looked.replicas),
            ("underreplicatedpartitions", looked.under_replicated),
            ("underminisrpartitioncount", looked.under_min_isr),
            ("offlinereplicacount", looked.failed + len(self._watched.partitions.offline)),
            ("isrshrinks", self._shrinks),
            ("isrexpands", self._expands),
        ):
            yield f"kafka_server_replicamanager_{name}", [((), number)]
        for name, samples in (
            ("size", looked.sizes),
            ("logstartoffset", looked.starts),
            ("logendoffset", looked.ends),
        ):
            yield f"kafka_log_log_{name}", samples
        waiting: list[Sample] = [(("Produce",), looked.commits), (("Fetch",), len(looked.fetches))]
        yield "kafka_server_delayedoperationpurgatory_purgatorysize", waiting

    def _of_cluster(self, image: MetadataImage, nobody_leads: int) -> Iterator[tuple[str, list[Sample]]]:
        metadata = self._watched.metadata
        live = len(image.live_brokers())
        for name, number in (
            ("activecontrollercount", int(metadata.is_controller)),
            ("offlinepartitionscount", nobody_leads),
            ("globaltopiccount", len(image.topics)),
            ("globalpartitioncount", sum(len(topic.partitions) for topic in image.topics.values())),
            ("activebrokercount", live),
            ("fencedbrokercount", len(image.brokers) - live),
        ):
            yield f"kafka_controller_kafkacontroller_{name}", [((), number)]
        leader = metadata.leader
        for name, number in (
            ("current_epoch", metadata.term),
            ("current_leader", -1 if leader is None else leader),
            ("high_watermark", metadata.quorum().high_watermark),
        ):
            yield f"kafka_server_raftmetrics_{name}", [((), number)]
        yield "kafka_server_broker_metadata_metrics_last_applied_record_offset", [((), image.index)]

    def _of_requests(self) -> Iterator[tuple[str, list[Sample]]]:
        watched, counts = self._watched, self._watched.counts
        yield (
            "kafka_network_requestmetrics_requests",
            [((api_name(key), str(version)), number) for (key, version), number in sorted(counts.numbers.items())],
        )
        yield (
            "kafka_network_requestmetrics_errors",
            [((api_name(key), error_of(code).name), number) for (key, code), number in sorted(counts.errors.items())],
        )
        yield "kafka_network_socketserver_bytesin", [((), counts.bytes_in)]
        yield "kafka_network_socketserver_bytesout", [((), counts.bytes_out)]
        yield "kafka_network_socketserver_memorypoolused", [((), watched.gauge.queued_bytes)]
        yield "headrace_unsent_answer_bytes", [((), watched.gauge.unsent_bytes)]
        yield "kafka_server_socketservermetrics_connection_count", [((), watched.gauge.connections)]
        yield from self._of_authentication()
        yield "headrace_client_quota_usages", [((), len(watched.quotas))]
        yield from self._of_condition()

    def _of_authentication(self) -> Iterator[tuple[str, list[Sample]]]:
        counts = self._watched.authentication
        for name, number in (
            ("successful_authentication", counts.succeeded),
            ("failed_authentication", counts.failed),
            ("successful_reauthentication", counts.succeeded_again),
            ("failed_reauthentication", counts.failed_again),
            ("expired_connections_killed_count", counts.expired),
        ):
            yield f"kafka_server_socketservermetrics_{name}", [((), number)]
        yield "headrace_unauthenticated_connections", [((), counts.unauthenticated)]

    def _of_condition(self) -> Iterator[tuple[str, list[Sample]]]:
        room, kinds = self._watched.room, {state.kind for state in self._watched.condition.states}
        yield "headrace_states", [((kind,), int(kind in kinds)) for kind in KINDS]
        yield "headrace_log_disk_usable_bytes", [((), room.usable)]
        yield "headrace_log_disk_min_free_bytes", [((), room.reserve)]

    def _times(self) -> Metric:
        metric = METRICS["kafka_network_requestmetrics_totaltimems"]
        family = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
        for key, times in sorted(self._watched.counts.times.items()):
            family.add_metric([api_name(key)], list(_cumulative(times)), times.sum_ms)
        return family

    def _flushes(self) -> Metric:
        metric, flusher = METRICS["kafka_log_logflushstats_logflushrateandtimems"], self._watched.flusher
        return SummaryMetricFamily(metric.name, metric.doc, flusher.rounds, flusher.seconds * 1000)


def _families(found: dict[str, list[Sample]]) -> Iterator[Metric]:
    for metric in METRICS.values():
        if metric.kind is Kind.COUNTER:
            family: CounterMetricFamily | GaugeMetricFamily = CounterMetricFamily(
                metric.name, metric.doc, labels=metric.labels
            )
        elif metric.kind is Kind.GAUGE:
            family = GaugeMetricFamily(metric.name, metric.doc, labels=metric.labels)
        else:
            continue
        for labels, value in found[metric.name]:
            family.add_metric(labels, value)
        yield family


def _cumulative(times: Times) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, number in zip([*map(str, BOUNDS_MS), "+Inf"], times.counts, strict=True):
        total += number
        yield bound, total


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    for number, item in enumerate(items, 1):
        yield item
        if number % METRICS_PARTITIONS_PER_TURN_MAX == 0:
            await asyncio.sleep(0)
