"""Consumer groups: how far behind each is, and who in it reads what."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.console.lists import listing
from headrace.console.page import Page, linked
from headrace.console.state import Console, Seen
from headrace.net.client.groups import INACTIVE
from headrace.operations.groups import described


class Row(NamedTuple):
    """One group."""

    name: str
    state: str
    kind: str
    topics: int
    lag: int | None
    rate: float | None


KEYS: Final = {
    "name": lambda row: row.name,
    "state": lambda row: row.state,
    "topics": lambda row: row.topics,
    "lag": lambda row: row.lag or 0,
    "rate": lambda row: row.rate or 0.0,
}


def rows_of(seen: Seen) -> list[Row]:
    progress = {} if seen.traffic is None else seen.traffic.groups
    return [
        Row(
            name=name,
            state=group.state,
            kind=group.kind,
            topics=len({topic for topic, _ in group.committed}),
            lag=None if (one := progress.get(name)) is None else one.lag,
            rate=None if one is None else one.rate,
        )
        for name, group in seen.look.groups.items()
    ]


async def values(console: Console, request: Request) -> dict[str, Any]:
    seen = console.seen.value
    assert seen is not None, "no part is made without it"
    rows = rows_of(seen)
    found = listing(request, rows, name=lambda row: row.name, keys=KEYS, default="-lag")
    return {"list": found, "all": len(rows), "linked": linked}


def name_of(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


async def one(console: Console, request: Request) -> dict[str, Any]:
    """One group, as its coordinator tells of it now."""
    found = await described(console.cluster, name_of(request))
    seen = console.seen.value
    progress = None if seen is None or seen.traffic is None else seen.traffic.groups.get(found.view.name)
    reading = {share.owner.id for share in found.shares if share.owner is not None}
    return {
        "group": found,
        "is_active": found.view.state not in INACTIVE,
        "rate": None if progress is None else progress.rate,
        "idle": [member for member in found.view.members if member.id not in reading],
    }


async def frame(console: Console, request: Request) -> dict[str, Any]:
    return {"name": name_of(request)}


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.seen,)


PAGE: Final = Page(
    path="/groups",
    template="parts/groups.html",
    title=lambda _: "Groups",
    feeds=feeds,
    values=values,
    frame="groups.html",
)
ONE: Final = Page(
    path="/groups/{name:path}",
    template="parts/group.html",
    name="group",
    title=name_of,
    feeds=feeds,
    values=one,
    frame="group.html",
    once=frame,
)
