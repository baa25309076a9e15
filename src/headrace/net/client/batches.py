"""Fetches whole record batches of one partition, as they lie in the log: for readers that unpack them by themselves.

Promises the batches that a broker sends from an offset on, cut at the last whole one; nothing of them is checked. A
changed leader is followed; a topic that was made anew under the same name is refused, never read in place of the old.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.ids import Offset, PartitionIndex, TopicId
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import FETCH_LANE, TOPIC_IDS_SINCE
from headrace.net.client.errors import ClientError, RefusedError, check
from headrace.wire.apis import ApiKey
from headrace.wire.batches import whole_batches
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import describe_log_dirs, fetch


class TopicReplacedError(RefusedError):
    """There is another topic of that name now: no pause will change that."""

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic '{name}'", "it was deleted since, and made anew")
        self.retriable = False


class FetchedBatches(NamedTuple):
    """What one fetch gave."""

    data: memoryview
    """Whole batches, back to back. The first may begin below the offset, or above it where offsets are gone."""
    high_watermark: Offset
    broker: str
    """Whose answer it is."""


async def fetch_batches(
    cluster: Cluster, topic: str, topic_id: TopicId, partition: int, offset: int, *, bytes_max: int, wait_ms: int
) -> FetchedBatches:
    """Of the partition's leader, waiting up to `wait_ms` for something to be there. Raises ClientError, of which
    RefusedError with OFFSET_OUT_OF_RANGE says that the offset is not there."""

    async def ask() -> FetchedBatches:
        found = await cluster.topic(topic)
        subject = f"Partition {partition} of topic '{topic}'"
        if found.id != topic_id:
            raise TopicReplacedError(topic)
        view = await cluster.partition(topic, PartitionIndex(partition))
        connection = await cluster.broker_connection(view.leader, FETCH_LANE)
        version = connection.version(ApiKey.FETCH)
        asked = fetch.FetchPartition(
            partition=partition,
            current_leader_epoch=view.leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=bytes_max,
        )
        request = fetch.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            topics=(fetch.FetchTopic(topic=topic, topic_id=topic_id, partitions=(asked,)),),
        )
        timeout_ms = cluster.request_timeout_ms + wait_ms
        response = await connection.request(ApiKey.FETCH, request, version=version, timeout_ms=timeout_ms)
        check(response.error_code, f"Fetch from {connection.address}")
        for answered in response.responses:
            if (answered.topic_id == topic_id) if version >= TOPIC_IDS_SINCE else (answered.topic == topic):
                for part in answered.partitions:
                    check(part.error_code, subject)
                    data = memoryview(part.records if part.records is not None else b"")
                    whole = data[: whole_batches(data)]
                    return FetchedBatches(whole, Offset(part.high_watermark), str(connection.address))
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, subject, "the answer says nothing of it")

    return await cluster.retried(ask, (topic,))


async def log_bytes(cluster: Cluster, topic: str) -> dict[PartitionIndex, int]:
    """How many bytes each partition's log takes on its leader; those that no broker tells of are left out."""
    found: dict[PartitionIndex, int] = {}
    view = await cluster.topic(topic)
    by_leader: dict[int, list[int]] = {}
    for part in view.partitions:
        by_leader.setdefault(part.leader, []).append(part.index)
    for indexes in by_leader.values():
        asked = describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=tuple(indexes))
        request = describe_log_dirs.DescribeLogDirsRequest(topics=(asked,))
        try:
            connection = await cluster.broker_connection(view.partitions[indexes[0]].leader)
            response = await connection.request(
                ApiKey.DESCRIBE_LOG_DIRS, request, timeout_ms=cluster.request_timeout_ms
            )
        except ClientError:
            continue
        for result in response.results:
            for answered in result.topics:
                if answered.name == topic:
                    found |= {PartitionIndex(each.partition_index): each.partition_size for each in answered.partitions}
    return found
