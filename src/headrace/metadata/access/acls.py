"""Access control lists: rights of principals on resources, by Kafka's names and numbers. Sources: KIP-11, 290, 1053.

Promises: an `Acl` is a value with one form, so that equal ones compare equal. A filter matches what Kafka's matches.

Never does: decide on a request (`headrace.security.authorizer` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_network
from typing import Final, TypeAlias

import immutables

from headrace.base.values import Value

ANY_NAME: Final = "*"
"""As the name of a literal pattern, every resource of its type; as a host, every host."""
ANYBODY: Final = "User:*"
"""The principal of an ACL that is about every principal."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In a filter: every pattern that covers the name."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, order=True)
class ResourcePattern:
    """The resources that an ACL is about: the one with this name, or all whose names begin with it."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str

    def covers(self, name: str) -> bool:
        """Whether the resource of this type that has this name is one of these."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AclRule(Value):
    """The right that an ACL gives or denies."""

    principal: str
    """`User:name`."""
    host: str
    """An address, a network as CIDR, or `*`."""
    operation: AclOperation
    permission: AclPermission


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Acl(Value):
    """One access control list entry, as a client creates, sees and deletes it."""

    pattern: ResourcePattern
    rule: AclRule


Acls: TypeAlias = immutables.Map[ResourcePattern, frozenset[AclRule]]
"""All of a cluster. A pattern with no rule is absent."""
NO_ACLS: Final[Acls] = immutables.Map()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AclFilter(Value):
    """The ACLs that a client wants to see or to delete. None, and ANY of an enumeration: whatever it is."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    @property
    def is_unknown(self) -> bool:
        """Whether it has a number that this version does not know."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission)

    @property
    def patterns(self) -> Sequence[ResourcePattern] | None:
        """The only patterns that it can match; None: they are not known by name."""
        if self.name is None or self.pattern_type is PatternType.MATCH:
            return None
        any_type, any_kind = self.pattern_type is PatternType.ANY, self.resource_type is ResourceType.ANY
        forms = (PatternType.LITERAL, PatternType.PREFIXED) if any_type else (self.pattern_type,)
        kinds = tuple(ResourceType) if any_kind else (self.resource_type,)
        return [ResourcePattern(kind, form, self.name) for kind in kinds for form in forms]

    def matches(self, pattern: ResourcePattern, rule: AclRule) -> bool:
        return self._matches_pattern(pattern) and self._matches_rule(rule)

    def _matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type is PatternType.MATCH:
            return self.name is None or pattern.covers(self.name)
        return self.pattern_type in (PatternType.ANY, pattern.pattern_type) and self.name in (None, pattern.name)

    def _matches_rule(self, rule: AclRule) -> bool:
        return (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (AclPermission.ANY, rule.permission)
        )


def found(acls: Acls, wanted: AclFilter) -> Iterator[Acl]:
    """The ACLs that the filter matches, sorted by pattern, then by rule. It is quick for one that names a pattern."""
    named = wanted.patterns
    for pattern in sorted(acls) if named is None else sorted(each for each in named if each in acls):
        for rule in sorted(acls[pattern], key=_order):
            if wanted.matches(pattern, rule):
                yield Acl(pattern, rule)


def is_network(host: str) -> bool:
    """Whether this is an address or a network, as CIDR."""
    try:
        ip_network(host, strict=False)
    except ValueError:
        return False
    return True


def number_of(acls: Acls) -> int:
    """Number of ACLs: rules, not patterns."""
    return sum(map(len, acls.values()))


def with_acl(acls: Acls, acl: Acl) -> Acls:
    """These ACLs and that one; the same object where it is among them."""
    known = acls.get(acl.pattern, frozenset())
    return acls if acl.rule in known else acls.set(acl.pattern, known | {acl.rule})


def without_acl(acls: Acls, acl: Acl) -> Acls:
    """These ACLs but that one; the same object where it is not among them."""
    known = acls.get(acl.pattern, frozenset())
    if acl.rule not in known:
        return acls
    rest = known - {acl.rule}
    return acls.set(acl.pattern, rest) if rest else acls.delete(acl.pattern)


def _order(rule: AclRule) -> tuple[str, str, int, int]:
    return rule.principal, rule.host, rule.operation, rule.permission
