"""ACLs as an administrator speaks of them, in the words of Kafka's AclCommand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Final, Self, TypeVar

from headrace.base.errors import UsageError
from headrace.metadata.access.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.net.client.access.acls import found
from headrace.net.client.cluster import Cluster

E = TypeVar("E", bound=IntEnum)
EVERYWHERE: Final = "*"
PRODUCER: Final = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
CONSUMER: Final = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}


def word(value: IntEnum) -> str:
    """Kafka's spelling: ClusterAction of CLUSTER_ACTION."""
    return "".join(part.capitalize() for part in value.name.split("_"))


def meant(kind: type[E], text: str, option: str, *, but: Sequence[str] = ("Unknown",)) -> E:
    """The value that the text names. Raises UsageError."""
    known = {word(each).lower(): each for each in kind if word(each) not in but}
    value = known.get(text.replace("_", "").replace("-", "").lower())
    if value is None:
        raise UsageError(f"{option} '{text:.40}' is unknown: choose one of {', '.join(map(word, known.values()))}.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The ACLs that options name. Options that are not given leave it open."""

    principals: tuple[str, ...]
    operations: tuple[AclOperation, ...]
    resources: tuple[tuple[ResourceType, str], ...]
    hosts: tuple[str, ...]
    pattern: PatternType

    @classmethod
    def of(
        cls,
        principals: list[str] | None,
        operations: list[str] | None,
        topics: list[str] | None,
        groups: list[str] | None,
        transactional_ids: list[str] | None,
        hosts: list[str] | None,
        *,
        cluster: bool,
        pattern: str,
    ) -> Self:
        """Raises UsageError."""
        for each in principals or ():
            kind, colon, name = each.partition(":")
            if kind != "User" or not colon or not name:
                raise UsageError(f"--principal '{each:.80}' is none: write User:NAME.")
        return cls(
            principals=tuple(dict.fromkeys(principals or ())),
            operations=tuple(
                meant(AclOperation, each, "--operation", but=("Unknown", "Any"))
                for each in dict.fromkeys(operations or ())
            ),
            resources=(
                *((ResourceType.TOPIC, each) for each in dict.fromkeys(topics or ())),
                *((ResourceType.GROUP, each) for each in dict.fromkeys(groups or ())),
                *((ResourceType.TRANSACTIONAL_ID, each) for each in dict.fromkeys(transactional_ids or ())),
                *([(ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else []),
            ),
            hosts=tuple(dict.fromkeys(hosts or ())),
            pattern=meant(PatternType, pattern, "--resource-pattern-type"),
        )

    @property
    def is_everything(self) -> bool:
        """Whether no principal and no resource is named."""
        return not (self.principals or self.resources)

    def filters(self) -> Iterator[AclFilter]:
        """Filters which together match what is wanted."""
        for principal, operation, resource, host in product(
            self.principals or (None,),
            self.operations or (AclOperation.ANY,),
            self.resources or (None,),
            self.hosts or (None,),
        ):
            yield AclFilter(
                resource_type=ResourceType.ANY if resource is None else resource[0],
                pattern_type=self.pattern,
                name=None if resource is None else resource[1],
                principal=principal,
                host=host,
                operation=operation,
            )

    def acls(self, *, denied: bool, producer: bool, consumer: bool) -> list[Acl]:
        """The ACLs to create. Raises UsageError where not all is said that they need."""
        if not self.principals or not self.resources:
            raise UsageError("Say who, and what: --principal User:NAME, and --topic, --group, --cluster or another.")
        if bool(self.operations) == (producer or consumer):
            raise UsageError("Say what they may do: either --operation NAME, or --producer or --consumer.")
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise UsageError("--resource-pattern-type must be literal or prefixed for a new ACL.")
        needed = [*([PRODUCER] if producer else []), *([CONSUMER] if consumer else [])]
        permission = AclPermission.DENY if denied else AclPermission.ALLOW
        made = []
        for kind, name in self.resources:
            operations = self.operations or tuple(each for one in needed for each in one.get(kind, ()))
            if not operations:
                raise UsageError(
                    f"--producer and --consumer say nothing about a {word(kind)}: give --operation for it."
                )
            literal = kind is ResourceType.CLUSTER or name == EVERYWHERE
            pattern = ResourcePattern(kind, PatternType.LITERAL if literal else self.pattern, name)
            for principal, host, operation in product(self.principals, self.hosts or (EVERYWHERE,), operations):
                made.append(Acl(pattern, AclRule(principal, host, operation, permission)))
        return list(dict.fromkeys(made))


async def matching(cluster: Cluster, wanted: Wanted) -> list[Acl]:
    """The ACLs that are wanted and there, sorted. Raises ClientError."""
    known = [acl for each in wanted.filters() for acl in await found(cluster, each)]
    return sorted(dict.fromkeys(known), key=_order)


async def missing(cluster: Cluster, acls: Sequence[Acl]) -> list[Acl]:
    """Those that are not there yet. Raises ClientError."""
    known: set[Acl] = set()
    for principal in dict.fromkeys(acl.rule.principal for acl in acls):
        known.update(await found(cluster, AclFilter(principal=principal)))
    return [acl for acl in acls if acl not in known]


def _order(acl: Acl) -> tuple[str, int, int, str, str, int]:
    pattern, rule = acl.pattern, acl.rule
    return rule.principal, pattern.resource_type, pattern.pattern_type, pattern.name, rule.host, rule.operation
