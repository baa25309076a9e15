"""DeleteGroups: deletes groups without members, with their committed offsets. Answered once that is durable.

NON_EMPTY_GROUP while there are members; GROUP_ID_NOT_FOUND where there is no such group. The empty name is allowed:
offsets may have been committed under it. v2 flexible.
"""

from __future__ import annotations

import asyncio

from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.requests.access import itself, on_each
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.groups.events import Delete, DeleteReply
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    errors: list[ErrorCode] = []
    for first in range(0, len(names), NAMES_PER_TURN_MAX):
        errors += await asyncio.gather(*(_delete(name, context) for name in names[first : first + NAMES_PER_TURN_MAX]))
    results = (DeletableGroupResult(group_id=name, error_code=error) for name, error in zip(names, errors, strict=True))
    return DeleteGroupsResponse(results=tuple(results))


async def _delete(group_id: str, context: RequestContext) -> ErrorCode:
    reply = await context.services.groups.ask(group_id, lambda waiter: Delete(waiter=waiter), surely=True)
    if isinstance(reply, ErrorCode):
        return reply
    assert isinstance(reply, DeleteReply)
    return reply.error


HANDLER = Handler(
    int(ApiKey.DELETE_GROUPS),
    (0, 2),
    handle,
    on_each(
        DeleteGroupsResponse,
        ResourceType.GROUP,
        AclOperation.DELETE,
        lambda group_id, error: DeletableGroupResult(group_id=group_id, error_code=error),
        items="groups_names",
        answers="results",
        name_of=itself,
    ),
)
