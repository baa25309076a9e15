"""A topic that goes, with all its records."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.console.changes import Change
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.topics import deletion


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str


async def _plan(console: Console, asked: Asked) -> Plan:
    return await deletion(console.cluster, asked.topic)


def _note(plan: Plan) -> str:
    return f"{plan.known:,} records go with it. Nothing brings them back." if plan.known else ""


CHANGE: Final = Change(
    path="/topic-delete",
    title=lambda asked: f"Delete {asked.topic}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.topic),
    plan=_plan,
    after=lambda _: "/topics",
    sheet=Sheet(
        crumb=("/topics", "Topics"),
        heading=lambda asked: f"Delete {asked.topic or 'a topic'}",
        about="A deleted topic is gone with its records and its history.",
        fields=(Field("topic", "Topic", is_required=True),),
        columns=("Topic", "Id", "Partitions"),
        cells=tuple,
        verb=lambda asked: f"delete {asked.topic}",
        note=_note,
    ),
)
