"""The events for the groups of one partition that come in one turn of the event loop and are decided together at its
end.

A commit changes nothing before it is durable, and a heartbeat of a consumer group is answered only once its records
are. A member that joins or syncs waits for the others. So each may wait for those beside it (decisions 0026 and 0036).
Bounded by GROUP_GATHERED_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from headrace.base.limits import GROUP_GATHERED_BYTES_MAX
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.events import CommitOffsets, ConsumerHeartbeats, Join, Sync

_Event: TypeAlias = CommitOffsets | Join | Sync | ConsumerHeartbeat

RECORD_BYTES = 64
"""The approximate size of a record of a committed offset, or of a heartbeat, without its names."""
PARTITION_BYTES = 8
"""The approximate size of a partition that a member says it owns."""


class Gathered(NamedTuple):
    """Events by group, each in the order in which they came."""

    commits: dict[str, list[CommitOffsets]]
    requests: dict[str, list[Join | Sync]]
    heartbeats: dict[str, list[ConsumerHeartbeat]]


class GroupRequests:
    """See the module."""

    def __init__(self) -> None:
        self._commits: dict[str, list[CommitOffsets]] = {}
        self._requests: dict[str, list[Join | Sync]] = {}
        self._heartbeats: dict[str, list[ConsumerHeartbeat]] = {}
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._commits and not self._requests and not self._heartbeats

    def has_room(self, group_id: str, event: _Event) -> bool:
        return self._bytes + _size(group_id, event) <= GROUP_GATHERED_BYTES_MAX

    def add(self, group_id: str, event: _Event) -> None:
        self._bytes += _size(group_id, event)
        if isinstance(event, CommitOffsets):
            self._commits.setdefault(group_id, []).append(event)
        elif isinstance(event, (Join, Sync)):
            self._requests.setdefault(group_id, []).append(event)
        else:
            self._heartbeats.setdefault(group_id, []).append(event)

    def take(self) -> Gathered:
        """Return all events, and hold none from then on."""
        taken = Gathered(self._commits, self._requests, self._heartbeats)
        self._commits, self._requests, self._heartbeats, self._bytes = {}, {}, {}, 0
        return taken


def _size(group_id: str, event: _Event) -> int:
    """Return the approximate size of the records that this event writes. A member's assignment is not known yet."""
    if isinstance(event, Sync):
        return RECORD_BYTES
    if isinstance(event, Join):
        return RECORD_BYTES + sum(len(protocol.metadata) for protocol in event.protocols)
    if isinstance(event, CommitOffsets):
        names = sum(len(new.partition.topic) + len(new.metadata) for new in event.offsets)
        return names + (len(group_id) + RECORD_BYTES) * len(event.offsets)
    said = (event.member_id, event.instance_id, event.rack_id, event.client_id, event.client_host)
    names = sum(len(name or "") for name in (*said, event.pattern, event.assignor, *(event.subscribed or ())))
    return names + len(group_id) + RECORD_BYTES + PARTITION_BYTES * len(event.owned or ())


def rounds(heartbeats: list[ConsumerHeartbeat]) -> Iterator[tuple[ConsumerHeartbeat, ...]]:
    """Split heartbeats, in their order, so that each member is once in each part. The decision about a member's second
    heartbeat rests on that about its first."""
    found: list[ConsumerHeartbeat] = []
    names: set[tuple[bool, str]] = set()
    for heartbeat in heartbeats:
        own = {(False, heartbeat.member_id)}
        if heartbeat.instance_id is not None:
            own.add((True, heartbeat.instance_id))
        if names & own:
            yield tuple(found)
            found, names = [], set()
        found.append(heartbeat)
        names |= own
    yield tuple(found)


def as_one(heartbeats: Sequence[ConsumerHeartbeat]) -> ConsumerHeartbeat | ConsumerHeartbeats:
    """Return one event for these heartbeats, which are all from different members."""
    return heartbeats[0] if len(heartbeats) == 1 else ConsumerHeartbeats(tuple(heartbeats))


def halves(heartbeats: Sequence[ConsumerHeartbeat]) -> tuple[ConsumerHeartbeat | ConsumerHeartbeats, ...]:
    """Split what was too large as one event into two, in order. A large neighbour then costs the others few more
    tries."""
    middle = len(heartbeats) // 2
    return as_one(heartbeats[:middle]), as_one(heartbeats[middle:])
