"""Records of a partition that go: those before an offset."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.base.errors import UsageError
from headrace.base.reading import INT_MAX, natural
from headrace.console.changes import Change
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.trimming import END, GoneRecords, trimming


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str
    partition: str
    before: str


async def _plan(console: Console, asked: Asked) -> Plan:
    try:
        partition = natural(asked.partition, INT_MAX)
    except ValueError:
        raise UsageError(f"'{asked.partition:.40}' is no partition: write a whole number.") from None
    return await trimming(console.cluster, asked.topic, partition, asked.before)


def _cells(row: GoneRecords) -> tuple[object, ...]:
    return row.topic, row.partition, row.before


CHANGE: Final = Change(
    path="/records-delete",
    title=lambda asked: f"Delete records of {asked.topic}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.topic and asked.partition and asked.before),
    plan=_plan,
    after=lambda asked: f"/topics/{quote(asked.topic, safe='')}",
    sheet=Sheet(
        crumb=("/topics", "Topics"),
        heading=lambda asked: f"Delete records of {asked.topic or 'a topic'}",
        about="All records of a partition before an offset go, from the log and from its history.",
        fields=(
            Field("topic", "Topic", is_required=True),
            Field("partition", "Partition", "number", is_required=True),
            Field("before", "Before offset", "text", f"an offset, or {END}", is_required=True),
        ),
        columns=("Topic", "Partition", "It begins at then"),
        cells=_cells,
        verb=lambda asked: f"delete records of {asked.topic}-{asked.partition}",
        note=lambda plan: f"{plan.known:,} offsets go. Nothing brings their records back." if plan.known else "",
    ),
)
