"""OffsetDelete (KIP-496): deletes a group's committed offsets for some partitions. Answered once that is durable.

GROUP_SUBSCRIBED_TO_TOPIC for topics that its members may be reading. NON_EMPTY_GROUP where it has members of another
kind than consumers. GROUP_ID_NOT_FOUND where there is no such group. A partition without a committed offset is no
error.
"""

from __future__ import annotations

from headrace.broker.requests.access import in_turn, on_group, on_topics
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.groups.events import DeleteOffsets, DeleteOffsetsReply
from headrace.coordinators.groups.model import NamedPartition
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    named = [NamedPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    known = tuple(partition for partition in named if _exists(partition, context))
    reply = await context.services.groups.ask(
        request.group_id, lambda waiter: DeleteOffsets(waiter=waiter, partitions=known), surely=True
    )
    if isinstance(reply, ErrorCode):
        return OffsetDeleteResponse(error_code=reply)
    assert isinstance(reply, DeleteOffsetsReply)
    if reply.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=reply.error)
    errors = dict(zip(known, reply.partitions, strict=True))
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=errors.get(
                            NamedPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _exists(partition: NamedPartition, context: RequestContext) -> bool:
    topic = context.image.topic(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)


def _group_forbidden(_: OffsetDeleteRequest, error: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error)


def _forbidden(topic: OffsetDeleteRequestTopic, error: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ),
    )


HANDLER = Handler(
    int(ApiKey.OFFSET_DELETE),
    (0, 0),
    handle,
    in_turn(
        on_group(_group_forbidden, AclOperation.DELETE), on_topics(OffsetDeleteResponse, AclOperation.READ, _forbidden)
    ),
)
