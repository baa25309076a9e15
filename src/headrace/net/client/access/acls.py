"""Sees, creates and deletes ACLs (KIP-140, KIP-290).

Each change may be repeated without harm: an ACL is there once, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metadata.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.messages import create_acls, delete_acls, describe_acls


async def found(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """The ACLs that the filter matches. Raises RefusedError (SECURITY_DISABLED where nobody decides by ACLs),
    ClientError.
    """
    request = describe_acls.DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )

    async def ask() -> list[Acl]:
        response = await cluster.ask_any(ApiKey.DESCRIBE_ACLS, request)
        check(response.error_code, "ACLs", response.error_message)
        return [
            Acl(
                ResourcePattern(
                    ResourceType(resource.resource_type), PatternType(resource.pattern_type), resource.resource_name
                ),
                AclRule(each.principal, each.host, AclOperation(each.operation), AclPermission(each.permission_type)),
            )
            for resource in response.resources
            for each in resource.acls
        ]

    return await cluster.retried(ask)


async def create(cluster: Cluster, acls: Sequence[Acl]) -> None:
    """Create these. Raises RefusedError for the first that is refused, ClientError."""
    request = create_acls.CreateAclsRequest(
        creations=tuple(
            create_acls.AclCreation(
                resource_type=acl.pattern.resource_type,
                resource_name=acl.pattern.name,
                resource_pattern_type=acl.pattern.pattern_type,
                principal=acl.rule.principal,
                host=acl.rule.host,
                operation=acl.rule.operation,
                permission_type=acl.rule.permission,
            )
            for acl in acls
        )
    )

    async def ask() -> None:
        response = await cluster.ask_controller(ApiKey.CREATE_ACLS, request)
        for acl, result in zip(acls, response.results, strict=True):
            check(result.error_code, f"An ACL of {acl.rule.principal}", result.error_message)

    await cluster.retried(ask)


async def delete(cluster: Cluster, acls: Sequence[Acl]) -> None:
    """Delete exactly these; one that is gone is no error. Raises RefusedError, ClientError."""
    request = delete_acls.DeleteAclsRequest(
        filters=tuple(
            delete_acls.DeleteAclsFilter(
                resource_type_filter=acl.pattern.resource_type,
                resource_name_filter=acl.pattern.name,
                pattern_type_filter=acl.pattern.pattern_type,
                principal_filter=acl.rule.principal,
                host_filter=acl.rule.host,
                operation=acl.rule.operation,
                permission_type=acl.rule.permission,
            )
            for acl in acls
        )
    )

    async def ask() -> None:
        response = await cluster.ask_controller(ApiKey.DELETE_ACLS, request)
        for acl, result in zip(acls, response.filter_results, strict=True):
            check(result.error_code, f"An ACL of {acl.rule.principal}", result.error_message)
            for each in result.matching_acls:
                check(each.error_code, f"An ACL of {acl.rule.principal}", each.error_message)

    await cluster.retried(ask)
