"""The cases of `make bench-spark`; `catalog.py` has the list."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import psutil

from benchmarks.load.cases import About, Entrant, Figures, Measurable
from benchmarks.load.rivals import Rival
from benchmarks.spark.data import Data
from benchmarks.spark.producer import BATCH_RECORDS, PacedProducer
from benchmarks.spark.queries import Action, Count, Session, frame, options, rows_in
from headrace.spark.session import java_pid, keep_off, make_way

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

REST_S: Final = 2.0
PRODUCER_S: Final = 30.0
"""Least time for which a producer is measured, alone and beside scans. Each has TURNS alternating parts, because the
machine may behave differently in the next half minute."""
TURNS: Final = 5
MICRO_BATCHES: Final = 15
STREAM_TIMEOUT_S: Final = 120
WHOLE: Final = "triggerExecution"
PARTS: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Of a micro-batch, as Spark tells of them."""


class SparkCase(Measurable, Protocol):
    """One that reads a topic, which others may read too."""

    @property
    def data(self) -> Data: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One batch read of all records of a topic; the rate is records per second, from `load` to the end."""

    about: About
    session: Session
    data: Data
    action: Action
    tuned: bool
    hot: bool = False
    _idle: dict[str, float] = field(default_factory=dict)
    """Processor time of a broker at rest, for each second."""

    def run(self, entrant: Entrant) -> Figures:
        rival = entrant.rival
        self.data.fill(entrant)
        self.session.spark  # noqa: B018 - started before the time runs
        if rival.name not in self._idle:
            before = cpu_s(rival)
            time.sleep(REST_S)
            self._idle[rival.name] = (cpu_s(rival) - before) / REST_S
        with directory() as out:
            before, begun = cpu_s(rival), time.perf_counter()
            rows = self.action.run(
                frame(self.session, rival, self.data, self.action, tuned=self.tuned, hot=self.hot), out
            )
            seconds = time.perf_counter() - begun
            used = cpu_s(rival) - before
            rows = rows_in(out) if rows < 0 else rows
        assert rows == self.data.records, f"{rows} rows were read instead of {self.data.records}"
        figures = {
            "seconds": seconds,
            "mb_per_s": self.data.megabytes / seconds,
            "seconds_per_gb": seconds / self.data.megabytes * 1024,
            "broker_cpu_s": used,
            "broker_cpu_above_idle_s": max(0.0, used - self._idle[rival.name] * seconds),
        }
        return Figures(rate=rows / seconds, others=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideProducer:
    """A producer of 500 records of 1 KB a second, acks=all, one in flight. It runs in turns alone and while the topic
    is counted repeatedly. The rate is its p99 beside the counts, divided by that alone."""

    about: About
    session: Session
    data: Data
    tuned: bool
    nice: int = 0
    """Of Spark, from then on."""
    apart: bool = False
    """Spark leaves one of two processors to whoever wants it, as `spare_processors = 1` of a pipeline does."""
    kept: bool = False
    """Broker and producer, too, are kept to that processor, alone and beside scans, as by taskset(1)."""

    def run(self, entrant: Entrant) -> Figures:
        rival = entrant.rival
        self.data.fill(entrant)
        action, scans = Count(), 0
        spark = self.session.spark
        make_way(spark, self.nice)
        with PacedProducer(entrant, f"{self.about.name}-{rival.name}-hot") as producer, ExitStack() as stack:
            if self.apart:
                stack.enter_context(kept_off(java_pid(spark)))
            if self.kept:
                for pid in (*rival.pids, producer.pid):
                    stack.enter_context(kept_to_first(pid))
            alone, beside = list[float](), list[float]()
            for _ in range(TURNS):
                time.sleep(REST_S)  # of what Spark does after its last
                producer.taken()
                time.sleep(PRODUCER_S / TURNS)
                alone += producer.taken()
                begun = time.perf_counter()
                while time.perf_counter() - begun < PRODUCER_S / TURNS:
                    with directory() as out:
                        action.run(frame(self.session, rival, self.data, action, tuned=self.tuned), out)
                    scans += 1
                beside += producer.taken()
        figures = {
            "idle_p50_ms": 1000 * statistics.median(alone),
            "idle_p99_ms": 1000 * p99(alone),
            "latency_p50_ms": 1000 * statistics.median(beside),
            "latency_p99_ms": 1000 * p99(beside),
            "scans": float(scans),
        }
        return Figures(rate=figures["latency_p99_ms"] / figures["idle_p99_ms"], others=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableNow:
    """A stream that reads all there is and ends; records per second, from `load` to the end."""

    about: About
    session: Session
    data: Data
    tuned: bool

    def run(self, entrant: Entrant) -> Figures:
        rival = entrant.rival
        self.data.fill(entrant)
        spark = self.session.spark
        kind, chosen = options(rival, self.data, tuned=self.tuned, columns="value")
        with directory() as out:
            begun = time.perf_counter()
            rows = spark.readStream.format(kind).options(**chosen).load()
            writer = rows.writeStream.format("noop").option("checkpointLocation", str(out))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(STREAM_TIMEOUT_S), "the stream does not end"
            seconds = time.perf_counter() - begun
            read = sum(int(progress["numInputRows"]) for progress in query.recentProgress)
        assert read == self.data.records, f"{read} rows were read instead of {self.data.records}"
        return Figures(rate=read / seconds, others={"seconds": seconds})


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A stream that is caught up and gets some hundred records, again and again; milliseconds of a micro-batch."""

    about: About
    session: Session
    data: Data
    """Data that it does not read, but its neighbours do."""
    tuned: bool

    def run(self, entrant: Entrant) -> Figures:
        rival, spark = entrant.rival, self.session.spark
        grown = BATCH_RECORDS * (MICRO_BATCHES + 1)
        with PacedProducer(entrant, f"{self.about.name}-{rival.name}", per_s=0) as producer, directory() as out:
            kind, chosen = options(rival, producer.data, tuned=self.tuned, columns="value")
            rows = spark.readStream.format(kind).options(**chosen).load()
            query = rows.writeStream.format("noop").option("checkpointLocation", str(out)).start()
            try:
                for _ in range(MICRO_BATCHES + 1):
                    producer.send()
                    query.processAllAvailable()
                found = batches(query)
            finally:
                query.stop()
        read = sum(each.rows for each in found)
        assert read == grown, f"{read} rows were read instead of {grown}"
        warm = found[1:]
        others = {f"{name}_ms": statistics.median(each.ms.get(name, 0.0) for each in warm) for name in PARTS}
        others |= {"longest_ms": max(each.ms[WHOLE] for each in warm), "batches": len(found)}
        return Figures(rate=statistics.median(each.ms[WHOLE] for each in warm), others=others)


class Batch(NamedTuple):
    """One of a stream that read something."""

    rows: int
    ms: Mapping[str, float]
    """That its parts took."""


def batches(query: StreamingQuery) -> list[Batch]:
    found = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return [Batch(each["numInputRows"], {name: float(ms) for name, ms in each["durationMs"].items()}) for each in found]


@contextmanager
def kept_off(pid: int) -> Iterator[None]:
    """Spark, whose Java this is, leaves a processor to others; afterwards it has all again."""
    keep_off(pid, 1)
    try:
        yield
    finally:
        keep_off(pid, 0)


@contextmanager
def kept_to_first(pid: int) -> Iterator[None]:
    """A process uses the first processor alone; afterwards all again."""
    usable = sorted(os.sched_getaffinity(0))
    keep_to(pid, usable[:1])
    try:
        yield
    finally:
        keep_to(pid, usable)


def keep_to(pid: int, processors: Sequence[int]) -> None:
    """All of its threads."""
    for thread in psutil.Process(pid).threads():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, processors)


@contextmanager
def directory() -> Iterator[Path]:
    """A new one, removed afterwards."""
    made = Path(tempfile.mkdtemp(prefix="headrace-bench-spark-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def cpu_s(rival: Rival) -> float:
    """That its processes have used."""
    times = [psutil.Process(pid).cpu_times() for pid in rival.pids]
    return float(sum(each.user + each.system for each in times))


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
