"""Cases with Kafka's own tools as the load: ProducerPerformance and ConsumerPerformance, in a JVM of their own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.load.cases import MEGABYTE, About, Entrant, Figures, count, make_topic, portion, topic_on
from benchmarks.load.floor import FLOORS
from benchmarks.load.rivals import Door, door_of
from tools import kafka_jars

RUN_TIMEOUT_S: Final = 600.0
FETCH_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """ProducerPerformance, whose defaults are a Java producer's: idempotent, batches of 16 KB. Where its case
    says that it restarts, it writes to a broker that has just been started."""

    about: About
    records: int
    record_bytes: int
    partitions: int = 1
    props: Sequence[str] = ()
    rate: str = "mb_per_s"
    """The figure that is the rate: mb_per_s or records_per_s."""

    def run(self, entrant: Entrant) -> Figures:
        if self.about.restarts:
            entrant.rival.stop()
            entrant.rival.start()
        bootstrap = entrant.rival.bootstrap
        with topic_on(entrant, self.about.name, self.partitions) as topic:
            figures = produce(door_of(entrant.rival), topic, self.records, self.record_bytes, self.props)
            held = count(bootstrap, topic, self.partitions) if entrant.rival.name not in FLOORS else self.records
        assert held == self.records, f"{topic} holds {held} records, not {self.records}"
        return Figures(rate=figures[self.rate], others=figures, megabytes=self.records * self.record_bytes / MEGABYTE)

    def scaled(self, factor: float) -> Produce:
        return replace(self, records=portion(self.records, factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A topic of one partition that the first run on each rival fills, and that every run reads from the start.
    ProducerPerformance fills it in its batches of 16 KB."""

    records: int
    record_bytes: int
    _on: set[str] = field(default_factory=set)
    """Rivals that have it."""

    def topic(self, case: str, entrant: Entrant) -> str:
        """Its name; once it is there and full."""
        name, rival = f"{case}-data", entrant.rival
        if rival.name not in self._on:
            make_topic(entrant, name, 1)
            produce(door_of(rival), name, self.records, self.record_bytes, ())
            self._on.add(rival.name)
        return name

    @property
    def megabytes(self) -> float:
        return self.records * self.record_bytes / MEGABYTE

    def scaled(self, factor: float) -> Filled:
        return Filled(records=portion(self.records, factor), record_bytes=self.record_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """ConsumerPerformance, one."""

    about: About
    filled: Filled

    def run(self, entrant: Entrant) -> Figures:
        topic, records = self.filled.topic(self.about.name, entrant), self.filled.records
        bootstrap, config = door_of(entrant.rival)
        said = _java(
            "ConsumerPerformance",
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *(() if config is None else ("--consumer.config", str(config))),
            *("--messages", str(records), "--timeout", str(FETCH_TIMEOUT_MS), "--hide-header"),
        )
        figures = parse_consumer(said)
        assert figures["records"] >= records, f"{figures['records']:.0f} of {records} records were read"
        return Figures(rate=figures["mb_per_s"], others=figures, megabytes=figures["megabytes"])

    def scaled(self, factor: float) -> Fetch:
        return replace(self, filled=self.filled.scaled(factor))


def produce(
    door: Door, topic: str, records: int, record_bytes: int, props: Sequence[str], throughput: int = -1
) -> dict[str, float]:
    """Run ProducerPerformance; its figures."""
    said = _java(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *(() if door.config is None else ("--producer.config", str(door.config))),
        *("--throughput", str(throughput), "--producer-props", f"bootstrap.servers={door.bootstrap}"),
        *("acks=all", *props),
    )
    return parse_producer(said)


def _java(tool: str, *options: str) -> str:
    command = ["java", "-Xmx512m", "-cp", kafka_jars.class_path(), f"org.apache.kafka.tools.{tool}", *options]
    with tempfile.TemporaryFile("w+") as complaints:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        if done.returncode:
            complaints.seek(0)
            raise RuntimeError(f"{tool} failed:\n{complaints.read()[-2000:]}")
    return done.stdout


def parse_producer(said: str) -> dict[str, float]:
    """The last line of ProducerPerformance: the figures of the whole run."""
    number = r"([\d.]+)"
    pattern = (
        rf"{number} records/sec \({number} MB/sec\), {number} ms avg latency, {number} ms max latency, "
        rf"{number} ms 50th, {number} ms 95th, {number} ms 99th, {number} ms 99.9th"
    )
    *_, last = re.finditer(pattern, said)
    names = ["records_per_s", "mb_per_s", "latency_mean_ms", "latency_max_ms"]
    names += ["latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p999_ms"]
    return dict(zip(names, map(float, last.groups()), strict=True))


def parse_consumer(said: str) -> dict[str, float]:
    """The line of ConsumerPerformance. Rates are those of the fetching: joining the group is left out."""
    *_, last = (line for line in said.splitlines() if line.count(",") == 9)
    *_, megabytes, _, records, _, _, fetch_ms, mb_per_s, records_per_s = (part.strip() for part in last.split(","))
    return {
        "mb_per_s": float(mb_per_s),
        "records_per_s": float(records_per_s),
        "records": float(records),
        "megabytes": float(megabytes),
        "fetch_ms": float(fetch_ms),
    }
