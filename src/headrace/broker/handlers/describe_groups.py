"""DescribeGroups: a group's state, and its members with their subscriptions and assignments (while it is stable).

An unknown group, or one of the new protocol (see ConsumerGroupDescribe), is Dead; since v6 with GROUP_ID_NOT_FOUND
(KIP-1043).

- v3: authorized operations (KIP-430).
- v4: instance ids.
- v5: flexible.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from headrace.broker.requests.access import itself, on_each
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.rights import OPERATIONS_NOT_ASKED_FOR
from headrace.broker.requests.turns import answered
from headrace.coordinators.groups.model import Group, GroupState, Member
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

NOT_FOUND_VERSION: Final = 6


def handle(
    request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse | Awaitable[DescribeGroupsResponse]:
    asked = request.include_authorized_operations

    def one(group_id: str) -> DescribedGroup:
        operations = group_operations(group_id, context, asked=asked)
        return _described(group_id, context)._replace(authorized_operations=operations)

    named = dict.fromkeys(request.groups)  # one answer for each, however often it is named
    return answered(named, one, lambda groups: DescribeGroupsResponse(groups=groups))


def group_operations(group_id: str, context: RequestContext, *, asked: bool) -> int:
    """Return what the client may do to the group, where it has asked for that."""
    return context.rights.operations(ResourceType.GROUP, group_id) if asked else OPERATIONS_NOT_ASKED_FOR


def _described(group_id: str, context: RequestContext) -> DescribedGroup:
    group = context.services.groups.group(group_id)
    if isinstance(group, ErrorCode):
        return DescribedGroup(error_code=group, error_message=group.message, group_id=group_id)
    if group is None or group.consumer is not None:
        missing = context.version >= NOT_FOUND_VERSION
        reason = "not found" if group is None else "is not a classic group"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
            error_message=(f"Group {group_id} {reason}." if missing else None),
            group_id=group_id,
            group_state=GroupState.DEAD,
        )
    stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol or "") if stable else "",
        members=tuple(_member(group, member, stable=stable) for member in group.members.values()),
    )


def _member(group: Group, member: Member, *, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol) if stable else b"",
        member_assignment=member.assignment if stable else b"",
    )


HANDLER = Handler(
    int(ApiKey.DESCRIBE_GROUPS),
    (0, 6),
    handle,
    on_each(
        DescribeGroupsResponse,
        ResourceType.GROUP,
        AclOperation.DESCRIBE,
        lambda group_id, error: DescribedGroup(error_code=error, error_message=error.message, group_id=group_id),
        items="groups",
        answers="groups",
        name_of=itself,
    ),
)
