"""ConsumerGroupHeartbeat: keeps a member in a consumer group of the new protocol (KIP-848), and tells it its
assignment.

Epoch 0 joins, -1 leaves, -2 leaves for a while (static members), and any other is the member's own. The broker assigns
partitions. The answer has the member's assignment where that changed, or where the member asks for all. It is sent once
the group's new records are durable.

A classic group of consumers becomes a consumer group, and its members stay in it, where
`group.consumer.migration.policy` allows that. Otherwise it is GROUP_ID_NOT_FOUND.

v1 subscriptions by regular expression in RE2's syntax (INVALID_REGULAR_EXPRESSION where it is none). In v1 the client
chooses its member id (KIP-1082); in v0 the coordinator does. A member is assigned those of the matching topics that it
may itself describe. Kafka takes the rights of whichever member had them looked up.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import GROUP_NAME_CHARS_MAX, GROUP_SUBSCRIPTION_BYTES_MAX
from headrace.broker.groups.answers import Told
from headrace.broker.handlers.group_answers import answered_as_member
from headrace.broker.kit.deferred import Deferred
from headrace.broker.requests.access import in_turn, on_group
from headrace.broker.requests.context import Admitted, Handler, Refused, RequestContext
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import (
    JOINING_EPOCH,
    LEAVING_FOR_NOW_EPOCH,
    ConsumerHeartbeatReply,
    Partitions,
    Sight,
    by_topic,
)
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ResponseTopicPartitions,
)

CLIENT_IDS_VERSION: Final = 1


def handle(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse] | Deferred:
    problem = _problem(request, context.version)
    if problem is not None:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    member_id = request.member_id or context.services.groups.new_member_id(context.client_id)
    return answered_as_member(
        context.services.groups,
        request.group_id,
        lambda waiter: _event(request, context, waiter, member_id),
        _response,
        sight=Sight(request.subscribed_topic_regex or "", _principal(context), _host(context)),
        surely=True,  # else another may let the session end that the answer extends
    )


def _response(reply: Told) -> ConsumerGroupHeartbeatResponse:
    if isinstance(reply, ErrorCode):
        return ConsumerGroupHeartbeatResponse(error_code=reply, error_message=reply.message)
    assert isinstance(reply, ConsumerHeartbeatReply)
    if reply.error is not ErrorCode.NONE:
        return ConsumerGroupHeartbeatResponse(
            error_code=reply.error, error_message=reply.message or reply.error.message
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=reply.interval_ms,
        assignment=None if reply.assigned is None else Assignment(topic_partitions=_listed(reply.assigned)),
    )


def _problem(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Return the fault of the request by itself, as a sentence; None where it has none."""
    names = {"GroupId": request.group_id, "InstanceId": request.instance_id, "RackId": request.rack_id}
    for field, value in names.items():
        if value is not None and not value.strip():
            return f"{field} can't be empty."
    texts = (*names.values(), request.member_id, request.subscribed_topic_regex)
    topics = request.subscribed_topic_names or ()
    if any(text is not None and len(text) > GROUP_NAME_CHARS_MAX for text in (*texts, *topics)):
        return f"Names can't be longer than {GROUP_NAME_CHARS_MAX} characters."
    if sum(map(len, topics)) > GROUP_SUBSCRIPTION_BYTES_MAX:
        return f"SubscribedTopicNames can't be longer than {GROUP_SUBSCRIPTION_BYTES_MAX} characters in all."
    joins = request.member_epoch == JOINING_EPOCH
    if not request.member_id.strip() and (request.member_id or not joins or version >= CLIENT_IDS_VERSION):
        return "MemberId can't be empty."
    if joins:
        return _problem_of_joining(request)
    if request.member_epoch == LEAVING_FOR_NOW_EPOCH and request.instance_id is None:
        return "InstanceId can't be null."
    return "MemberEpoch is invalid." if request.member_epoch < LEAVING_FOR_NOW_EPOCH else None


def _problem_of_joining(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms < 0:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be set in first request."
    return None


def _event(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, waiter: int, member_id: str
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        waiter=waiter,
        member_id=member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=context.client_id,
        client_host=_host(context),
        rebalance_timeout_ms=request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else None,
        subscribed=request.subscribed_topic_names,
        pattern=request.subscribed_topic_regex,
        principal=_principal(context),
        assignor=request.server_assignor,
        owned=_owned(request),
    )


def _principal(context: RequestContext) -> str | None:
    return context.principal if context.rights.are_bounded else None


def _host(context: RequestContext) -> str:
    return f"/{context.client_host}"


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        TopicPartition(TopicId(topic.topic_id), PartitionIndex(index))
        for topic in request.topic_partitions
        for index in topic.partitions
    )


def _listed(partitions: Partitions) -> tuple[ResponseTopicPartitions, ...]:
    return tuple(
        ResponseTopicPartitions(topic_id=topic_id, partitions=indexes)
        for topic_id, indexes in by_topic(partitions).items()
    )


def _forbidden(_: ConsumerGroupHeartbeatRequest, error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.message)


def _topics(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Admitted | Refused:
    """Access for members that may describe every topic to which they subscribe by name."""
    names = request.subscribed_topic_names or ()
    if all(context.rights.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in names):
        return Admitted(request)
    return Refused(_forbidden(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED))


HANDLER = Handler(
    int(ApiKey.CONSUMER_GROUP_HEARTBEAT), (0, 1), handle, in_turn(on_group(_forbidden, AclOperation.READ), _topics)
)
