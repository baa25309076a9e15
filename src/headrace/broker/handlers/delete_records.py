"""DeleteRecords: moves the start of partitions up (KIP-107). Records below it can no longer be read, and their files
go.

The answer is sent once the new start is durable, with it as the low watermark. The offset is at most the high
watermark, and -1 stands for it; an offset below the present start changes nothing. Errors:
- Internal topics belong to their coordinators: INVALID_TOPIC_EXCEPTION.
- POLICY_VIOLATION where the topic's cleanup.policy does not include delete.
- POLICY_VIOLATION where the partition is exported to a durable store that still lacks the records to delete.
- REQUEST_TIMED_OUT where the time is over; the deletion goes on. A `timeout_ms` below REQUEST_WAIT_MS_MIN counts as
  that.

The controller deletes durable history before the log is cut: the new start is the cluster's, whoever leads. A leader
that is alone in the ISR first flushes its appends (`broker.requests.visibility`). v2 flexible.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.base.ids import Offset, PartitionIndex, TopicPartition
from headrace.base.limits import NAMES_PER_TURN_MAX, REQUEST_WAIT_MS_MIN
from headrace.broker.partitions import bounds
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.access import on_topics
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.visibility import until_own_appends_are_visible
from headrace.controller.asks.history import DeleteHistory
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.values import TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK: Final = -1
NO_WATERMARK: Final = -1


class Deletion:
    """The outcome of one partition, settled when the new start is durable."""

    __slots__ = ("error", "future", "index", "low_watermark", "partition", "work")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error = ErrorCode.NONE
        self.low_watermark: int = NO_WATERMARK
        self.partition: Partition | None = None
        self.work: asyncio.Future[None] | None = None
        """Held here while it goes on."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_outcome(self, error: ErrorCode) -> None:
        """`Commit`: the new start is durable, or the partition is no longer served."""
        if self.future.done():
            return
        self.error = error
        if error is ErrorCode.NONE and self.partition is not None:
            self.low_watermark = self.partition.start_offset
        self.future.set_result(None)

    def result(self) -> DeleteRecordsPartitionResult:
        return DeleteRecordsPartitionResult(
            partition_index=self.index,
            low_watermark=self.low_watermark,
            error_code=ErrorCode.REQUEST_TIMED_OUT if not self.future.done() else self.error,
        )


async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Return one result for each partition, in the order of the request. A deletion that times out goes on."""
    asked = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    await until_own_appends_are_visible(asked, context)
    topics, begun = [], 0
    for topic in request.topics:
        known, deletions = context.image.topic(topic.name), list[Deletion]()
        topics.append((topic.name, deletions))
        for each in topic.partitions:
            deletions.append(_delete(known, each, context))
            begun += 1
            if begun % NAMES_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
    if waiting := [deletion.future for _, deletions in topics for deletion in deletions if not deletion.future.done()]:
        await asyncio.wait(waiting, timeout=max(request.timeout_ms, REQUEST_WAIT_MS_MIN) / 1000)
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
    elif before > max(found.log.log_start_offset, bounds.deletable_end(found)):
        deletion.on_outcome(ErrorCode.POLICY_VIOLATION)
    else:
        deletion.partition = found
        if found.history is None:
            found.delete_records(before, deletion)
        else:
            deletion.work = asyncio.ensure_future(_delete_history(found, before, deletion, context))
    return deletion


async def _delete_history(partition: Partition, before: Offset, deletion: Deletion, context: RequestContext) -> None:
    """Delete from the catalog, which all brokers know, then from the log."""
    key = partition.topic_partition
    while (history := partition.history) is not None and (wanted := min(before, history.next_offset)) > (
        history.log_start_offset
    ):
        refusal = await context.services.control.submit(
            DeleteHistory(
                topic_id=key.topic_id,
                partition=key.partition,
                leader_epoch=partition.leader_epoch,
                log_start_offset=wanted,
            )
        )
        if refusal is not None:
            deletion.on_outcome(refusal.code)
            return
        if partition.history is history:
            # it is not known here yet: a client that asks again finds out
            deletion.on_outcome(ErrorCode.REQUEST_TIMED_OUT)
            return
    if partition.availability is not ErrorCode.NONE:
        deletion.on_outcome(partition.availability)
        return
    partition.delete_records(before, deletion)


def _forbidden(topic: DeleteRecordsTopic, error: ErrorCode) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        name=topic.name,
        partitions=tuple(
            DeleteRecordsPartitionResult(each.partition_index, NO_WATERMARK, error) for each in topic.partitions
        ),
    )


HANDLER = Handler(
    int(ApiKey.DELETE_RECORDS), (0, 2), handle, on_topics(DeleteRecordsResponse, AclOperation.DELETE, _forbidden)
)
