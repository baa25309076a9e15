"""librdkafka goes to a new leader by what the old one tells it (KIP-951), as its own log says."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.broker.handlers import fetch, plain_fetch
from headrace.broker.kit.parking import ParkedFetch
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests import loops
from tests.broker.clusters import BY_HAND, Cluster, running
from tests.broker.group_broker import RawClient

DEADLINE_S = 150.0
TOLD = "[0]: updated with leader 2 and epoch 1"
"""Not by metadata, of which it says other things."""


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logger(name: str) -> tuple[logging.Logger, list[str]]:
    """For a client, with all that it says of metadata."""
    made, lines = logging.Logger(name, logging.DEBUG), Lines()
    made.addHandler(lines)
    return made, lines.lines


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once a fetch waits at a broker."""
    waits = asyncio.Event()

    class Parked(ParkedFetch):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            waits.set()

    for road in (fetch, plain_fetch):
        monkeypatch.setattr(road, "ParkedFetch", Parked)
    return waits


async def led_by_the_first(cluster: Cluster) -> None:
    """t-0 is on brokers 1 and 2."""
    async with RawClient(str(cluster.address(1))) as client:
        wanted = CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=(CreatableReplicaAssignment(0, (1, 2)),),
        )
        (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=120_000))).topics
        assert made.error_code == 0
    await cluster.agree()
    await cluster.settled(1)


async def lose_the_first(cluster: Cluster) -> None:
    assert await cluster.fence(1) is None
    image = await cluster.agree()
    await cluster.settled(2)
    partition = image.partition_info("t", 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch) == (2, 1)


def test_a_producer_and_a_consumer_are_sent_to_the_new_leader(tmp_path: Path, parked: asyncio.Event) -> None:
    async def work() -> None:
        async with running(tmp_path, 2, BY_HAND) as cluster, asyncio.timeout(DEADLINE_S):
            await led_by_the_first(cluster)
            options: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "debug": "metadata"}
            (of_producer, produced), (of_consumer, consumed) = logger("producer"), logger("consumer")
            producer = confluent_kafka.Producer({**options, "acks": 1, "linger.ms": 0}, logger=of_producer)
            grouped = {**options, "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
            consumer = confluent_kafka.Consumer(grouped, logger=of_consumer)
            consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
            try:
                await asyncio.to_thread(deliver, producer, b"to the first")
                await parked.wait()
                await lose_the_first(cluster)
                await asyncio.to_thread(deliver, producer, b"to the second")
                message = await asyncio.to_thread(consumer.poll, DEADLINE_S)
                assert message is not None
                assert message.error() is None, message.error()
                assert message.value() in (b"to the first", b"to the second")
                for lines in (produced, consumed):
                    assert any(TOLD in line for line in lines), lines
            finally:
                await asyncio.to_thread(consumer.close)

    loops.run(work())


def deliver(producer: confluent_kafka.Producer, value: bytes) -> None:
    failed: list[Any] = []
    producer.produce("t", value, partition=0, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert failed == [None]
