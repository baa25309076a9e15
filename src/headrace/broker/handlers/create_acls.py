"""CreateAcls: creates ACLs, which are in force on this broker when the answer is sent (KIP-140).

SECURITY_DISABLED where there is no authorizer, as on Kafka. v2 flexible; v3 users (KIP-373).
"""

from __future__ import annotations

from headrace.broker.handlers.describe_acls import NO_AUTHORIZER
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.acl_wire import new_acl
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.access import CreateAcls
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Return one result for each, in the order of the request."""
    if not context.services.authority.is_asked:
        return _all_refused(request, Refusal(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    wanted = tuple(await in_turns(map(new_acl, request.creations)))
    answers = await submitted(context, CreateAcls(acls=wanted))
    if isinstance(answers, Refusal):
        return _all_refused(request, answers)
    results = await in_turns(AclCreationResult(*error_of(refusal)) for refusal in answers)
    return CreateAclsResponse(results=tuple(results))


def _all_refused(request: CreateAclsRequest, refusal: Refusal) -> CreateAclsResponse:
    return CreateAclsResponse(results=(AclCreationResult(*error_of(refusal)),) * len(request.creations))


def _forbidden(request: CreateAclsRequest, error: ErrorCode) -> CreateAclsResponse:
    return _all_refused(request, Refusal(error, error.message))


HANDLER = Handler(int(ApiKey.CREATE_ACLS), (1, 3), handle, on_cluster(_forbidden, AclOperation.ALTER))
