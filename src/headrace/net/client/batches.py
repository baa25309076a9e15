"""Fetches whole record batches of one partition, as they lie in the log, for readers that decode them themselves.

Promises the batches that a broker sends from an offset on, cut at the last whole one. They are not checked. A changed
leader is followed. A topic that was deleted and made again under its name is refused, never read in place of the old
one.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.ids import NO_OFFSET, Offset, PartitionIndex, TopicId
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import FETCH_LANE, TOPIC_IDS_SINCE
from headrace.net.client.errors import ClientError, RefusedError, check
from headrace.net.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.wire.apis import ApiKey
from headrace.wire.batches import whole_batches
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import describe_log_dirs, fetch
from headrace.wire.transactions import OpenTransaction


class TopicReplacedError(RefusedError):
    """Another topic has that name now. No pause will change that."""

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic '{name}'", "it was deleted since, and made anew")
        self.retriable = False


class FetchedBatches(NamedTuple):
    """The result of one fetch."""

    data: memoryview
    """Whole batches, back to back. The first may begin below the offset, or above it where offsets are gone."""
    end: Offset
    """The end of what the reader may see: the high watermark, or with `committed_only` the last stable offset."""
    broker: str
    """The broker that answered."""
    aborted: tuple[OpenTransaction, ...] = ()
    """With `committed_only`: the aborted transactions among the batches."""
    high_watermark: Offset = NO_OFFSET
    """The end of what readers of uncommitted records may see; -1: unknown."""
    last_stable_offset: Offset = NO_OFFSET
    """The end of what readers of committed records may see; -1: unknown."""


async def fetch_batches(
    cluster: Cluster,
    topic: str,
    topic_id: TopicId,
    partition: int,
    offset: int,
    *,
    bytes_max: int,
    wait_ms: int,
    committed_only: bool = False,
) -> FetchedBatches:
    """Fetch batches from the partition's leader, waiting up to `wait_ms` for some to arrive. `committed_only`: none of
    a transaction that is open, or behind it. Raises ClientError; a RefusedError with OFFSET_OUT_OF_RANGE means that the
    offset does not exist.
    """

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
            isolation_level=READ_COMMITTED if committed_only else READ_UNCOMMITTED,
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
                    stable, high_watermark = Offset(part.last_stable_offset), Offset(part.high_watermark)
                    end = stable if committed_only else high_watermark
                    aborted = tuple(OpenTransaction(*each) for each in part.aborted_transactions or ())
                    return FetchedBatches(whole, end, str(connection.address), aborted, high_watermark, stable)
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, subject, "the answer says nothing of it")

    return await cluster.retried(ask, (topic,))


async def log_bytes(cluster: Cluster, topic: str) -> dict[PartitionIndex, int]:
    """Size in bytes of each partition's log on its leader. Partitions that no broker reports are left out."""
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
