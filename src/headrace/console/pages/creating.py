"""A new topic."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.base.errors import UsageError
from headrace.base.reading import INT_MAX, natural
from headrace.console.changes import Change
from headrace.console.state import Console
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.topics import creation


class Asked(NamedTuple):
    """A wish, as the form has it."""

    name: str
    partitions: str
    """Empty: as many as the brokers' default."""
    replicas: str


def _number(text: str, what: str) -> int:
    """-1 where it is empty: the brokers' default. Raises UsageError."""
    if not text:
        return -1
    try:
        return natural(text, INT_MAX)
    except ValueError:
        raise UsageError(f"'{text}' is no number of {what}: write a whole number.") from None


async def _plan(console: Console, asked: Asked) -> Plan:
    return await creation(
        console.cluster,
        asked.name,
        partitions=_number(asked.partitions, "partitions"),
        replicas=_number(asked.replicas, "replicas"),
    )


CHANGE: Final = Change(
    path="/topic-create",
    template="create.html",
    title=lambda _: "New topic",
    asked=Asked,
    is_asked=lambda asked: bool(asked.name),
    plan=_plan,
    after=lambda asked: f"/topics/{quote(asked.name)}",
)
