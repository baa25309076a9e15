"""Heartbeat: a member's sign of life. The answer REBALANCE_IN_PROGRESS tells the member to join again.

While the groups are being loaded, every heartbeat succeeds: the sessions begin again after that. v3 static members,
fenced by their instance id; v4 flexible.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from headrace.broker.groups.answers import Told
from headrace.broker.groups.shard import GroupShard
from headrace.broker.handlers import plain_groups
from headrace.broker.handlers.group_answers import Build, Caller, Respond, answered_as_member
from headrace.broker.kit.deferred import Deferred
from headrace.broker.requests.access import on_group
from headrace.broker.requests.context import Handler, RequestContext, Services, Shortcut
from headrace.coordinators.groups.events import Heartbeat, HeartbeatReply
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.wire.plain_groups import HEARTBEAT_VERSIONS, read_plain_heartbeat, write_plain_heartbeat

NOBODY: Final = -1
"""Stands for a waiter's number where nobody waits."""


def handle(
    request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | Awaitable[HeartbeatResponse] | Deferred:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    groups = context.services.groups
    return answered_as_member(groups, request.group_id, lambda waiter: _event(request, waiter), _response)


def _event(request: HeartbeatRequest, waiter: int) -> Heartbeat:
    _, generation, member_id, instance_id = request
    return Heartbeat(waiter, member_id, generation, instance_id)


def _response(reply: Told) -> HeartbeatResponse:
    if isinstance(reply, ErrorCode):
        loading = reply is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if loading else reply)
    assert isinstance(reply, HeartbeatReply)
    return HeartbeatResponse(error_code=reply.error)


def _plainly(request: HeartbeatRequest, _: Caller) -> tuple[Build, Respond]:
    return lambda waiter: _event(request, waiter), _response


def _at_once(request: HeartbeatRequest, shard: GroupShard) -> HeartbeatResponse | None:
    error = shard.beat(request.group_id, _event(request, NOBODY))
    return None if error is None else new(HeartbeatResponse, (0, error))


def _shortcuts(services: Services) -> dict[int, Shortcut]:
    way = plain_groups.Way(ApiKey.HEARTBEAT, read_plain_heartbeat, _plainly, write_plain_heartbeat, _at_once)
    return plain_groups.shortcuts(services, way, HEARTBEAT_VERSIONS)


HANDLER = Handler(
    int(ApiKey.HEARTBEAT),
    (0, 4),
    handle,
    on_group(lambda _, error: HeartbeatResponse(error_code=error), AclOperation.READ),
    shortcuts=_shortcuts,
)
