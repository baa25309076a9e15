"""DeleteRecords: move the start of partitions up (KIP-107). What lies below can no longer be read, and its files go.

Answered once the new start is durable, with it as the low watermark. The offset is at most the high watermark, and -1
means just that; one below the present start changes nothing. Internal topics belong to their coordinators:
INVALID_TOPIC_EXCEPTION. POLICY_VIOLATION where the topic's cleanup.policy does not name delete, and where the partition
is exported to a durable store that still lacks what would go.

v2 flexible.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.base.ids import Offset, PartitionIndex, TopicPartition
from headrace.broker.context import Handler, RequestContext
from headrace.broker.housekeeper import deletable_end
from headrace.broker.partition import Partition
from headrace.metadata.values import TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK: Final = -1
NO_WATERMARK: Final = -1


class Deletion:
    """One partition's outcome, told when the new start is durable."""

    __slots__ = ("error", "future", "index", "low_watermark", "partition")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error = ErrorCode.NONE
        self.low_watermark: int = NO_WATERMARK
        self.partition: Partition | None = None
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_outcome(self, error: ErrorCode) -> None:
        """`Commit`: the new start is durable, or the partition is no longer served."""
        if self.future.done():
            return
        self.error = error
        if error is ErrorCode.NONE and self.partition is not None:
            self.low_watermark = self.partition.log.log_start_offset
        self.future.set_result(None)

    def result(self) -> DeleteRecordsPartitionResult:
        return DeleteRecordsPartitionResult(
            partition_index=self.index,
            low_watermark=self.low_watermark,
            error_code=ErrorCode.REQUEST_TIMED_OUT if not self.future.done() else self.error,
        )


async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """One result for each partition, in the order of the request. A deletion that times out goes on."""
    topics = [
        (topic.name, [_delete(context.image.topic(topic.name), asked, context) for asked in topic.partitions])
        for topic in request.topics
    ]
    if waiting := [deletion.future for _, deletions in topics for deletion in deletions if not deletion.future.done()]:
        await asyncio.wait(waiting, timeout=max(request.timeout_ms, 0) / 1000)
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(name=name, partitions=tuple(deletion.result() for deletion in deletions))
            for name, deletions in topics
        )
    )


def _delete(topic: TopicImage | None, asked: DeleteRecordsPartition, context: RequestContext) -> Deletion:
    deletion = Deletion(asked.partition_index)
    if topic is None:
        deletion.on_outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return deletion
    if topic.internal:
        deletion.on_outcome(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return deletion
    key = TopicPartition(topic.id, PartitionIndex(asked.partition_index))
    found = context.services.partitions.find(key, context.image)
    if isinstance(found, ErrorCode):
        deletion.on_outcome(found)
        return deletion
    if not found.settings.delete:
        deletion.on_outcome(ErrorCode.POLICY_VIOLATION)
        return deletion
    before = found.high_watermark if asked.offset == HIGH_WATERMARK else Offset(asked.offset)
    if not 0 <= before <= found.high_watermark:
        deletion.on_outcome(ErrorCode.OFFSET_OUT_OF_RANGE)
    elif before > max(
        found.log.log_start_offset, deletable_end(found, context.image, durable=context.services.durable)
    ):
        deletion.on_outcome(ErrorCode.POLICY_VIOLATION)
    else:
        deletion.partition = found
        found.delete_records(before, deletion)
    return deletion


HANDLER = Handler(int(ApiKey.DELETE_RECORDS), (0, 2), handle)
