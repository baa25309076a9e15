"""The one table of metrics: name in Kafka's terms, meaning, and labels of each.

Names are those that the JMX exporter's usual rules give Kafka's beans, so that dashboards made for Kafka fit. For
example, `kafka.server<type=BrokerTopicMetrics, name=BytesInPerSec><>Count` is
`kafka_server_brokertopicmetrics_bytesin_total`. Metrics without a bean in Kafka begin with `headrace_`.

To add one: an entry here, a line in docs/METRICS.md, and a value in `collecting`; tests hold the three together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """The kinds of metrics that Prometheus has."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """The name without the `_total` that is written for a counter."""
    kind: Kind
    labels: tuple[str, ...]
    doc: str


_COUNTER, _GAUGE = Kind.COUNTER, Kind.GAUGE
_MANAGER: Final = "kafka_server_replicamanager"
_CONTROLLER: Final = "kafka_controller_kafkacontroller"

_METRICS: Final = (
    Metric(
        "kafka_server_brokertopicmetrics_messagesin",
        _COUNTER,
        ("topic",),
        "Records that producers appended to partitions of the topic while this broker led them.",
    ),
    Metric(
        "kafka_server_brokertopicmetrics_bytesin",
        _COUNTER,
        ("topic",),
        "Bytes of the batches that producers appended to partitions of the topic, as stored.",
    ),
    Metric("kafka_network_socketserver_bytesin", _COUNTER, (), "Bytes of the requests of clients and brokers."),
    Metric("kafka_network_socketserver_bytesout", _COUNTER, (), "Bytes of the answers to clients and brokers."),
    Metric("kafka_network_requestmetrics_requests", _COUNTER, ("request", "version"), "Requests of clients, by API."),
    Metric(
        "kafka_network_requestmetrics_errors",
        _COUNTER,
        ("request", "error"),
        "Error codes in the answers to requests, one for each topic or partition that has one.",
    ),
    Metric(
        "kafka_network_requestmetrics_totaltimems",
        Kind.HISTOGRAM,
        ("request",),
        "Milliseconds from the start of a request to its answer, with its waits (for acks=all, for a fetch's bytes).",
    ),
    Metric(
        "kafka_network_socketserver_memorypoolused",
        _GAUGE,
        (),
        "Bytes of requests that are received and not yet answered (of queued.max.bytes).",
    ),
    Metric(
        "headrace_unsent_answer_bytes",
        _GAUGE,
        (),
        "Bytes of answers that slow readers have not taken (at most 256 MiB): from half of it on, those that take "
        "nothing are closed.",
    ),
    Metric("kafka_server_socketservermetrics_connection_count", _GAUGE, (), "Open connections."),
    Metric(
        "kafka_server_socketservermetrics_successful_authentication", _COUNTER, (), "Clients that SASL authenticated."
    ),
    Metric(
        "kafka_server_socketservermetrics_failed_authentication",
        _COUNTER,
        (),
        "Clients that SASL did not authenticate: a wrong name, password or token.",
    ),
    Metric(
        "kafka_server_socketservermetrics_successful_reauthentication",
        _COUNTER,
        (),
        "Times that SASL authenticated a client again, before its session ended.",
    ),
    Metric(
        "kafka_server_socketservermetrics_failed_reauthentication",
        _COUNTER,
        (),
        "Times that SASL did not authenticate a client again.",
    ),
    Metric(
        "kafka_server_socketservermetrics_expired_connections_killed_count",
        _COUNTER,
        (),
        "Connections that were closed because their session had ended.",
    ),
    Metric(
        "headrace_unauthenticated_connections",
        _GAUGE,
        (),
        "Open connections whose client SASL did not authenticate yet.",
    ),
    Metric(f"{_MANAGER}_leadercount", _GAUGE, (), "Partitions that this broker leads."),
    Metric(f"{_MANAGER}_partitioncount", _GAUGE, (), "Partitions that this broker holds, led or copied."),
    Metric(
        f"{_MANAGER}_underreplicatedpartitions",
        _GAUGE,
        (),
        "Partitions that this broker leads and that have replicas out of sync.",
    ),
    Metric(
        f"{_MANAGER}_underminisrpartitioncount",
        _GAUGE,
        (),
        "Partitions that this broker leads with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
    ),
    Metric(
        f"{_MANAGER}_offlinereplicacount",
        _GAUGE,
        (),
        "Replicas that this broker cannot serve, because their disk failed or their log could not be opened.",
    ),
    Metric(
        f"{_MANAGER}_isrshrinks", _COUNTER, (), "Times that replicas left the ISR of a partition that this broker led."
    ),
    Metric(
        f"{_MANAGER}_isrexpands",
        _COUNTER,
        (),
        "Times that replicas joined the ISR of a partition that this broker led.",
    ),
    Metric(
        f"{_CONTROLLER}_activecontrollercount",
        _GAUGE,
        (),
        "1 on the controller, 0 elsewhere: over all brokers the sum is 1.",
    ),
    Metric(f"{_CONTROLLER}_offlinepartitionscount", _GAUGE, (), "Partitions of the cluster that nobody leads."),
    Metric(f"{_CONTROLLER}_globaltopiccount", _GAUGE, (), "Topics of the cluster."),
    Metric(f"{_CONTROLLER}_globalpartitioncount", _GAUGE, (), "Partitions of the cluster."),
    Metric(f"{_CONTROLLER}_activebrokercount", _GAUGE, (), "Brokers that are live."),
    Metric(f"{_CONTROLLER}_fencedbrokercount", _GAUGE, (), "Registered brokers that are fenced."),
    Metric("kafka_server_raftmetrics_current_epoch", _GAUGE, (), "The quorum's term."),
    Metric("kafka_server_raftmetrics_current_leader", _GAUGE, (), "The controller's broker id; -1: none is known."),
    Metric("kafka_server_raftmetrics_high_watermark", _GAUGE, (), "Last metadata entry that is known to be committed."),
    Metric(
        "kafka_server_broker_metadata_metrics_last_applied_record_offset",
        _GAUGE,
        (),
        "Last metadata entry that this broker has replayed.",
    ),
    Metric("kafka_log_log_size", _GAUGE, ("topic", "partition"), "Bytes of a replica's log on this broker."),
    Metric(
        "kafka_log_log_logstartoffset",
        _GAUGE,
        ("topic", "partition"),
        "First offset of a replica's log on this broker.",
    ),
    Metric(
        "kafka_log_log_logendoffset",
        _GAUGE,
        ("topic", "partition"),
        "Log end offset of a replica's log on this broker.",
    ),
    Metric(
        "kafka_log_logflushstats_logflushrateandtimems",
        Kind.SUMMARY,
        (),
        "Group commits, and milliseconds from the beginning of each until it was on the disk.",
    ),
    Metric(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        _GAUGE,
        ("delayedoperation",),
        "Requests that wait now: batches for their commit (Produce), fetches for bytes (Fetch).",
    ),
    Metric(
        "headrace_client_quota_usages",
        _GAUGE,
        (),
        "Clients and users whose use of a quota is measured (of QUOTA_CLIENTS_MAX).",
    ),
    Metric(
        "headrace_states",
        _GAUGE,
        ("kind",),
        "1 if this broker serves less than it should in that way, or soon will: see 'headrace doctor'; else 0.",
    ),
    Metric("headrace_log_disk_usable_bytes", _GAUGE, (), "Bytes that the logs' disk has left; -1: not known yet."),
    Metric(
        "headrace_log_disk_min_free_bytes",
        _GAUGE,
        (),
        "Bytes of the logs' disk that are kept free (log.disk.min.free.bytes). With fewer, clients' writes are "
        "refused.",
    ),
    Metric("headrace_scrape_seconds", _GAUGE, (), "Seconds that a scrape took, in turns with requests."),
)

METRICS: Final = {metric.name: metric for metric in _METRICS}
