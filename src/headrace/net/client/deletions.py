"""Deletes records before an offset, over the wire (DeleteRecords, KIP-107).

Promises: a repeated request does no harm: a partition that begins there already is left as it is.
"""

from __future__ import annotations

from headrace.base.ids import Offset, PartitionIndex
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages import delete_records as wire

DELETION_TIMEOUT_MS = 20_000
POLICY = "its cleanup.policy has no 'delete', or its durable store still lacks some of these records"


async def delete_records(cluster: Cluster, topic: str, partition: int, before: int) -> Offset:
    """The partition's new start. Raises RefusedError where its leader refuses, ClientError."""
    part = wire.DeleteRecordsPartition(partition_index=partition, offset=before)
    request = wire.DeleteRecordsRequest(
        topics=(wire.DeleteRecordsTopic(name=topic, partitions=(part,)),), timeout_ms=DELETION_TIMEOUT_MS
    )

    async def ask() -> Offset:
        leader = (await cluster.partition(topic, PartitionIndex(partition))).leader
        connection = await cluster.broker_connection(leader)
        answer = await connection.request(
            ApiKey.DELETE_RECORDS, request, timeout_ms=DELETION_TIMEOUT_MS + cluster.request_timeout_ms
        )
        (result,) = (each for found in answer.topics for each in found.partitions)
        forbidden = error_of(result.error_code) is ErrorCode.POLICY_VIOLATION
        check(result.error_code, f"Partition {partition} of topic '{topic}'", POLICY if forbidden else None)
        return Offset(result.low_watermark)

    return await cluster.retried(ask, (topic,))
