"""Many connections over many partitions: producers at acks=all, and consumers that read what they write.

`WORKERS` processes of one thread each drive it, with requests that are encoded once (raw_links). A worker has half of
the connections over half of the partitions. A producer has one request in flight, with a batch for each of some of its
partitions. A consumer fetches all of its partitions again and again, and waits where there is nothing. The clients' own
processor time is kept beside the figures.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from benchmarks.load.cases import MEGABYTE, About, Entrant, Figures, make_topic, portion
from benchmarks.load.many_readers import Reader
from benchmarks.load.raw.raw_client import check_produced, produce_frame
from benchmarks.load.raw.raw_links import Actor, Link, drive, log_ends

WORKERS: Final = 2
START_TIMEOUT_S: Final = 60.0
RUN_TIMEOUT_S: Final = 300.0


class Share(NamedTuple):
    """The work of one worker."""

    bootstrap: str
    topic: str
    partitions: range
    producers: int
    """And as many consumers."""
    partitions_per_request: int
    rounds: int
    records: int
    record_bytes: int


class Report(NamedTuple):
    """The results of a worker; times by `perf_counter`, which all processes of a machine share."""

    begun: float
    ended: float
    latencies: Sequence[float]
    """Of each produce, in seconds."""
    fetches: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Half of the connections produce, `rounds` batches to each of their partitions, and half consume. The rate counts
    each record once, and the time runs until all of them have been acknowledged and read."""

    about: About
    connections: int
    partitions: int
    partitions_per_request: int
    rounds: int
    records: int
    """In a batch."""
    record_bytes: int
    _on: set[str] = field(default_factory=set)
    """Rivals that have the topic."""

    def run(self, entrant: Entrant) -> Figures:
        rival, topic = entrant.rival, f"{self.about.name}-data"
        if rival.name not in self._on:
            make_topic(entrant, topic, self.partitions)
            self._on.add(rival.name)
        reports = _work(list(self._shares(rival.bootstrap, topic)))
        seconds = max(report.ended for report in reports) - min(report.begun for report in reports)
        cuts = statistics.quantiles([latency for report in reports for latency in report.latencies], n=1000)
        megabytes = self.partitions * self.rounds * self.records * self.record_bytes / MEGABYTE
        figures = {
            "mb_per_s": megabytes / seconds,
            "latency_p50_ms": cuts[499] * 1000,
            "latency_p99_ms": cuts[989] * 1000,
            "seconds": seconds,
            "fetches": float(sum(report.fetches for report in reports)),
            "clients_cpu_s": sum(report.cpu_s for report in reports),
        }
        return Figures(rate=figures["mb_per_s"], others=figures, megabytes=2 * megabytes)

    def scaled(self, factor: float) -> Mixed:
        return replace(self, rounds=portion(self.rounds, factor))

    def _shares(self, bootstrap: str, topic: str) -> Iterator[Share]:
        each = self.partitions // WORKERS
        for worker in range(WORKERS):
            yield Share(
                bootstrap=bootstrap,
                topic=topic,
                partitions=range(worker * each, (worker + 1) * each),
                producers=self.connections // WORKERS // 2,
                partitions_per_request=self.partitions_per_request,
                rounds=self.rounds,
                records=self.records,
                record_bytes=self.record_bytes,
            )


def _work(shares: Sequence[Share]) -> list[Report]:
    """One process for each share; they begin together, once all are connected."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as running:
        pipes = []
        for share in shares:
            pipe, far = context.Pipe()
            worker = context.Process(target=_worker, args=(share, far), daemon=True)
            worker.start()
            far.close()  # so that its end is heard
            running.callback(worker.join)
            running.callback(worker.terminate)
            pipes.append(pipe)
        for pipe in pipes:
            _hear(pipe, START_TIMEOUT_S)
        for pipe in pipes:
            pipe.send("go")
        reports = [_hear(pipe, RUN_TIMEOUT_S) for pipe in pipes]
    return [report for report in reports if isinstance(report, Report)]


def _hear(pipe: Connection, timeout_s: float) -> object:
    if not pipe.poll(timeout_s):
        raise TimeoutError(f"a worker said nothing for {timeout_s:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a worker failed; what it said stands above") from None


def _worker(share: Share, parent: Connection) -> None:
    with ExitStack() as open_links:

        def link() -> Link:
            made = Link(share.bootstrap)
            open_links.callback(made.close)
            return made

        starts = log_ends(link(), share.topic, share.partitions)
        written = share.rounds * share.records
        producers, consumers = [], []
        for at in range(share.producers):
            partitions = share.partitions[at :: share.producers]
            producers.append(Producer(link(), _requests(share, partitions), share.rounds))
            offsets = {partition: starts[partition] for partition in partitions}
            ends = {partition: offset + written for partition, offset in offsets.items()}
            consumers.append(Reader(link(), share.topic, offsets, ends))
        parent.send("ready")
        parent.recv()
        cpu_before, begun = time.process_time(), time.perf_counter()
        actors: list[Actor] = [*consumers, *producers]
        drive(actors)
        report = Report(
            begun=begun,
            ended=time.perf_counter(),
            latencies=[latency for producer in producers for latency in producer.latencies],
            fetches=sum(consumer.requests for consumer in consumers),
            cpu_s=time.process_time() - cpu_before,
        )
    parent.send(report)


def _requests(share: Share, partitions: Sequence[int]) -> list[bytes]:
    """That together write one batch to each of the partitions."""
    each = share.partitions_per_request
    return [
        produce_frame(share.topic, partitions[at : at + each], share.records, share.record_bytes)
        for at in range(0, len(partitions), each)
    ]


class Producer:
    """An `Actor` that sends its requests in turn, `rounds` times."""

    def __init__(self, link: Link, requests: Sequence[bytes], rounds: int) -> None:
        self.link = link
        self._requests = requests
        self._total = len(requests) * rounds
        self._sent_at = 0.0
        self.latencies: list[float] = []

    def begin(self) -> None:
        request = self._requests[len(self.latencies) % len(self._requests)]
        self._sent_at = time.perf_counter()
        self.link.send(request)

    def on_answer(self, answer: memoryview) -> bool:
        self.latencies.append(time.perf_counter() - self._sent_at)
        if len(self.latencies) <= len(self._requests):  # once for each partition; the consumers see the rest
            check_produced(answer)
        if len(self.latencies) == self._total:
            return True
        self.begin()
        return False
