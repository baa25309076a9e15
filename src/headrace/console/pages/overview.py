"""The overview: how the cluster stands, what is wrong with it, and what to do about that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.console.charts.routes import frame_values
from headrace.console.page import Page
from headrace.console.state import Checked, Console, Seen, Sizes
from headrace.net.client.members import QuorumView
from headrace.operations.bearing import bearing
from headrace.operations.finding import Finding
from headrace.operations.loads import Listed, loaded

NAMED_MAX: Final = 20
"""Partitions that are named; the others are counted."""
SUBJECTS_MAX: Final = 5
NOT_ALLOWED: Final = "not allowed"
"""The kind of findings about the viewer's own rights."""


class Row(NamedTuple):
    """One broker."""

    listed: Listed
    role: str
    """voter, learner, or empty: the quorum does not tell."""
    written: float | None


class Trouble(NamedTuple):
    """Findings with one cause."""

    kind: str
    subjects: Sequence[str]
    more: int
    text: str
    todo: str
    is_wrong: bool


async def values(console: Console, _: Request) -> dict[str, Any]:
    seen, checked, sizes, moves = (
        console.seen.value,
        console.checked.value,
        console.sizes.value,
        console.moves.value,
    )
    assert seen is not None, "no part is made without it"
    view, traffic = seen.look.view, seen.traffic
    topics = [topic for topic in view.topics.values() if not topic.internal]
    return {
        "cluster": view.cluster_id,
        "racks": _racks(seen, sizes, checked),
        "live": sum(not broker.fenced for broker in seen.look.brokers),
        "brokers": len(seen.look.brokers),
        "controller": next((broker.id for broker in seen.look.brokers if broker.controller), None),
        "quorum": None if checked is None or checked.quorum is None else bearing(checked.quorum, seen.look.brokers),
        "is_checked": checked is not None,
        "check_trouble": console.checked.trouble,
        "troubles": [] if checked is None else together(each for each in checked.found if each.kind != NOT_ALLOWED),
        "is_barred": checked is not None and any(each.kind == NOT_ALLOWED for each in checked.found),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
        "written": None if traffic is None else sum(traffic.topics.values()),
        "committed": None if traffic is None else sum(each.rate for each in traffic.groups.values()),
        "lag": None if traffic is None else sum(each.lag for each in traffic.groups.values()),
        "groups": len(seen.look.groups),
        "behind": _named([] if traffic is None else sorted(traffic.behind.items())),
        "behind_count": seen.standing.behind,
        "offline": _named(seen.standing.offline),
        "offline_count": len(seen.standing.offline),
        "bytes": None if sizes is None else sum(sizes.by_topic.values()),
        "flow": None if console.flows.value is None else console.flows.value.flow,
        "moves": None if moves is None else len(moves.under_way),
        "held_up": 0 if moves is None else sum(bool(move.obstacle) for move in moves.under_way),
        "charts": console.charts,
    }


def together(found: Iterable[Finding]) -> list[Trouble]:
    """Findings, those of one cause together."""
    alike: dict[tuple[str, str, str, bool], list[str]] = {}
    for finding in found:
        alike.setdefault((finding.kind, finding.text, finding.todo, finding.is_wrong), []).append(finding.subject)
    return [
        Trouble(kind, subjects[:SUBJECTS_MAX], max(0, len(subjects) - SUBJECTS_MAX), text, todo, is_wrong)
        for (kind, text, todo, is_wrong), subjects in alike.items()
    ]


def _racks(seen: Seen, sizes: Sizes | None, checked: Checked | None) -> list[tuple[str, list[Row]]]:
    room = {} if sizes is None else sizes.disks
    roles = _roles(None if checked is None else checked.quorum)
    rows = [
        Row(
            each,
            roles.get(each.view.id, ""),
            None if seen.traffic is None else seen.traffic.brokers.get(each.view.id, 0.0),
        )
        for each in loaded(seen.look.brokers, seen.standing.leads, seen.standing.replicas, room)
    ]
    rows.sort(key=lambda row: (row.listed.view.rack or "", row.listed.view.id))
    return [(rack, list(some)) for rack, some in groupby(rows, key=lambda row: row.listed.view.rack or "")]


def _roles(quorum: QuorumView | None) -> dict[int, str]:
    return {} if quorum is None else {each.id: "voter" if each.voter else "learner" for each in quorum.members}


def _named(places: Sequence[Any]) -> Sequence[Any]:
    return places[:NAMED_MAX]


async def frame(console: Console, request: Request) -> dict[str, Any]:
    return await frame_values(console, request.query_params.get("range", ""))


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.seen, console.checked, console.sizes, console.moves, console.flows)


PAGE: Final = Page(
    path="/",
    template="parts/overview.html",
    title=lambda _: "Overview",
    feeds=feeds,
    values=values,
    frame="overview.html",
    once=frame,
)
