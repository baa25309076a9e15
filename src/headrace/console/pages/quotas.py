"""Quotas of users, client ids and addresses."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.console.changes import Change
from headrace.console.lists import listing
from headrace.console.page import Page, linked
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.metadata.access.quotas import CLIENT_ID, IP, QUOTA_DOCS, USER, QuotaEntity
from headrace.net.client.access.quotas import told
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.quotas import EACH, quota


class Row(NamedTuple):
    """One quota."""

    entity: QuotaEntity
    key: str
    value: float

    @property
    def told(self) -> str:
        """Its subject in words."""
        return told(self.entity)

    @property
    def query(self) -> dict[str, str]:
        """The fields of the form that changes it."""
        parts = {kind: EACH if name is None else name for kind, name in self.entity}
        return {
            "user": parts.get(USER, ""),
            "client": parts.get(CLIENT_ID, ""),
            "ip": parts.get(IP, ""),
            "key": self.key,
        }


KEYS: Final = {
    "name": lambda row: row.told,
    "key": lambda row: row.key,
    "value": lambda row: row.value,
}


async def values(console: Console, request: Request) -> dict[str, Any]:
    known = console.quotas.value
    assert known is not None, "no part is made without it"
    rows = [Row(entity, key, value) for entity, found in known.items() for key, value in found.items()]
    found = listing(request, rows, name=lambda row: f"{row.told} {row.key}", keys=KEYS, default="name")
    return {"list": found, "all": len(rows), "docs": QUOTA_DOCS, "linked": linked}


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.quotas,)


class Asked(NamedTuple):
    """A wish, as the form has it."""

    user: str
    client: str
    ip: str
    key: str
    value: str
    """Empty: no quota any more."""


async def _plan(console: Console, asked: Asked) -> Plan:
    names = {USER: asked.user, CLIENT_ID: asked.client, IP: asked.ip}
    return await quota(console.cluster, names, asked.key, asked.value)


PAGE: Final = Page(
    path="/quotas",
    template="parts/quotas.html",
    title=lambda _: "Quotas",
    feeds=feeds,
    values=values,
    frame="quotas.html",
)
CHANGE: Final = Change(
    path="/quota-set",
    title=lambda _: "Set a quota",
    asked=Asked,
    is_asked=lambda asked: bool(asked.user or asked.client or asked.ip),
    plan=_plan,
    after=lambda _: "/quotas",
    sheet=Sheet(
        crumb=("/quotas", "Quotas"),
        heading=lambda _: "Set a quota",
        about="A quota is of a user, a client id, or both together, or of an address. Write * for all that have none.",
        fields=(
            Field("user", "User"),
            Field("client", "Client id"),
            Field("ip", "Address"),
            Field("key", "Quota", "select", options=[(key, key) for key in QUOTA_DOCS]),
            Field("value", "Value (empty: none any more)"),
        ),
        columns=("Of", "Quota", "Now", "Then"),
        cells=tuple,
        verb=lambda asked: f"set {asked.key}" if asked.value else f"remove {asked.key}",
    ),
)
