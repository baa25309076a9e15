"""From `produce` to `poll` at a steady pace, and from a start to the first acknowledgement, with librdkafka."""

from __future__ import annotations

import statistics
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.load.cases import About, Entrant, Figures, make_topic, topic_on

STAMP: Final = struct.Struct("<d")
PACE_S: Final = 0.001
"""Records go out in groups, one a millisecond, as no client sends single ones at such a rate."""
TIMEOUT_S: Final = 60.0
SKIPPED_SECONDS: Final = 1.0
"""Of the beginning, while connections are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEnd:
    """One producer without linger, one consumer; the rate is the median time on the way, in ms."""

    about: About
    records_per_s: int
    seconds: float
    record_bytes: int

    def run(self, entrant: Entrant) -> Figures:
        bootstrap = entrant.rival.bootstrap
        total = int(self.records_per_s * self.seconds)
        with topic_on(entrant, self.about.name, 1) as topic:
            latencies: list[float] = []
            reader = threading.Thread(target=_read, args=(bootstrap, topic, total, latencies))
            reader.start()
            self._write(bootstrap, topic, total)
            reader.join(TIMEOUT_S)
        assert len(latencies) == total, f"{len(latencies)} of {total} records came"
        cuts = statistics.quantiles(latencies[int(SKIPPED_SECONDS * self.records_per_s) :], n=1000)
        figures = {"latency_p50_ms": cuts[499] * 1000, "latency_p99_ms": cuts[989] * 1000}
        return Figures(rate=figures["latency_p50_ms"], others=figures)

    def scaled(self, factor: float) -> EndToEnd:
        return replace(self, seconds=max(2 * SKIPPED_SECONDS, self.seconds * factor))

    def _write(self, bootstrap: str, topic: str, total: int) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
        rest = bytes(self.record_bytes - STAMP.size)
        begun, sent = time.perf_counter(), 0
        while sent < total:
            due = min(total, int((time.perf_counter() - begun) * self.records_per_s))
            while sent < due:
                producer.produce(topic, STAMP.pack(time.perf_counter()) + rest, partition=0)
                sent += 1
            producer.poll(0)
            time.sleep(PACE_S)
        producer.flush(TIMEOUT_S)


def _read(bootstrap: str, topic: str, total: int, latencies: list[float]) -> None:
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "benchmark", "fetch.wait.max.ms": 500, "log_level": 0}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    while len(latencies) < total and time.monotonic() < deadline:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            latencies.append(time.perf_counter() - STAMP.unpack_from(message.value() or b"")[0])
    reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Stop the rival, and start it over what it holds: seconds from its start to the first acknowledged record."""

    about: About

    def run(self, entrant: Entrant) -> Figures:
        rival, topic = entrant.rival, f"{self.about.name}-{time.time_ns()}"
        make_topic(entrant, topic, 1)
        rival.stop()
        begun = time.perf_counter()
        rival.start()
        ready = time.perf_counter() - begun
        producer = Producer({"bootstrap.servers": rival.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
        failures: list[object] = []
        producer.produce(topic, b"first", on_delivery=lambda error, _: failures.append(error) if error else None)
        if producer.flush(TIMEOUT_S) or failures:
            raise KafkaException(f"the first record was not acknowledged: {failures}")
        seconds = time.perf_counter() - begun
        return Figures(rate=seconds, others={"ready_s": ready, "first_ack_s": seconds})

    def scaled(self, factor: float) -> StartUp:
        return self
