"""ListOffsets: finds the first offset, the last, and the offset at a time.

Timestamps:
- -1 latest: the high watermark; under read_committed the last stable offset.
- -2 earliest, durable history included, as for times.
- -3 the record with the highest timestamp (v7, KIP-734).
- -4 the earliest offset in this broker's log (v8, KIP-405).
- -5 the last in the durable catalog (v9, KIP-1005; -1: none).
- Any other: the first record at or after that time. A negative one that the version does not know is
  UNSUPPORTED_VERSION.

The latest offset is unknown until the high watermark reaches this epoch's start (KIP-207): OFFSET_NOT_AVAILABLE, before
v5 LEADER_NOT_AVAILABLE. KAFKA_STORAGE_ERROR where history would have to be read and cannot be. A leader that is alone
in the ISR first flushes its appends (`broker.requests.visibility`).

- v1: the first with one offset per partition.
- v2: isolation.
- v4: epochs.
- v6: flexible.
- v10: a timeout for look-ups in remote storage (KIP-1075), which is ignored.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import NO_EPOCH, PartitionIndex, TopicPartition
from headrace.base.limits import HISTORY_EPOCH_MS_MAX, NAMES_PER_TURN_MAX
from headrace.broker.durable.history import HistoryUnavailable
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.access import on_topics
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.visibility import until_own_appends_are_visible
from headrace.logs import get_logger
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.image import TopicImage
from headrace.storage.engine.reading import FoundOffset
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

log = get_logger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
MARKS_SINCE: Final = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first version that knows each special timestamp."""
NEVER: Final = 2**15
NOT_OF_THE_END: Final = (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED)
"""Timestamps whose answer does not depend on the high watermark."""
READ_COMMITTED: Final = 1


async def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Answer each partition by itself. Look-ups by time read the disk, so they leave the event loop."""
    committed_only = request.isolation_level == READ_COMMITTED
    asked = ((topic.name, each) for topic in request.topics for each in topic.partitions)
    at_the_end = ((name, each.partition_index) for name, each in asked if each.timestamp not in NOT_OF_THE_END)
    await until_own_appends_are_visible(at_the_end, context)
    topics, answered = [], 0
    for topic in request.topics:
        known = context.image.topic(topic.name)
        partitions = []
        for each in topic.partitions:
            partitions.append(await _answer(known, each, context, committed_only))
            answered += 1
            if answered % NAMES_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return ListOffsetsResponse(topics=tuple(topics))


async def _answer(
    topic: TopicImage | None, asked: ListOffsetsPartition, context: RequestContext, committed_only: bool
) -> ListOffsetsPartitionResponse:
    if topic is None:
        return _refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    key = TopicPartition(topic.id, PartitionIndex(asked.partition_index))
    partition = context.services.partitions.find(key, context.image)
    if isinstance(partition, ErrorCode):
        return _refused(asked, partition)
    error = partition.check_epoch(asked.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return _refused(asked, error)
    if asked.timestamp < 0 and context.version < MARKS_SINCE.get(asked.timestamp, NEVER):
        return _refused(asked, ErrorCode.UNSUPPORTED_VERSION)
    if asked.timestamp == EARLIEST and partition.start_offset < partition.log.log_start_offset:
        return await _earliest(partition, asked, context)
    if asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.begins_at
        return _found(asked, start, -1, partition.log.epoch_at(start))
    if asked.timestamp == LATEST:
        return _latest(partition, asked, context, committed_only)
    if asked.timestamp == LATEST_TIERED:
        last = context.image.durable(key).last
        if last is None:
            return _found(asked, -1, -1, NO_EPOCH)
        return _found(asked, last.descriptor.end_offset, -1, last.descriptor.leader_epoch)
    return await _by_time(partition, asked, context, committed_only)


async def _earliest(
    partition: Partition, asked: ListOffsetsPartition, context: RequestContext
) -> ListOffsetsPartitionResponse:
    """Find the start of the partition, durable history included. Only the epoch there needs the store."""
    history, catalog, start = context.services.history, partition.history, partition.start_offset
    epoch = NO_EPOCH
    if history is not None and catalog is not None:
        with suppress(HistoryUnavailable, TimeoutError):
            async with asyncio.timeout(HISTORY_EPOCH_MS_MAX / 1000):
                epoch = await history.epoch_at(partition.topic_partition, catalog, start)
    return _found(asked, start, -1, epoch)


def _latest(
    partition: Partition, asked: ListOffsetsPartition, context: RequestContext, committed_only: bool
) -> ListOffsetsPartitionResponse:
    if not partition.latest_is_known:
        old = context.version < 5
        return _refused(asked, ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.OFFSET_NOT_AVAILABLE)
    if partition.log.read_only is not None:  # nobody knows it
        return _refused(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    return _found(asked, end, -1, partition.leader_epoch)


async def _in_history(partition: Partition, timestamp: int, context: RequestContext) -> FoundOffset | None:
    """Look below the log's start. Raises HistoryUnavailable."""
    history, catalog, local_start = context.services.history, partition.history, partition.log.log_start_offset
    if history is None or catalog is None or partition.start_offset >= local_start:
        return None
    if timestamp == MAX_TIMESTAMP:
        return await history.highest(catalog, local_start)
    return await history.first_at_or_after(catalog, timestamp, local_start)


async def _look_up(partition: Partition, timestamp: int, context: RequestContext) -> FoundOffset | None:
    """Look in history and log. Both are searched again where the log deleted records between them meanwhile. Raises as
    both."""
    loop = asyncio.get_running_loop()
    while True:
        local_start = partition.log.log_start_offset
        found = older = await _in_history(partition, timestamp, context)
        if timestamp == MAX_TIMESTAMP:
            found = await loop.run_in_executor(None, partition.log.max_timestamp)
            if older is not None and (found is None or older.timestamp >= found.timestamp):
                found = older
        elif older is None:
            found = await loop.run_in_executor(None, partition.log.offset_for_timestamp, timestamp)
        if local_start == partition.log.log_start_offset:
            return found


async def _by_time(
    partition: Partition, asked: ListOffsetsPartition, context: RequestContext, committed_only: bool
) -> ListOffsetsPartitionResponse:
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    if (refusal := partition.write_out()) is not None:
        return _refused(asked, refusal.error)
    try:
        found = await _look_up(partition, asked.timestamp, context)
    except HistoryUnavailable:  # that was logged
        return _refused(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    except (CorruptData, StorageFailure, OSError) as error:
        log.warning(
            "list offsets failed: the log could not be read",
            topic=partition.topic,
            partition=partition.topic_partition.partition,
            timestamp=asked.timestamp,
            reason=str(error),
        )
        return _refused(asked, partition.on_unreadable(error, None))
    if found is None and partition.log.read_only is not None:
        return _refused(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    if (found is None or found.offset >= end) and not partition.latest_is_known:
        return _refused(asked, ErrorCode.OFFSET_NOT_AVAILABLE)  # it may be committed, and not known to be
    if found is None or found.offset >= end:
        return _found(asked, -1, -1, NO_EPOCH)
    return _found(asked, found.offset, found.timestamp, found.leader_epoch)


def _found(asked: ListOffsetsPartition, offset: int, timestamp: int, epoch: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _refused(asked: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1
    )


def _forbidden(topic: ListOffsetsTopic, error: ErrorCode) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(
        name=topic.name,
        partitions=tuple(
            ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ),
    )


HANDLER = Handler(
    int(ApiKey.LIST_OFFSETS), (1, 10), handle, on_topics(ListOffsetsResponse, AclOperation.DESCRIBE, _forbidden)
)
