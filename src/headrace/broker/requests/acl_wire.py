"""ACLs and filters of them, as requests have them."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

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
from headrace.wire.messages.create_acls import AclCreation
from headrace.wire.messages.delete_acls import DeleteAclsFilter
from headrace.wire.messages.describe_acls import DescribeAclsRequest

E = TypeVar("E", bound=IntEnum)


def acl_filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter. A value that this version does not know is UNKNOWN."""
    return AclFilter(
        resource_type=_known(ResourceType, wanted.resource_type_filter),
        pattern_type=_known(PatternType, wanted.pattern_type_filter),
        name=wanted.resource_name_filter,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=_known(AclOperation, wanted.operation),
        permission=_known(AclPermission, wanted.permission_type),
    )


def new_acl(wanted: AclCreation) -> Acl:
    """Return the ACL to create. A value that this version does not know is UNKNOWN."""
    pattern = ResourcePattern(
        _known(ResourceType, wanted.resource_type),
        _known(PatternType, wanted.resource_pattern_type),
        wanted.resource_name,
    )
    rule = AclRule(
        wanted.principal,
        wanted.host,
        _known(AclOperation, wanted.operation),
        _known(AclPermission, wanted.permission_type),
    )
    return Acl(pattern, rule)


def _known(kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:
        return kind(0)
