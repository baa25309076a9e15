"""Plans of moves of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.base.errors import UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.moves import move
from headrace.operations.changes.costs import cost_of
from headrace.operations.changes.plan import Plan
from headrace.wire.moves import MOVE, MoveRequest

NOTHING_MOVES: Final = "Nothing of this can be moved."


async def moving(cluster: Cluster, topic: str, partitions: Sequence[int], to: int | None) -> Plan:
    """The partitions that would move, and the way of each. `partitions`: none: all of the topic. `to` None: the
    controller chooses. `known` has the cost, which changes all the time. Raises UsageError, ClientError.
    """
    if not topic:
        raise UsageError("Name the topic whose partitions are to move.")
    request = MoveRequest(MOVE, topic, tuple(partitions), None, to, -1, True)
    answer = await move(cluster, request)
    going = any(not one.refusal for one in answer.asked)
    cost = await cost_of(cluster, [one for one in answer.asked if not one.refusal])
    obstacle = NOTHING_MOVES if answer.asked and not going else ""
    named = [word for each in partitions for word in ("--partition", str(each))]
    way = ["unload", topic] if to is None else ["move", topic, "--to", str(to)]
    words = ["topic", *way, *named, "--wait"]
    return Plan(words, answer.asked, lambda: move(cluster, request._replace(dry_run=False)), obstacle, cost)
