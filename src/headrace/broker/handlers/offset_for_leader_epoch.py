"""OffsetForLeaderEpoch: tells where an epoch ended, so that a reader sees whether its records are still there
(KIP-320).

The answer is the largest epoch not above the given one, and the offset at which it ended (the log end for the newest).
It is (-1, -1) where no such epoch is known. Epochs older than the log are looked up in durable history;
KAFKA_STORAGE_ERROR where that cannot be read. v2 the reader's current epoch; v3 replica id; v4 flexible.
"""

from __future__ import annotations

from headrace.base.ids import LeaderEpoch, PartitionIndex, TopicPartition
from headrace.broker.durable.history import HistoryUnavailable
from headrace.broker.requests.access import by_topic, on_topics
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.image import TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


async def handle(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    """Answer each partition by itself."""
    topics = []
    for topic in request.topics:
        known = context.image.topic(topic.topic)
        partitions = [await _answer(known, asked, context) for asked in topic.partitions]
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


async def _answer(topic: TopicImage | None, asked: OffsetForLeaderPartition, context: RequestContext) -> EpochEndOffset:
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
    history, catalog, local_start = context.services.history, partition.history, partition.log.log_start_offset
    if (
        history is not None
        and catalog is not None
        and partition.start_offset < local_start
        and 0 <= asked.leader_epoch < partition.log.epoch_at(local_start)
    ):
        try:
            epoch, end = await history.end_of_epoch(catalog, LeaderEpoch(asked.leader_epoch), local_start)
        except HistoryUnavailable:  # that was logged
            return EpochEndOffset(partition=asked.partition, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)


def _forbidden(topic: OffsetForLeaderTopic, error: ErrorCode) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=tuple(EpochEndOffset(partition=each.partition, error_code=error) for each in topic.partitions),
    )


HANDLER = Handler(
    int(ApiKey.OFFSET_FOR_LEADER_EPOCH),
    (2, 4),
    handle,
    on_topics(OffsetForLeaderEpochResponse, AclOperation.DESCRIBE, _forbidden, name_of=by_topic),
)
