"""DescribeAcls: SECURITY_DISABLED, as Kafka answers where it has no authorizer. v2 flexible; v3 users (KIP-373)."""

from __future__ import annotations

from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_ACLS = "There are no ACLs: nobody is authenticated, and whoever reaches a broker may do everything."


def handle(_: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS)


HANDLER = Handler(int(ApiKey.DESCRIBE_ACLS), (1, 3), handle)
