"""All topics: how large, how busy and how well each is."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.console.lists import listing
from headrace.console.page import Page, linked
from headrace.console.state import Console, Seen, Sizes


class Row(NamedTuple):
    """One topic."""

    name: str
    is_internal: bool
    partitions: int
    replicas: int
    size: int | None
    rate: float | None
    lag: int | None
    """Of the groups that read it, all together; None: none does."""
    offline: int
    behind: int


def rows_of(seen: Seen, sizes: Sizes | None) -> list[Row]:
    """All topics, with internal ones."""
    lags = _lags(seen)
    rates = {} if seen.traffic is None else seen.traffic.topics
    standing = seen.standing.topics
    return [
        Row(
            name=topic.name,
            is_internal=topic.internal,
            partitions=len(topic.partitions),
            replicas=standing[topic.name].replicas,
            size=None if sizes is None else sizes.by_topic.get(topic.name),
            rate=rates.get(topic.name),
            lag=lags.get(topic.name),
            offline=standing[topic.name].offline,
            behind=standing[topic.name].behind,
        )
        for topic in seen.look.view.topics.values()
    ]


def _lags(seen: Seen) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    ends = seen.look.ends
    for group in seen.look.groups.values():
        for place, offset in group.committed.items():
            if (end := ends.get(place)) is not None:
                found[place[0]] += max(0, end - offset)
    return dict(found)


KEYS: Final = {
    "name": lambda row: row.name,
    "partitions": lambda row: row.partitions,
    "replicas": lambda row: row.replicas,
    "size": lambda row: row.size or 0,
    "rate": lambda row: row.rate or 0.0,
    "lag": lambda row: -1 if row.lag is None else row.lag,
    "health": lambda row: (row.offline, row.behind),
}


async def values(console: Console, request: Request) -> dict[str, Any]:
    seen = console.seen.value
    assert seen is not None, "no part is made without it"
    with_internal = request.query_params.get("internal") == "1"
    rows = [row for row in rows_of(seen, console.sizes.value) if with_internal or not row.is_internal]
    found = listing(request, rows, name=lambda row: row.name, keys=KEYS, default="name")
    policies = await console.policies.of(console.cluster, [row.name for row in found.rows])
    return {
        "list": found,
        "all": len(rows),
        "with_internal": with_internal,
        "policies": policies,
        "linked": linked,
    }


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.seen, console.sizes)


PAGE: Final = Page(
    path="/topics",
    template="parts/topics.html",
    title=lambda _: "Topics",
    feeds=feeds,
    values=values,
    frame="topics.html",
)
