"""Transactions with clients that nobody here wrote: librdkafka, aiokafka, kafka-python."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.promises.support.load import QUIET
from tools.servers.broker_cluster import BrokerCluster

DEADLINE_S: Final = 150.0
POLL_S: Final = 60.0
PARTITIONS: Final = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[BrokerCluster]:
    """Three brokers."""
    with asyncio.Runner() as runner:
        made = BrokerCluster(tmp_path_factory.mktemp("transactions"), 3)
        runner.run(made.start(*made.nodes))
        yield made
        assert runner.run(made.stop(*made.nodes)) == [0, 0, 0]


@pytest.fixture
def topic(cluster: BrokerCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result(DEADLINE_S)
    return name


def producer(cluster: BrokerCluster, transactional_id: str) -> Producer:
    made = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id, **QUIET})
    made.init_transactions(DEADLINE_S)
    return made


def until_marked(cluster: BrokerCluster, transactional_id: str) -> None:
    """Wait until the markers of its last transaction are written: a commit is answered before that. The next producer
    begins only then."""
    producer(cluster, transactional_id)


def send(made: Producer, topic: str, *values: str) -> None:
    for at, value in enumerate(values):
        made.produce(topic, value.encode(), partition=at % PARTITIONS)


def read(cluster: BrokerCluster, topic: str, *, isolation: str = "read_committed") -> list[str]:
    """All values, in the order of their partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            **QUIET,
        }
    )
    found: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    unread = set(found)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
    try:
        while unread:
            message = consumer.poll(POLL_S)
            assert message is not None, f"nothing more comes of {unread}"
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value().decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(message.partition())
    finally:
        consumer.close()
    return [value for partition in found for value in found[partition]]


def test_a_committed_transaction_is_seen_whole_and_an_aborted_one_never(cluster: BrokerCluster, topic: str) -> None:
    made = producer(cluster, f"{topic}-1")
    for number, commits in enumerate([True, False, True, False]):
        made.begin_transaction()
        send(made, topic, *(f"{number}-{at}" for at in range(6)))
        if commits:
            made.commit_transaction(DEADLINE_S)
        else:
            made.flush(DEADLINE_S)
            made.abort_transaction(DEADLINE_S)
    assert read(cluster, topic) == [f"{number}-{at}" for p in range(3) for number in (0, 2) for at in (p, p + 3)]
    everything = [f"{number}-{at}" for p in range(3) for number in range(4) for at in (p, p + 3)]
    assert read(cluster, topic, isolation="read_uncommitted") == everything


def test_an_open_transaction_is_not_seen_and_holds_up_what_comes_later(cluster: BrokerCluster, topic: str) -> None:
    made, other = producer(cluster, f"{topic}-1"), Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
    send(other, topic, "before", "before", "before")
    assert other.flush(DEADLINE_S) == 0
    made.begin_transaction()
    send(made, topic, "open")
    assert made.flush(DEADLINE_S) == 0
    send(other, topic, "after", "after", "after")
    assert other.flush(DEADLINE_S) == 0
    assert read(cluster, topic) == ["before", "before", "after", "before", "after"]
    made.commit_transaction(DEADLINE_S)
    until_marked(cluster, f"{topic}-1")
    assert read(cluster, topic) == ["before", "open", "after", "before", "after", "before", "after"]


def test_a_new_producer_fences_the_old_one_and_aborts_what_it_left_open(cluster: BrokerCluster, topic: str) -> None:
    old = producer(cluster, f"{topic}-1")
    old.begin_transaction()
    send(old, topic, "a", "a", "a")
    assert old.flush(DEADLINE_S) == 0
    new = producer(cluster, f"{topic}-1")
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(DEADLINE_S)
    assert raised.value.args[0].fatal()
    new.begin_transaction()
    send(new, topic, "b", "b", "b")
    new.commit_transaction(DEADLINE_S)
    until_marked(cluster, f"{topic}-1")
    assert read(cluster, topic) == ["b", "b", "b"]


def test_what_is_consumed_transformed_and_produced_commits_with_its_offsets(cluster: BrokerCluster, topic: str) -> None:
    source = Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
    values = [str(at) for at in range(30)]
    send(source, topic, *values)
    assert source.flush(DEADLINE_S) == 0
    target = f"{topic}-out"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    admin.create_topics([NewTopic(target, PARTITIONS, 3)])[target].result(DEADLINE_S)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-group",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **QUIET,
        }
    )
    made = producer(cluster, f"{topic}-1")
    consumer.subscribe([topic])
    done, aborts = 0, True
    while done < len(values):
        messages = consumer.consume(10, POLL_S)
        assert messages, "nothing more comes"
        made.begin_transaction()
        for message in messages:
            assert message.error() is None
            made.produce(target, message.value(), partition=message.partition())
        made.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), DEADLINE_S
        )
        if aborts:
            made.abort_transaction(DEADLINE_S)
            for committed in consumer.committed(consumer.assignment(), DEADLINE_S):
                consumer.seek(TopicPartition(topic, committed.partition, max(0, committed.offset)))
        else:
            made.commit_transaction(DEADLINE_S)
            done += len(messages)
        aborts = not aborts
    consumer.close()
    until_marked(cluster, f"{topic}-1")
    assert sorted(read(cluster, target), key=int) == values


@pytest.fixture
async def aio(cluster: BrokerCluster, topic: str) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-aio")
    await made.start()
    yield made
    await made.stop()


async def test_aiokafka_commits_and_aborts(cluster: BrokerCluster, topic: str, aio: AIOKafkaProducer) -> None:
    async with aio.transaction():
        for partition in range(PARTITIONS):
            await aio.send_and_wait(topic, b"committed", partition=partition)
    await aio.begin_transaction()
    await aio.send_and_wait(topic, b"aborted", partition=0)
    await aio.abort_transaction()
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with consumer:
        for _ in range(PARTITIONS):
            assert (await consumer.getone()).value == b"committed"
    assert await asyncio.to_thread(read, cluster, topic) == ["committed"] * PARTITIONS
