"""Consumer groups of clients that nobody here wrote: aiokafka, kafka-python, librdkafka."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import AdminClient

from tests.broker.group_broker import RawClient, running

DEADLINE_S = 150
PARTITIONS = 4
FAST = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200, "metadata_max_age_ms": 1_000}


@pytest.fixture
async def bootstrap(tmp_path: Path) -> AsyncIterator[str]:
    async with running(tmp_path / "data") as bootstrap:
        async with RawClient(bootstrap) as client:
            await client.create_topic("t", PARTITIONS)
        async with asyncio.timeout(DEADLINE_S):
            yield bootstrap


async def produce(bootstrap: str, values: range) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        sent = [await producer.send("t", str(value).encode(), partition=value % PARTITIONS) for value in values]
        await asyncio.gather(*sent)


def consumer(bootstrap: str, group: str = "g", **options: Any) -> aiokafka.AIOKafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **FAST, **options}
    return aiokafka.AIOKafkaConsumer("t", bootstrap_servers=bootstrap, group_id=group, **settings)


async def take(reader: Any, count: int) -> list[int]:
    values: list[int] = []
    while len(values) < count:
        batches = await reader.getmany(timeout_ms=200)
        values += [int(record.value) for batch in batches.values() for record in batch]
    return values


async def until_shared(readers: list[Any]) -> None:
    """Until the group's members own all partitions between them, and none of them none."""
    while True:
        owned = [reader.assignment() for reader in readers]
        if all(owned) and sum(map(len, owned)) == PARTITIONS and len(set().union(*owned)) == PARTITIONS:
            return
        await asyncio.gather(*(reader.getmany(timeout_ms=50) for reader in readers))


async def test_aiokafka_goes_on_where_it_committed(bootstrap: str) -> None:
    await produce(bootstrap, range(100))
    async with consumer(bootstrap) as reader:
        assert sorted(await take(reader, 100)) == list(range(100))
        await reader.commit()
    await produce(bootstrap, range(100, 120))
    async with consumer(bootstrap) as reader:
        assert sorted(await take(reader, 20)) == list(range(100, 120))


async def test_aiokafka_members_share_and_take_over(bootstrap: str) -> None:
    """Three members own each partition once between them; as they go, those that stay own all."""
    readers = [consumer(bootstrap) for _ in range(3)]
    await asyncio.gather(*(reader.start() for reader in readers))
    try:
        await until_shared(readers)
        await readers.pop().stop()
        await until_shared(readers)
        await readers.pop().stop()
        await until_shared(readers)
    finally:
        await asyncio.gather(*(reader.stop() for reader in readers))


async def test_aiokafka_members_read_everything_once_between_them(bootstrap: str) -> None:
    readers = [consumer(bootstrap) for _ in range(2)]
    await asyncio.gather(*(reader.start() for reader in readers))
    try:
        await until_shared(readers)
        await produce(bootstrap, range(200))
        seen: list[int] = []
        while len(seen) < 200:
            for reader in readers:
                batches = await reader.getmany(timeout_ms=50)
                seen += [int(record.value) for batch in batches.values() for record in batch]
                await reader.commit()
        assert sorted(seen) == list(range(200))
    finally:
        await asyncio.gather(*(reader.stop() for reader in readers))


async def test_aiokafka_admin_sees_the_group(bootstrap: str) -> None:
    await produce(bootstrap, range(8))
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    async with consumer(bootstrap) as reader:
        await take(reader, 8)
        await reader.commit()
        assert ("g", "consumer") in [tuple(listed[:2]) for listed in await admin.list_consumer_groups()]
        offsets = await admin.list_consumer_group_offsets("g")
        assert {tp.partition: found.offset for tp, found in offsets.items()} == dict.fromkeys(range(PARTITIONS), 2)
    await admin.close()


def _kafka_python_reads(bootstrap: str, count: int) -> list[int]:
    reader = kafka.KafkaConsumer(
        "t",
        bootstrap_servers=bootstrap,
        group_id="kp",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=20_000,
        **FAST,
    )
    values: list[int] = []
    for record in reader:
        values.append(int(record.value))
        if len(values) == count:
            break
    reader.commit()
    reader.close()
    return values


async def test_kafka_python_goes_on_where_it_committed(bootstrap: str) -> None:
    await produce(bootstrap, range(100))
    assert sorted(await asyncio.to_thread(_kafka_python_reads, bootstrap, 100)) == list(range(100))
    await produce(bootstrap, range(100, 110))
    assert sorted(await asyncio.to_thread(_kafka_python_reads, bootstrap, 10)) == list(range(100, 110))


class Librdkafka(threading.Thread):
    """A consumer on a thread of its own, committing what it reads, until it is told to stop."""

    def __init__(self, bootstrap: str, log: Log, strategy: str) -> None:
        super().__init__()
        self.assigned: set[int] = set()
        self._stopped = threading.Event()
        self._log = log
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "rd",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": strategy,
            }
        )
        self._consumer.subscribe(["t"])
        self.start()

    def run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            self.assigned = {partition.partition for partition in self._consumer.assignment()}
            if message is not None and message.error() is None:
                self._log.seen[int(message.value())] += 1
                self._consumer.commit(message, asynchronous=False)
            self._log.notify()
        self._consumer.close()

    async def end(self) -> None:
        self._stopped.set()
        await asyncio.to_thread(self.join)


class Log:
    """The records that the threads have read, and the loop's way to wait for them."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = defaultdict(int)
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def until_seen(self, count: int) -> None:
        await self.until(lambda: len(self.seen) == count)

    async def until_shared(self, *readers: Librdkafka) -> None:
        def shared() -> bool:
            owned = [index for reader in readers for index in reader.assigned]
            return sorted(owned) == list(range(PARTITIONS)) and all(reader.assigned for reader in readers)

        await self.until(shared)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_librdkafka_members_share_take_over_and_read_once(bootstrap: str, strategy: str) -> None:
    log = Log()
    first = Librdkafka(bootstrap, log, strategy)
    await log.until_shared(first)
    second = Librdkafka(bootstrap, log, strategy)
    await log.until_shared(first, second)
    await produce(bootstrap, range(100))
    await log.until_seen(100)
    await first.end()
    await log.until_shared(second)
    await produce(bootstrap, range(100, 140))
    await log.until_seen(140)
    await second.end()
    assert set(log.seen.values()) == {1}


async def test_librdkafka_admin_describes_and_deletes(bootstrap: str) -> None:
    log = Log()
    reader = Librdkafka(bootstrap, log, "range")
    await log.until_shared(reader)
    await produce(bootstrap, range(4))
    await log.until_seen(4)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = await asyncio.to_thread(lambda: admin.describe_consumer_groups(["rd"])["rd"].result())
    assert described.state.name == "STABLE"
    assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
    await reader.end()
    listed = await asyncio.to_thread(lambda: admin.list_consumer_groups().result())
    assert [(group.group_id, group.state.name) for group in listed.valid] == [("rd", "EMPTY")]
    await asyncio.to_thread(lambda: admin.delete_consumer_groups(["rd"])["rd"].result())
    listed = await asyncio.to_thread(lambda: admin.list_consumer_groups().result())
    assert listed.valid == []
