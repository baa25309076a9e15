"""Plans of moves of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.base.errors import UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.moves import measured, move
from headrace.operations.changes.plan import Plan
from headrace.wire.moves import MOVE, MoveRequest

NOTHING_MOVES: Final = "Nothing of this can be moved."


async def moving(cluster: Cluster, topic: str, partitions: Sequence[int], to: int | None) -> Plan:
    """The partitions that would move, and the way of each. `partitions`: none: all of the topic. `to` None: the
    controller chooses. `known` has the bytes that are left to export, which change all the time. Raises UsageError,
    ClientError.
    """
    if not topic:
        raise UsageError("Name the topic whose partitions are to move.")
    request = MoveRequest(MOVE, topic, tuple(partitions), None, to, -1, True)
    answer = await move(cluster, request)
    sizes = await measured(cluster, topic, ())
    left = {one: sizes.get(one.partition) if one.is_handed_over else None for one in answer.asked}
    going = any(not one.refusal for one in answer.asked)
    obstacle = NOTHING_MOVES if answer.asked and not going else ""
    named = [word for each in partitions for word in ("--partition", str(each))]
    way = ["unload", topic] if to is None else ["move", topic, "--to", str(to)]
    words = ["topic", *way, *named, "--wait"]
    return Plan(words, answer.asked, lambda: move(cluster, request._replace(dry_run=False)), obstacle, left)
