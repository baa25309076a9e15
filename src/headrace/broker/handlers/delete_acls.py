"""DeleteAcls: deletes the ACLs that filters match, and names them (KIP-140).

SECURITY_DISABLED where there is no authorizer, as on Kafka. v2 flexible; v3 users (KIP-373).
"""

from __future__ import annotations

from headrace.broker.handlers.describe_acls import NO_AUTHORIZER
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.acl_wire import acl_filter
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.access.acls import AclsDeleted
from headrace.controller.asks.access import DeleteAcls
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import Acl, AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Return one result for each filter, in the order of the request."""
    if not context.services.authority.is_asked:
        return _all_refused(request, Refusal(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    wanted = tuple(await in_turns(map(acl_filter, request.filters)))
    answers = await submitted(context, DeleteAcls(filters=wanted))
    if isinstance(answers, Refusal):
        return _all_refused(request, answers)
    return DeleteAclsResponse(filter_results=tuple(await in_turns(map(_result, answers))))


def _result(deleted: AclsDeleted) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(*error_of(deleted.refusal), tuple(map(_acl, deleted.acls)))


def _acl(acl: Acl) -> DeleteAclsMatchingAcl:
    pattern, rule = acl.pattern, acl.rule
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _all_refused(request: DeleteAclsRequest, refusal: Refusal) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=(DeleteAclsFilterResult(*error_of(refusal)),) * len(request.filters))


def _forbidden(request: DeleteAclsRequest, error: ErrorCode) -> DeleteAclsResponse:
    return _all_refused(request, Refusal(error, error.message))


HANDLER = Handler(int(ApiKey.DELETE_ACLS), (1, 3), handle, on_cluster(_forbidden, AclOperation.ALTER))
