"""The cases, with what each has to reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.load.cases import About, Better, Case, Target, at_least, at_most
from benchmarks.load.clusters import HEADRACE_CLUSTER, HEADRACE_WITH_STORE, KAFKA_CLUSTER
from benchmarks.load.controllers import CreateTopics, Failover, Reelection
from benchmarks.load.end_to_end import EndToEnd, StartUp
from benchmarks.load.failover import End, LongestPause
from benchmarks.load.many_readers import FetchTogether, FetchTogetherRaw
from benchmarks.load.mixed import Mixed
from benchmarks.load.moves import MovePartition
from benchmarks.load.perf_tools import Fetch, Filled, Produce
from benchmarks.load.raw.raw_client import Raw
from benchmarks.load.rivals import WITHOUT_JOURNAL, Durability

PAGE_CACHE, FSYNC = Durability.PAGE_CACHE, Durability.FSYNC
MILLION: Final = 1_000_000


def _produce_1k(name: str, records: int, ours: Durability, theirs: Durability, reach: float) -> Produce:
    about = About(
        name=name,
        title=f"produce {records:,} records of 1 KB, acks=all, 1 partition",
        ours=ours,
        theirs=theirs,
        target=at_least(reach),
    )
    return Produce(about=about, records=records, record_bytes=1024)


def _produce_1k_fresh(name: str, records: int, reach: float) -> Produce:
    """As in a test, or on a laptop: what is started is used at once."""
    usual = _produce_1k(name, records, FSYNC, PAGE_CACHE, reach)
    title = f"{usual.about.title}, to a broker that has just been started"
    return replace(usual, about=replace(usual.about, title=title, warms_up=False, restarts=True))


def _single(name: str, ours: Durability, theirs: Durability, reach: float) -> Raw:
    about = About(
        name=name,
        title="one request in flight, one record of 1 KB, from a pre-encoded client",
        unit="ms (p50)",
        ours=ours,
        theirs=theirs,
        target=at_most(reach),
        more_targets={"latency_p99_ms": at_most(reach)},
    )
    return Raw(about=about, requests=10_000, records=1, record_bytes=1024, in_flight=1, rate="latency_p50_ms")


def _mixed(name: str, durability: Durability) -> Mixed:
    about = About(
        name=name,
        title="200 connections over 2,000 partitions, half of them producing at acks=all and half consuming",
        ours=durability,
        theirs=durability,
        target=at_least(1.0),
        more_targets={"latency_p99_ms": at_most(1.0)},
    )
    return Mixed(
        about=about,
        connections=200,
        partitions=2_000,
        partitions_per_request=4,
        rounds=32,
        records=4,
        record_bytes=1024,
    )


def _journal(partitions: int) -> Raw:
    """Ours against ours: a sync of the journal for each flush, and one of each log's own file."""
    about = About(
        name=f"journal-{partitions}p",
        title=f"produce batches of 16 KB, 6 in flight, partitions: {partitions}, from a pre-encoded client",
        against=WITHOUT_JOURNAL,
        theirs=FSYNC,
        target=at_least(1.0),
        more_targets={"latency_p99_ms": at_most(1.0)},
        cost_targets={"cpu": at_most(1.0)},
    )
    return Raw(
        about=about,
        requests=20_000,
        records=16,
        record_bytes=1024,
        in_flight=6,
        partitions=partitions,
        rate="mb_per_s",
    )


def _cluster(name: str, title: str, unit: str, reach: float) -> About:
    """Three brokers beside three; each case warms them up itself."""
    return About(
        name=name,
        title=title,
        unit=unit,
        who=HEADRACE_CLUSTER,
        against=KAFKA_CLUSTER,
        target=at_most(reach),
        cost_targets={},
        warms_up=False,
        restarts=True,
    )


def _replicated(
    name: str,
    title: str,
    ours: Durability,
    theirs: Durability,
    target: Target,
    *,
    unit: str = "MB/s",
    p99: float | None = None,
) -> About:
    """Three replicas on three brokers, of which two have to be in sync, beside Kafka's three."""
    cpu = 0.35 if ours is PAGE_CACHE else 0.6
    return About(
        name=name,
        title=f"three brokers, three replicas: {title}",
        unit=unit,
        who=HEADRACE_CLUSTER,
        against=KAFKA_CLUSTER,
        ours=ours,
        theirs=theirs,
        target=target,
        more_targets={} if p99 is None else {"latency_p99_ms": at_most(p99)},
        cost_targets={"cpu": at_most(cpu), "memory_mb": at_most(0.1)},
        replicas=3,
    )


def _replicated_1k(name: str, ours: Durability, theirs: Durability, reach: float, p99: float) -> Produce:
    title = "produce 300,000 records of 1 KB, acks=all, 1 partition"
    about = _replicated(name, title, ours, theirs, at_least(reach), p99=p99)
    return Produce(about=about, records=300_000, record_bytes=1024)


def _replicated_100b(name: str, ours: Durability, reach: float) -> Produce:
    title = "produce 2,000,000 records of 100 B, batches of 64 KB, 6 partitions"
    return Produce(
        about=_replicated(name, title, ours, PAGE_CACHE, at_least(reach), unit="records/s"),
        records=2 * MILLION,
        record_bytes=100,
        partitions=6,
        props=("batch.size=65536",),
        rate="records_per_s",
    )


def _replicated_single(name: str, ours: Durability, reach: float) -> Raw:
    title = "one request in flight, one record of 1 KB, from a pre-encoded client"
    about = _replicated(name, title, ours, PAGE_CACHE, at_most(reach), unit="ms (p50)")
    return Raw(about=about, requests=5_000, records=1, record_bytes=1024, in_flight=1, rate="latency_p50_ms")


def _replicated_unbatched(name: str, ours: Durability, reach: float) -> Raw:
    title = "produce 50,000 records of 100 B, one a request, 64 in flight, from a pre-encoded client"
    about = _replicated(name, title, ours, PAGE_CACHE, at_least(reach), unit="requests/s")
    return Raw(about=about, requests=50_000, records=1, record_bytes=100, in_flight=64)


REPLICATED: Final[tuple[Case, ...]] = (
    _replicated_1k("replicated-1k-page-cache", PAGE_CACHE, PAGE_CACHE, 1.8, 0.6),
    _replicated_1k("replicated-1k", FSYNC, PAGE_CACHE, 1.2, 0.8),
    _replicated_1k("replicated-1k-fsync", FSYNC, FSYNC, 1.2, 0.8),
    _replicated_100b("replicated-100b-page-cache", PAGE_CACHE, 1.3),
    _replicated_100b("replicated-100b", FSYNC, 1.0),
    _replicated_single("replicated-single-page-cache", PAGE_CACHE, 0.5),
    _replicated_single("replicated-single", FSYNC, 1.0),
    _replicated_unbatched("replicated-unbatched-page-cache", PAGE_CACHE, 4.0),
    _replicated_unbatched("replicated-unbatched", FSYNC, 1.5),
)


def _failover(name: str, title: str, end: End, target: Target) -> LongestPause:
    about = _cluster(name, f"three brokers: longest pause of a partition after {title}", "ms", 1.0)
    return LongestPause(about=replace(about, replicas=3, target=target), end=end)


STOPPED_MS_MAX: Final = 250
SESSION_MS: Final = 6_000
"""Headrace's default: how long a broker may be silent. Kafka's is 9,000."""
FAILOVERS: Final[tuple[LongestPause | Reelection, ...]] = (
    _failover("failover-kill", "kill -9 of the broker that is controller and leader", End.KILL, at_most(0.15)),
    _failover(
        "failover-stop",
        "SIGTERM of the broker that is controller and leader",
        End.STOP,
        Target(1.0, Better.LOWER, most=STOPPED_MS_MAX),
    ),
    _failover(
        "failover-pause",
        "SIGSTOP of the broker that is controller and leader",
        End.PAUSE,
        Target(1.0, Better.LOWER, most=SESSION_MS + 1_000),
    ),
    Reelection(
        about=replace(
            _cluster("failover-1000", "three brokers: kill -9 to new leaders of 1,000 partitions", "ms", 1.0),
            target=Target(1.0, Better.LOWER, most=1_000),
        ),
        partitions=1_000,
    ),
)
"""`make bench-failover`; `make bench` leaves them out."""


def _move(name: str, megabytes: int, title: str) -> MovePartition:
    about = _cluster(name, f"three brokers: a partition of {title} to another broker, under load", "ms", 1.0)
    more = {"copied_mb": at_most(0.1), "pause_ms": at_most(1.0)}
    about = replace(about, who=HEADRACE_WITH_STORE, more_targets=more, restarts=False)
    return MovePartition(about=about, records=megabytes * 1024)


MOVES: Final[tuple[MovePartition, ...]] = (
    _move("move-10mb", 10, "10 MB"),
    _move("move-1gb", 1024, "1 GB"),
    _move("move-5gb", 5 * 1024, "5 GB"),
)
"""`make bench-moves`; `make bench` leaves them out."""
CASES: Final[tuple[Case, ...]] = (
    _produce_1k("produce-1k", 300_000, FSYNC, PAGE_CACHE, 1.0),
    _produce_1k_fresh("produce-1k-fresh", 300_000, 1.0),
    _produce_1k("produce-1k-long", MILLION, FSYNC, PAGE_CACHE, 1.4),
    _produce_1k("produce-1k-page-cache", MILLION, PAGE_CACHE, PAGE_CACHE, 2.0),
    _produce_1k("produce-1k-fsync", MILLION, FSYNC, FSYNC, 2.0),
    Produce(
        about=About(
            name="produce-1k-6p",
            title="produce 300,000 records of 1 KB, acks=all, 6 partitions",
            target=at_least(1.0),
        ),
        records=300_000,
        record_bytes=1024,
        partitions=6,
    ),
    Produce(
        about=About(
            name="produce-100b",
            title="produce 4,000,000 records of 100 B, batches of 64 KB, 6 partitions",
            unit="records/s",
            ours=PAGE_CACHE,
            target=at_least(1.2),
            more_targets={"latency_p99_ms": at_most(0.5)},
        ),
        records=4 * MILLION,
        record_bytes=100,
        partitions=6,
        props=("batch.size=65536",),
        rate="records_per_s",
    ),
    Produce(
        about=About(
            name="produce-unbatched",
            title="produce 100,000 records of 100 B, one a request",
            unit="records/s",
            ours=PAGE_CACHE,
            target=at_least(1.3),
        ),
        records=100_000,
        record_bytes=100,
        props=("batch.size=0", "linger.ms=0"),
        rate="records_per_s",
    ),
    Raw(
        about=About(
            name="produce-unbatched-raw",
            title="produce 100,000 records of 100 B, one a request, 64 in flight, from a pre-encoded client",
            unit="requests/s",
            ours=PAGE_CACHE,
            target=at_least(3.0),
        ),
        requests=100_000,
        records=1,
        record_bytes=100,
        in_flight=64,
    ),
    Fetch(
        about=About(
            name="fetch-1g",
            title="fetch 1 GB of 1 KB records, one consumer",
            ours=PAGE_CACHE,
            target=at_least(1.2),
        ),
        filled=Filled(records=MILLION, record_bytes=1024),
    ),
    FetchTogether(
        about=About(
            name="fetch-10",
            title="fetch 250,000 records of 1 KB, ten consumers of librdkafka at once",
            ours=PAGE_CACHE,
            target=at_least(1.0),
        ),
        filled=Filled(records=250_000, record_bytes=1024),
        readers=10,
    ),
    FetchTogetherRaw(
        about=About(
            name="fetch-10-raw",
            title="fetch 250,000 records of 1 KB, ten pre-encoded consumers at once",
            ours=PAGE_CACHE,
            target=at_least(1.0),
        ),
        filled=Filled(records=250_000, record_bytes=1024),
        readers=10,
    ),
    _single("single-page-cache", PAGE_CACHE, PAGE_CACHE, 0.5),
    _single("single-fsync", FSYNC, FSYNC, 1.0),
    EndToEnd(
        about=About(
            name="end-to-end",
            title="end to end at 5,000 records of 100 B a second",
            unit="ms (p50)",
            ours=PAGE_CACHE,
            target=at_most(1.0),
            more_targets={"latency_p99_ms": at_most(1.0)},
        ),
        records_per_s=5_000,
        seconds=10,
        record_bytes=100,
    ),
    StartUp(
        about=About(
            name="start",
            title="from the start of the broker to its first acknowledged record",
            unit="s",
            target=at_most(0.25),
            warms_up=False,
            restarts=True,
        )
    ),
    _mixed("mixed", PAGE_CACHE),
    _mixed("mixed-fsync", FSYNC),
    _journal(1),
    _journal(6),
    Failover(
        about=_cluster(
            "controller-failover",
            "three brokers: from kill -9 of the controller to the next topic that is made",
            "ms",
            0.15,
        ),
        rounds=1,
    ),
    CreateTopics(
        about=_cluster("create-topics", "three brokers: 1,000 topics of one partition, one by one", "s", 1.0),
        topics=1_000,
        batch=1,
    ),
    CreateTopics(
        about=_cluster(
            "create-topics-100",
            "three brokers: 10,000 topics of one partition, 100 a request",
            "s",
            1.0,
        ),
        topics=10_000,
        batch=100,
    ),
    *REPLICATED,
)
