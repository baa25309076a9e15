"""The pause of producers in moves, and whether it depends on the size of a partition: `python -m benchmarks.micro.moves
[--sizes 10 1000] [--moves 50]`; with BIG=1 in the environment 5,000 MB too.

There are three broker processes, one directory for a store, and for each size a partition with that many megabytes.
Idempotent producers with their clients' own settings write to it at a steady pace: librdkafka and, where there is a
JVM, Java's. Meanwhile it is handed over from broker to broker.

Prints for each size:
- when each step of the pause was over, from the logs of owners and targets, in milliseconds since the gate was closed;
- for each client its pause: the slowest request under way while a move lasted, and the slowest until the clients have
  settled;
- for comparison, the slowest request in an equal time without a move after each;
- the longest time between two acknowledgements;
- the slowest moves, step by step, with the slowest sync of the disk meanwhile, as a file beside the brokers' sees it;
- the time that the host took from all processors (proc(5), steal);
- work that held a broker's event loop, as its watchdog reports.

At the end, it prints whether the pauses of all sizes lie within 1.5 times or 20 ms of each other.

Before the first move all records are in the owner's log. The others have only the tail, and history in the store. The
records that fill the partition are on the disk before the moves begin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.micro.steady import RECORD, Java, Librdkafka, Sent, Steady, wait_for
from headrace.net import loops
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.wire.messages.metadata import MetadataRequest
from tests.broker.group_broker import RawClient
from tools import kafka_jars
from tools.servers.broker_cluster import BrokerCluster

MEGABYTE: Final = 1_000_000
FILL_BYTES: Final = 50_000
DEADLINE_S: Final = 600.0
SETTLE_S: Final = 2.5
"""After each move: by then clients have learnt of it, and go to the new owner by themselves (CARRIED_MS_MAX)."""
PROBE_S: Final = 0.01
BEFORE_S: Final = 0.2
"""Requests sent up to this long before a move count with it."""
OPTIONS: Final = ("--json", "--config", "default.replication.factor=1")
OWNER: Final = "partition handed over"
TARGET: Final = "partition taken over"
HELD: Final = "the event loop was held"
STEPS: Final = (
    (OWNER, "flushed_ms"),
    (OWNER, "exported_ms"),
    (OWNER, "proposed_ms"),
    (OWNER, "committed_ms"),
    (TARGET, "seen_ms"),
    (TARGET, "recovered_ms"),
    (TARGET, "pause_ms"),
)
BROKERS_PAUSE: Final = "brokers' pause"
FLAT_PART: Final = 1.5
FLAT_MS: Final = 20.0
SLOWEST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Moved:
    """One move."""

    number: int
    steps: Mapping[str, float]
    begun: float
    """When it was asked for, by the monotonic clock."""
    over: float
    """When it was seen to be over."""
    met: Mapping[str, Sent]
    """Of each client: its slowest request of those that were under way at any time from `begun` to `over`."""
    slowest: Mapping[str, Sent]
    """Of each client: its slowest request until it has settled."""
    without: Mapping[str, Sent]
    """Of each client: its slowest request of as long a time without a move, right afterwards."""
    gaps: Mapping[str, float]
    """Of each client: its longest time between two acknowledgements, in milliseconds."""
    disk: Sent
    """The slowest sync of the disk."""
    stolen_ms: int
    """Processor time that the host took."""
    held: Sequence[str]
    """Work that held a broker's event loop, and for how long."""


def fill(bootstrap: str, topic: str, size: int) -> None:
    client = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for _ in range(size // FILL_BYTES):
        while True:
            try:
                client.produce(topic, bytes(FILL_BYTES), partition=0)
                break
            except BufferError:
                client.poll(0.1)
        client.poll(0)
    assert client.flush(DEADLINE_S) == 0
    os.sync()


async def leader_of(client: RawClient, topic: str) -> int:
    answer = await client.ask(12, MetadataRequest(topics=None))
    (found,) = [one for one in answer.topics if one.name == topic]
    return int(found.partitions[0].leader_id)


async def move_once(client: RawClient, topic: str, brokers: Sequence[int]) -> None:
    source = await leader_of(client, topic)
    target = brokers[(brokers.index(source) + 1) % len(brokers)]
    wish = ReassignableTopic(topic, (ReassignablePartition(0, (target,)),))
    async with asyncio.timeout(DEADLINE_S):
        answer = await client.ask(1, AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=(wish,)))
        while answer.error_code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):  # asked again, as by all
            answer = await client.ask(1, AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=(wish,)))
        assert answer.error_code == 0, answer
        assert answer.responses[0].partitions[0].error_code == 0, answer
        while (  # noqa: ASYNC110 - who asks from outside can only ask again
            await client.ask(0, ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None))
        ).topics or await leader_of(client, topic) != target:
            await asyncio.sleep(0.02)


class Disk:
    """Syncs a file of its own, over and over: what takes that long is the machine's. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "probe"
        self._syncs: list[Sent] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._probe)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _probe(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._over.wait(PROBE_S):
                file.seek(0)
                file.write(RECORD)
                begun = time.monotonic()
                os.fdatasync(file.fileno())
                self._syncs.append(Sent(begun, time.monotonic()))

    def slowest(self, begun: float, over: float) -> Sent:
        """The slowest request that began in this span, by the monotonic clock."""
        return max((sync for sync in self._syncs if begun <= sync.sent < over), key=lambda sync: sync.took_ms)


def stolen_ms() -> int:
    """Of all processors, since the start of the machine."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) * 1000 // os.sysconf("SC_CLK_TCK")


class Told:
    """The brokers' log lines about one topic, from now on."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self._topic = topic
        self._at = {cluster.log(broker): cluster.log(broker).stat().st_size for broker in cluster.nodes}
        self.held: list[str] = []

    def steps(self) -> dict[str, float]:
        """Of the move that has ended since it was asked last."""
        found: dict[str, float] = {}
        self.held = []
        for path, at in self._at.items():
            with path.open("rb") as log:
                log.seek(at)
                lines = log.readlines()
                self._at[path] = log.tell()
            for line in lines:
                told: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
                if told.get("event") == HELD:
                    self.held.append(
                        f"{path.name} held for {told['milliseconds']} ms: {' < '.join(told['frames'][::-1])}"
                    )
                if told.get("topic") != self._topic:
                    continue
                found |= {step: told[step] for event, step in STEPS if told.get("event") == event and step in told}
        return found


async def measure(cluster: BrokerCluster, disk: Disk, size: int, moves: int, per_second: int) -> list[Moved]:
    topic = f"moved-{size // MEGABYTE}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(topic, 1, 1, config={"retention.ms": "-1"})
    await asyncio.to_thread(partial(admin.create_topics([new])[topic].result, DEADLINE_S))
    await asyncio.to_thread(fill, cluster.bootstrap, topic, size)
    clients: list[type[Librdkafka | Java]] = [Librdkafka] if kafka_jars.missing_tool() else [Librdkafka, Java]
    producers: list[Steady] = [
        client(cluster.bootstrap, topic, per_second / len(clients))
        for client in clients  # they share the pace
    ]
    found = []
    async with RawClient(str(cluster.address(next(iter(cluster.nodes))))) as client:
        with ExitStack() as stack:
            for producer in producers:
                await asyncio.to_thread(wait_for, stack.enter_context(producer))
            await asyncio.sleep(1)
            told = Told(cluster, topic)
            for number in range(moves):
                begun, stolen = time.monotonic(), stolen_ms()
                await move_once(client, topic, list(cluster.nodes))
                over = time.monotonic()
                await asyncio.sleep(SETTLE_S)
                span = begun - BEFORE_S, time.monotonic() - BEFORE_S
                met = {producer.name: producer.slowest_under_way(begun, over) for producer in producers}
                slowest = {producer.name: producer.slowest(*span) for producer in producers}
                gaps = {producer.name: producer.longest_gap_ms(*span) for producer in producers}
                slow, taken = disk.slowest(*span), stolen_ms() - stolen
                steps, held = told.steps(), told.held
                await asyncio.sleep(BEFORE_S + span[1] - span[0])
                quiet = span[1] + BEFORE_S, span[1] + BEFORE_S + span[1] - span[0]
                without = {producer.name: producer.slowest(*quiet) for producer in producers}
                found.append(Moved(number, steps, begun, over, met, slowest, without, gaps, slow, taken, held))
    for producer in producers:
        print(f"  {producer.name}: usually {producer.usual_ms():.1f} ms, failures {producer.failures[:3]}")
    return found


def summary(values: Sequence[float]) -> str:
    return "".join(f"{at(values, part):8.0f}" for part in (0.5, 0.99, 1.0))


def at(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def pauses(moves: Sequence[Moved]) -> dict[str, list[float]]:
    """The pauses that must be short, and equally short for each size."""
    found = {BROKERS_PAUSE: [move.steps["pause_ms"] for move in moves]}
    for client in moves[0].slowest:
        found[f"{client}: pause"] = [move.met[client].took_ms for move in moves]
        found[f"{client}: slowest request"] = [move.slowest[client].took_ms for move in moves]
        found[f"{client}: slowest without a move"] = [move.without[client].took_ms for move in moves]
        found[f"{client}: between two answers"] = [move.gaps[client] for move in moves]
    return found


def longest(move: Moved) -> float:
    return max(move.steps["pause_ms"], *(one.took_ms for one in move.slowest.values()))


def tell(size: int, moves: Sequence[Moved]) -> None:
    print(f"\n{size / MEGABYTE:g} MB, {len(moves)} moves (ms){'':22}  median     p99    most   first")
    for event, step in STEPS[:-1]:
        if values := [move.steps[step] for move in moves if step in move.steps]:
            print(f"  {event:<24} {step:<16} {summary(values)}{values[0]:8.0f}")
    for name, values in pauses(moves).items():
        print(f"  {name:<41} {summary(values)}{values[0]:8.0f}")
    print("  the slowest:")
    for move in sorted(moves, key=longest, reverse=True)[:SLOWEST_SHOWN]:
        steps = " ".join(f"{step.removesuffix('_ms')} {move.steps.get(step, -1):.0f}" for _, step in STEPS)
        clients = ", ".join(
            f"{client} {one.took_ms:.0f} (sent at {1000 * (one.sent - move.begun):.0f})"
            for client, one in [*move.slowest.items(), ("a sync of the disk", move.disk)]
        )
        over = f"over at {1000 * (move.over - move.begun):.0f}"
        print(f"    move {move.number + 1}: {steps}; {over}; {clients}; stolen {move.stolen_ms}", flush=True)
        for line in move.held:
            print(f"      {line}")


def tell_flatness(found: Mapping[int, Sequence[Moved]]) -> None:
    print(f"\nOf {' and '.join(f'{size / MEGABYTE:g}' for size in found)} MB beside each other (median and p99, ms):")
    by_size = [pauses(moves) for moves in found.values()]
    for name in by_size[0]:
        if "without" in name:
            continue  # it is of no move
        for part in (0.5, 0.99):
            each = [at(one[name], part) for one in by_size]
            flat = max(each) <= max(FLAT_PART * min(each), min(each) + FLAT_MS)
            told = " ".join(f"{one:.0f}" for one in each)
            print(f"  {name:<41} {part:4g}: {told:<16} {'flat' if flat else 'NOT FLAT'}")


async def measure_all(root: Path, sizes: Sequence[int], moves: int, per_second: int) -> None:
    options = (*OPTIONS, "--durable", f"file://{root / 'store'}")
    found = {}
    async with BrokerCluster(root, 3, *options) as cluster:
        await cluster.start(*cluster.nodes)
        with Disk(root) as disk:
            for size in sizes:
                found[size] = await measure(cluster, disk, size, moves, per_second)
                tell(size, found[size])
    if len(found) > 1:
        tell_flatness(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    usual = [10.0, 1_000.0, *([5_000.0] if os.environ.get("BIG") == "1" else [])]
    parser.add_argument("--sizes", type=float, nargs="+", default=usual, help="megabytes")
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument("--rate", type=int, default=500, help="records of 1 kB a second, of all clients together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sizes = [int(size * MEGABYTE) for size in options.sizes]
        loops.run(measure_all(Path(directory), sizes, options.moves, options.rate))


if __name__ == "__main__":
    main()
