"""aiokafka (asyncio): what goes in comes out, and administration means what Kafka means by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiokafka
import pytest
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.interop.support.samples import CODECS, DEADLINE_S, MEBIBYTE, Message, messages, odd_messages, topic_name


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    yield client
    await client.close()


@pytest.fixture
async def topic(admin: Any) -> AsyncIterator[str]:
    """A topic of three partitions, gone after the test."""
    name = topic_name("aiokafka")
    await create(admin, NewTopic(name, 3, 1))
    yield name
    await admin.delete_topics([name])


async def create(admin: Any, wanted: Any, **options: Any) -> int:
    """The error code that the broker answers with."""
    response = await admin.create_topics([wanted], **options)
    return int(response.topic_errors[0][1])


async def produce(
    bootstrap: str, topic: str, sent: Sequence[Message], *, partition: int = 0, **options: Any
) -> list[int]:
    """Send all and wait; the offset that each was acknowledged at."""
    settings = {"acks": "all", "linger_ms": 20, **options}
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        pending = [
            await producer.send(
                topic, m.value, m.key, headers=list(m.headers), partition=partition, timestamp_ms=m.timestamp
            )
            for m in sent
        ]
        return [(await future).offset for future in pending] if settings["acks"] != 0 else []


async def consume(bootstrap: str, topic: str, count: int, *, partition: int = 0) -> tuple[list[int], list[Message]]:
    """The first `count` messages of a partition, with their offsets."""
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([aiokafka.TopicPartition(topic, partition)])
        items = await _take(reader, count)
    read = [Message(item.key, item.value, item.timestamp, tuple(map(tuple, item.headers))) for item in items]
    return [item.offset for item in items], read


async def _take(reader: Any, count: int) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        return [await reader.getone() for _ in range(count)]


@pytest.mark.parametrize("codec", CODECS)
async def test_what_is_produced_is_consumed(bootstrap: str, topic: str, codec: str) -> None:
    sent = messages(500)
    acknowledged = await produce(bootstrap, topic, sent, compression_type=None if codec == "none" else codec)
    assert acknowledged == list(range(500))
    assert await consume(bootstrap, topic, 500) == (acknowledged, sent)


@pytest.mark.parametrize("codec", CODECS)
async def test_nulls_and_headers_survive(bootstrap: str, topic: str, codec: str) -> None:
    """This client itself refuses a message without key and value."""
    sent = [message for message in odd_messages() if (message.key, message.value) != (None, None)]
    await produce(bootstrap, topic, sent, compression_type=None if codec == "none" else codec)
    assert (await consume(bootstrap, topic, len(sent)))[1] == sent


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_each_kind_of_acknowledgement(bootstrap: str, topic: str, acks: int | str) -> None:
    sent = messages(50)
    await produce(bootstrap, topic, sent, acks=acks)
    assert (await consume(bootstrap, topic, 50))[1] == sent


async def test_an_idempotent_producer_writes_each_once_and_in_order(bootstrap: str, topic: str) -> None:
    for partition in range(3):
        sent = messages(500)
        await produce(bootstrap, topic, sent, partition=partition, enable_idempotence=True, max_batch_size=2048)
        assert await consume(bootstrap, topic, 500, partition=partition) == (list(range(500)), sent)


async def test_a_message_of_a_mebibyte(bootstrap: str, admin: Any) -> None:
    name = topic_name("large")
    assert await create(admin, NewTopic(name, 1, 1, topic_configs={"max.message.bytes": str(2 * MEBIBYTE)})) == 0
    sent = [message._replace(value=b"\x00\xff" * (MEBIBYTE // 2)) for message in messages(3)]
    await produce(bootstrap, name, sent, max_request_size=4 * MEBIBYTE)
    assert await consume(bootstrap, name, 3) == ([0, 1, 2], sent)


async def test_a_message_beyond_the_limit_of_the_topic_is_refused(bootstrap: str, topic: str) -> None:
    with pytest.raises(errors.MessageSizeTooLargeError):
        await produce(bootstrap, topic, [Message(b"k", b"\xff" * 2 * MEBIBYTE, 1)], max_request_size=4 * MEBIBYTE)


async def test_a_consumer_seeks_by_time(bootstrap: str, topic: str) -> None:
    sent = messages(10)
    await produce(bootstrap, topic, sent)
    partition = aiokafka.TopicPartition(topic, 0)
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as reader:

        async def found(timestamp: int) -> Any:
            return (await reader.offsets_for_times({partition: timestamp}))[partition]

        assert await found(sent[7].timestamp) == (7, sent[7].timestamp)
        assert await found(sent[7].timestamp - 1) == (7, sent[7].timestamp)
        assert await found(sent[9].timestamp + 1) is None
        assert await reader.beginning_offsets([partition]) == {partition: 0}
        assert await reader.end_offsets([partition]) == {partition: 10}


async def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str) -> None:
    sent = {partition: messages(20) for partition in range(3)}
    for partition, batch in sent.items():
        await produce(bootstrap, topic, batch, partition=partition)
    group = topic_name("group")
    first = await _read_as_member(bootstrap, topic, group, 25)
    second = await _read_as_member(bootstrap, topic, group, 35)
    assert sorted(first + second) == sorted((p, o, m.value) for p, batch in sent.items() for o, m in enumerate(batch))


async def _read_as_member(bootstrap: str, topic: str, group: str, count: int) -> list[tuple[int, int, bytes]]:
    options = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, **options) as member:
        items = await _take(member, count)
        await member.commit()
    return [(item.partition, item.offset, item.value) for item in items]


async def test_a_group_commits_and_fetches_offsets(bootstrap: str, topic: str) -> None:
    options = {"group_id": topic_name("group"), "enable_auto_commit": False}
    partitions = [aiokafka.TopicPartition(topic, partition) for partition in range(3)]
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, **options) as member:
        member.assign(partitions)
        assert [await member.committed(partition) for partition in partitions] == [None, None, None]
        await member.commit({partitions[1]: (7, "note")})
        assert [await member.committed(partition) for partition in partitions] == [None, 7, None]


async def test_a_topic_is_created_described_and_deleted(admin: Any) -> None:
    name = topic_name("admin")
    assert await create(admin, NewTopic(name, 2, 1, topic_configs={"retention.ms": "3600000"})) == 0
    assert await _partitions(admin, name) == [0, 1]
    await admin.create_partitions({name: NewPartitions(5)})
    assert await _partitions(admin, name) == [0, 1, 2, 3, 4]

    (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    configs = {entry[0]: entry[1] for entry in response.resources[0][4]}
    assert (configs["retention.ms"], configs["segment.bytes"]) == ("3600000", "1073741824")

    await admin.delete_topics([name])
    assert name not in await admin.list_topics()


async def _partitions(admin: Any, topic: str) -> list[int]:
    (described,) = await admin.describe_topics([topic])
    return sorted(entry["partition"] for entry in described["partitions"])


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewTopic("bad name!", 1, 1), errors.InvalidTopicError),
        (NewTopic("n" * 250, 1, 1), errors.InvalidTopicError),
        (NewTopic("count", 0, 1), errors.InvalidPartitionsError),
        (NewTopic("factor", 1, 7), errors.InvalidReplicationFactorError),
        (NewTopic("config", 1, 1, topic_configs={"retention.ms": "soon"}), errors.InvalidConfigurationError),
    ],
    ids=lambda value: value.name[:9] if isinstance(value, NewTopic) else "",
)
async def test_a_bad_topic_is_refused(admin: Any, wanted: Any, error: Any) -> None:
    assert await create(admin, wanted) == error.errno
    assert wanted.name not in await admin.list_topics()


async def test_a_topic_is_created_once_and_an_unknown_one_not_deleted(admin: Any, topic: str) -> None:
    assert await create(admin, NewTopic(topic, 1, 1)) == errors.TopicAlreadyExistsError.errno
    response = await admin.delete_topics(["no-such-topic"])
    assert response.topic_error_codes[0][1] == errors.UnknownTopicOrPartitionError.errno


async def test_a_dry_run_creates_nothing(admin: Any) -> None:
    name = topic_name("dry")
    assert await create(admin, NewTopic(name, 1, 1), validate_only=True) == 0
    assert name not in await admin.list_topics()


async def test_the_cluster_describes_itself(admin: Any, bootstrap: str) -> None:
    cluster = await admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [bootstrap]
    assert cluster["cluster_id"]
