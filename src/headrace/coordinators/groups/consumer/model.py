"""A consumer group of the new protocol as a value: its members, their targets, and their current assignments.

Promises: frozen. `owners` follows from the members, and no two share a partition. `validate` states the invariants
after every step.

Three epochs order everything (KIP-848). The group's epoch rises with every change that calls for another assignment.
The target's epoch is the group epoch for which the targets were computed. A member's epoch is the one that it has
reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import immutables

from headrace.base.ids import TopicId, TopicPartition
from headrace.base.values import replaced
from headrace.wire.errors import ErrorCode

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
LEAVING_FOR_NOW_EPOCH: Final = -2
"""Epoch of a static member that means to return under its instance id."""

Partitions: TypeAlias = frozenset[TopicPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()
NO_NAMES: Final[frozenset[str]] = frozenset()
Since: TypeAlias = immutables.Map[TopicPartition, int]
NOTHING_SINCE: Final[Since] = immutables.Map()


class MemberState(IntEnum):
    """A member's progress towards its target, numbered as in Kafka's record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It was told to give partitions up and has not reported that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up."""


class TopicShape(NamedTuple):
    """The facts about a topic that an assignor needs."""

    id: TopicId
    partitions: int


class Sight(NamedTuple):
    """A regular expression, and the client that looks through it."""

    pattern: str
    principal: str | None
    """None: nobody knows it, as this coordinator has not heard from the member yet, or nobody asks for rights."""
    host: str


class Topics(Protocol):
    """The topics of the cluster at one time."""

    @property
    def version(self) -> int:
        """Rises with every change of the cluster. Equal numbers mean equal topics."""

    def shape(self, name: str) -> TopicShape | None:
        """The topic; None where it does not exist."""

    def name(self, topic_id: TopicId) -> str | None:
        """The topic's name; None where it does not exist."""

    def matching(self, pattern: str) -> frozenset[str] | None:
        """Names that the pattern (RE2's syntax) matches in full; None where it is no valid pattern."""

    def visible(self, sight: Sight) -> frozenset[str] | None:
        """Those of `matching` that the client may describe: none where it is no valid pattern. None: the client has to
        be known for that."""


class ClassicMembership(NamedTuple):
    """The data that a member of the classic protocol sent when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol names in its order of preference, each with its subscription as bytes; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One consumer."""

    id: str
    instance_id: str | None = None
    """A static member's own name, which outlives its process (KIP-345)."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    """Longest time to give partitions up."""
    topics: tuple[str, ...] = ()
    """Topics subscribed to by name; sorted."""
    pattern: str | None = None
    """A regular expression that it subscribes to."""
    principal: str | None = None
    """The client that subscribes to the pattern, as in `Sight`. Not kept in the log."""
    assignor: str | None = None
    """The assignor that it prefers."""
    classic: ClassicMembership | None = None
    """Set if it speaks the classic protocol. It then sees its epoch as the generation."""
    state: MemberState = MemberState.STABLE
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    """Accepted too, because the answer that raised the epoch may have been lost."""
    assigned: Partitions = NO_PARTITIONS
    """Partitions that it may read."""
    revoking: Partitions = NO_PARTITIONS
    """Partitions that it may have been reading and has not reported to have given up. They are still its own."""
    since: Since = NOTHING_SINCE
    """The epoch since which each partition of both sets has been its own without a break (KIP-1251's assignment
    epochs)."""

    @property
    def sight(self) -> Sight | None:
        """Its pattern and itself; None where it has no pattern."""
        return Sight(self.pattern, self.principal, self.client_host) if self.pattern else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """One group. Maps are by member id unless stated otherwise."""

    epoch: int = 0
    metadata_hash: int = 0
    """Hash of the subscribed topics when the epoch last rose for them."""
    members: immutables.Map[str, ConsumerMember] = field(default_factory=immutables.Map)
    target_epoch: int = 0
    targets: immutables.Map[str, Partitions] = field(default_factory=immutables.Map)
    owners: immutables.Map[TopicPartition, str] = field(default_factory=immutables.Map)
    """The member that reads a partition, or may still be reading it."""
    patterns: immutables.Map[str, frozenset[str]] = field(default_factory=immutables.Map)
    """The topics that the members' regular expressions match, and that one of the members with it may describe."""
    views: immutables.Map[Sight, frozenset[str]] = field(default_factory=immutables.Map)
    """The part of `patterns` that each member may describe, by its sight. Not kept in the log."""
    sessions: immutables.Map[str, int] = field(default_factory=immutables.Map)
    """Monotonic ms at which a silent member is removed. Every member has an entry."""
    revocations: immutables.Map[str, int] = field(default_factory=immutables.Map)
    """Monotonic ms at which a member is removed that has not given up its partitions. Classic members have no entry."""
    joins: immutables.Map[str, int] = field(default_factory=immutables.Map)
    """Monotonic ms at which a classic member is removed that was told to join again and has not."""
    syncs: immutables.Map[str, int] = field(default_factory=immutables.Map)
    """Monotonic ms at which a classic member is removed that has joined and not asked for its assignment."""
    topics_version: int = -1
    """Version of the topics that were last checked. Not kept in the log."""
    converts_from_ms: int = 0
    """Monotonic ms before which it is not made a classic group, because the log refused that. Not kept in the log."""

    @property
    def is_reconciled(self) -> bool:
        return all(
            member.state is MemberState.STABLE and member.epoch == self.target_epoch for member in self.members.values()
        )

    @property
    def is_classic(self) -> bool:
        """Whether no member speaks the consumer protocol."""
        return all(member.classic is not None for member in self.members.values())

    @property
    def is_in_step(self) -> bool:
        """Whether all members are at one epoch, and none may be reading partitions that it must give up."""
        members = self.members.values()
        told = len({member.epoch for member in members}) <= 1 and not self.syncs
        return told and not any(member.state is MemberState.UNREVOKED_PARTITIONS for member in members)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def subscribed_topics(self) -> frozenset[str]:
        """All names that members subscribe to, existing or not."""
        # most members want the same topics
        wanted = {member.topics for member in self.members.values()}
        patterns = {member.pattern for member in self.members.values() if member.pattern}
        named = frozenset(name for topics in wanted for name in topics)
        return named.union(*(self.patterns.get(pattern, NO_NAMES) for pattern in patterns))

    def view(self, sight: Sight | None) -> frozenset[str]:
        """The topics of a pattern that a member may have. One that is not known has kept what the log tells: it is told
        of nothing before it is known."""
        if sight is None:
            return NO_NAMES
        found = self.views.get(sight)
        return self.patterns.get(sight.pattern, NO_NAMES) if found is None else found

    def earliest_deadline_ms(self) -> int | None:
        return min((due for each in self.deadlines for due in each.values()), default=None)

    @property
    def deadlines(self) -> tuple[immutables.Map[str, int], ...]:
        """All deadlines of members; a member whose deadline passes is removed."""
        return self.sessions, self.revocations, self.joins, self.syncs

    # changes

    def put(self, member: ConsumerMember) -> ConsumerGroup:
        """Add or change a member, and update the owners of its partitions."""
        before = self.members.get(member.id)
        if before is member or before == member:
            return self
        with self.owners.mutate() as owners:
            pass_on(owners, before, member)
            changed = owners.finish()
        return replaced(self, members=self.members.set(member.id, member), owners=changed)

    def drop(self, member_id: str) -> ConsumerGroup:
        """Remove a member with all its data."""
        member = self.members[member_id]
        freed = self.put(replaced(member, assigned=NO_PARTITIONS, revoking=NO_PARTITIONS, since=NOTHING_SINCE))
        return replaced(
            freed,
            members=freed.members.delete(member_id),
            targets=without(freed.targets, member_id),
            sessions=without(freed.sessions, member_id),
            revocations=without(freed.revocations, member_id),
            joins=without(freed.joins, member_id),
            syncs=without(freed.syncs, member_id),
        )

    def check_commit(
        self, member_id: str, epoch: int, instance_id: str | None, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Whether a member may commit for these partitions. It may at its latest epoch. It may at an older epoch if all
        of them are its own since then, because it may not know the latest yet (KIP-1251)."""
        error = self.check_member(member_id, epoch, instance_id)
        if error not in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION):
            return error
        member = self.members[member_id]
        owned = 0 <= epoch < member.epoch and all(member.since.get(each, member.epoch) <= epoch for each in partitions)
        return ErrorCode.NONE if owned else error

    def check_member(self, member_id: str, epoch: int, instance_id: str | None = None) -> ErrorCode:
        """Whether a client that fetches offsets is a member, at its latest epoch."""
        member, held = self.members.get(member_id), None if instance_id is None else self.static_member(instance_id)
        if held is not None and held.id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.epoch == epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def validate(self) -> None:
        """Assert the invariants between any two steps."""
        owned = [
            (partition, member.id)
            for member in self.members.values()
            for partition in member.assigned | member.revoking
        ]
        assert len(owned) == len(self.owners)
        assert dict(owned) == dict(self.owners)
        assert set(self.sessions) == set(self.members)
        instances = [member.instance_id for member in self.members.values() if member.instance_id is not None]
        assert len(instances) == len(set(instances))
        assert self.target_epoch <= self.epoch
        assert set(self.targets) <= set(self.members)
        assert set(self.joins) | set(self.syncs) <= set(self.members)
        shared = [partition for target in self.targets.values() for partition in target]
        assert len(shared) == len(set(shared)), "nobody is to share a partition"
        for member in self.members.values():
            assert not member.assigned & member.revoking
            assert bool(member.revoking) == (member.state is MemberState.UNREVOKED_PARTITIONS)
            unrevoked = member.state is MemberState.UNREVOKED_PARTITIONS
            assert (member.id in self.revocations) == (unrevoked and member.classic is None)
            assert member.classic is not None or not (member.id in self.joins or member.id in self.syncs)
            assert member.epoch <= self.epoch
            assert set(member.since) == member.assigned | member.revoking
            assert all(0 <= epoch <= self.epoch for epoch in member.since.values())


def pass_on(
    owners: immutables.MapMutation[TopicPartition, str], before: ConsumerMember | None, after: ConsumerMember
) -> None:
    """Update the owners of partitions when a member changes from `before` to `after`."""
    held = NO_PARTITIONS if before is None else before.assigned | before.revoking
    holds = after.assigned | after.revoking
    if held == holds:
        return
    for partition in held - holds:
        del owners[partition]
    for partition in holds - held:
        assert partition not in owners, "a partition has one owner"
        owners[partition] = after.id


_V = TypeVar("_V")


def without(values: immutables.Map[str, _V], key: str) -> immutables.Map[str, _V]:
    return values.delete(key) if key in values else values


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[TopicId, tuple[int, ...]]:
    """The partition indexes of each topic, both in order, as requests and records need them."""
    found: dict[TopicId, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return {topic_id: tuple(indexes) for topic_id, indexes in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatReply:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    """The problem and what to do, where the code alone does not say it."""
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    """The interval until its next heartbeat."""
    assigned: Partitions | None = None
    """Its partitions; None: unchanged since the last answer."""
