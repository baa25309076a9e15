"""A config of a topic: set, or back to its default."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.console.changes import Change
from headrace.console.pages.topic import SOURCES
from headrace.console.state import Console
from headrace.operations.changes.configs import setting
from headrace.operations.changes.plan import Plan


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str
    key: str
    value: str
    """Empty: back to the default."""


async def _plan(console: Console, asked: Asked) -> Plan:
    return await setting(console.cluster, asked.topic, asked.key, asked.value or None)


CHANGE: Final = Change(
    path="/topic-config",
    template="setting.html",
    title=lambda asked: f"Configs of {asked.topic}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.topic and asked.key),
    plan=_plan,
    after=lambda asked: f"/topics/{quote(asked.topic)}#configs",
    more=lambda _: {"sources": SOURCES},
)
