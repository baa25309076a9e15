"""Plans of moves of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.disks import sizes
from headrace.net.client.moves import measured, move, under_way
from headrace.operations.changes.plan import Plan
from headrace.wire.moves import MOVE, AskedView, FinishedView, MoveRequest

NOTHING_MOVES: Final = "Nothing of this can be moved."


class Pause(NamedTuple):
    """The time in which writes waited, in the finished moves that brokers remember."""

    moves: int
    median_ms: int
    most_ms: int


class Cost(NamedTuple):
    """The cost of a move, as far as it is known before."""

    bytes_left: Mapping[AskedView, int | None]
    """Bytes to export or to copy; None: no broker tells."""
    pause: Pause | None
    """None: no move through the store has finished."""


def pause_of(finished: Sequence[FinishedView]) -> Pause | None:
    waited = [one.pause_ms for one in finished]
    return Pause(len(waited), round(median(waited)), max(waited)) if waited else None


async def moving(cluster: Cluster, topic: str, partitions: Sequence[int], to: int | None) -> Plan:
    """The partitions that would move, and the way of each. `partitions`: none: all of the topic. `to` None: the
    controller chooses. `known` has the cost, which changes all the time. Raises UsageError, ClientError.
    """
    if not topic:
        raise UsageError("Name the topic whose partitions are to move.")
    request = MoveRequest(MOVE, topic, tuple(partitions), None, to, -1, True)
    answer = await move(cluster, request)
    going = any(not one.refusal for one in answer.asked)
    cost = await _cost(cluster, topic, [one for one in answer.asked if not one.refusal])
    obstacle = NOTHING_MOVES if answer.asked and not going else ""
    named = [word for each in partitions for word in ("--partition", str(each))]
    way = ["unload", topic] if to is None else ["move", topic, "--to", str(to)]
    words = ["topic", *way, *named, "--wait"]
    return Plan(words, answer.asked, lambda: move(cluster, request._replace(dry_run=False)), obstacle, cost)


async def _cost(cluster: Cluster, topic: str, going: Sequence[AskedView]) -> Cost:
    """Raises ClientError."""
    unexported = await measured(cluster, topic, ())
    sources: dict[int, list[tuple[str, int]]] = {}
    for one in going:
        if not one.is_handed_over and one.source >= 0:
            sources.setdefault(one.source, []).append((topic, one.partition))
    logs, _ = await sizes(cluster, sources)
    left = {
        one: unexported.get(one.partition) if one.is_handed_over else logs.get((topic, one.partition)) for one in going
    }
    return Cost(left, pause_of((await under_way(cluster))[1]))
