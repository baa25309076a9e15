"""The whole client against a real broker: what it writes it reads, whatever happens to its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.base.errors import UsageError
from headrace.net.client import offsets
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster, UnknownTopicError
from headrace.net.client.connection import Connection
from headrace.net.client.consumer import Consumer
from headrace.net.client.errors import ClientError, GaveUpError, NoBrokerError, RefusedError
from headrace.net.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from headrace.net.client.partitioner import partition_of
from headrace.net.client.producer import Placed, Producer
from headrace.net.client.retry import Backoff
from headrace.net.client.view import PartitionView
from headrace.testing import RunningBroker, broker
from headrace.wire.apis import ApiKey
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests.net.scripted_broker import cutting_proxy

START_MS = 1_700_000_000_000
IMPATIENT = Backoff(attempts_max=4, first_ms=1, longest_ms=5)


@pytest_asyncio.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with broker() as found:
        yield found


@pytest_asyncio.fixture
async def cluster(running: RunningBroker) -> AsyncIterator[Cluster]:
    async with Cluster(running.bootstrap) as found:
        yield found


async def read_all(cluster: Cluster, topic: str, *, bytes_max: int = 1 << 20) -> dict[int, list[Record]]:
    """Every record of a topic up to its end, by partition; no answer but a single large batch is above `bytes_max`."""
    view = await cluster.topic(topic)
    indexes = [part.index for part in view.partitions]
    starts = await list_offsets(cluster, topic, indexes, EARLIEST)
    ends = await list_offsets(cluster, topic, indexes, LATEST)
    found: dict[int, list[Record]] = {index: [] for index in indexes}
    async with Consumer(cluster, wait_ms=50, bytes_max=bytes_max, partition_bytes_max=bytes_max) as consumer:
        for index in indexes:
            if starts[index].offset < ends[index].offset:
                consumer.assign(topic, index, starts[index].offset)
        while consumer.positions:
            for fetched in await consumer.poll():
                found[fetched.partition] += fetched.records
                if consumer.positions[topic, fetched.partition] >= ends[fetched.partition].offset:
                    consumer.unassign(topic, fetched.partition)
    return found


async def write(
    producer: Producer, topic: str, values: Iterable[bytes], partition: int | None = None
) -> list[asyncio.Future[Placed]]:
    return [
        await producer.send(topic, value=value, key=value[:1], timestamp_ms=START_MS + index, partition=partition)
        for index, value in enumerate(values)
    ]


@pytest.mark.parametrize("codec", list(Compression))
async def test_what_is_written_is_read_in_the_order_of_its_key(cluster: Cluster, codec: Compression) -> None:
    await Admin(cluster).create_topic("orders", partitions=3)
    values = [b"%d-%d" % (number % 7, number) for number in range(2000)]
    async with Producer(cluster, compression=codec, batch_bytes=4096) as producer:
        places = await write(producer, "orders", values)
    found = await read_all(cluster, "orders")
    for value, place in zip(values, places, strict=True):
        topic, partition, offset = place.result()
        assert (topic, partition) == ("orders", partition_of(value[:1], 3))
        record = found[partition][offset]
        assert (record.offset, record.key, record.value) == (offset, value[:1], value)
    assert sum(map(len, found.values())) == len(values)


async def test_nulls_headers_and_timestamps_survive(cluster: Cluster) -> None:
    await Admin(cluster).create_topic("odd", partitions=1)
    headers = (("a", b"1"), ("a", None), ("ü", b""))
    async with Producer(cluster) as producer:
        await producer.send("odd", key=None, value=None, headers=headers, timestamp_ms=START_MS)
        await producer.send("odd", key=b"", value=b"\0" * 100_000, timestamp_ms=START_MS - 5)
    assert (await read_all(cluster, "odd"))[0] == [
        Record(0, START_MS, None, None, headers),
        Record(1, START_MS - 5, b"", b"\0" * 100_000, ()),
    ]


async def test_offsets_are_found_by_time(cluster: Cluster) -> None:
    await Admin(cluster).create_topic("timed", partitions=1)
    async with Producer(cluster, batch_bytes=2048) as producer:
        await write(producer, "timed", (b"%d" % number for number in range(500)), partition=0)
    for at, expected in (
        (EARLIEST, 0),
        (LATEST, 500),
        (MAX_TIMESTAMP, 499),
        (START_MS + 250, 250),
        (START_MS + 500, -1),
    ):
        (found,) = (await list_offsets(cluster, "timed", [0], at)).values()
        assert found.offset == expected, at


async def test_offsets_of_many_partitions_are_asked_for_some_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Admin(cluster).create_topic("wide", partitions=8)
    asked = []
    request = Connection.request

    async def seen(self: Connection, key: ApiKey, message: Any, **settings: Any) -> Any:
        if key is ApiKey.LIST_OFFSETS:
            asked.append([part.partition_index for topic in message.topics for part in topic.partitions])
        return await request(self, key, message, **settings)

    monkeypatch.setattr(Connection, "request", seen)
    monkeypatch.setattr(offsets, "LOOK_PARTITIONS_PER_ASK_MAX", 3)
    found = await list_offsets(cluster, "wide", range(8), LATEST)
    assert asked == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert {int(index): int(each.offset) for index, each in found.items()} == dict.fromkeys(range(8), 0)


async def test_reading_starts_amid_a_batch(cluster: Cluster) -> None:
    await Admin(cluster).create_topic("amid", partitions=1)
    async with Producer(cluster) as producer:
        await write(producer, "amid", (b"%d" % number for number in range(100)))
    async with Consumer(cluster, wait_ms=50) as consumer:
        consumer.assign("amid", 0, 97)
        (fetched,) = await consumer.poll()
        assert [record.offset for record in fetched.records] == [97, 98, 99]


async def test_an_offset_that_is_not_there_is_named(cluster: Cluster) -> None:
    await Admin(cluster).create_topic("short", partitions=1)
    async with Consumer(cluster, wait_ms=10) as consumer:
        consumer.assign("short", 0, 5)
        with pytest.raises(RefusedError, match="offset 5 is not there") as caught:
            await consumer.poll()
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_admin_round_trip(cluster: Cluster) -> None:
    admin = Admin(cluster)
    made = await admin.create_topic("a", partitions=2, configs={"retention.ms": "3600000"})
    assert (made.name, made.partitions) == ("a", 2)
    with pytest.raises(RefusedError) as exists:
        await admin.create_topic("a")
    assert exists.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    await admin.create_topic("checked-only", partitions=1, validate_only=True)
    await admin.alter_topic_configs("a", set_={"segment.bytes": "2097152"}, delete=["retention.ms"])
    await admin.create_partitions("a", total=5)
    own = {one.name: one.value for one in await admin.topic_configs("a") if one.source == "DYNAMIC_TOPIC_CONFIG"}
    assert own == {"segment.bytes": "2097152"}
    assert [(topic.name, len(topic.partitions)) for topic in await admin.topics()] == [("a", 5)]
    await admin.delete_topic("a")
    assert await admin.topics() == ()
    for action in (
        admin.delete_topic("a"),
        admin.create_partitions("a", total=6),
        admin.topic_configs("a"),
        admin.alter_topic_configs("a", set_={"retention.ms": "1"}),
    ):
        with pytest.raises(UnknownTopicError, match="headrace topic list"):
            await action


async def test_a_topic_or_partition_that_is_not_there_fails_at_once(cluster: Cluster) -> None:
    async with Producer(cluster) as producer:
        with pytest.raises(UnknownTopicError):
            await producer.send("nowhere", value=b"x", timestamp_ms=START_MS)
        await Admin(cluster).create_topic("two", partitions=2)
        with pytest.raises(UsageError, match="partitions 0 to 1, not 2"):
            await producer.send("two", value=b"x", timestamp_ms=START_MS, partition=2)


async def test_a_record_that_is_too_large_fails_alone(cluster: Cluster) -> None:
    await Admin(cluster).create_topic("small", partitions=1, configs={"max.message.bytes": "1000"})
    async with Producer(cluster, batch_bytes=500) as producer:
        places = await write(producer, "small", [b"a", b"b" * 5000, b"c"])
    assert isinstance(error := places[1].exception(), RefusedError)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert [record.value for record in (await read_all(cluster, "small"))[0]] == [b"a", b"c"]


async def test_memory_is_bounded_and_sends_wait_their_turn(cluster: Cluster) -> None:
    await Admin(cluster).create_topic("much", partitions=2)
    async with Producer(cluster, buffer_bytes=20_000, batch_bytes=5_000) as producer:
        await write(producer, "much", (b"%d" % number * 100 for number in range(2_000)))
    assert sum(map(len, (await read_all(cluster, "much")).values())) == 2_000


async def test_broken_connections_lose_and_repeat_nothing() -> None:
    """Each connection is cut after some bytes of answers, so that batches are stored whose answer never comes."""
    async with cutting_proxy() as proxy, broker(advertised_port=proxy.address.port) as running:
        proxy.target = type(proxy.target)(running.host, running.port)
        async with Cluster(running.bootstrap) as straight:
            await Admin(straight).create_topic("cut", partitions=2)
        values = [b"%d-%d" % (number % 5, number) for number in range(600)]
        proxy.cut_after_bytes = 1_500
        backoff = Backoff(attempts_max=200, first_ms=1, longest_ms=5)
        async with (
            Cluster([proxy.address], backoff=backoff) as cluster,
            Producer(cluster, batch_bytes=200) as producer,
        ):
            places = await write(producer, "cut", values)
        assert all(place.exception() is None for place in places)
        assert proxy.cuts >= 3
        proxy.cut_after_bytes = 4_000
        async with Cluster([proxy.address], backoff=backoff) as cluster:
            found = await read_all(cluster, "cut", bytes_max=1_000)
        for partition, records in found.items():
            mine = [value for value in values if partition_of(value[:1], 2) == partition]
            assert [record.value for record in records] == mine


class ForgetfulCluster(Cluster):
    """Loses sight of leaders every so often, as amid an election."""

    calls = 0

    async def partition(self, topic: str, partition: int) -> PartitionView:
        self.calls += 1
        if self.calls % 3 == 0:
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, f"Partition {partition}")
        return await super().partition(topic, partition)


async def test_nothing_found_is_lost_to_a_failure_beside_it(running: RunningBroker) -> None:
    async with ForgetfulCluster(running.bootstrap, backoff=Backoff(attempts_max=50, first_ms=1)) as cluster:
        await Admin(cluster).create_topic("seen", partitions=1)
        async with Producer(cluster, batch_bytes=500) as producer:
            await write(producer, "seen", (b"%d" % number for number in range(300)))
        found = await read_all(cluster, "seen", bytes_max=600)
    assert [record.offset for record in found[0]] == list(range(300))


async def test_a_restarted_broker_is_found_again(tmp_path: Path) -> None:
    async with broker(data=tmp_path) as first:
        cluster = Cluster(first.bootstrap, backoff=Backoff(attempts_max=100, first_ms=5, longest_ms=20))
        await Admin(cluster).create_topic("back", partitions=1)
        producer = Producer(cluster)
        before = await producer.send("back", value=b"1", timestamp_ms=START_MS)
        await before
    after = await producer.send("back", value=b"2", timestamp_ms=START_MS)
    async with broker(data=tmp_path, port=first.port):
        assert (await after).offset == 1
        assert [record.value for record in (await read_all(cluster, "back"))[0]] == [b"1", b"2"]
        await producer.abort()
        await cluster.close()


async def test_the_bootstrap_list_is_tried_in_turn_and_then_given_up(running: RunningBroker) -> None:
    async with broker() as gone:
        pass
    async with Cluster(f"{gone.bootstrap},{running.bootstrap}") as cluster:
        assert len((await cluster.metadata(())).brokers) == 1
    async with Cluster(gone.bootstrap, backoff=IMPATIENT) as cluster:
        with pytest.raises(NoBrokerError, match="headrace up"):
            await cluster.metadata(())


async def test_a_producer_whose_broker_never_comes_back_fails_every_record() -> None:
    async with broker() as running:
        cluster = Cluster(running.bootstrap, backoff=IMPATIENT)
        await Admin(cluster).create_topic("lost", partitions=1)
        producer = Producer(cluster)
        await (await producer.send("lost", value=b"1", timestamp_ms=START_MS))
    places = await write(producer, "lost", [b"2", b"3"])
    await producer.flush()
    assert [type(place.exception()) for place in places] == [GaveUpError, GaveUpError]
    with pytest.raises(ClientError):
        await producer.send("lost", value=b"4", timestamp_ms=START_MS)
    await producer.abort()
    await cluster.close()
