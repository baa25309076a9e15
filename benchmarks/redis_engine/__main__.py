"""The Redis engine beside its limit, its floors and other brokers: `python -m benchmarks.redis_engine`.

librdkafka writes to one partition by its C functions, and reads it (`rdkafka.py`). In the case `java` Kafka's own
ProducerPerformance writes: its idempotent producer has five batches in flight, and librdkafka's has one. These take
turns, in one run:

- `bare`: a loop that pipelines XADD or XRANGE with the same batches, without any broker: the limit (`bare.py`).
- `sink`: a process that answers produce requests and keeps nothing: the floor of the client and of one hop (`sink.py`).
- `relay`: the same with one XADD for each batch, which it answers when Redis does. No broker in Python between that
  client and Redis does less.
- `checking`: a relay that checks as a broker has to: CRC and records, sequences, leader epoch and end (`checking.py`).
- `redis`: `headrace up --engine redis`, over a Valkey that syncs each answer. All that use Redis have such a one.
- `local`: `headrace up` with its own logs, which syncs too.
- `kafka`: Apache Kafka with its default settings, whose answers come from the page cache.

Rates are MB of record values a second. Each comes with the processor time for a MB, in milliseconds: of the client, the
broker and Redis. Latencies are those of RATE records of 1 KB a second, from the time at which each was due. Every load
gathers records for 5 ms. Medians over the turns count, and our ratios to `bare` and to both relays are of these.
`--keep` appends everything to benchmarks/results/redis-engine.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.load import results
from benchmarks.redis_engine.entrants import (
    MEGABYTE,
    PARTITIONS_MAX,
    Costs,
    Entrant,
    entrants,
    memory_mb,
    wait_for_rest,
)
from benchmarks.redis_engine.rdkafka import BATCH_BYTES, IN_FLIGHT, LINGER_MS
from benchmarks.redis_engine.sink import ONE
from tools import kafka_jars

SIZES: Final = {"1k": (1024, 100_000), "100b": (100, 400_000)}
"""Bytes of a record, and records of a run."""
JAVA_RECORDS: Final = 200_000
"""So many that the Java machine has compiled its code long before the end."""
RATE: Final = 5_000
SECONDS: Final = 4
WARM: Final = 0.2
"""The part of a steady run at its beginning that does not count."""
MANY: Final = 10_000
"""Records of 1 KB over PARTITIONS_MAX partitions."""
CASES: Final = ("plain", "idempotent", "java", "steady", "many")
LIMIT: Final = "bare"
OURS: Final = "redis"
BESIDE: Final = (LIMIT, "relay", "checking")
"""Those to which our ratio is told."""

Figures: TypeAlias = dict[str, float]


def measured(entrant: Entrant, case: str, size: int, count: int, work: Callable[[], float]) -> Figures:
    """The rate of what takes so many seconds, and the processor time for a MB of each process."""
    megabytes, costs = size * count / MEGABYTE, Costs(entrant.pids)
    seconds = work()
    spent = {f"{case} {who} ms/MB": took / megabytes for who, took in costs.by_now().items()}
    return {case: megabytes / seconds, **spent}


def plain(entrant: Entrant, turn: int, scale: float) -> Figures:
    """Produce and fetch, with records of both sizes."""
    found: Figures = {}
    topics = [f"{name}-{turn}" for name in SIZES]
    entrant.make(topics)
    for (name, (size, most)), topic in zip(SIZES.items(), topics, strict=True):
        count = round(most * scale)
        found |= measured(entrant, f"produce-{name}", size, count, partial(entrant.write, topic, size, count))
        entrant.check(topic, count)
        found |= measured(entrant, f"fetch-{name}", size, count, partial(entrant.read, topic, count))
    entrant.delete(topics)
    return found


def idempotent(entrant: Entrant, turn: int, scale: float) -> Figures:
    """Produce by an idempotent producer, which takes a processor for itself."""
    size, most = SIZES["1k"]
    count, topic = round(most * scale), f"idempotent-{turn}"
    entrant.make([topic])
    work = partial(entrant.write, topic, size, count, idempotent=True)
    found = measured(entrant, "produce-1k-idempotent", size, count, work)
    entrant.check(topic, count)
    entrant.delete([topic])
    return found


def java(entrant: Entrant, turn: int, scale: float) -> Figures:
    """Produce by Java's idempotent producer, with as many batches in flight as it may have, and with one. The time of
    the Java machine's own start is not in the rate, but it is in the processor time."""
    size, _ = SIZES["1k"]
    count, found = round(JAVA_RECORDS * scale), Figures()
    for name, in_flight in (("produce-1k-java", IN_FLIGHT), ("produce-1k-java-one-in-flight", 1)):
        topic = f"{name}-{turn}{ONE}"
        entrant.make([topic])
        work = partial(entrant.write_by_java, topic, size, count, in_flight)
        found |= measured(entrant, name, size, count, work)
        entrant.check(topic, count)
        entrant.delete([topic])
    return found


def steady(entrant: Entrant, turn: int, scale: float) -> Figures:
    """Latencies at a fixed rate."""
    topic = f"steady-{turn}"
    entrant.make([topic])
    took = entrant.steady(topic, SIZES["1k"][0], RATE, SECONDS * scale)
    took = sorted(took[int(len(took) * WARM) :])
    entrant.delete([topic])
    return {"p50-ms": took[len(took) // 2], "p99-ms": took[int(len(took) * 0.99)]}


def many(entrant: Entrant, turn: int, scale: float) -> Figures:
    """Produce over many partitions: seconds to make the topic, rate, and the broker's memory."""
    size, topic, count = SIZES["1k"][0], f"many-{turn}", round(MANY * scale)
    before = memory_mb(entrant) if "broker" in entrant.pids else 0.0
    started = time.perf_counter()
    entrant.make([topic], PARTITIONS_MAX)
    made_s = time.perf_counter() - started
    name = f"produce-{PARTITIONS_MAX}-partitions"
    found = measured(entrant, name, size, count, partial(entrant.write, topic, size, count, PARTITIONS_MAX))
    entrant.check(topic, count, PARTITIONS_MAX)
    if "broker" in entrant.pids:
        found |= {f"{name} made s": made_s, f"{name} more memory MB": memory_mb(entrant) - before}
    entrant.delete([topic])
    return found


WORK: Final[Mapping[str, Callable[[Entrant, int, float], Figures]]] = {
    "plain": plain,
    "idempotent": idempotent,
    "java": java,
    "steady": steady,
    "many": many,
}


def turn_of(entrant: Entrant, turn: int, cases: Sequence[str], scale: float) -> Figures:
    """All figures of one entrant, and its memory after all cases."""
    found: Figures = {}
    for case in cases:
        if case in ("idempotent", "java") and entrant.name == LIMIT:
            continue
        found |= WORK[case](entrant, turn, scale)
        wait_for_rest(entrant)
    if "broker" in entrant.pids and len(cases) == len(CASES):
        found["memory MB"] = memory_mb(entrant)
    return found


def ratios(medians: Mapping[str, Figures]) -> dict[str, Figures]:
    """Our rates and latencies by those of each of BESIDE. Costs have none."""
    ours, found = medians.get(OURS, {}), dict[str, Figures]()
    for name in BESIDE:
        theirs = medians.get(name, {})
        found[name] = {key: ours[key] / theirs[key] for key in ours if " " not in key and theirs.get(key)}
    return found


def table(medians: Mapping[str, Figures], by: Mapping[str, Figures]) -> str:
    """Every figure of every entrant, and our ratios."""
    names, keys = list(medians), list(dict.fromkeys(key for figures in medians.values() for key in figures))
    told = [name for name in by if by[name]]
    lines = [
        f"| | {' | '.join([*names, *(f'{OURS}/{name}' for name in told)])} |",
        "|---" * (1 + len(names + told)) + "|",
    ]
    for key in keys:
        cells = [f"{medians[name][key]:,.2f}" if key in medians[name] else "" for name in names]
        cells += [f"{by[name][key]:.2f}" if key in by[name] else "" for name in told]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="the part of the records of each case")
    parser.add_argument("--entrant", action="append", default=[], help="only those that are named")
    parser.add_argument("--case", action="append", choices=CASES, help="only those that are named")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    cases, turns = options.case or list(CASES), dict[str, list[Figures]]()
    if "java" in cases and (missing := kafka_jars.missing_tool()):
        print(f"The case java is left out: {missing}", flush=True)
        cases.remove("java")
    with tempfile.TemporaryDirectory(prefix="hr") as place, entrants(Path(place), options.entrant) as all_of_them:
        for turn in range(options.turns + 1):
            for entrant in all_of_them[:: 1 if turn % 2 == 0 else -1]:
                started = time.perf_counter()
                found = turn_of(entrant, turn, cases, options.scale if turn else options.scale / 4)  # warms up
                told = {key: round(value, 2) for key, value in found.items() if "ms/MB" not in key}
                print(turn or "warm-up", entrant.name, f"{time.perf_counter() - started:.1f} s", told, flush=True)
                if turn:
                    turns.setdefault(entrant.name, []).append(found)
    medians = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]} for name, found in turns.items()
    }
    by = ratios(medians)
    print(table(medians, by))
    if options.keep:
        load = {"batch_bytes": BATCH_BYTES, "in_flight": IN_FLIGHT, "linger_ms": LINGER_MS, "rate": RATE}
        outcome = {"case": "redis-engine", "load": load, "turns": turns, "medians": medians, "ratios": by}
        results.append("redis-engine", outcome)


if __name__ == "__main__":
    main()
