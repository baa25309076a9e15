"""Fetch: whole batches from where the reader stands, up to what it may see; waits where there is too little.

Reads go to the high watermark, under read_committed to the last stable offset. At least one batch is given where the
first would be over the limits (KIP-74). A request that finds fewer than min_bytes parks until they are visible, its
time is up, or a partition changes hands; the connection waits with it, or each of many parked fetches would bring a
whole answer into memory at once. Sessions are incremental (KIP-227).

v4 the first with record batches; v5 log start offset; v7 sessions; v9 the reader's leader epoch (KIP-320); v11 rack;
v12 flexible; v13 topics by id; v15 and v17 replica fields; v16 leader endpoints (KIP-951). Replica fetches come later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import FETCH_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.broker.context import Handler, RequestContext
from headrace.broker.fetch_sessions import NO_SESSION, FetchPlan, PartitionKey, Wanted
from headrace.broker.parking import ParkedFetch
from headrace.broker.partition import Partition
from headrace.storage.engine import DamagedRange
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

log = structlog.get_logger(__name__)

TOPIC_ID_VERSION: Final = 13
READ_COMMITTED: Final = 1


@dataclass(slots=True)
class Found:
    """What was read of one partition."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Buffer = b""


@dataclass(slots=True)
class Attempt:
    """One pass over all partitions."""

    found: list[Found] = field(default_factory=list)
    watched: list[Partition] = field(default_factory=list)
    size: int = 0
    has_error: bool = False


def handle(request: FetchRequest, context: RequestContext) -> FetchResponse | Awaitable[FetchResponse]:
    """Answer at once where there is enough, else park."""
    plan = context.services.fetch_sessions.plan(
        session_id=request.session_id,
        epoch=request.session_epoch,
        by_id=context.version >= TOPIC_ID_VERSION,
        wanted=_wanted(request, context),
        forgotten=_forgotten(request, context),
    )
    if isinstance(plan, ErrorCode):
        return FetchResponse(error_code=plan, session_id=NO_SESSION)
    reader = Reader(request, context, plan)
    attempt = reader.attempt()
    missing = request.min_bytes - attempt.size
    if missing <= 0 or attempt.has_error or request.max_wait_ms <= 0 or not attempt.watched:
        return reader.response(attempt)
    parked = ParkedFetch(attempt.watched, missing_bytes=missing, wait_s=request.max_wait_ms / 1000)
    return reader.answer_after(parked)


def _key(context: RequestContext, name: str, topic_id: object, partition: int) -> PartitionKey:
    topic = topic_id if context.version >= TOPIC_ID_VERSION else name
    return PartitionKey(topic, PartitionIndex(partition))  # type: ignore[arg-type] # TopicId is a NewType of UUID


def _wanted(request: FetchRequest, context: RequestContext) -> Iterator[tuple[PartitionKey, Wanted]]:
    for topic in request.topics:
        for asked in topic.partitions:
            yield (
                _key(context, topic.topic, topic.topic_id, asked.partition),
                Wanted(asked.fetch_offset, asked.partition_max_bytes, asked.current_leader_epoch),  # type: ignore[arg-type] # wire ints
            )


def _forgotten(request: FetchRequest, context: RequestContext) -> Iterator[PartitionKey]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield _key(context, topic.topic, topic.topic_id, partition)


class Reader:
    """One request's reading: may be attempted twice, before and after parking."""

    def __init__(self, request: FetchRequest, context: RequestContext, plan: FetchPlan) -> None:
        self._request = request
        self._context = context
        self._plan = plan
        self._bytes_max = min(request.max_bytes, FETCH_BYTES_MAX)

    def attempt(self) -> Attempt:
        """Read every wanted partition in order, until the request's bytes are reached."""
        attempt = Attempt()
        for key, wanted in self._plan.wanted:
            found = self._read(key, wanted, attempt)
            attempt.found.append(found)
            attempt.size += len(found.records)
            attempt.has_error = attempt.has_error or found.error is not ErrorCode.NONE
        return attempt

    def _read(self, key: PartitionKey, wanted: Wanted, attempt: Attempt) -> Found:
        partition = self._partition(key)
        if isinstance(partition, ErrorCode):
            return Found(key, partition)
        error = partition.check_epoch(wanted.leader_epoch)
        if error is ErrorCode.NONE:
            error = partition.check_range(wanted.offset)
        found = Found(
            key, error, partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset
        )
        if error is ErrorCode.NONE:
            attempt.watched.append(partition)
            self._read_records(partition, wanted, attempt, found)
        return found

    def _read_records(self, partition: Partition, wanted: Wanted, attempt: Attempt, found: Found) -> None:
        room = min(wanted.bytes_max, self._bytes_max - attempt.size)
        if room <= 0 and attempt.size > 0:
            return
        try:
            found.records = partition.read(
                wanted.offset,
                max(room, 0),
                committed_only=self._request.isolation_level == READ_COMMITTED,
                at_least_one=attempt.size == 0,
            )
        except (CorruptData, StorageFailure, OSError) as error:
            found.error = partition.on_unreadable(error, wanted.offset)
            if not isinstance(error, DamagedRange):  # which was told when it was found
                log.warning(
                    "fetch failed: the log could not be read",
                    topic=partition.topic,
                    partition=partition.topic_partition.partition,
                    offset=wanted.offset,
                    reason=str(error),
                )

    def _partition(self, key: PartitionKey) -> Partition | ErrorCode:
        image = self._context.image
        topic = image.topic(key.topic) if isinstance(key.topic, str) else image.topic_by_id(key.topic)
        if topic is None:
            by_name = isinstance(key.topic, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        return self._context.services.partitions.find(TopicPartition(topic.id, key.partition), image)

    async def answer_after(self, parked: ParkedFetch) -> FetchResponse:
        """Wait, then read once more and answer with what there is."""
        try:
            await parked.future
        finally:
            parked.wake()
        return self.response(self.attempt())

    def response(self, attempt: Attempt) -> FetchResponse:
        """Everything for a full fetch; for an incremental one what has data, an error or news."""
        session = self._plan.session
        topics: dict[str | TopicId, list[PartitionData]] = {}
        for found in attempt.found:
            news = session is None or session.is_news(found.key, found.high_watermark, found.log_start_offset)
            if self._plan.incremental and not (news or found.records or found.error):
                continue
            topics.setdefault(found.key.topic, []).append(_partition_data(found))
            if session is not None and found.records:
                session.served(found.key)
        return FetchResponse(
            session_id=NO_SESSION if session is None else session.session_id,
            responses=tuple(_topic_response(topic, partitions) for topic, partitions in topics.items()),
        )


def _partition_data(found: Found) -> PartitionData:
    return PartitionData(
        partition_index=found.key.partition,
        error_code=found.error,
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable_offset,
        log_start_offset=found.log_start_offset,
        aborted_transactions=None,
        records=memoryview(found.records),
    )


def _topic_response(topic: str | TopicId, partitions: list[PartitionData]) -> FetchableTopicResponse:
    if isinstance(topic, str):
        return FetchableTopicResponse(topic=topic, partitions=tuple(partitions))
    return FetchableTopicResponse(topic_id=topic, partitions=tuple(partitions))


HANDLER = Handler(int(ApiKey.FETCH), (4, 17), handle)
