"""DescribeAcls: lists the ACLs that a filter matches (KIP-140). SECURITY_DISABLED where there is no authorizer, as on
Kafka.

v2 flexible; v3 users (KIP-373).
"""

from __future__ import annotations

from itertools import groupby

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.acl_wire import acl_filter
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import Acl, AclOperation, ResourcePattern, found
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_AUTHORIZER = "No authorizer is set: whoever reaches a broker may do everything. Start it with authorizer.class.name."
UNKNOWN = "The filter has a type or an operation that is unknown here."


def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """Return what is found, pattern by pattern."""
    if not context.services.authority.is_asked:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    wanted = acl_filter(request)
    if wanted.is_unknown:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=UNKNOWN)
    by_pattern = groupby(found(context.image.acls, wanted), key=lambda acl: acl.pattern)
    return DescribeAclsResponse(
        error_message=None, resources=tuple(_resource(pattern, tuple(acls)) for pattern, acls in by_pattern)
    )


def _resource(pattern: ResourcePattern, acls: tuple[Acl, ...]) -> DescribeAclsResource:
    return DescribeAclsResource(
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        acls=tuple(
            AclDescription(rule.principal, rule.host, rule.operation, rule.permission)
            for rule in (acl.rule for acl in acls)
        ),
    )


HANDLER = Handler(
    int(ApiKey.DESCRIBE_ACLS),
    (1, 3),
    handle,
    on_cluster(
        lambda _, error: DescribeAclsResponse(error_code=error, error_message=error.message), AclOperation.DESCRIBE
    ),
)
