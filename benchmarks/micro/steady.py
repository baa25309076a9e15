"""Idempotent producers that write to one partition at a steady pace: librdkafka, and Apache Kafka's own Java client.

Each has its client's own settings, and knows for each record when it was sent and when it was acknowledged.
"""

from __future__ import annotations

import subprocess
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import confluent_kafka

from tools import kafka_jars

RECORD: Final = bytes(1_000)
DEADLINE_S: Final = 120.0
JAVA: Final = Path(__file__).with_name("SteadyProducer.java")


class Sent(NamedTuple):
    """A record, by the monotonic clock, in seconds."""

    sent: float
    acknowledged: float

    @property
    def took_ms(self) -> float:
        return 1000 * (self.acknowledged - self.sent)


class Steady:
    """The common part. A context manager: on leaving, all sent records are acknowledged."""

    name = ""

    def __init__(self) -> None:
        self.known: list[Sent] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing more is sent."""

    def slowest(self, since: float, until: float) -> Sent:
        """The slowest record sent between these times."""
        sent = [one for one in list(self.known) if since <= one.sent <= until]
        return max(sent, key=lambda one: one.took_ms, default=Sent(since, since))

    def slowest_under_way(self, since: float, until: float) -> Sent:
        """The slowest record that was on its way at any time between these."""
        met = [one for one in list(self.known) if one.sent <= until and one.acknowledged >= since]
        return max(met, key=lambda one: one.took_ms, default=Sent(since, since))

    def longest_gap_ms(self, since: float, until: float) -> float:
        """The longest time between two acknowledgements, between these."""
        times = sorted(ack for _, ack in list(self.known) if since <= ack <= until)
        return 1000 * max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def usual_ms(self) -> float:
        """At the median."""
        took = sorted(ack - sent for sent, ack in list(self.known))
        return 1000 * took[len(took) // 2] if took else 0.0


class Librdkafka(Steady):
    """In a thread of its own."""

    name = "librdkafka"

    def __init__(self, bootstrap: str, topic: str, per_second: float) -> None:
        super().__init__()
        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        self._client = confluent_kafka.Producer(options | {"error_cb": lambda _: None})
        self._topic = topic
        self._pause_s = 1 / per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.flush(DEADLINE_S)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            told = partial(self._on_delivery, time.monotonic())
            self._client.produce(self._topic, RECORD, partition=0, on_delivery=told)
            due += self._pause_s
            self._client.poll(max(0.0, due - time.monotonic()))

    def _on_delivery(self, sent: float, error: Any, message: Any) -> None:
        """When it was acknowledged is as librdkafka tells: Python's threads wait for each other."""
        if error is not None:
            self.failures.append(str(error))
        else:
            self.known.append(Sent(sent, sent + message.latency()))


class Java(Steady):
    """In a process of its own, whose System.nanoTime() is the same clock."""

    name = "Java's client"

    def __init__(self, bootstrap: str, topic: str, per_second: float) -> None:
        super().__init__()
        command = ["java", "-Xmx256m", "-cp", kafka_jars.class_path(), str(JAVA), bootstrap, topic]
        self._process = subprocess.Popen(
            [*command, str(round(per_second))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("over\n")
        self._process.stdin.close()
        self._thread.join(DEADLINE_S)
        if self._process.wait(DEADLINE_S) != 0:
            self.failures.append("it did not end by itself")

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sent, acknowledged, *error = line.split(maxsplit=2)
            self.failures += error
            if not error:
                self.known.append(Sent(int(sent) / 1e9, int(acknowledged) / 1e9))


def wait_for(producer: Steady) -> None:
    """Until it knows its way. Blocks."""
    deadline = time.monotonic() + DEADLINE_S
    while not producer.known:
        assert time.monotonic() < deadline, f"{producer.name} has sent nothing"
        time.sleep(0.05)
