"""Whether a principal may do something: what Kafka's StandardAuthorizer decides. Sources: KIP-11, 290, 679, 801.

Promises:
- DENY goes before ALLOW, and what no ACL allows is denied.
- A decision is remembered until the ACLs change, in a bounded amount of memory.

Differences from Kafka: a host may be a network, as CIDR, and an address is the same in any spelling. ACLs for `*` cover
a name that begins with `*`, too. A decision names the ACL that it follows from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple, Protocol

from headrace.base.limits import ACL_TEXT_CHARACTERS_MAX, AUTHORIZATIONS_KEPT_MAX
from headrace.metadata.access.acls import (
    ANY_NAME,
    ANYBODY,
    NO_ACLS,
    Acl,
    AclOperation,
    AclPermission,
    AclRule,
    Acls,
    PatternType,
    ResourcePattern,
    ResourceType,
)

IMPLIED_BY: Final = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS)),
}
"""Operations that are allowed with others. A denial holds for the operation that it names alone."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that was not asked who it is."""
SOME_NAME: Final = "hardcode"
"""Kafka asks for this name, too, where it looks for any resource."""


class Action(NamedTuple):
    """Something that a request wants to do."""

    operation: AclOperation
    resource_type: ResourceType
    name: str
    """Of the resource: literal, never a pattern."""


class Client(NamedTuple):
    """The sender of a request."""

    principal: str
    """`User:name`."""
    host: str
    """Its address."""


class Verdict(NamedTuple):
    """A decision. `acl`: the one that it follows from; None: the client is a super user, or the default decided."""

    is_allowed: bool
    acl: Acl | None = None


ALLOWED: Final = Verdict(is_allowed=True)
DENIED: Final = Verdict(is_allowed=False)


class Memory(Protocol):
    """Remembers verdicts for somebody who asks often."""

    def clear(self) -> None:
        """Forget all."""


class Authorizer:
    """Decides by the ACLs that it was given last. Runs on the event loop alone."""

    def __init__(self, super_users: Collection[str] = (), *, allows_where_no_acl: bool = False) -> None:
        """`super_users`: principals that may do everything. `allows_where_no_acl`: whether everybody may do everything
        to a resource that no ACL is about (`allow.everyone.if.no.acl.found`)."""
        self._super_users = frozenset(super_users)
        self._default = ALLOWED if allows_where_no_acl else DENIED
        self._acls = NO_ACLS
        self._literal: dict[int, dict[str, frozenset[AclRule]]] = {}
        """Rules by the type of resource, as a plain number, and the name."""
        self._prefixed: dict[int, dict[str, frozenset[AclRule]]] = {}
        self._prefix_lengths: dict[int, tuple[int, ...]] = {}
        self._decided: dict[tuple[Client, int, str], Verdict] = {}
        self._by_host: frozenset[ResourceType] = frozenset()
        self._memories: list[Memory] = []

    def use(self, acls: Acls) -> None:
        """Decide by these ACLs from now on."""
        if acls is self._acls:
            return
        self._by_host = frozenset(
            pattern.resource_type for pattern, rules in acls.items() if any(rule.host != ANY_NAME for rule in rules)
        )
        literal: defaultdict[int, dict[str, frozenset[AclRule]]] = defaultdict(dict)
        prefixed: defaultdict[int, dict[str, frozenset[AclRule]]] = defaultdict(dict)
        for pattern, rules in acls.items():
            found = prefixed if pattern.pattern_type is PatternType.PREFIXED else literal
            found[int(pattern.resource_type)][pattern.name] = rules
        self._acls, self._literal, self._prefixed = acls, dict(literal), dict(prefixed)
        self._prefix_lengths = {kind: tuple(sorted(set(map(len, each)))) for kind, each in prefixed.items()}
        self._decided.clear()
        for memory in self._memories:
            memory.clear()

    def remember_in(self, memory: Memory) -> None:
        """Clear it whenever the ACLs change."""
        self._memories.append(memory)

    @property
    def acls(self) -> Acls:
        """Those by which it decides."""
        return self._acls

    def tells_hosts_apart(self, kind: ResourceType) -> bool:
        """Whether an ACL about resources of this type is for some hosts alone."""
        return kind in self._by_host

    def decide(self, client: Client, action: Action) -> Verdict:
        """Whether the client may do this."""
        operation, kind, name = action
        key = (client, operation << 8 | kind, name)  # an enumeration's own hash takes longer than all the rest
        if (verdict := self._decided.get(key)) is None:
            if len(self._decided) >= AUTHORIZATIONS_KEPT_MAX:
                self._decided.clear()
            verdict = self._decide(client, action)
            if len(name) <= ACL_TEXT_CHARACTERS_MAX:  # else it may be as long as a request
                self._decided[key] = verdict
        return verdict

    def decide_by_type(self, client: Client, operation: AclOperation, resource_type: ResourceType) -> Verdict:
        """Whether the client may do this to at least one resource of the type, be there one or not (KIP-679)."""
        verdict = self.decide(client, Action(operation, resource_type, SOME_NAME))
        if verdict.is_allowed:
            return verdict
        found = [
            (pattern, rule)
            for pattern, rules in self._acls.items()
            if pattern.resource_type is resource_type
            for rule in rules
            if rule.operation in (operation, AclOperation.ALL) and _is_about(rule, client)
        ]
        denied = {pattern: rule for pattern, rule in found if rule.permission is AclPermission.DENY}
        everything = ResourcePattern(resource_type, PatternType.LITERAL, ANY_NAME)
        if everything in denied:
            return Verdict(False, Acl(everything, denied[everything]))
        for pattern, rule in found:
            if rule.permission is AclPermission.ALLOW and not _is_dominated(pattern, denied):
                return Verdict(True, Acl(pattern, rule))
        return DENIED

    def _decide(self, client: Client, action: Action) -> Verdict:
        if client.principal in self._super_users:
            return ALLOWED
        verdict = self._default
        for pattern_type, name, rules in self._about(action.resource_type, action.name):
            if verdict is ALLOWED:
                verdict = DENIED  # the default is for a resource that no ACL is about
            for rule in rules:
                if _is_about(rule, client) and _covers(rule, action.operation):
                    acl = Acl(ResourcePattern(action.resource_type, pattern_type, name), rule)
                    if rule.permission is AclPermission.DENY:
                        return Verdict(False, acl)
                    verdict = Verdict(True, acl)
        return verdict

    def _about(self, kind: ResourceType, name: str) -> list[tuple[PatternType, str, frozenset[AclRule]]]:
        """The patterns that cover the resource, with their rules. A client may name very many: it is quick for one that
        no pattern covers."""
        found = []
        number = int(kind)
        literal, prefixed = self._literal.get(number), self._prefixed.get(number)
        if prefixed is not None:
            for length in self._prefix_lengths[number]:
                if length > len(name):
                    break
                prefix = name[:length]
                if (rules := prefixed.get(prefix)) is not None:
                    found.append((PatternType.PREFIXED, prefix, rules))
        if literal is not None:
            if (rules := literal.get(name)) is not None:
                found.append((PatternType.LITERAL, name, rules))
            if name != ANY_NAME and (rules := literal.get(ANY_NAME)) is not None:
                found.append((PatternType.LITERAL, ANY_NAME, rules))
        return found


def _is_about(rule: AclRule, client: Client) -> bool:
    return rule.principal in (client.principal, ANYBODY) and (
        rule.host in (client.host, ANY_NAME) or _is_in(client.host, rule.host)
    )


@lru_cache(AUTHORIZATIONS_KEPT_MAX)
def _is_in(host: str, network: str) -> bool:
    """Whether the address is one of the network, or is the same in another spelling; False where either is neither."""
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def _covers(rule: AclRule, operation: AclOperation) -> bool:
    if rule.operation in (operation, AclOperation.ALL):
        return True
    return rule.permission is AclPermission.ALLOW and rule.operation in IMPLIED_BY.get(operation, ())


def _is_dominated(pattern: ResourcePattern, denied: Collection[ResourcePattern]) -> bool:
    """Whether a denial covers every resource that the pattern does."""
    if pattern.name == ANY_NAME and pattern.pattern_type is PatternType.LITERAL:
        return False
    prefixes = (pattern.name[:length] for length in range(1, len(pattern.name) + 1))
    return (pattern in denied and pattern.pattern_type is PatternType.LITERAL) or any(
        ResourcePattern(pattern.resource_type, PatternType.PREFIXED, each) in denied for each in prefixes
    )
