"""`make soak`: one broker under mixed load from real clients; its resources must stay flat.

The load is producers (plain, idempotent, compressed), a group that rebalances, and readers from the start. Other
clients send garbage, or come and go. All run at once, on topics whose old segments are deleted. Samples are resident
memory, open files and threads. After a warm-up of a quarter of the time none may grow beyond the bounds below, or the
exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from tools.servers.broker_process import BrokerProcess

TOPICS: Final = {"plain": "none", "packed": "zstd"}
CONFIGS: Final = {"retention.bytes": "33554432", "segment.bytes": "8388608"}
BURST: Final = 500
PAUSE_S: Final = 0.1
SAMPLE_S: Final = 1.0
GROWTH_MAX: Final = 0.10
"""Of the median of the last quarter over that of the second."""
GROWTH_BYTES_MIN: Final = 16 * 1024 * 1024
"""Memory may always move by this much, files and threads by FILES_MIN."""
FILES_MIN: Final = 16
QUIET: Final = {"log_level": 0}


class Sample(NamedTuple):
    """The broker's resources at one moment."""

    memory_bytes: int
    files: int
    threads: int


class Load:
    """Threads that use the broker until stopped; the first failure of each is kept."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self.failures: list[str] = []
        self.counts = dict.fromkeys(("sent", "read", "garbage", "visits"), 0)
        jobs = [self._garbage, self._visits, self._group, self._group]
        self._threads = [threading.Thread(target=self._keep, args=(job,)) for job in jobs]
        for topic, codec in TOPICS.items():
            self._threads += [
                threading.Thread(target=self._keep, args=(lambda t=topic, c=codec: self._produce(t, c),)),
                threading.Thread(target=self._keep, args=(lambda t=topic: self._read(t),)),
            ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, job: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                job()
        except Exception as error:
            self.failures.append(repr(error))

    def _produce(self, topic: str, codec: str) -> None:
        options = {
            "bootstrap.servers": self._bootstrap,
            "compression.type": codec,
            "enable.idempotence": codec != "none",
        }
        producer = confluent_kafka.Producer(options | QUIET)
        for _ in range(50):
            for number in range(BURST):
                producer.produce(topic, key=str(number), value=random.randbytes(100) * 5)
            producer.flush(30)
            self.counts["sent"] += BURST
            if self._over.wait(PAUSE_S):
                return

    def _read(self, topic: str) -> None:
        options = {"bootstrap.servers": self._bootstrap, "group.id": f"reader-{random.randrange(5)}"}
        self._consume(options | {"auto.offset.reset": "earliest", "enable.auto.commit": False}, [topic], seconds=5)

    def _group(self) -> None:
        options = {"bootstrap.servers": self._bootstrap, "group.id": "steady", "auto.offset.reset": "latest"}
        self._consume(options, list(TOPICS), seconds=random.uniform(3, 9))

    def _consume(self, options: Mapping[str, object], topics: list[str], *, seconds: float) -> None:
        consumer = confluent_kafka.Consumer(dict(options) | QUIET)
        consumer.subscribe(topics)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._over.is_set():
            self.counts["read"] += len(consumer.consume(500, 0.2))
        consumer.close()

    def _garbage(self) -> None:
        host, _, port = self._bootstrap.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            size = random.choice((0, 40, 2**20, 2**31 - 1))
            peer.sendall(size.to_bytes(4, "big") + random.randbytes(random.randrange(2000)))
        self.counts["garbage"] += 1
        self._over.wait(PAUSE_S)

    def _visits(self) -> None:
        AdminClient({"bootstrap.servers": self._bootstrap} | QUIET).list_topics(timeout=30)
        self.counts["visits"] += 1
        self._over.wait(PAUSE_S)


def grown(samples: list[Sample]) -> list[str]:
    """Resources that did not stay flat, as sentences."""
    quarter = max(len(samples) // 4, 1)
    before, after = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    found = []
    for at, (name, free) in enumerate((("memory", GROWTH_BYTES_MIN), ("files", FILES_MIN), ("threads", FILES_MIN))):
        first = statistics.median(sample[at] for sample in before)
        last = statistics.median(sample[at] for sample in after)
        if last - first > max(free, GROWTH_MAX * first):
            found.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Mixed load; nothing may grow.")
    parser.add_argument("--seconds", type=float, default=600)
    seconds = parser.parse_args().seconds
    console = Console(highlight=False)
    options = ("--config", "log.retention.check.interval.ms=2000", "--config", "offsets.topic.num.partitions=3")
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as directory:
        with BrokerProcess(Path(directory), *options) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            for future in admin.create_topics([NewTopic(name, 3, 1, config=dict(CONFIGS)) for name in TOPICS]).values():
                future.result(30)
            process, samples = psutil.Process(broker.pid), list[Sample]()
            until = time.monotonic() + seconds
            with Load(broker.bootstrap) as load:
                while time.monotonic() < until and not load.failures:
                    time.sleep(SAMPLE_S)
                    samples.append(Sample(process.memory_info().rss, process.num_fds(), process.num_threads()))
            problems = load.failures + grown(samples)
        console.print(
            f"{load.counts}; at the end {samples[-1]}; highest {Sample(*map(max, zip(*samples, strict=True)))}"
        )
    for problem in problems:
        console.print(f"[red]{problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
