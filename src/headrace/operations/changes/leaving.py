"""Plans of moves that are cancelled, and of brokers that are drained."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.net.client.cluster import Cluster
from headrace.net.client.moves import move, under_way
from headrace.net.client.replicas.reassignments import reassign
from headrace.operations.changes.costs import cost_of
from headrace.operations.changes.plan import Plan
from headrace.wire.moves import MOVE, MoveRequest

SEALED: Final = "recover"
"""The phase of a move from which on it only goes forward."""


class Cancelled(NamedTuple):
    """A move that would be cancelled."""

    topic: str
    partition: int
    source: int
    """The broker that keeps it."""
    target: int


async def cancelling(cluster: Cluster, topic: str, partition: int) -> Plan:
    """The partition stays where it is. `known` is the move's phase. Raises ClientError."""
    found = [one for one in (await under_way(cluster))[0] if (one.topic, one.partition) == (topic, partition)]
    if not found:
        raise HeadraceError(f"No move of {topic}-{partition} is under way; see 'headrace topic moves'.")
    one = found[0]
    row = Cancelled(topic, partition, one.source, one.target)
    words = ["topic", "reassign", topic, "--partition", str(partition), "--replicas", str(one.source)]
    obstacle = "It is sealed: it goes on to its target." if one.phase == SEALED else ""
    return Plan(words, [row], partial(_stay, cluster, row), obstacle, one.phase)


async def _stay(cluster: Cluster, row: Cancelled) -> None:
    for one in await reassign(cluster, row.topic, {row.partition: (row.source,)}):
        if one.error:
            raise HeadraceError(f"The move of {row.topic}-{row.partition} goes on: {one.detail or one.error.message}.")


async def draining(cluster: Cluster, broker: int) -> Plan:
    """All partitions leave the broker; the controller chooses where to. `known` has the cost, which changes all the
    time. Raises ClientError.
    """
    request = MoveRequest(MOVE, broker=broker, dry_run=True)
    asked = (await move(cluster, request)).asked
    going = any(not one.refusal for one in asked)
    obstacle = "" if going or not asked else "Nothing of this can be moved."
    cost = await cost_of(cluster, [one for one in asked if not one.refusal])
    words = ["broker", "drain", str(broker), "--wait"]
    return Plan(words, asked, lambda: move(cluster, request._replace(dry_run=False)), obstacle, cost)
