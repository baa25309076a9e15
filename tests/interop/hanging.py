"""A transaction that hangs: the leader has it open, and no coordinator knows of it."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.net.client.cluster import Cluster
from headrace.net.client.transactions import Transactions
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record

PRODUCE_VERSION = 8
NEW_VERSION = 12
DEADLINE_S = 150.0
VERIFICATION = "transaction.partition.verification.enable"


def verify(bootstrap: str, value: str) -> None:
    """Whether broker 1 asks coordinators; with "false" it takes what Kafka took before KIP-890."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(VERIFICATION, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)


async def hang(bootstrap: str, topic: str, transactional_id: str | None = None, *, coordinated: bool = False) -> int:
    """Leave a transaction open in partition 0 that begins with the next offset: its producer id.
    `transactional_id`: of a producer of the new protocol, which a coordinator knows; None: none knows it.
    `coordinated`: once there are coordinators."""
    async with Cluster(bootstrap) as cluster:
        if coordinated or transactional_id:
            await cluster.retried(lambda: Transactions(cluster).coordinator(transactional_id or "any"))
        asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        producer_id: int = (await cluster.ask_any(ApiKey.INIT_PRODUCER_ID, asked)).producer_id
        when = int(time.time() * 1000)
        batch = encode_batch(
            [Record(0, when, None, b"hangs")],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch),))
        request = ProduceRequest(
            transactional_id=transactional_id or "nobody", acks=-1, timeout_ms=120_000, topic_data=(data,)
        )
        leader = (await cluster.metadata([topic])).topics[topic].partitions[0].leader
        connection = await cluster.broker_connection(leader)
        answer = await connection.request(
            ApiKey.PRODUCE, request, version=PRODUCE_VERSION if transactional_id is None else NEW_VERSION
        )
        (told,) = answer.responses[0].partition_responses
        assert error_of(told.error_code) is ErrorCode.NONE
        return producer_id
