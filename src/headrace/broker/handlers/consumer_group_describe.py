"""ConsumerGroupDescribe: describes consumer groups of the new protocol (KIP-848).

The answer has a group's epochs, and its members with their current and target assignments. A classic group, or none, is
GROUP_ID_NOT_FOUND with a message. Authorized operations are all operations, for there are no ACLs yet. v1 adds the
protocol of a member (KIP-1099): 0 classic, while the group is being converted, or 1 consumer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from headrace.broker.handlers.describe_groups import group_operations
from headrace.broker.requests.access import itself, on_each
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import answered
from headrace.coordinators.groups.consumer.model import (
    NO_PARTITIONS,
    ConsumerGroup,
    ConsumerMember,
    Partitions,
    by_topic,
)
from headrace.coordinators.groups.consumer.targets import preferred_assignor
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

NOT_ALL_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def handle(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse | Awaitable[ConsumerGroupDescribeResponse]:
    def one(group_id: str) -> DescribedGroup:
        found = _described(group_id, context)
        if request.include_authorized_operations and not found.error_code:
            found = found._replace(authorized_operations=group_operations(group_id, context, asked=True))
        return _seen(found, context)

    return answered(dict.fromkeys(request.group_ids), one, lambda groups: ConsumerGroupDescribeResponse(groups=groups))


def _seen(group: DescribedGroup, context: RequestContext) -> DescribedGroup:
    """Return the group; without its members where the client may not describe one of their topics, as on Kafka."""
    names = {
        each.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for each in assignment.topic_partitions
    }
    names.update(name for member in group.members for name in member.subscribed_topic_names)
    if all(context.rights.sees(ResourceType.TOPIC, name) for name in names):
        return group
    return group._replace(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=NOT_ALL_TOPICS, members=())


def _described(group_id: str, context: RequestContext) -> DescribedGroup:
    if not group_id:
        return _refused(group_id, ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_GROUP_ID.message)
    group = context.services.groups.group(group_id)
    if isinstance(group, ErrorCode):
        return _refused(group_id, group, group.message)
    if group is None:
        return _refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if group.consumer is None:
        return _refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.consumer.epoch,
        assignment_epoch=group.consumer.target_epoch,
        assignor_name=preferred_assignor(
            group.consumer, context.services.groups.config.consumer.group_consumer_assignors
        ),
        members=tuple(_member(group.consumer, member, context) for _, member in sorted(group.consumer.members.items())),
    )


def _refused(group_id: str, error: ErrorCode, message: str) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error, error_message=message)


def _member(group: ConsumerGroup, member: ConsumerMember, context: RequestContext) -> Member:
    return Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(member.assigned, context),
        target_assignment=_assignment(group.targets.get(member.id, NO_PARTITIONS), context),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(partitions: Partitions, context: RequestContext) -> Assignment:
    """Return the assignment of these partitions. Deleted topics are left out: they have no name."""
    found = ((context.image.topic_by_id(topic_id), indexes) for topic_id, indexes in by_topic(partitions).items())
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic.id, topic_name=topic.name, partitions=indexes)
            for topic, indexes in found
            if topic is not None
        )
    )


HANDLER = Handler(
    int(ApiKey.CONSUMER_GROUP_DESCRIBE),
    (0, 1),
    handle,
    on_each(
        ConsumerGroupDescribeResponse,
        ResourceType.GROUP,
        AclOperation.DESCRIBE,
        lambda group_id, error: _refused(group_id, error, error.message),
        items="group_ids",
        answers="groups",
        name_of=itself,
    ),
)
