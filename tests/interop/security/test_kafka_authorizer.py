"""Kafka's own StandardAuthorizer decides as ours does: on random ACLs, requests and filters."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from headrace.metadata.access.acls import (
    NO_ACLS,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
    found,
    with_acl,
)
from headrace.security.authorizer import Action, Authorizer, Client
from tests.interop.support.asking import asked
from tests.tiers import of_tier
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

PROGRAM: Final = Path(__file__).parents[1] / "tools" / "Acls.java"
CASES: Final = of_tier(short=2_000, long=100_000)
CASES_PER_WORLD: Final = 100
SUPER_USER: Final = "User:root"
TYPES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
NAMES: Final = ("a", "ab", "abc", "abd", "b", "ba", "hardcode", "hard", "*", "a*", "*a", "z")
"""Many are prefixes of others. Two are special to Kafka."""
ASKED: Final = tuple(each for each in NAMES if each == "*" or not each.startswith("*"))
"""Kafka 4.4 overlooks the ACLs of `*` for a name that begins with it: a denial for all groups does not hold for `*a`.
Ours does (tests/security/test_authorizer.py)."""
PRINCIPALS: Final = ("User:alice", "User:bob", SUPER_USER, "Group:alice", "User:*")
HOSTS: Final = ("10.0.0.1", "10.0.0.2", "*")
OPERATIONS: Final = tuple(each for each in AclOperation if each > AclOperation.ALL)


class World:
    """A random cluster's ACLs, few enough for many denials to meet what they deny."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.allows_where_no_acl = random.random() < 0.3
        self.operations = [*random.sample(OPERATIONS, 3), AclOperation.DESCRIBE, AclOperation.READ]
        self.acls = NO_ACLS
        for _ in range(random.randrange(25)):
            self.acls = with_acl(self.acls, self._acl())
        self.ours = Authorizer([SUPER_USER], allows_where_no_acl=self.allows_where_no_acl)
        self.ours.use(self.acls)

    def _acl(self) -> Acl:
        random = self.random
        patterns = (PatternType.LITERAL, PatternType.PREFIXED)
        pattern = ResourcePattern(random.choice(TYPES), random.choice(patterns), random.choice(NAMES))
        permission = random.choice((AclPermission.DENY, AclPermission.ALLOW, AclPermission.ALLOW))
        operation = random.choice([*self.operations, AclOperation.ALL])
        return Acl(pattern, AclRule(random.choice(PRINCIPALS), random.choice(HOSTS), operation, permission))

    def sentences(self) -> Iterator[str]:
        yield f"new {SUPER_USER} {str(self.allows_where_no_acl).lower()}"
        for acl in found(self.acls, AclFilter()):
            pattern, rule = acl.pattern, acl.rule
            yield (
                f"acl {pattern.resource_type:d} {pattern.pattern_type:d} {pattern.name} "
                f"{rule.principal} {rule.host} {rule.operation:d} {rule.permission:d}"
            )

    def case(self) -> tuple[str, str]:
        """A question, and our answer."""
        random = self.random
        client = Client(random.choice(PRINCIPALS[:-1]), random.choice(HOSTS[:-1]))
        operation, kind = random.choice(self.operations), random.choice(TYPES)
        asking = f"{client.principal} {client.host} {operation:d} {kind:d}"
        match random.randrange(4):
            case 0:
                return f"may-any {asking}", str(int(self.ours.decide_by_type(client, operation, kind).is_allowed))
            case 1:
                return self._list()
            case _:
                name = random.choice(ASKED)
                action = Action(operation, kind, name)
                return f"may {asking} {name}", str(int(self.ours.decide(client, action).is_allowed))

    def _list(self) -> tuple[str, str]:
        random = self.random
        wanted = AclFilter(
            resource_type=random.choice((ResourceType.ANY, *TYPES)),
            pattern_type=random.choice([each for each in PatternType if each]),
            name=random.choice((None, *NAMES)),
            principal=random.choice((None, None, *PRINCIPALS)),
            host=random.choice((None, None, *HOSTS)),
            operation=random.choice([AclOperation.ANY, AclOperation.ANY, *self.operations]),
            permission=random.choice([each for each in AclPermission if each]),
        )
        names = " ".join(each or "-" for each in (wanted.name, wanted.principal, wanted.host))
        question = (
            f"list {wanted.resource_type:d} {wanted.pattern_type:d} {names} {wanted.operation:d} {wanted.permission:d}"
        )
        return question, str(len(list(found(self.acls, wanted))))


def test_kafkas_authorizer_decides_as_ours() -> None:
    command = kafka_jars.compiled(PROGRAM, kafka_jars.newest_class_path())
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    random = Random(34)
    seen: Counter[tuple[str, str]] = Counter()
    with asked(process) as put:
        for _ in range(CASES // CASES_PER_WORLD):
            world = World(random)
            sentences = list(world.sentences())
            cases = [world.case() for _ in range(CASES_PER_WORLD)]
            answers = put("\t".join([*sentences, *(question for question, _ in cases)])).split("\t")
            told = answers[-len(cases) :]
            differing = [(case, theirs) for case, theirs in zip(cases, told, strict=True) if case[1] != theirs]
            assert not differing, _explained(sentences, differing)
            seen.update((question.split()[0], ours) for question, ours in cases)
    assert min(seen[verb, answer] for verb in ("may", "may-any") for answer in "01") > CASES // 40
    assert len({answer for verb, answer in seen if verb == "list"}) >= 3


def _explained(sentences: Sequence[str], differing: Sequence[tuple[tuple[str, str], str]]) -> str:
    lines = [f"{question}: ours {ours}, Kafka's {theirs}" for (question, ours), theirs in differing[:5]]
    return "\n".join([*sentences, *lines])
