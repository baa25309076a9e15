"""Transactions of a test, appended to a partition below its admission, as their coordinator would have it."""

from __future__ import annotations

import confluent_kafka
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.broker.partitions.partition import Partition
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer
from headrace.net.client.states import State
from headrace.storage.engine.appending import Appended
from headrace.wire.batches import encode_batch, parse_header
from headrace.wire.records import Record
from headrace.wire.transactions import EndMarker, encode_marker

TIME = 1_700_000_000_000


class Transactions:
    """The producers of one partition, each at epoch 0."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._sequences: dict[int, int] = {}

    def write(self, producer: int, *values: bytes, transactional: bool = True) -> Appended:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(values)
        records = [Record(at, TIME, b"key", value) for at, value in enumerate(values)]
        return self._append(
            encode_batch(
                records,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=transactional,
            )
        )

    def mark(self, producer: int, *, committed: bool) -> Appended:
        marker = EndMarker(committed, 3)
        batch = encode_marker(producer, 0, marker, timestamp=TIME)
        appended = self._append(batch)
        self.partition._on_marker(parse_header(batch), marker, appended.base_offset, TIME)
        return appended

    def _append(self, batch: bytes) -> Appended:
        appended = self.partition._append(batch, parse_header(batch), TIME, needs_flush=True)
        assert isinstance(appended, Appended)
        return appended


def interleaved(transactions: Transactions) -> list[bytes]:
    """Many transactions over many segments; the values that readers are to see."""
    seen, pending = [], dict[int, list[bytes]]()
    order: list[tuple[int, bytes]] = []
    gone: set[bytes] = set()
    for number in range(120):
        producer = number % 5
        value = b"%d-%d" % (producer, number) + b"." * 400
        transactions.write(producer, value)
        order.append((producer, value))
        pending.setdefault(producer, []).append(value)
        if number % (7 + producer) == 0:
            committed = number % 2 == 0
            transactions.mark(producer, committed=committed)
            gone |= set() if committed else set(pending[producer])
            del pending[producer]
    for producer in pending:
        transactions.mark(producer, committed=producer % 2 == 0)
        gone |= set() if producer % 2 == 0 else set(pending[producer])
    seen = [value for _, value in order if value not in gone]
    assert 10 < len(seen) < len(order) - 10
    return seen


async def by_aiokafka(bootstrap: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=6000,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition("t", 0)])
        found: list[bytes] = []
        while len(found) < count:
            found += [each.value for many in (await consumer.getmany(timeout_ms=500)).values() for each in many]
        return found
    finally:
        await consumer.stop()


def by_librdkafka(bootstrap: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": "read_committed",
            "fetch.max.bytes": 6000,
            "message.max.bytes": 6000,
            "max.partition.fetch.bytes": 5000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found


async def by_headrace(
    bootstrap: str, end: int, *, size: int, committed_only: bool = False
) -> list[tuple[bytes | None, State]]:
    """Values with the states of their transactions, below an offset."""
    found: list[tuple[bytes | None, State]] = []
    async with (
        Cluster(bootstrap) as cluster,
        Consumer(cluster, partition_bytes_max=size, committed_only=committed_only, tells_states=True) as consumer,
    ):
        consumer.assign("t", 0, 0)
        while min(consumer.positions.values()) < end:
            for one in await consumer.poll():
                values = [record.value for record in one.records]
                found += zip(values, one.states, strict=True)
    return found
