"""DeleteAcls: answers each filter with SECURITY_DISABLED, as Kafka does without an authorizer. v2 flexible."""

from __future__ import annotations

from headrace.broker.handlers.describe_acls import NO_ACLS
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS)
    return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))


HANDLER = Handler(int(ApiKey.DELETE_ACLS), (1, 3), handle)
