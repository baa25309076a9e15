"""Whom a consumer is to read from: the leader, or a follower in the consumer's own rack (KIP-392).

Promises: a follower is named only where it is in sync, also as proposed, is live and heard of in this epoch, and holds
the offset; the leader is left for nobody where it is in that rack itself. Sources: KIP-392, and what Kafka's
RackAwareReplicaSelector chooses.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.ids import BrokerId, Offset
from headrace.replica.leader import Leader


def preferred_replica(
    leader: Leader, rack: str, rack_of: Callable[[BrokerId], str | None], offset: Offset
) -> BrokerId | None:
    """The follower to read `offset` from; None: the leader serves. Of several the one that has flushed most, then the
    one that has caught up last, then the highest id."""
    if rack_of(leader.node) == rack:
        return None
    fit = [each for each in leader.followers if rack_of(each) == rack and _may_serve(leader, each, offset)]
    followers = leader.followers
    return max(fit, key=lambda each: (followers[each].flushed_end, followers[each].caught_up_at, each), default=None)


def _may_serve(leader: Leader, replica: BrokerId, offset: Offset) -> bool:
    """One that is behind would be asked for what it lacks, and one that is about to leave would stay behind."""
    if replica not in leader.isr or (leader.proposed is not None and replica not in leader.proposed):
        return False
    known = leader.followers[replica]
    return known.may_join and known.readable_from <= offset <= known.flushed_end
