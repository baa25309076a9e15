"""Counts the memory that large subscriptions of groups' members take in one broker, over all groups.

Promises: a member with a large subscription joins only where there is room for it. It gives the room back when it is
gone, whatever ended it. Small subscriptions are not counted: the limits on members and groups bound them.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.limits import (
    GROUP_LARGE_SUBSCRIPTION_BYTES_MIN,
    GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX,
    GROUP_TOPIC_NAME_BYTES,
)
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import ConsumerMember
from headrace.coordinators.groups.events import ConsumerHeartbeats, Event, Join, Together
from headrace.coordinators.groups.model import Group, Member


class SubscriptionRoom:
    """The room for large subscriptions: one for all shards of a broker."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of the groups that have a member with a large subscription."""

    def has_room(self, event: Event, group: Group | None) -> bool:
        """Whether this event may be put to the group. It may where it brings no large subscription, or there is room
        for it in place of the member's old one."""
        if not isinstance(event, (Join, ConsumerHeartbeat)):
            return True
        size = _brought(event)
        if size < GROUP_LARGE_SUBSCRIPTION_BYTES_MIN:
            return True
        return self.bytes - _had(group, event.member_id) + size <= GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX


class LargeSubscriptions:
    """The large subscriptions of one shard's groups."""

    def __init__(self, room: SubscriptionRoom) -> None:
        self._room = room
        self._held: dict[str, int] = {}
        """Bytes by group."""

    def on_step(self, group_id: str, event: Event, before: Group | None, after: Group | None) -> None:
        """Note the change of a group by an event."""
        if group_id not in self._held and not _is_large(event):
            return
        if before is None or after is None or _members(before) is not _members(after):
            self.note(group_id, after)

    def note(self, group_id: str, group: Group | None) -> None:
        """Note the group as it is now; None: it is gone."""
        size = 0 if group is None else _held(group)
        if size < GROUP_LARGE_SUBSCRIPTION_BYTES_MIN:
            size = 0
        self._room.bytes += size - self._held.pop(group_id, 0)
        if size:
            self._held[group_id] = size

    def clear(self) -> None:
        """Forget all groups: none is kept here any more."""
        self._room.bytes -= sum(self._held.values())
        self._held.clear()


def _brought(event: Join | ConsumerHeartbeat) -> int:
    if isinstance(event, Join):
        return sum([len(protocol.metadata) for protocol in event.protocols])
    return len(event.subscribed or ()) * GROUP_TOPIC_NAME_BYTES


def _is_large(event: Event) -> bool:
    match event:
        case Join() | ConsumerHeartbeat():
            return _brought(event) >= GROUP_LARGE_SUBSCRIPTION_BYTES_MIN
        case Together(events=events):
            return any(map(_is_large, events))
        case ConsumerHeartbeats(heartbeats=heartbeats):
            return any(map(_is_large, heartbeats))
        case _:
            return False


def _members(group: Group) -> object:
    """Return an object that stays identical until a member joins, leaves, or changes its subscription."""
    return group.members if group.consumer is None else group.consumer.members


def _held(group: Group) -> int:
    members = group.members if group.consumer is None else group.consumer.members
    return sum(map(_held_by, members.values()))


def _had(group: Group | None, member_id: str) -> int:
    if group is None:
        return 0
    members: Mapping[str, Member | ConsumerMember] = group.members if group.consumer is None else group.consumer.members
    member = members.get(member_id)
    return 0 if member is None else _held_by(member)


def _held_by(member: Member | ConsumerMember) -> int:
    if isinstance(member, Member):
        return sum([len(protocol.metadata) for protocol in member.protocols])
    classic = 0 if member.classic is None else sum([len(metadata) for _, metadata in member.classic.protocols])
    return classic + len(member.topics) * GROUP_TOPIC_NAME_BYTES
