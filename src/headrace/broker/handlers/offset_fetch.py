"""OffsetFetch: returns how far groups have read; -1 where nothing was committed, also for an unknown group.

A committed offset comes back as it was, negative or not: some clients commit -2 for the beginning. An offset for a
deleted topic is not returned for a later topic of the same name. Only durable offsets are returned. A coordinator that
holds no lease of the controller and gets none now returns NOT_COORDINATOR: another may have later offsets.

- v1: a group and its partitions, an error in each of them.
- v2: null topics for all that was committed, the error once.
- v5: leader epochs.
- v6: flexible.
- v7: require_stable (KIP-447): UNSTABLE_OFFSET_COMMIT where an open transaction may change the offset.
- v8: many groups (KIP-709).
- v9: member id and epoch. A consumer group (KIP-848) answers its members at their latest epoch only (UNKNOWN_MEMBER_ID,
  STALE_MEMBER_EPOCH).
- v10: topics by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from headrace.base.ids import NO_TOPIC_ID, TopicId
from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.requests.access import at_once_or, by_name_or_id, on_topics, with_more
from headrace.broker.requests.context import Admitted, Checked, Handler, Refused, RequestContext, Slices
from headrace.broker.requests.turns import in_turns
from headrace.coordinators.groups.model import Group, NamedPartition, topic_matches
from headrace.coordinators.groups.offsets import NO_COMMIT, lookup
from headrace.coordinators.groups.transactional import is_unstable
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

TOP_LEVEL_ERROR_VERSION: Final = 2
GROUPS_VERSION: Final = 8
Named = TypeVar("Named", OffsetFetchResponseTopic, OffsetFetchResponseTopics)
TOPIC_ID_VERSION: Final = 10


def handle(
    request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    groups = context.services.groups
    asked = [each.group_id for each in request.groups] if context.version >= GROUPS_VERSION else [request.group_id]
    return _once_sure(request, context) if groups.is_in_doubt(asked) else _answer(request, context)


async def _once_sure(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    await context.services.groups.make_sure()
    answer = _answer(request, context)
    return answer if isinstance(answer, OffsetFetchResponse) else await answer


def _answer(
    request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    if context.is_long:
        return _answer_in_turns(request, context)
    asked = _asked(request, context)
    return _told(asked, [_group(each, context, stable=request.require_stable) for each in asked], context)


async def _answer_in_turns(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """As `_answer`. The answer for one group is true of one moment."""
    asked, found = _asked(request, context), []
    for number, each in enumerate(asked, 1):
        topics = _topics(each, context, stable=request.require_stable)
        if not isinstance(topics, OffsetFetchResponseGroup):
            topics = OffsetFetchResponseGroup(group_id=each.group_id, topics=tuple(await in_turns(topics)))
        found.append(topics)
        if number % NAMES_PER_TURN_MAX == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    return _told(asked, found, context)


def _asked(request: OffsetFetchRequest, context: RequestContext) -> Collection[OffsetFetchRequestGroup]:
    if context.version >= GROUPS_VERSION:  # one answer for each, however often it is named
        return {group.group_id: group for group in request.groups}.values()
    topics = None
    if request.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in request.topics
        )
    return (OffsetFetchRequestGroup(group_id=request.group_id, topics=topics),)


def _told(
    asked: Collection[OffsetFetchRequestGroup], found: Sequence[OffsetFetchResponseGroup], context: RequestContext
) -> OffsetFetchResponse:
    if context.version >= GROUPS_VERSION:
        return OffsetFetchResponse(groups=tuple(found))
    return _as_one(found[0], next(iter(asked)), context.version)


def _group(asked: OffsetFetchRequestGroup, context: RequestContext, *, stable: bool) -> OffsetFetchResponseGroup:
    topics = _topics(asked, context, stable=stable)
    if isinstance(topics, OffsetFetchResponseGroup):
        return topics
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=tuple(topics))


def _topics(
    asked: OffsetFetchRequestGroup, context: RequestContext, *, stable: bool
) -> Iterable[OffsetFetchResponseTopics] | OffsetFetchResponseGroup:
    """Return the group's topics as they are now, also where they are looked up later; or the refusal of the group.
    `stable`: no offset is told that an open transaction may change."""
    group = context.services.groups.committed(asked.group_id)
    if isinstance(group, ErrorCode):
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=group)
    error = _member_error(group, asked)
    if error is not ErrorCode.NONE:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    if asked.topics is None:
        return _everything(group, context.image, stable=stable)
    return (_topic(group, topic, context, stable=stable) for topic in asked.topics)


def _member_error(group: Group | None, asked: OffsetFetchRequestGroup) -> ErrorCode:
    """Return the error of a member's id and epoch. A client that names no member may read."""
    if group is None or group.consumer is None or (asked.member_id is None and asked.member_epoch < 0):
        return ErrorCode.NONE
    return group.consumer.check_member(asked.member_id or "", asked.member_epoch)


def _topic(
    group: Group | None, asked: OffsetFetchRequestTopics, context: RequestContext, *, stable: bool
) -> OffsetFetchResponseTopics:
    if context.version >= TOPIC_ID_VERSION:
        topic = context.image.topic_by_id(TopicId(asked.topic_id)) if asked.topic_id != NO_TOPIC_ID else None
        if topic is None:
            return _nothing(asked, ErrorCode.UNKNOWN_TOPIC_ID)
        name = topic.name
    else:
        name = asked.name
    partitions = tuple(
        _partition(group, NamedPartition(name, index), context.image, stable=stable)
        for index in asked.partition_indexes
    )
    return OffsetFetchResponseTopics(name=name, topic_id=asked.topic_id, partitions=partitions)


def _nothing(asked: OffsetFetchRequestTopics, error: int) -> OffsetFetchResponseTopics:
    partitions = tuple(
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=error)
        for index in asked.partition_indexes
    )
    return OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id, partitions=partitions)


def _partition(
    group: Group | None, partition: NamedPartition, image: MetadataImage, *, stable: bool
) -> OffsetFetchResponsePartitions:
    if stable and is_unstable(group, partition):
        return OffsetFetchResponsePartitions(
            partition_index=partition.partition, committed_offset=-1, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
        )
    commit = lookup(group, partition)
    if not topic_matches(commit, image.topic_ids.get(partition.topic)):
        commit = NO_COMMIT
    return OffsetFetchResponsePartitions(
        partition_index=partition.partition,
        committed_offset=commit.offset,
        committed_leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
    )


def _everything(group: Group | None, image: MetadataImage, *, stable: bool) -> Iterable[OffsetFetchResponseTopics]:
    """Iterate over all offsets that the group has committed for topics that exist, by name and partition."""
    by_topic: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for partition, commit in sorted(group.offsets.items(), key=lambda item: item[0]) if group else ():
        if topic_matches(commit, image.topic_ids.get(partition.topic)):
            by_topic.setdefault(partition.topic, []).append(_partition(group, partition, image, stable=stable))
    for name, partitions in by_topic.items():
        yield OffsetFetchResponseTopics(name=name, topic_id=image.topic_ids[name], partitions=tuple(partitions))


def _as_one(group: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponse:
    """Return one group's answer in the form of versions below 8."""
    topics: Sequence[OffsetFetchResponseTopics] = group.topics
    if group.error_code and version < TOP_LEVEL_ERROR_VERSION:
        topics = [_nothing(topic, group.error_code) for topic in asked.topics or ()]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in topics
        ),
    )


def _access(request: OffsetFetchRequest, context: RequestContext) -> Checked:
    """Access to the groups that the client may describe, with the topics that it may describe."""
    if context.version >= GROUPS_VERSION:
        return at_once_or(_of_groups(request, context))
    error = _forbidden(request.group_id, context)
    topics = request.topics or ()
    if error is not None:
        asked = OffsetFetchRequestGroup(
            topics=tuple(
                OffsetFetchRequestTopics(each.name, partition_indexes=each.partition_indexes) for each in topics
            )
        )
        return Refused(_as_one(OffsetFetchResponseGroup(error_code=error), asked, context.version))
    if request.topics is None:
        return Admitted(request, lambda response: response._replace(topics=tuple(_seen(response.topics, context))))
    return on_topics(OffsetFetchResponse, AclOperation.DESCRIBE, _unread)(request, context)


def _of_groups(request: OffsetFetchRequest, context: RequestContext) -> Slices:
    looked = 0
    groups: list[OffsetFetchRequestGroup] = []
    refused: list[OffsetFetchResponseGroup] = []
    unread: dict[str, tuple[OffsetFetchResponseTopics, ...]] = {}
    for group in {each.group_id: each for each in request.groups}.values():
        looked += 1
        if looked % NAMES_PER_TURN_MAX == 0:
            yield None
        if (error := _forbidden(group.group_id, context)) is not None:
            refused.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=error))
            continue
        denied: dict[OffsetFetchRequestTopics, None] = {}
        for each in dict.fromkeys(group.topics or ()):
            looked += 1
            if looked % NAMES_PER_TURN_MAX == 0:
                yield None
            name = by_name_or_id(each, context)
            if name is not None and not context.rights.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
                denied[each] = None
        if denied:
            unread[group.group_id] = tuple(_nothing(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in denied)
            group = group._replace(topics=tuple(each for each in group.topics or () if each not in denied))
        groups.append(group)
    sees_all = {each.group_id for each in groups if each.topics is None}

    def finished(group: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if group.group_id in sees_all:
            return group._replace(topics=tuple(_seen(group.topics, context)))
        return group if group.error_code else with_more(group, "topics", unread.get(group.group_id, ()))

    def finish(response: OffsetFetchResponse) -> OffsetFetchResponse:
        return response._replace(groups=(*map(finished, response.groups), *refused))

    return Admitted(request._replace(groups=tuple(groups)), finish)


def _forbidden(group_id: str, context: RequestContext) -> ErrorCode | None:
    may = context.rights.may(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
    return None if may else ErrorCode.GROUP_AUTHORIZATION_FAILED


def _seen(topics: Iterable[Named], context: RequestContext) -> Iterable[Named]:
    return (each for each in topics if context.rights.sees(ResourceType.TOPIC, each.name))


def _unread(topic: OffsetFetchRequestTopic, error: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, error_code=error)
            for index in topic.partition_indexes
        ),
    )


HANDLER = Handler(int(ApiKey.OFFSET_FETCH), (1, 10), handle, _access)
