"""Topics on the Redis engine, request by request: answers as everywhere, and what others may see in Redis meanwhile."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from confluent_kafka import Producer

from headrace.storage.redis.links.address import parse_redis_address
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.group_broker import RawClient, running, until
from tools.servers.redis_servers import RedisServer, valkey

CONFIGS: Final = {
    "retention.ms": "604800000",
    "max.message.bytes": "1048576",
    "cleanup.policy": "delete",
    "storage.compression": "zstd",
}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with tempfile.TemporaryDirectory(prefix="hr") as name, RedisServer(valkey(), Path(name), options) as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[redis.Redis]:
    """Redis, as somebody else sees it."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def client(server: RedisServer, tmp_path: Path) -> AsyncIterator[RawClient]:
    address = parse_redis_address(server.url)
    async with running(tmp_path, redis=address) as bootstrap, RawClient(bootstrap) as client:
        yield client


def orders(**more: Any) -> CreatableTopic:
    configs = tuple(CreatableTopicConfig(name=key, value=value) for key, value in CONFIGS.items())
    topic = CreatableTopic(name="orders", num_partitions=2, replication_factor=1, configs=configs)
    return topic._replace(**more)


async def create(client: RawClient, topic: CreatableTopic, *, validate_only: bool = False) -> Any:
    request = CreateTopicsRequest(topics=(topic,), timeout_ms=10_000, validate_only=validate_only)
    (answer,) = (await client.ask(7, request)).topics
    return answer


async def delete(client: RawClient, name: str) -> tuple[int, str | None]:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=10_000)
    (answer,) = (await client.ask(6, request)).responses
    return answer.error_code, answer.error_message


async def known(client: RawClient, *names: str) -> dict[str, tuple[int, int]]:
    """Error code and partitions of topics, of all where none is named."""
    topics = tuple(MetadataRequestTopic(name=name) for name in names) if names else None
    answer = await client.ask(12, MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    return {topic.name: (topic.error_code, len(topic.partitions)) for topic in answer.topics}


async def test_topics_are_created_described_and_deleted(client: RawClient, store: redis.Redis) -> None:
    assert (await create(client, orders(), validate_only=True)).error_code == 0
    assert await known(client) == {}
    assert not store.exists("headrace:topic:orders")
    made = await create(client, orders())
    assert (made.error_code, made.num_partitions) == (0, 2)
    assert (await create(client, orders())).error_code == 36
    assert (await create(client, orders(name="no/slash"))).error_code == 17
    assert (await create(client, orders(name="none", num_partitions=0))).error_code == 37
    assigned = (CreatableReplicaAssignment(0, (1,)),)
    refused = await create(client, orders(name="x", num_partitions=-1, replication_factor=-1, assignments=assigned))
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "leave the assignment out" in refused.error_message

    assert await known(client) == await known(client, "orders") == {"orders": (0, 2)}
    assert await known(client, "payments") == {"payments": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
    assert store.smembers("headrace:topics") == {"orders"}
    fields: Any = store.hgetall("headrace:topic:orders")
    assert fields.pop("id") == str(made.topic_id)
    assert int(fields.pop("created")) > 1_700_000_000_000
    assert int(fields.pop("birth")) > 0
    assert fields == {"partitions": "2", **CONFIGS}

    assert await delete(client, "payments") == (3, "Topic 'payments' does not exist")
    assert await delete(client, "orders") == (0, None)
    assert await known(client) == {}
    assert store.smembers("headrace:topics") == set()
    assert not store.exists("headrace:topic:orders")


async def test_a_stream_is_made_by_the_first_record_and_goes_with_its_topic(
    client: RawClient, store: redis.Redis
) -> None:
    assert (await create(client, orders())).error_code == 0
    assert store.keys("headrace:orders:*") == []
    producer = Producer({"bootstrap.servers": client.address, "acks": "all"})
    producer.produce("orders", b"first", partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0
    assert store.keys("headrace:orders:*") == ["headrace:orders:0"]
    assert store.type("headrace:orders:0") == "stream"
    assert store.xlen("headrace:orders:0") == 1
    assert await delete(client, "orders") == (0, None)
    await until(lambda: not store.exists("headrace:orders:0"))
