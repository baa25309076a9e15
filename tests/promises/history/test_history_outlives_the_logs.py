"""Promises 1, 3 and 6 over durable history, with real processes.

Acknowledged records that were exported and then deleted from the logs of all brokers are read from offset 0. They are
there once, in order, at their offsets, whichever brokers are killed meanwhile or lead. There are three brokers with
three replicas and one directory for a store. The oracle is what librdkafka was told.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests import loops
from tests.promises.support.load import QUIET
from tools.servers.broker_cluster import BrokerCluster

T = TypeVar("T")
TOPIC: Final = "history"
RECORDS: Final = 6_000
DEADLINE_S: Final = 150.0
LOOK_EVERY_S: Final = 0.02


def produce(bootstrap: str, first: int, count: int) -> dict[int, bytes]:
    """Produce records; returns the acknowledged values by offset."""
    acknowledged: dict[int, bytes] = {}

    def on_delivery(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        acknowledged[message.offset()] = message.value()

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "batch.size": 8192, **QUIET}
    )
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d " % number + b"v" * 200, partition=0, on_delivery=on_delivery)
    assert producer.flush(DEADLINE_S) == 0
    return acknowledged


class Reader:
    """A consumer that begins at an offset and keeps what it is given, in order."""

    def __init__(self, bootstrap: str, *, first: int = 0) -> None:
        self.read: list[tuple[int, bytes]] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.message.max.bytes": 20_000,
                "queued.max.messages.kbytes": 64,
                **QUIET,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, first)])

    def read_to(self, end: int) -> None:
        """Blocking."""
        while not self.read or self.read[-1][0] < end - 1:
            message = self._consumer.poll(DEADLINE_S)
            assert message is not None, f"nothing came behind {self.read[-1:]}"
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                self.read.append((message.offset(), message.value()))

    def close(self) -> None:
        self._consumer.close()


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def logs_begin_above(cluster: BrokerCluster, offset: int) -> bool:
    """Whether no broker has anything below `offset` in its files any more."""
    firsts = []
    for node in cluster.nodes.values():
        segments = sorted((node.data / "logs" / f"{TOPIC}-0").glob("*.log"))
        firsts.append(int(segments[0].stem) if segments else RECORDS)  # all of it is exported
    return min(firsts) > offset


def leader_of(bootstrap: str) -> int:
    """-1: none is known."""
    metadata = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(TOPIC, timeout=DEADLINE_S)
    leader: int = metadata.topics[TOPIC].partitions[0].leader
    return leader


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await in_thread(true):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(LOOK_EVERY_S)


def test_what_only_the_store_has_is_read_from_offset_0_through_the_death_of_its_leader(tmp_path: Path) -> None:
    async def work() -> None:
        options = (
            "--json",
            "--durable",
            f"file://{tmp_path / 'store'}",
            "--config",
            "log.retention.check.interval.ms=50",
        )
        async with BrokerCluster(tmp_path, 3, *options) as cluster:
            await cluster.start(*cluster.nodes)
            everybody = cluster.bootstrap
            topic = NewTopic(
                TOPIC,
                1,
                3,
                config={
                    "segment.bytes": "65536",
                    "local.retention.bytes": "0",
                    "durable.export.max.lag.ms": "200",
                    "min.insync.replicas": "2",
                },
            )
            admin = AdminClient({"bootstrap.servers": everybody, **QUIET})
            await in_thread(functools.partial(admin.create_topics([topic])[TOPIC].result, DEADLINE_S))
            known = await in_thread(functools.partial(produce, everybody, 0, RECORDS))
            await until(functools.partial(logs_begin_above, cluster, RECORDS * 9 // 10))
            reader = Reader(everybody)
            await in_thread(functools.partial(reader.read_to, RECORDS // 4))
            assert reader.read[-1][0] < RECORDS * 9 // 10, "it is to be in the midst of history"
            leader = await in_thread(functools.partial(leader_of, everybody))
            await cluster.kill(leader)
            more = await in_thread(functools.partial(produce, everybody, RECORDS, RECORDS // 4))
            known |= more
            await in_thread(functools.partial(reader.read_to, len(known)))
            reader.close()
            assert reader.read == sorted(known.items())
            await cluster.start(leader)
            again = Reader(str(cluster.address(leader)))
            await in_thread(functools.partial(again.read_to, len(known)))
            again.close()
            assert again.read == sorted(known.items())

    loops.run(work())
