"""The records from which a group is read back (Kafka's records), and which of them a change touches.

Promises: if `changes(before, after)` is written over the records of `before`, they are read back as `after`. How long
a session has lasted, and the version of the topics that were last checked, have no record. Nor has a member's
principal, with what it may describe. Tombstones come first. So a reader that stops anywhere in between never sees a
partition with two owners.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headrace.coordinators.groups.consumer.model import ConsumerGroup, ConsumerMember, Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerEpoch:
    """ConsumerGroupMetadata: the group exists."""

    group: str
    epoch: int
    metadata_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerJoined:
    """ConsumerGroupMemberMetadata: a member and its subscription. Only that part of the member counts."""

    group: str
    member: ConsumerMember


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternResolved:
    """ConsumerGroupRegularExpression: the topics that a regular expression matches."""

    group: str
    pattern: str
    topics: frozenset[str]
    version: int
    """Version of the cluster's topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    """ConsumerGroupTargetAssignmentMetadata."""

    group: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """ConsumerGroupTargetAssignmentMember: a member's target assignment."""

    group: str
    member_id: str
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """ConsumerGroupCurrentMemberAssignment: a member's current assignment. Only that part of the member counts."""

    group: str
    member: ConsumerMember


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A tombstone for a record of this kind. `name` is the member's id, or the regular expression."""

    group: str
    kind: type[ConsumerEpoch | ConsumerJoined | PatternResolved | TargetEpoch | Target | Current]
    name: str = ""


ConsumerRecord: TypeAlias = (
    ConsumerEpoch | ConsumerJoined | PatternResolved | TargetEpoch | Target | Current | Forgotten
)

_NOTHING = ConsumerGroup()


def changes(group_id: str, before: ConsumerGroup | None, after: ConsumerGroup | None) -> tuple[ConsumerRecord, ...]:
    """The records that lead from one state to the other. None: the group does not exist."""
    return tuple(_changes(group_id, before, after))


def _changes(group_id: str, before: ConsumerGroup | None, after: ConsumerGroup | None) -> Iterator[ConsumerRecord]:
    old, new = before or _NOTHING, after or _NOTHING
    yield from _forgotten(group_id, old, new)
    if before is not None and after is None:
        yield Forgotten(group=group_id, kind=TargetEpoch)
        yield Forgotten(group=group_id, kind=ConsumerEpoch)
        return
    if after is None:
        return
    members: list[ConsumerMember] = []
    if new.members is not old.members:
        members = [member for member in new.members.values() if old.members.get(member.id) is not member]
    for member in members:
        if not _wants_same(old.members.get(member.id), member):
            yield ConsumerJoined(group=group_id, member=member)
    for pattern, topics in new.patterns.items():
        if old.patterns.get(pattern) != topics:
            yield PatternResolved(group=group_id, pattern=pattern, topics=topics, version=new.topics_version)
    if before is None or (old.epoch, old.metadata_hash) != (new.epoch, new.metadata_hash):
        yield ConsumerEpoch(group=group_id, epoch=new.epoch, metadata_hash=new.metadata_hash)
    if new.targets is not old.targets:
        for member_id, share in new.targets.items():
            if old.targets.get(member_id) != share:
                yield Target(group=group_id, member_id=member_id, partitions=share)
    if before is None or old.target_epoch != new.target_epoch:
        yield TargetEpoch(group=group_id, epoch=new.target_epoch)
    for member in members:
        if not _follows_same(old.members.get(member.id), member):
            yield Current(group=group_id, member=member)


def _forgotten(group_id: str, old: ConsumerGroup, new: ConsumerGroup) -> Iterator[ConsumerRecord]:
    """Tombstones in the reverse order of creation: a member goes last."""
    if new.members is not old.members:
        for member_id in sorted(set(old.members) - set(new.members)):
            yield Forgotten(group=group_id, kind=Current, name=member_id)
            yield Forgotten(group=group_id, kind=Target, name=member_id)
            yield Forgotten(group=group_id, kind=ConsumerJoined, name=member_id)
    for pattern in sorted(set(old.patterns) - set(new.patterns)):
        yield Forgotten(group=group_id, kind=PatternResolved, name=pattern)


def _wants_same(before: ConsumerMember | None, after: ConsumerMember) -> bool:
    return before is not None and _wants(before) == _wants(after)


def _wants(member: ConsumerMember) -> tuple[object, ...]:
    named = (member.instance_id, member.rack_id, member.client_id, member.client_host)
    return (*named, member.rebalance_timeout_ms, member.topics, member.pattern, member.assignor, member.classic)


def _follows_same(before: ConsumerMember | None, after: ConsumerMember) -> bool:
    return before is not None and _follows(before) == _follows(after)


def _follows(member: ConsumerMember) -> tuple[object, ...]:
    return (member.state, member.epoch, member.previous_epoch, member.assigned, member.revoking, member.since)
