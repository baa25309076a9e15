"""ListGroups: lists the groups that this broker coordinates. A tool asks every broker.

While some are being loaded, the others come with COORDINATOR_LOAD_IN_PROGRESS. Filters ignore case.

- v3: flexible.
- v4: states, and a filter by them (KIP-518).
- v5: types, and a filter by them (KIP-848): classic and consumer.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.requests.access import as_it_goes
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.groups.model import Group
from headrace.metadata.access.acls import CLUSTER_NAME, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    groups, rights = context.services.groups, context.rights
    sees_all = rights.sees(ResourceType.CLUSTER, CLUSTER_NAME)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    listed = tuple(
        ListedGroup(
            group_id=group.id, protocol_type=group.protocol_type, group_state=group.state, group_type=_type(group)
        )
        for group in groups.groups()
        if (sees_all or rights.sees(ResourceType.GROUP, group.id))
        and (not states or group.state.lower() in states)
        and (not types or _type(group) in types)
    )
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if groups.loading else ErrorCode.NONE
    return ListGroupsResponse(error_code=error, groups=listed)


def _type(group: Group) -> str:
    return CLASSIC if group.consumer is None else CONSUMER


HANDLER = Handler(int(ApiKey.LIST_GROUPS), (0, 5), handle, as_it_goes)
