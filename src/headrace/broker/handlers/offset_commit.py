"""OffsetCommit: stores how far a group has read. Answered once the offsets are durable by the acks=all rule.

A member commits under its generation. Without one (-1, no member id) anybody may commit while the group has no members.
An offset for a partition that does not exist is refused by itself (UNKNOWN_TOPIC_OR_PARTITION); the others stand.

- v2-v4: a retention time, which is ignored (the broker's offsets.retention.minutes counts, KIP-211); v5 has none.
- v6: the leader epoch of what was read (KIP-320).
- v7: static members, fenced by their instance id.
- v8: flexible.
- v9: GROUP_ID_NOT_FOUND where a member claims a generation of a group that does not exist (ILLEGAL_GENERATION before).
- v9: a consumer group's member (KIP-848) commits at its epoch: STALE_MEMBER_EPOCH at another, UNSUPPORTED_VERSION
  before v9.
- v10: topics by id.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import NO_TOPIC_ID, LeaderEpoch, Offset, TopicId
from headrace.base.limits import GROUP_NAME_CHARS_MAX
from headrace.broker.groups.answers import Told
from headrace.broker.handlers import plain_commit
from headrace.broker.requests.access import by_name_or_id, in_turn, on_group, on_topics
from headrace.broker.requests.context import Handler, RequestContext, Services, Shortcut
from headrace.broker.requests.turns import in_turns
from headrace.coordinators.groups.events import CommitOffsets, CommitReply, NewOffset
from headrace.coordinators.groups.model import NamedPartition
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.values import TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

GROUP_NOT_FOUND_VERSION: Final = 9
TOPIC_ID_VERSION: Final = 10
IN_OLDER_WORDS: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.UNSUPPORTED_VERSION,
}


async def handle(request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    named = ((topic, partition) for topic in request.topics for partition in topic.partitions)
    wanted = await in_turns(_wanted(topic, partition, context) for topic, partition in named)
    if len(request.group_id) > GROUP_NAME_CHARS_MAX:
        wanted = [ErrorCode.INVALID_GROUP_ID for _ in wanted]
    offsets = tuple(one for one in wanted if not isinstance(one, ErrorCode))
    errors = iter(await _commit(request, offsets, context))
    outcomes = iter([one if isinstance(one, ErrorCode) else next(errors) for one in wanted])
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=next(outcomes))
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _wanted(
    topic: OffsetCommitRequestTopic, partition: OffsetCommitRequestPartition, context: RequestContext
) -> NewOffset | ErrorCode:
    """Return the offset to commit, or why it cannot be."""
    known = _topic(topic, context)
    if isinstance(known, ErrorCode):
        return known
    if not 0 <= partition.partition_index < len(known.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return NewOffset(
        partition=NamedPartition(known.name, partition.partition_index),
        topic_id=known.id,
        offset=Offset(partition.committed_offset),
        leader_epoch=LeaderEpoch(partition.committed_leader_epoch),
        metadata=partition.committed_metadata or "",
    )


def _topic(topic: OffsetCommitRequestTopic, context: RequestContext) -> TopicImage | ErrorCode:
    if context.version >= TOPIC_ID_VERSION:
        by_id = context.image.topic_by_id(TopicId(topic.topic_id)) if topic.topic_id != NO_TOPIC_ID else None
        return by_id or ErrorCode.UNKNOWN_TOPIC_ID
    return context.image.topic(topic.name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _commit(
    request: OffsetCommitRequest, offsets: tuple[NewOffset, ...], context: RequestContext
) -> tuple[ErrorCode, ...]:
    if not offsets:
        return ()
    reply: Told = await context.services.groups.ask(
        request.group_id,
        lambda waiter: CommitOffsets(
            waiter=waiter,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            offsets=offsets,
        ),
    )
    if isinstance(reply, ErrorCode):
        return (reply,) * len(offsets)
    assert isinstance(reply, CommitReply)
    return tuple(_in_words_of(error, context.version) for error in reply.errors)


def _in_words_of(error: ErrorCode, version: int) -> ErrorCode:
    """Return a group's error as this version names it."""
    return error if version >= GROUP_NOT_FOUND_VERSION else IN_OLDER_WORDS.get(error, error)


def _shortcuts(services: Services) -> dict[int, Shortcut]:
    return plain_commit.shortcuts(services, _in_words_of)


def _all_forbidden(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=tuple(_forbidden(topic, error) for topic in request.topics))


def _forbidden(topic: OffsetCommitRequestTopic, error: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ),
    )


HANDLER = Handler(
    int(ApiKey.OFFSET_COMMIT),
    (2, 10),
    handle,
    in_turn(
        on_group(_all_forbidden, AclOperation.READ),
        on_topics(OffsetCommitResponse, AclOperation.READ, _forbidden, name_of=by_name_or_id),
    ),
    shortcuts=_shortcuts,
)
