"""CreateAcls: refuses each ACL with SECURITY_DISABLED, as Kafka does without an authorizer. v2 flexible."""

from __future__ import annotations

from headrace.broker.handlers.describe_acls import NO_ACLS
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS)
    return CreateAclsResponse(results=(refused,) * len(request.creations))


HANDLER = Handler(int(ApiKey.CREATE_ACLS), (1, 3), handle)
