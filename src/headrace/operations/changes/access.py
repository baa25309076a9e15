"""Plans of users and of ACLs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.metadata.access.acls import Acl, AclPermission, PatternType, ResourceType
from headrace.metadata.access.scram import ScramMechanism
from headrace.net.client.access import acls as access
from headrace.net.client.access import users as credentials
from headrace.net.client.cluster import Cluster
from headrace.operations.changes.plan import Plan
from headrace.operations.rights import EVERYWHERE, Wanted, matching, meant, missing, word
from headrace.security.sasl_client import SCRAM

ITERATIONS: Final = 8_192
"""Hashes that a try of a password costs."""
ROLES: Final = ("producer", "consumer")
"""Several operations by one name."""
RESOURCES: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.CLUSTER: "--cluster",
}
"""Kinds of resources that ACLs are about, and the command's option for each."""


class Credential(NamedTuple):
    """One line of a plan about a user."""

    user: str
    mechanism: str
    now: int | None
    """Its iterations; None: there is no such credential."""
    then: int | None


class Right(NamedTuple):
    """One line of a plan about ACLs."""

    principal: str
    permission: str
    operation: str
    resource: str
    pattern: str
    name: str
    host: str


class Ask(NamedTuple):
    """The ACL that is asked for, in texts."""

    principal: str
    permission: str
    """Allow or Deny."""
    operation: str
    """An operation, or one of ROLES."""
    resource: str
    name: str
    pattern: str
    host: str
    """Empty: all."""


async def password(cluster: Cluster, user: str, mechanism: str) -> Plan:
    """A user is made, or gets another password, which is given when the plan is carried out. `mechanism`: empty: each.
    Raises UsageError, ClientError.
    """
    chosen = _mechanisms(mechanism)
    if not user:
        raise UsageError("Name the user.")
    known = (await credentials.users(cluster, [user])).get(user, {})
    rows = [Credential(user, each.title, known.get(each), ITERATIONS) for each in chosen]
    named = ["--mechanism", chosen[0].title] if mechanism else []
    words = ["user", "alter" if known else "create", user, *named, "--password-stdin", "--execute"]
    return Plan(words, rows, _needs_password)


async def _needs_password() -> None:
    raise UsageError("Give the password.")


async def set_password(cluster: Cluster, user: str, mechanism: str, secret: str) -> None:
    """Carries out the plan of `password`. Raises UsageError, ClientError."""
    if not secret:
        raise UsageError("Give the password.")
    await credentials.set_password(cluster, user, secret, _mechanisms(mechanism), iterations=ITERATIONS)


async def user_deletion(cluster: Cluster, user: str) -> Plan:
    """All credentials of the user. Its ACLs stay. Raises UsageError, ClientError."""
    known = (await credentials.users(cluster, [user])).get(user, {})
    if not known:
        raise UsageError(f"There is no user '{user}': see 'headrace user list'.")
    rows = [Credential(user, each.title, known[each], None) for each in known]
    carry_out = partial(credentials.delete, cluster, user, list(known))
    return Plan(["user", "delete", user, "--execute"], rows, carry_out, loses=user)


def _mechanisms(name: str) -> list[ScramMechanism]:
    if not name:
        return list(SCRAM.values())
    if name.upper() not in SCRAM:
        raise UsageError(f"'{name:.40}' is unknown: choose {' or '.join(SCRAM)}.")
    return [SCRAM[name.upper()]]


async def acl_creation(cluster: Cluster, ask: Ask) -> Plan:
    """Those that are not there yet. Raises UsageError, ClientError."""
    is_denied = meant(AclPermission, ask.permission, "The permission", but=("Unknown", "Any")) is AclPermission.DENY
    role = ask.operation.lower()
    if is_denied and role in ROLES:
        raise UsageError("Deny operations one by one.")
    wanted, words = _wanted(ask, [] if role in ROLES else [ask.operation])
    acls = wanted.acls(denied=is_denied, producer=role == ROLES[0], consumer=role == ROLES[1])
    lacking = await missing(cluster, acls)
    words = ["acl", "deny" if is_denied else "allow", *words, *([f"--{role}"] if role in ROLES else []), "--execute"]
    obstacle = "" if lacking else "All of this is there already."
    return Plan(words, _rights(lacking), partial(access.create, cluster, lacking), obstacle)


async def acl_deletion(cluster: Cluster, ask: Ask) -> Plan:
    """Exactly this one, whether it allows or denies. Raises UsageError, ClientError."""
    wanted, words = _wanted(ask, [ask.operation])
    found = await matching(cluster, wanted)
    obstacle = "" if found else "There is no such ACL any more."
    return Plan(
        ["acl", "remove", *words, "--execute"], _rights(found), partial(access.delete, cluster, found), obstacle
    )


def _wanted(ask: Ask, operations: list[str]) -> tuple[Wanted, list[str]]:
    """The ACLs that it names, and the options of the command for that. Raises UsageError."""
    kind = meant(ResourceType, ask.resource, "The resource", but=("Unknown", "Any"))
    if (option := RESOURCES.get(kind)) is None:
        raise UsageError(f"ACLs are about {', '.join(map(word, RESOURCES))}.")
    is_cluster = kind is ResourceType.CLUSTER
    if not is_cluster and not ask.name:  # without a name a filter is of everything
        named = kind.name.lower().replace("_", " ")
        raise UsageError(f"Name the {named} that the ACL is about, or write {EVERYWHERE} for each.")
    pattern = word(PatternType.LITERAL) if is_cluster else ask.pattern or word(PatternType.LITERAL)
    names = {each: [ask.name] if each is kind and ask.name else None for each in RESOURCES}
    host = [ask.host] if ask.host and ask.host != EVERYWHERE else []
    wanted = Wanted.of(
        [ask.principal],
        operations,
        names[ResourceType.TOPIC],
        names[ResourceType.GROUP],
        names[ResourceType.TRANSACTIONAL_ID],
        [ask.host or EVERYWHERE],
        cluster=is_cluster,
        pattern=pattern,
    )
    words = ["--principal", ask.principal, *(part for each in operations for part in ("--operation", each))]
    words += [option] if is_cluster else [option, ask.name]
    words += [] if is_cluster or wanted.pattern is PatternType.LITERAL else ["--resource-pattern-type", pattern.lower()]
    return wanted, [*words, *(part for each in host for part in ("--host", each))]


def _rights(acls: Sequence[Acl]) -> list[Right]:
    return [
        Right(
            one.rule.principal,
            word(one.rule.permission),
            word(one.rule.operation),
            word(one.pattern.resource_type),
            word(one.pattern.pattern_type),
            one.pattern.name,
            one.rule.host,
        )
        for one in acls
    ]
