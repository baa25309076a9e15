"""SyncGroup: the leader sends the assignments, and each member gets its own once they are durable.

While the groups are being loaded, the answer is REBALANCE_IN_PROGRESS. The rebalance that the request belongs to is
gone, and old clients know no other answer.

- v3: static members, fenced by their instance id.
- v4: flexible.
- v5: the protocol's type and name, which are required (KIP-559): INCONSISTENT_GROUP_PROTOCOL without them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from headrace.broker.groups.answers import Told
from headrace.broker.handlers import plain_groups
from headrace.broker.handlers.group_answers import Build, Caller, Respond, answered_as_member
from headrace.broker.kit.deferred import Deferred
from headrace.broker.requests.access import on_group
from headrace.broker.requests.context import Handler, RequestContext, Services, Shortcut
from headrace.coordinators.groups.events import Sync, SyncReply
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.wire.plain_groups import SYNC_VERSIONS, read_plain_sync, write_plain_sync

PROTOCOL_VERSION: Final = 5


def handle(
    request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | Awaitable[SyncGroupResponse] | Deferred:
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if context.version >= PROTOCOL_VERSION and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    groups = context.services.groups
    return answered_as_member(groups, request.group_id, lambda waiter: _event(request, waiter), _response)


def _response(reply: Told) -> SyncGroupResponse:
    if reply is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        reply = ErrorCode.REBALANCE_IN_PROGRESS
    if isinstance(reply, ErrorCode):
        return SyncGroupResponse(error_code=reply)
    assert isinstance(reply, SyncReply)
    error, protocol_type, protocol, assignment = reply
    return SyncGroupResponse(0, error, protocol_type, protocol, assignment)


def _event(request: SyncGroupRequest, waiter: int) -> Sync:
    _, generation, member_id, instance_id, protocol_type, protocol, shares = request
    assignments = {member: bytes(share) for member, share in shares}
    return Sync(waiter, member_id, generation, assignments, instance_id, protocol_type, protocol)


def _plainly(request: SyncGroupRequest, _: Caller) -> tuple[Build, Respond]:
    return lambda waiter: _event(request, waiter), _response


def _shortcuts(services: Services) -> dict[int, Shortcut]:
    way = plain_groups.Way(ApiKey.SYNC_GROUP, read_plain_sync, _plainly, write_plain_sync)
    return plain_groups.shortcuts(services, way, SYNC_VERSIONS)


HANDLER = Handler(
    int(ApiKey.SYNC_GROUP),
    (0, 5),
    handle,
    on_group(lambda _, error: SyncGroupResponse(error_code=error), AclOperation.READ),
    shortcuts=_shortcuts,
)
