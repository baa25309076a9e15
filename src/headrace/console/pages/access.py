"""Users who log in by SCRAM, and ACLs: who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.console.changes import Change
from headrace.console.lists import Listing, listing
from headrace.console.page import Page, linked
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.metadata.access.acls import Acl, AclOperation, AclPermission
from headrace.net.client.access.users import Credentials
from headrace.operations.changes.access import (
    RESOURCES,
    ROLES,
    Ask,
    Credential,
    Right,
    acl_creation,
    acl_deletion,
    password,
    set_password,
    user_deletion,
)
from headrace.operations.changes.plan import Plan
from headrace.operations.rights import word
from headrace.security.sasl_client import SCRAM

CRUMB: Final = ("/access", "Users and ACLs")
PATTERNS: Final = (("literal", "has this name"), ("prefixed", "begins with this"))


class Row(NamedTuple):
    """One ACL, in words."""

    principal: str
    permission: str
    operation: str
    resource: str
    pattern: str
    name: str
    host: str

    @property
    def query(self) -> dict[str, str]:
        """The fields of the form that removes it."""
        return {**self._asdict(), "pattern": self.pattern.lower()}


KEYS: Final = {
    "principal": lambda row: row.principal,
    "operation": lambda row: row.operation,
    "resource": lambda row: (row.resource, row.name),
    "permission": lambda row: row.permission,
    "host": lambda row: row.host,
}
USER_KEYS: Final = {
    "name": lambda row: row[0],
    "mechanisms": lambda row: row[1],
}


def row_of(acl: Acl) -> Row:
    return Row(
        principal=acl.rule.principal,
        permission=word(acl.rule.permission),
        operation=word(acl.rule.operation),
        resource=word(acl.pattern.resource_type),
        pattern=word(acl.pattern.pattern_type),
        name=acl.pattern.name,
        host=acl.rule.host,
    )


async def values(console: Console, request: Request) -> dict[str, Any]:
    users, acls = console.users.value, console.acls.value
    assert users is not None, "no part is made without it"
    found, named = await asyncio.to_thread(_listed, request, users, acls or ())
    return {
        "users": named,
        "all_users": len(users),
        "list": found,
        "all": len(acls or ()),
        "acl_trouble": console.acls.trouble,
        "linked": linked,
    }


def _listed(
    request: Request, users: Mapping[str, Credentials], acls: Sequence[Acl]
) -> tuple[Listing[Row], Listing[tuple[str, list[str]]]]:
    """The pages of ACLs and of users that are asked for. Runs in a thread: there may be very many."""
    rows = [row_of(acl) for acl in acls]
    found = listing(
        request, rows, name=lambda row: f"{row.principal} {row.resource} {row.name}", keys=KEYS, default="principal"
    )
    known = [(name, sorted(each.title for each in credentials)) for name, credentials in users.items()]
    named = listing(
        request, known, name=lambda row: row[0], keys=USER_KEYS, default="name", given="name", prefix="user_"
    )
    return found, named


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.users, console.acls)


class User(NamedTuple):
    """A wish about a user, as the form has it."""

    name: str
    mechanism: str
    """Empty: each."""


class Gone(NamedTuple):
    """A user who is to go, as the form has it."""

    name: str


async def _set(console: Console, asked: User) -> Plan:
    return await password(console.cluster, asked.name, asked.mechanism)


async def _carry_out(console: Console, asked: User, secret: str) -> None:
    await set_password(console.cluster, asked.name, asked.mechanism, secret)


async def _delete(console: Console, asked: Gone) -> Plan:
    return await user_deletion(console.cluster, asked.name)


def _credential(row: Credential) -> tuple[Any, ...]:
    now = "none" if row.now is None else f"a password, {row.now:,} iterations"
    then = "none" if row.then is None else f"another password, {row.then:,} iterations"
    return row.user, row.mechanism, now, then.replace("another", "a") if row.now is None else then


async def _allow(console: Console, asked: Ask) -> Plan:
    return await acl_creation(console.cluster, asked)


async def _remove(console: Console, asked: Ask) -> Plan:
    return await acl_deletion(console.cluster, asked)


def _fields(*roles: tuple[str, str]) -> tuple[Field, ...]:
    operations = [word(each) for each in AclOperation if each not in (AclOperation.UNKNOWN, AclOperation.ANY)]
    permissions = [word(each) for each in (AclPermission.ALLOW, AclPermission.DENY)]
    return (
        Field("principal", "Principal", placeholder="User:alice", is_required=True),
        Field("permission", "Permission", "select", options=[(each, each.lower()) for each in permissions]),
        Field("operation", "Operation", "select", options=[*roles, *((each, each) for each in operations)]),
        Field("resource", "Resource", "select", options=[(word(each), word(each)) for each in RESOURCES]),
        Field("pattern", "Whose name", "select", options=PATTERNS),
        Field("name", "Name", placeholder="orders, or * for each"),
        Field("host", "From address", placeholder="* (everywhere)"),
    )


PAGE: Final = Page(
    path="/access",
    template="parts/access.html",
    title=lambda _: "Users and ACLs",
    feeds=feeds,
    values=values,
    frame="access.html",
)
SET_USER: Final = Change(
    path="/user-set",
    title=lambda asked: f"User {asked.name}",
    asked=User,
    is_asked=lambda asked: bool(asked.name),
    plan=_set,
    secret=_carry_out,
    after=lambda _: "/access",
    sheet=Sheet(
        crumb=CRUMB,
        heading=lambda asked: f"Set a password of {asked.name}" if asked.name else "New user",
        about="A user who logs in by SCRAM. The cluster keeps what proves the password, and not the password.",
        fields=(
            Field("name", "User", is_required=True),
            Field("mechanism", "For", "select", options=[("", "both mechanisms"), *((each, each) for each in SCRAM)]),
        ),
        columns=("User", "Mechanism", "Now", "Then"),
        cells=_credential,
        verb=lambda asked: f"set the password of {asked.name}",
    ),
)
DELETE_USER: Final = Change(
    path="/user-delete",
    title=lambda asked: f"Delete user {asked.name}",
    asked=Gone,
    is_asked=lambda asked: bool(asked.name),
    plan=_delete,
    after=lambda _: "/access",
    sheet=Sheet(
        crumb=CRUMB,
        heading=lambda asked: f"Delete user {asked.name}" if asked.name else "Delete a user",
        about="The user cannot log in any more. Open connections and ACLs of the user stay.",
        fields=(Field("name", "User", is_required=True),),
        columns=("User", "Mechanism", "Now", "Then"),
        cells=_credential,
        verb=lambda asked: f"delete user {asked.name}",
    ),
)
ADD_ACL: Final = Change(
    path="/acl-add",
    title=lambda _: "New ACL",
    asked=Ask,
    is_asked=lambda asked: bool(asked.principal and asked.operation),
    plan=_allow,
    after=lambda _: "/access",
    sheet=Sheet(
        crumb=CRUMB,
        heading=lambda _: "New ACL",
        about="It allows or denies a user something. What is denied stays denied, whatever else allows it.",
        fields=_fields(*((each, f"all that a {each} needs") for each in reversed(ROLES))),
        columns=[each.capitalize() for each in Right._fields],
        cells=tuple,
        verb=lambda asked: f"{asked.permission.lower()} it to {asked.principal}",
    ),
)
REMOVE_ACL: Final = Change(
    path="/acl-remove",
    title=lambda _: "Remove an ACL",
    asked=Ask,
    is_asked=lambda asked: bool(asked.principal and asked.operation),
    plan=_remove,
    after=lambda _: "/access",
    sheet=Sheet(
        crumb=CRUMB,
        heading=lambda _: "Remove an ACL",
        about="The rule goes, whether it allows or denies.",
        fields=_fields(),
        columns=[each.capitalize() for each in Right._fields],
        cells=tuple,
        verb=lambda asked: f"take it from {asked.principal}",
    ),
)
CHANGES: Final = (SET_USER, DELETE_USER, ADD_ACL, REMOVE_ACL)
