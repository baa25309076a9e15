"""LeaveGroup: removes members at once, before they time out; the others rebalance.

- v0-v2: one member, whose error is the answer's.
- v3: many, each with its own error (KIP-345). Administrators remove static members by their instance id alone.
- v4: flexible.
- v5: a reason, for the log (KIP-800).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from headrace.base.limits import GROUP_REASON_CHARS_MAX
from headrace.broker.groups.answers import Told
from headrace.broker.handlers.group_answers import answered
from headrace.broker.kit.deferred import Deferred
from headrace.broker.requests.access import on_group
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.groups.events import Leave, Leaver, LeaveReply
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

BATCH_VERSION: Final = 3


def handle(
    request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse] | Deferred:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    batch = context.version >= BATCH_VERSION
    members = request.members if batch else (MemberIdentity(member_id=request.member_id),)
    leavers = tuple(
        Leaver(member.member_id, member.group_instance_id, (member.reason or "")[:GROUP_REASON_CHARS_MAX])
        for member in members
    )
    return answered(
        context.services.groups,
        request.group_id,
        lambda waiter: Leave(waiter=waiter, members=leavers),
        lambda reply: _response(reply, members, batch=batch),
    )


def _response(reply: Told, members: Sequence[MemberIdentity], *, batch: bool) -> LeaveGroupResponse:
    if isinstance(reply, ErrorCode):
        return LeaveGroupResponse(error_code=reply)
    assert isinstance(reply, LeaveReply)
    if reply.error is not ErrorCode.NONE:
        return LeaveGroupResponse(error_code=reply.error)
    if not batch:
        return LeaveGroupResponse(error_code=reply.members[0])
    return LeaveGroupResponse(
        members=tuple(
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
            for member, error in zip(members, reply.members, strict=True)
        )
    )


HANDLER = Handler(
    int(ApiKey.LEAVE_GROUP),
    (0, 5),
    handle,
    on_group(lambda _, error: LeaveGroupResponse(error_code=error), AclOperation.READ),
)
