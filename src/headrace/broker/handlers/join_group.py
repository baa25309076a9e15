"""JoinGroup: lets a member join a consumer group, and tells it the new generation.

The answer waits until the group's members have joined, or the rebalance timeout has removed them. A new member first
gets its member id with MEMBER_ID_REQUIRED and joins again with it (v4, KIP-394); older clients join at once. While the
groups are being loaded, the answer is COORDINATOR_LOAD_IN_PROGRESS.

- v1: a rebalance timeout of its own (v0: the session's).
- v2: throttle time.
- v4: member id required.
- v5: static members (`group.instance.id`, KIP-345), which need no member id to come back.
- v6: flexible.
- v7: the protocol type in the answer, and no protocol with an error.
- v8: a reason, for the log (KIP-800).
- v9: skip_assignment: a static leader that came back need not assign partitions (KIP-814).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from headrace.base.limits import GROUP_NAME_CHARS_MAX, GROUP_REASON_CHARS_MAX, GROUP_SUBSCRIPTION_BYTES_MAX
from headrace.broker.groups.answers import Told
from headrace.broker.handlers import plain_groups
from headrace.broker.handlers.group_answers import Build, Caller, Respond, answered_as_member
from headrace.broker.kit.deferred import Deferred
from headrace.broker.requests.access import on_group
from headrace.broker.requests.context import Handler, RequestContext, Services, Shortcut
from headrace.coordinators.groups.events import Join, JoinReply
from headrace.coordinators.groups.model import Protocol
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from headrace.wire.plain_groups import JOIN_VERSIONS, PLAIN_NAME_BYTES_MAX, read_plain_join, write_plain_join

MEMBER_ID_REQUIRED_VERSION: Final = 4
NULL_PROTOCOL_VERSION: Final = 7
SKIP_ASSIGNMENT_VERSION: Final = 9
assert PLAIN_NAME_BYTES_MAX <= GROUP_NAME_CHARS_MAX, "a plain request has no fault of its own"


def handle(
    request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | Awaitable[JoinGroupResponse] | Deferred:
    groups = context.services.groups
    error = _error(request)
    if error is not ErrorCode.NONE:
        return _refused(error, request.member_id, context.version)
    build, respond = _asked(request, Caller(context.version, context.client_id, context.client_host, groups))
    return answered_as_member(groups, request.group_id, build, respond)


def _asked(request: JoinGroupRequest, caller: Caller) -> tuple[Build, Respond]:
    """Return the event and the response of a request that has no fault of its own."""
    instance_id = request.group_instance_id
    new_member_id = ""
    if not request.member_id:
        new_member_id = caller.groups.new_member_id(caller.client_id if instance_id is None else instance_id)
    return (
        lambda waiter: _event(request, caller, waiter, new_member_id),
        lambda reply: _response(reply, request.member_id, caller.version),
    )


def _response(reply: Told, member_id: str, version: int) -> JoinGroupResponse:
    if isinstance(reply, ErrorCode):
        return _refused(reply, member_id, version)
    assert isinstance(reply, JoinReply)
    if reply.error is not ErrorCode.NONE:
        return _refused(reply.error, reply.member_id, version)
    _, member_id, generation, protocol_type, protocol, leader, members, skips_assignment = reply
    others = tuple([JoinGroupResponseMember(*one) for one in members])
    return JoinGroupResponse(
        0, ErrorCode.NONE, generation, protocol_type, protocol, leader, skips_assignment, member_id, others
    )


def _error(request: JoinGroupRequest) -> ErrorCode:
    """Return the error of the request by itself."""
    if not 0 < len(request.group_id) <= GROUP_NAME_CHARS_MAX:
        return ErrorCode.INVALID_GROUP_ID
    names = [request.protocol_type, request.group_instance_id or "", *(offer.name for offer in request.protocols)]
    size = sum(len(protocol.metadata) for protocol in request.protocols)
    if max(map(len, names)) > GROUP_NAME_CHARS_MAX or size > GROUP_SUBSCRIPTION_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _event(request: JoinGroupRequest, caller: Caller, waiter: int, new_member_id: str) -> Join:
    _, session_ms, rebalance_ms, member_id, instance_id, protocol_type, protocols, reason = request
    return Join(
        waiter,
        member_id,
        new_member_id,
        caller.version >= MEMBER_ID_REQUIRED_VERSION,
        caller.client_id,
        f"/{caller.client_host}",
        session_ms,
        rebalance_ms if rebalance_ms >= 0 else session_ms,
        protocol_type,
        tuple([Protocol(name, bytes(metadata)) for name, metadata in protocols]),
        instance_id,
        caller.version >= SKIP_ASSIGNMENT_VERSION,
        (reason or "")[:GROUP_REASON_CHARS_MAX],
    )


def _refused(error: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    protocol = None if version >= NULL_PROTOCOL_VERSION else ""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=protocol)


def _shortcuts(services: Services) -> dict[int, Shortcut]:
    way = plain_groups.Way(ApiKey.JOIN_GROUP, read_plain_join, _asked, write_plain_join)
    return plain_groups.shortcuts(services, way, JOIN_VERSIONS)


HANDLER = Handler(
    int(ApiKey.JOIN_GROUP),
    (0, 9),
    handle,
    on_group(lambda _, error: JoinGroupResponse(error_code=error), AclOperation.READ),
    shortcuts=_shortcuts,
)
