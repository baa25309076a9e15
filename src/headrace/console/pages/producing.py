"""One record, written by hand."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.base.errors import UsageError
from headrace.base.limits import CONSOLE_PRODUCED_BYTES_MAX
from headrace.base.reading import INT_MAX, natural
from headrace.console.changes import Change
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.producing import NewRecord, producing

KINDS: Final = (("text", "the text below"), ("null", "null (a tombstone)"))


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str
    partition: str
    """Empty: the key chooses."""
    key: str
    """Empty: none."""
    value: str
    headers: str
    """NAME=VALUE on lines."""
    kind: str
    """`text`, or `null` for a tombstone."""


def record_of(asked: Asked) -> NewRecord:
    """Raises UsageError."""
    try:
        partition = natural(asked.partition, INT_MAX) if asked.partition else None
    except ValueError:
        raise UsageError(f"'{asked.partition:.40}' is no partition: write a whole number.") from None
    headers = []
    for line in _lines(asked.headers).splitlines():
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"'{line:.80}' is no header: write NAME=VALUE, each on a line.")
        headers.append((name.strip(), value))
    text = None if asked.kind == "null" else _lines(asked.value)
    size = sum(len(each.encode()) for each in (asked.key, text or "", asked.headers))
    if size > CONSOLE_PRODUCED_BYTES_MAX:
        command = f"headrace produce {asked.topic} FILE"
        raise UsageError(f"A record of {size:,} bytes is not for this form: '{command}' writes larger ones.")
    return NewRecord(asked.topic, partition, asked.key or None, text, tuple(headers))


def _lines(text: str) -> str:
    """A form ends lines as on a typewriter."""
    return text.replace("\r\n", "\n")


async def _plan(console: Console, asked: Asked) -> Plan:
    return await producing(console.cluster, record_of(asked))


def _cells(row: NewRecord) -> tuple[object, ...]:
    headers = ", ".join(f"{name}={value}" for name, value in row.headers)
    return row.topic, "the key chooses" if row.partition is None else row.partition, row.key, row.value, headers


CHANGE: Final = Change(
    path="/record-produce",
    title=lambda asked: f"Write to {asked.topic}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.topic and asked.kind),
    plan=_plan,
    after=lambda asked: f"/topics/{quote(asked.topic, safe='')}/records",
    verbatim=frozenset(("key", "value", "headers")),
    sheet=Sheet(
        crumb=("/topics", "Topics"),
        heading=lambda asked: f"Write a record to {asked.topic or 'a topic'}",
        about="One record of the present time, which every reader of the topic gets.",
        fields=(
            Field("topic", "Topic", is_required=True),
            Field("partition", "Partition", "number", "by the key"),
            Field("key", "Key", placeholder="none"),
            Field("kind", "The value is", "select", options=KINDS),
            Field("value", "Value", "long", '{"number": 1}'),
            Field("headers", "Headers", "long", "source=console"),
        ),
        columns=("Topic", "Partition", "Key", "Value", "Headers"),
        cells=_cells,
        verb=lambda asked: f"write to {asked.topic}",
        is_posted=True,
    ),
)
