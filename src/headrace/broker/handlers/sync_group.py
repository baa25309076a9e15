"""SyncGroup: the leader hands in who reads what, and each member gets its share, once that is durable.

While the groups are being read the answer is REBALANCE_IN_PROGRESS, for the rebalance it belongs to is gone (and old
clients know no other answer). v3 static members, fenced by their instance id; v4 flexible; v5 the protocol, checked
where it is given (KIP-559).
"""

from __future__ import annotations

from headrace.broker.context import Handler, RequestContext
from headrace.coordinators.groups.events import Sync, SyncReply
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    told = await context.services.groups.ask_as_member(request.group_id, lambda waiter: _event(request, waiter))
    if told is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        told = ErrorCode.REBALANCE_IN_PROGRESS
    if isinstance(told, ErrorCode):
        return SyncGroupResponse(error_code=told)
    assert isinstance(told, SyncReply)
    return SyncGroupResponse(
        error_code=told.error,
        protocol_type=told.protocol_type,
        protocol_name=told.protocol,
        assignment=told.assignment,
    )


def _event(request: SyncGroupRequest, waiter: int) -> Sync:
    return Sync(
        waiter=waiter,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={share.member_id: bytes(share.assignment) for share in request.assignments},
    )


HANDLER = Handler(int(ApiKey.SYNC_GROUP), (0, 5), handle)
