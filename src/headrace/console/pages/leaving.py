"""Moves that are cancelled, and brokers that are drained."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.reading import INT_MAX, natural
from headrace.console.changes import Change
from headrace.console.rendering import size
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.operations.changes.costs import Cost, way_of
from headrace.operations.changes.leaving import cancelling, draining
from headrace.operations.changes.plan import Plan
from headrace.wire.moves import AskedView


class Move(NamedTuple):
    """The move that is to be cancelled, as the form has it."""

    topic: str
    partition: str


class Leaving(NamedTuple):
    """The broker that is to be drained, as the form has it."""

    broker: str


def _number(text: str, what: str) -> int:
    try:
        return natural(text, INT_MAX)
    except ValueError:
        raise UsageError(f"'{text:.40}' is no {what}: write a whole number.") from None


async def _cancelling(console: Console, asked: Move) -> Plan:
    return await cancelling(console.cluster, asked.topic, _number(asked.partition, "partition"))


async def _draining(console: Console, asked: Leaving) -> Plan:
    return await draining(console.cluster, _number(asked.broker, "broker"))


def _way(one: AskedView) -> tuple[Any, ...]:
    refusal = f"refused: {one.refusal}" if one.refusal else way_of(one)
    return f"{one.topic}-{one.partition}", one.source, one.target if one.target >= 0 else None, refusal


def _left(plan: Plan, one: AskedView) -> tuple[str]:
    """The bytes that are to be exported or copied."""
    known: Cost = plan.known
    return (size(known.bytes_left.get(one)),)


CANCEL: Final = Change(
    path="/move-cancel",
    title=lambda asked: f"Cancel the move of {asked.topic}-{asked.partition}",
    asked=Move,
    is_asked=lambda asked: bool(asked.topic and asked.partition),
    plan=_cancelling,
    after=lambda _: "/moves",
    sheet=Sheet(
        crumb=("/moves", "Moves"),
        heading=lambda asked: f"Cancel the move of {asked.topic}-{asked.partition}",
        about="Before its seal a move can be cancelled; the partition stays where it is.",
        fields=(Field("topic", "Topic", is_required=True), Field("partition", "Partition", "number", is_required=True)),
        columns=("Topic", "Partition", "Stays on broker", "Instead of broker"),
        cells=tuple,
        verb=lambda asked: f"leave {asked.topic}-{asked.partition} where it is",
    ),
)
DRAIN: Final = Change(
    path="/broker-drain",
    title=lambda asked: f"Drain broker {asked.broker}",
    asked=Leaving,
    is_asked=lambda asked: bool(asked.broker),
    plan=_draining,
    after=lambda _: "/moves",
    sheet=Sheet(
        crumb=("/moves", "Moves"),
        heading=lambda asked: f"Drain broker {asked.broker}" if asked.broker else "Drain a broker",
        about="All its partitions move away, so that it can be stopped for good; the controller chooses where to.",
        fields=(Field("broker", "Broker", "number", is_required=True),),
        columns=("Partition", "From", "To", "How", "Still to go"),
        cells=_way,
        more=_left,
        verb=lambda asked: f"drain broker {asked.broker}",
        nothing="It holds nothing, or all of it is on its way.",
    ),
)
