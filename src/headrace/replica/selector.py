"""Chooses the replica that a consumer reads from: the leader, or a follower in the consumer's own rack (KIP-392).

Promises: a follower is chosen only where it is in sync, also as proposed, and holds the offset. It must be live, and
heard of in this epoch. A leader in the consumer's rack serves itself. Sources: KIP-392, and the choices of Kafka's
RackAwareReplicaSelector.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.ids import BrokerId, Offset
from headrace.replica.leader import Leader


def preferred_replica(
    leader: Leader, rack: str, rack_of: Callable[[BrokerId], str | None], offset: Offset
) -> BrokerId | None:
    """Return the follower to read `offset` from; None: the leader serves. Of several, it is the one that has flushed
    most, then the one that has caught up last, then the highest id."""
    if rack_of(leader.node) == rack:
        return None
    fit = [each for each in leader.followers if rack_of(each) == rack and _may_serve(leader, each, offset)]
    followers = leader.followers
    return max(fit, key=lambda each: (followers[each].flushed_end, followers[each].caught_up_at, each), default=None)


def _may_serve(leader: Leader, replica: BrokerId, offset: Offset) -> bool:
    """Whether a follower may serve. One that is behind would lack the records, and one that is about to leave would
    fall behind."""
    if replica not in leader.isr or (leader.proposed is not None and replica not in leader.proposed):
        return False
    known = leader.followers[replica]
    return known.may_join and known.readable_from <= offset <= known.flushed_end
