"""What comes for the groups of one partition in one turn of the event loop, and may be decided together at its end.

A commit changes nothing before it is durable, a heartbeat of a consumer group tells nothing before it is, and who joins
or syncs among others waits for them, so that each may wait for those beside it (decisions 0026 and 0036). Bounded by
GROUP_GATHERED_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from headrace.base.limits import GROUP_GATHERED_BYTES_MAX
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.events import CommitOffsets, ConsumerHeartbeats, Join, Sync

_Event: TypeAlias = CommitOffsets | Join | Sync | ConsumerHeartbeat

RECORD_BYTES = 64
"""Of a committed offset's record, or of a heartbeat, beside its names: nearly."""
PARTITION_BYTES = 8
"""Of a partition that a member says to have: nearly."""


class Gathered(NamedTuple):
    """By group, each in the order in which they came."""

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
        """All of it; then there is nothing."""
        taken = Gathered(self._commits, self._requests, self._heartbeats)
        self._commits, self._requests, self._heartbeats, self._bytes = {}, {}, {}, 0
        return taken


def _size(group_id: str, event: _Event) -> int:
    """Of what it has written, nearly; a member's share is not known yet."""
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
    """In their order, each member once in each: what is decided of the second rests on what was of the first."""
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
    """The event that they are, of members that are all different."""
    return heartbeats[0] if len(heartbeats) == 1 else ConsumerHeartbeats(tuple(heartbeats))


def halves(heartbeats: Sequence[ConsumerHeartbeat]) -> tuple[ConsumerHeartbeat | ConsumerHeartbeats, ...]:
    """In their order: two events of what was too large as one. A neighbour that is large costs the others few more."""
    middle = len(heartbeats) // 2
    return as_one(heartbeats[:middle]), as_one(heartbeats[middle:])
