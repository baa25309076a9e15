"""Requests of the data path, bare, over a `RawClient`: one partition each, answers without their wrapping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.ports import Buffer
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from headrace.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


async def create(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    items = tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items())
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=items)
    await client.create(topic)


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, codec: Compression = Compression.NONE) -> bytes:
    """One batch of these values; record times rise by one."""
    records = [Record(at, timestamp + at, None, value, ()) for at, value in enumerate(values)]
    return encode_batch(records, compression=codec)


def produce_request(
    topic: str, records: Buffer, *, partition: int = 0, acks: int = -1, timeout_ms: int = 120_000
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=memoryview(records))
    wanted = TopicProduceData(name=topic, partition_data=(data,))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=(wanted,))


async def produce(
    client: RawClient, topic: str, records: Buffer, *, partition: int = 0, acks: int = -1, timeout_ms: int = 120_000
) -> Any:
    request = produce_request(topic, records, partition=partition, acks=acks, timeout_ms=timeout_ms)
    return (await client.ask(9, request)).responses[0].partition_responses[0]


async def fetch(client: RawClient, topic: str, offset: int, *, partition: int = 0, wait_ms: int = 0) -> Any:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=(FetchTopic(topic=topic, partitions=(wanted,)),)
    )
    return (await client.ask(11, request)).responses[0].partitions[0]


async def offset_at(client: RawClient, topic: str, timestamp: int, *, partition: int = 0) -> Any:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),))
    return (await client.ask(7, request)).topics[0].partitions[0]


async def delete_records(
    client: RawClient, topic: str, offsets: Sequence[int], *, version: int = 2, timeout_ms: int = 120_000
) -> Any:
    """One result for each partition, from 0 on."""
    partitions = tuple(DeleteRecordsPartition(partition_index=at, offset=offset) for at, offset in enumerate(offsets))
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=topic, partitions=partitions),), timeout_ms=timeout_ms
    )
    return (await client.ask(version, request)).topics[0].partitions
