"""Heartbeat: a member's sign of life, and how it learns that it must join again (REBALANCE_IN_PROGRESS).

While the groups are being read every heartbeat is taken: the sessions begin anew after that. v3 static members, fenced
by their instance id; v4 flexible.
"""

from __future__ import annotations

from headrace.broker.context import Handler, RequestContext
from headrace.coordinators.groups.events import Heartbeat, HeartbeatReply
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    told = await context.services.groups.ask_as_member(
        request.group_id,
        lambda waiter: Heartbeat(
            waiter=waiter,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
        ),
    )
    if isinstance(told, ErrorCode):
        loading = told is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if loading else told)
    assert isinstance(told, HeartbeatReply)
    return HeartbeatResponse(error_code=told.error)


HANDLER = Handler(int(ApiKey.HEARTBEAT), (0, 4), handle)
