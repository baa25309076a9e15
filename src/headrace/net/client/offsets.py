"""Finds offsets: the earliest, the latest, or the first at or after a timestamp (ListOffsets). Reads no records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from headrace.base.ids import BrokerId, Offset, PartitionIndex
from headrace.base.limits import LOOK_PARTITIONS_PER_ASK_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.net.client.view import PartitionView
from headrace.wire.apis import ApiKey
from headrace.wire.messages import list_offsets as wire

LATEST = -1
EARLIEST = -2
EARLIEST_LOCAL = -4
"""The first offset in the leader's own log; below it a partition may have durable history."""
MAX_TIMESTAMP = -3
CONSUMER_REPLICA_ID = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class Found(NamedTuple):
    """An offset and its record's timestamp (ms). The timestamp is -1 where none was requested; both are -1 where no
    record fits.
    """

    offset: Offset
    timestamp_ms: int


async def list_offsets(
    cluster: Cluster, topic: str, partitions: Iterable[int], at: int, *, committed_only: bool = False
) -> dict[PartitionIndex, Found]:
    """For each partition, an offset chosen by `at`.

    LATEST is the high watermark, or with `committed_only` the last stable offset; EARLIEST and MAX_TIMESTAMP are as in
    Kafka. Any other `at` is a timestamp (ms since 1970), and selects the first record at or after it. Raises
    ClientError.
    """
    wanted = [PartitionIndex(index) for index in partitions]

    async def ask() -> dict[PartitionIndex, Found]:
        groups = await cluster.by_leader((topic, index) for index in wanted)
        answers = await asyncio.gather(
            *(
                _ask(cluster, leader, topic, [view for _, view in views], at, committed_only=committed_only)
                for leader, views in groups.items()
            )
        )
        return {index: found for answer in answers for index, found in answer.items()}

    found = await cluster.retried(ask, (topic,))
    return {index: found[index] for index in wanted}


async def _ask(
    cluster: Cluster, leader: BrokerId, topic: str, views: list[PartitionView], at: int, *, committed_only: bool
) -> dict[PartitionIndex, Found]:
    """Some at once: a long question holds the broker's event loop, and a very long one is refused."""
    connection = await cluster.broker_connection(leader)
    found: dict[PartitionIndex, Found] = {}
    for first in range(0, len(views), LOOK_PARTITIONS_PER_ASK_MAX):
        some = views[first : first + LOOK_PARTITIONS_PER_ASK_MAX]
        request = _question(topic, some, at, committed_only=committed_only)
        response = await connection.request(ApiKey.LIST_OFFSETS, request, timeout_ms=cluster.request_timeout_ms)
        for answer in response.topics:
            for part in answer.partitions:
                check(part.error_code, f"Partition {part.partition_index} of topic '{topic}'")
                found[PartitionIndex(part.partition_index)] = Found(Offset(part.offset), part.timestamp)
    return found


def _question(topic: str, views: list[PartitionView], at: int, *, committed_only: bool) -> wire.ListOffsetsRequest:
    parts = tuple(
        wire.ListOffsetsPartition(partition_index=view.index, current_leader_epoch=view.leader_epoch, timestamp=at)
        for view in views
    )
    return wire.ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=READ_COMMITTED if committed_only else READ_UNCOMMITTED,
        topics=(wire.ListOffsetsTopic(name=topic, partitions=parts),),
    )
