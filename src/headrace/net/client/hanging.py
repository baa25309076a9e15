"""Open transactions as the leaders of partitions have them, and those that no coordinator will end (KIP-664).

Promises: a transaction that only ends meanwhile is not called hanging. A partition takes the first batch of a
transaction once its coordinator has it, and the coordinator forgets it once its markers are written. So one hangs if it
is open, its coordinator has nothing under way for its producer, and it is open still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.base.ids import BrokerId, PartitionIndex
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.net.client.transactions import Transactions
from headrace.net.client.view import PartitionView
from headrace.wire.apis import ApiKey
from headrace.wire.messages import describe_producers as wire

AT_REST: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort"})
"""States of transactional ids that have no transaction under way."""


class OpenInPartition(NamedTuple):
    """A transaction that has begun in a partition, and has not ended there."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int


async def open_transactions(cluster: Cluster, topic: str, partitions: Iterable[int]) -> Sequence[OpenInPartition]:
    """The open transactions of these partitions. Raises ClientError."""
    wanted = [PartitionIndex(index) for index in partitions]

    async def ask() -> Sequence[OpenInPartition]:
        groups = await cluster.by_leader((topic, index) for index in wanted)
        answers = await asyncio.gather(
            *(_ask(cluster, leader, topic, [view for _, view in views]) for leader, views in groups.items())
        )
        return [each for answer in answers for each in answer]

    return await cluster.retried(ask, (topic,))


async def _ask(
    cluster: Cluster, leader: BrokerId, topic: str, views: Sequence[PartitionView]
) -> Sequence[OpenInPartition]:
    connection = await cluster.broker_connection(leader)
    asked = wire.TopicRequest(name=topic, partition_indexes=tuple(view.index for view in views))
    request = wire.DescribeProducersRequest(topics=(asked,))
    response = await connection.request(ApiKey.DESCRIBE_PRODUCERS, request, timeout_ms=cluster.request_timeout_ms)
    found = []
    for part in (part for answered in response.topics for part in answered.partitions):
        check(part.error_code, f"Partition {part.partition_index} of topic '{topic}'", part.error_message)
        found += [
            OpenInPartition(
                topic, part.partition_index, each.producer_id, each.producer_epoch, each.current_txn_start_offset
            )
            for each in part.active_producers
            if each.current_txn_start_offset >= 0
        ]
    return found


async def hanging(cluster: Cluster, topic: str, partitions: Sequence[int]) -> Sequence[OpenInPartition]:
    """The transactions of these partitions that nobody will end. Raises ClientError."""
    found = await open_transactions(cluster, topic, partitions)
    if not found:
        return []
    listed = await Transactions(cluster).list_all()
    under_way = {each.producer_id for each in listed if each.state not in AT_REST}
    left = [each for each in found if each.producer_id not in under_way]
    still_open = set(await open_transactions(cluster, topic, partitions)) if left else set()
    return [each for each in left if each in still_open]
