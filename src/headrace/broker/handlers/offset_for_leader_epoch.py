"""OffsetForLeaderEpoch: where an epoch ended, so that a reader sees whether its records are still there (KIP-320).

Answers the largest epoch not above the asked one, and the offset at which it ended (the log's end for the newest);
(-1, -1) where no such epoch is known. v2 the reader's current epoch; v3 replica id; v4 flexible.
"""

from __future__ import annotations

from headrace.base.ids import LeaderEpoch, PartitionIndex, TopicPartition
from headrace.broker.context import Handler, RequestContext
from headrace.metadata.image import TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    """Answer each partition by itself."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _answer(context.image.topic(topic.topic), asked, context) for asked in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _answer(topic: TopicImage | None, asked: OffsetForLeaderPartition, context: RequestContext) -> EpochEndOffset:
    if topic is None:
        return EpochEndOffset(partition=asked.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    key = TopicPartition(topic.id, PartitionIndex(asked.partition))
    partition = context.services.partitions.find(key, context.image)
    if isinstance(partition, ErrorCode):
        return EpochEndOffset(partition=asked.partition, error_code=partition)
    error = partition.check_epoch(asked.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return EpochEndOffset(partition=asked.partition, error_code=error)
    epoch, end = partition.log.end_offset_for_epoch(LeaderEpoch(asked.leader_epoch))
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)


HANDLER = Handler(int(ApiKey.OFFSET_FOR_LEADER_EPOCH), (2, 4), handle)
