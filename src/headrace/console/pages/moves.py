"""Moves of partitions: how far each is, what holds it up, and the plan of a new one."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.base.errors import UsageError
from headrace.base.reading import INT_MAX, natural
from headrace.console.changes import Change
from headrace.console.page import Page
from headrace.console.state import Console
from headrace.operations.changes.moves import moving
from headrace.operations.changes.plan import Plan

PHASES: Final = (
    ("pre-copy", "Export", "its closed segments go to the store while it serves"),
    ("waiting for the target", "Proof", "the target reads the store"),
    ("seal", "Seal", "writes wait; the tail is exported"),
    ("recover", "Begin", "the target leads, and begins its log"),
)
"""Phases as brokers name them, in words for people, and what happens in each."""
FINISHED_MAX: Final = 50


async def values(console: Console, _: Request) -> dict[str, Any]:
    found = console.moves.value
    assert found is not None, "no part is made without it"
    names = [name for name, *_ in PHASES]
    return {
        "moves": found.under_way,
        "steps": {one.phase: names.index(one.phase) if one.phase in names else 0 for one in found.under_way},
        "phases": PHASES,
        "finished": list(reversed(found.finished))[:FINISHED_MAX],
    }


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str
    partitions: str
    """Numbers with commas; empty: all."""
    to: str
    """A broker's id; empty: the controller chooses."""


async def _plan(console: Console, asked: Asked) -> Plan:
    """Raises UsageError."""
    try:
        chosen = tuple(natural(each.strip(), INT_MAX) for each in asked.partitions.split(",") if each.strip())
        target = natural(asked.to, INT_MAX) if asked.to else None
    except ValueError:
        raise UsageError("Partitions are numbers with commas, and a broker is the number of one.") from None
    return await moving(console.cluster, asked.topic, chosen, target)


def _brokers(console: Console) -> dict[str, Any]:
    seen = console.seen.value
    return {"brokers": [] if seen is None else [each for each in seen.look.brokers if not each.fenced]}


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.moves,)


PAGE: Final = Page(
    path="/moves",
    template="parts/moves.html",
    title=lambda _: "Moves",
    feeds=feeds,
    values=values,
    frame="moves.html",
)
CHANGE: Final = Change(
    path="/move",
    template="move.html",
    title=lambda _: "Move partitions",
    asked=Asked,
    is_asked=lambda asked: bool(asked.topic),
    plan=_plan,
    after=lambda _: "/moves",
    more=_brokers,
)
