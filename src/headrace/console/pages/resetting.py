"""New offsets for a group."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.console.changes import Change
from headrace.console.state import Console
from headrace.operations.changes.offsets import Aim, reset
from headrace.operations.changes.plan import Plan

TARGETS: Final = (
    ("earliest", "the first record that is there"),
    ("latest", "the end"),
    ("offset", "an offset"),
    ("shift", "so many records on (back: a minus)"),
    ("datetime", "a time (UTC)"),
    ("duration", "so long ago"),
)
"""Kinds of targets, in words."""


class Asked(NamedTuple):
    """A wish, as the form has it."""

    group: str
    topics: str
    """TOPIC or TOPIC:0,1, with blanks between several; empty: all that it has committed."""
    to: str
    value: str


async def _plan(console: Console, asked: Asked) -> Plan:
    return await reset(console.cluster, asked.group, asked.topics.split(), Aim(asked.to, asked.value))


CHANGE: Final = Change(
    path="/group-reset",
    template="reset.html",
    title=lambda asked: f"Reset {asked.group}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.to),
    plan=_plan,
    after=lambda asked: f"/groups/{quote(asked.group)}",
    more=lambda _: {"targets": TARGETS},
    typed=lambda asked: asked.group,
)
