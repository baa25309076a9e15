"""What is measured: each case is one small class, and `CASES` is the list that `--case` chooses from.

A case readies a rival, runs once against it and says how fast that was; it knows nothing of turns, warm-up or medians.
"""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.load.rivals import Rival
from tools import kafka_jars

ANSWER_TIMEOUT_S: Final = 30.0
RUN_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run: the rate that is compared (more is better), and what else is worth keeping, with units in the names."""

    rate: float
    others: Mapping[str, float]


class Case(Protocol):
    """One thing to measure."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def unit(self) -> str:
        """The unit of `Figures.rate`."""
        ...

    def run(self, rival: Rival) -> Figures:
        """Once, on data of its own, leaving nothing behind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """Kafka's own ProducerPerformance, whose defaults are a Java producer's: idempotent, batches of 16 KB."""

    name: str
    records: int
    record_bytes: int
    partitions: int
    acks: str = "all"
    unit: str = "MB/s"

    @property
    def title(self) -> str:
        where = f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"
        return f"produce {self.records:,} records of {self.record_bytes:,} B, acks={self.acks}, {where}"

    def run(self, rival: Rival) -> Figures:
        topic = f"{self.name}-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": rival.bootstrap})
        admin.create_topics([NewTopic(topic, self.partitions, 1)])[topic].result(ANSWER_TIMEOUT_S)
        try:
            figures = parse_performance(self._perform(rival.bootstrap, topic))
            self._check_count(rival.bootstrap, topic)
        finally:
            admin.delete_topics([topic])[topic].result(ANSWER_TIMEOUT_S)
        return figures

    def _perform(self, bootstrap: str, topic: str) -> str:
        command = ["java", "-Xmx512m", "-cp", kafka_jars.class_path(), "org.apache.kafka.tools.ProducerPerformance"]
        command += ["--topic", topic, "--num-records", str(self.records), "--record-size", str(self.record_bytes)]
        command += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", f"acks={self.acks}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True)
        return done.stdout

    def _check_count(self, bootstrap: str, topic: str) -> None:
        """A rate counts only where every record is there."""
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark", "log_level": 0})
        ends = [
            reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_TIMEOUT_S)[1]
            for partition in range(self.partitions)
        ]
        reader.close()
        assert sum(ends) == self.records, f"{topic} holds {sum(ends)} records, not {self.records}"


def parse_performance(said: str) -> Figures:
    """The last line of ProducerPerformance: the figures of the whole run."""
    number = r"([\d.]+)"
    pattern = (
        rf"{number} records/sec \({number} MB/sec\), {number} ms avg latency, {number} ms max latency, "
        rf"{number} ms 50th, {number} ms 95th, {number} ms 99th, {number} ms 99.9th"
    )
    *_, last = re.finditer(pattern, said)
    records, rate, mean, highest, p50, p95, p99, p999 = map(float, last.groups())
    others = {"records_per_s": records, "latency_mean_ms": mean, "latency_max_ms": highest, "latency_p50_ms": p50}
    others |= {"latency_p95_ms": p95, "latency_p99_ms": p99, "latency_p999_ms": p999}
    return Figures(rate=rate, others=others)


CASES: Final[tuple[Case, ...]] = (
    Produce(name="produce-1k", records=300_000, record_bytes=1024, partitions=1),
    Produce(name="produce-1k-6p", records=300_000, record_bytes=1024, partitions=6),
)
