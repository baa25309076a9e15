"""How long moves keep producers waiting: `python -m benchmarks.micro.moves [--sizes 1 10 100] [--moves 20]`.

Three broker processes, one directory for a store, and one partition that holds so many megabytes. An idempotent
librdkafka with its own settings writes to it at a steady pace while it is handed over from broker to broker. Prints,
for each size, when each step of the pause was over, as owners and targets tell in their logs, in milliseconds since the
gate was closed; and, for each move, how long the slowest request took that librdkafka sent while it lasted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net import loops
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.wire.messages.metadata import MetadataRequest
from tests.broker.group_broker import RawClient
from tools.broker_cluster import BrokerCluster

TOPIC: Final = "moved"
MEGABYTE: Final = 1_000_000
FILL_BYTES: Final = 50_000
RECORD: Final = bytes(1_000)
DEADLINE_S: Final = 120.0
SETTLE_S: Final = 0.4
"""Between two moves, so that one does not slow the next."""
OPTIONS: Final = ("--json", "--config", "default.replication.factor=1")
OWNER: Final = "partition handed over"
TARGET: Final = "partition taken over"
STEPS: Final = (
    (OWNER, "flushed_ms"),
    (OWNER, "exported_ms"),
    (OWNER, "proposed_ms"),
    (OWNER, "committed_ms"),
    (TARGET, "seen_ms"),
    (TARGET, "recovered_ms"),
    (TARGET, "pause_ms"),
)


class Steady:
    """An idempotent producer that writes so many records a second, and knows how long each took. A context manager."""

    def __init__(self, bootstrap: str, per_second: int) -> None:
        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        self._client = confluent_kafka.Producer(options | {"error_cb": lambda _: None})
        self._pause_s = 1 / per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.took: list[tuple[float, float]] = []
        """When each was sent, by the monotonic clock, and how long it took, in seconds."""
        self.failures: list[str] = []

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
            self._client.produce(TOPIC, RECORD, partition=0, on_delivery=partial(self._on_delivery, time.monotonic()))
            due += self._pause_s
            self._client.poll(max(0.0, due - time.monotonic()))

    def _on_delivery(self, sent: float, error: Any, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))
        self.took.append((sent, time.monotonic() - sent))

    def slowest_ms(self, since: float, until: float) -> float:
        return 1000 * max((took for sent, took in list(self.took) if since <= sent <= until), default=0.0)


def fill(bootstrap: str, size: int) -> None:
    client = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for _ in range(size // FILL_BYTES):
        while True:
            try:
                client.produce(TOPIC, bytes(FILL_BYTES), partition=0)
                break
            except BufferError:
                client.poll(0.1)
        client.poll(0)
    assert client.flush(DEADLINE_S) == 0


async def leader_of(client: RawClient) -> int:
    answer = await client.ask(12, MetadataRequest(topics=None))
    (topic,) = [one for one in answer.topics if one.name == TOPIC]
    return int(topic.partitions[0].leader_id)


async def move_once(client: RawClient, brokers: Sequence[int]) -> None:
    source = await leader_of(client)
    target = brokers[(brokers.index(source) + 1) % len(brokers)]
    wish = ReassignableTopic(TOPIC, (ReassignablePartition(0, (target,)),))
    answer = await client.ask(1, AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=(wish,)))
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0), answer
    async with asyncio.timeout(DEADLINE_S):
        while (  # noqa: ASYNC110 - who asks from outside can only ask again
            await client.ask(0, ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None))
        ).topics or await leader_of(client) != target:
            await asyncio.sleep(0.02)


def told(cluster: BrokerCluster) -> list[dict[str, Any]]:
    lines = [line for broker in cluster.nodes for line in cluster.log(broker).read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def summary(values: Sequence[float]) -> str:
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99)]
    return f"{at[0]:7.0f} {at[1]:7.0f} {ordered[-1]:7.0f}"


async def measure(root: Path, size: int, moves: int, per_second: int) -> None:
    options = (*OPTIONS, "--durable", f"file://{root / 'store'}")
    async with BrokerCluster(root, 3, *options) as cluster:
        await cluster.start(*cluster.nodes)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, 1, 1, config={"retention.ms": "-1"})
        await asyncio.to_thread(partial(admin.create_topics([topic])[TOPIC].result, DEADLINE_S))
        await asyncio.to_thread(fill, cluster.bootstrap, size)
        slowest = []
        async with RawClient(str(cluster.address(next(iter(cluster.nodes))))) as client:
            with Steady(cluster.bootstrap, per_second) as producer:
                await asyncio.sleep(1)
                for _ in range(moves):
                    begun = time.monotonic()
                    await move_once(client, list(cluster.nodes))
                    await asyncio.sleep(SETTLE_S)
                    slowest.append(producer.slowest_ms(begun - SETTLE_S, time.monotonic()))
            usual = sorted(took for _, took in producer.took)[len(producer.took) // 2]
        print(f"\n{size / MEGABYTE:g} MB, {moves} moves, {per_second} records/s   median     p99    most  (ms)")
        lines = told(cluster)
        for event, step in STEPS:
            if values := [line[step] for line in lines if line["event"] == event and step in line]:
                print(f"  {event:<22} {step:<13} {summary(values)}")
        print(f"  slowest request, as librdkafka sees it {summary(slowest)}  (usual: {1000 * usual:.1f})")
        print(f"  each in turn: {' '.join(f'{one:.0f}' for one in slowest)}")
        print(f"  failures: {producer.failures[:3]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="megabytes")
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--rate", type=int, default=500, help="records of 1 kB a second")
    options = parser.parse_args()
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as directory:
            loops.run(measure(Path(directory), int(size * MEGABYTE), options.moves, options.rate))


if __name__ == "__main__":
    main()
