"""A broker with a durable store, histories of every kind on it, and what librdkafka reads of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import confluent_kafka

from headrace.base.ids import PartitionIndex
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.spark.options import parse_options
from headrace.spark.read.columns import Columns
from headrace.spark.read.extent import Sources
from headrace.spark.read.plan import Task, plan_tasks
from headrace.storage.tier.reader import Store
from headrace.testing import BrokerThread
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.broker import data_path
from tests.broker.group_broker import QUICK, RawClient
from tests.promises.support.load import QUIET

T = TypeVar("T")
LOOK_EVERY_S = 0.02
POLL_S = 60.0
TIME = 1_700_000_000_000
Row = tuple[str, int, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Topic, partition, offset, time in ms, its type, key, value, headers."""


class World(NamedTuple):
    bootstrap: str
    store: str

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        async def create() -> None:
            async with RawClient(self.bootstrap) as client:
                await data_path.create(client, topic, partitions, **configs)

        asyncio.run(create())

    def produce(self, topic: str, batches: Sequence[tuple[int, bytes]]) -> None:
        """Each to a partition, in order."""

        async def produce() -> None:
            async with RawClient(self.bootstrap) as client:
                for partition, batch in batches:
                    answer = await data_path.produce(client, topic, batch, partition=partition)
                    assert answer.error_code == 0, answer

        asyncio.run(produce())

    def delete(self, topic: str) -> None:
        async def delete() -> None:
            cluster = Cluster(self.bootstrap, client_id="tests")
            try:
                await Admin(cluster).delete_topic(topic)
            finally:
                await cluster.close()

        asyncio.run(delete())

    def widen(self, topic: str, partitions: int) -> None:
        """To so many in all."""

        async def widen() -> None:
            cluster = Cluster(self.bootstrap, client_id="tests")
            try:
                await Admin(cluster).create_partitions(topic, total=partitions)
            finally:
                await cluster.close()

        asyncio.run(widen())

    def delete_records(self, topic: str, *below: int) -> None:
        """Of each partition, from 0 on."""

        async def delete() -> None:
            async with RawClient(self.bootstrap) as client:
                answers = await data_path.delete_records(client, topic, below)
                assert not any(answer.error_code for answer in answers), answers

        asyncio.run(delete())

    def durable_end(self, topic: str, partition: int = 0) -> int:
        """Where durable history ends, as a reader of the store sees it."""
        store = Store.open(self.store)
        found = [each for each in store.topics() if each.name == topic]
        return store.catalog(found[0], PartitionIndex(partition)).next_offset if found else 0

    def exported(self, topic: str, at_least: int, partition: int = 0) -> int:
        """Wait until history has grown so far; where it ends. The test's own timeout ends a wait in vain."""
        pause = threading.Event()
        while (end := self.durable_end(topic, partition)) < at_least:
            pause.wait(LOOK_EVERY_S)
        return end

    def options(self, topic: str, **more: str) -> dict[str, str]:
        chosen = {} if {"topicPattern", "assign"} & set(more) else {"topic": topic}
        return {"store": self.store, "bootstrap": self.bootstrap, "includeHeaders": "true", **chosen, **more}


@contextmanager
def world(root: Path, **configs: str) -> Iterator[World]:
    store = f"file://{root / 'store'}"
    quick = {**QUICK, "log.cleaner.backoff.ms": "20", "durable.url": store, **configs}
    with BrokerThread(configs=quick, data=root / "data") as running:
        yield World(running.bootstrap, quick["durable.url"])


def consumed(bootstrap: str, topics: Sequence[str], *, isolation: str = "read_committed") -> list[Row]:
    """All that librdkafka gives out of these topics, in the order of topic, partition and offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # and not to the end, which would look like nothing to read
            "check.crcs": True,
            "isolation.level": isolation,
            **QUIET,
        }
    )
    try:
        known = consumer.list_topics(timeout=POLL_S).topics
        places = [(topic, partition) for topic in topics for partition in known[topic].partitions]
        consumer.assign([confluent_kafka.TopicPartition(*place, confluent_kafka.OFFSET_BEGINNING) for place in places])
        unread, rows = set(places), []
        while unread:
            message = consumer.poll(POLL_S)
            assert message is not None, f"nothing more comes of {unread}"
            if (error := message.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                unread.discard((message.topic(), message.partition()))
                continue
            kind, time = message.timestamp()
            headers = tuple((name, value) for name, value in message.headers() or ())
            place = (message.topic(), message.partition(), message.offset())
            rows.append((*place, time, kind - 1, message.key(), message.value(), headers))
        return sorted(rows)
    finally:
        consumer.close()


def read(options: dict[str, str], tasks: Sequence[Task] | None = None, **sources: Any) -> list[Row]:
    """Rows that the data source's tasks give for these options, without Spark, in the order of topic, partition,
    offset."""
    from headrace.spark.read.reading import TaskReader

    parsed = parse_options(options, streaming=False)
    if tasks is None:
        tasks = planned(options)
    found: list[Row] = []
    for task in tasks:
        with TaskReader(parsed, Columns.select(None, headers=True), **sources) as reader:
            for batch in reader.read(task):
                batch.validate(full=True)
                found += [arrow_row(row) for row in batch.to_pylist()]
    assert [row[:3] for row in found] == sorted(row[:3] for row in found), "in order within each task"
    return sorted(found)


def planned(options: dict[str, str]) -> list[Task]:
    sources = Sources(parse_options(options, streaming=False))
    try:
        return plan_tasks(sources, sources.ranges())
    finally:
        sources.close()


def arrow_row(row: dict[str, Any]) -> Row:
    headers = tuple((each["key"], each["value"]) for each in row["headers"])
    time = round(row["timestamp"].timestamp() * 1000)
    place = (row["topic"], row["partition"], row["offset"])
    return (*place, time, row["timestampType"], row["key"], row["value"], headers)


def records_in(batch: bytes) -> int:
    """As its header says, by the format's own description."""
    return int.from_bytes(batch[57:61], "big")


def random_batch(random: Random, *, keyed: bool = False, control: bool = False) -> bytes:
    """Any that a producer may send: keys, values, headers that are there, empty or null, in each codec."""
    if control:
        marker = Record(0, TIME, b"\0\0\0\1", b"\0\0\0\0\0\0", ())
        return encode_batch([marker], control=True)
    records = []
    for at in range(random.randrange(1, 9)):
        key = b"%d" % random.randrange(4) if keyed else random.choice([None, b"", random.randbytes(5)])
        value = random.choice([None, b"", random.randbytes(random.randrange(400)), b"v" * random.randrange(900)])
        headers = tuple(
            (random.choice(["", "h", "größe"]), random.choice([None, b"", random.randbytes(3)]))
            for _ in range(random.choice([0, 0, 1, 3]))
        )
        records.append(Record(at, TIME + random.randrange(10_000), key, value, headers))
    return encode_batch(records, compression=random.choice(list(Compression)))
