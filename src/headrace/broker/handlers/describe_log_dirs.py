"""DescribeLogDirs: tells the disk space of each partition (KIP-113), and of the volume (KIP-827).

A broker has one log directory. The answer has every partition that it holds, as leader or follower; others are left
out, as on Kafka. Null asks for all. No replica is ever on its way to another directory. v2 flexible; v3 an error for
the whole; v4 the volume's total and usable bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.partitions.replica import Replica
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    """Return the one directory, from one image."""
    partitions = context.services.partitions
    held = partitions.replicas if request.topics is None else _named(request.topics, context)
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for replica in held:
        by_topic.setdefault(replica.topic, []).append(_described(replica))
    directory = partitions.log_place
    try:
        space = await partitions.space()
    except OSError:
        result = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory)
        return DescribeLogDirsResponse(results=(result,))
    topics = tuple(DescribeLogDirsTopic(name=name, partitions=tuple(found)) for name, found in by_topic.items())
    return DescribeLogDirsResponse(
        results=(
            DescribeLogDirsResult(log_dir=directory, topics=topics, total_bytes=space.total, usable_bytes=space.usable),
        )
    )


def _named(topics: Iterable[DescribableLogDirTopic], context: RequestContext) -> Iterable[Replica]:
    """Return the replicas of the request that this broker holds."""
    for asked in topics:
        topic = context.image.topic(asked.topic)
        if topic is None:
            continue
        for index in dict.fromkeys(asked.partitions):
            found = context.services.partitions.role(TopicPartition(topic.id, PartitionIndex(index)))
            if found is not None:
                yield found


def _described(replica: Replica) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=replica.topic_partition.partition,
        partition_size=replica.log.size_bytes,
        offset_lag=replica.offset_lag,
    )


HANDLER = Handler(
    int(ApiKey.DESCRIBE_LOG_DIRS),
    (1, 4),
    handle,
    on_cluster(lambda _, error: DescribeLogDirsResponse(error_code=error), AclOperation.DESCRIBE),
)
