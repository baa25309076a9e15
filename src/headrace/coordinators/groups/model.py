"""One consumer group as a value: its members, its decisions, and its committed offsets.

Promises: frozen; every change makes a new value. `validate` states the invariants after every step. Never reads a
clock: callers pass times, in milliseconds. Deadlines use the driver's monotonic clock, records the wall clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import immutables

from headrace.base.ids import NO_EPOCH, NO_TOPIC_ID, LeaderEpoch, Offset, TopicId
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import ConsumerGroup
from headrace.coordinators.values import Moment as Moment
from headrace.coordinators.values import NamedPartition as NamedPartition
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.coordinators.groups.events import AnyReply


class GroupState(StrEnum):
    """Kafka's names, as DescribeGroups and ListGroups print them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Members are joining; their JoinGroup requests wait."""
    COMPLETING = "CompletingRebalance"
    """A generation was formed. Its leader's assignment is awaited or being written."""
    ASSIGNING = "Assigning"
    """Consumer groups (KIP-848): the next heartbeat computes the assignment again."""
    RECONCILING = "Reconciling"
    """Consumer groups: members are moving to the target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """Its tombstones are being written; it is gone once they are durable."""


class Commit(NamedTuple):
    """A committed position of one partition."""

    offset: Offset
    """The next offset to read."""
    timestamp_ms: int
    """Wall clock when it was accepted."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID
    """The topic that had the name then; the zero id where the record (an older one) lacks it."""


class Protocol(NamedTuple):
    """An assignment protocol that a member offers, with its subscription in that protocol's own format."""

    name: str
    metadata: bytes


class Member(NamedTuple):
    """One consumer. At most one of the two waiters is set. Changes that each rebalance makes to all members have
    methods of their own, which cost a third of `_replace`."""

    id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """In the member's order of preference."""
    instance_id: str | None = None
    """A static member's own name, which outlives its process (KIP-345)."""
    assignment: bytes = b""
    join_waiter: int | None = None
    """The JoinGroup request that waits for the next generation."""
    sync_waiter: int | None = None
    """The SyncGroup request that waits for the leader's assignment."""
    synced: bool = False
    """It has sent SyncGroup in this generation."""
    new: bool = False
    """It has not yet been given a generation."""
    deadline_ms: int | None = None
    """Monotonic time when its session ends. None while it waits in a request, because then it cannot send
    heartbeats."""

    def metadata(self, protocol: str | None) -> bytes:
        """Its subscription under one protocol; empty where it does not offer that."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def heard(self, deadline_ms: int) -> Member:
        """The member with its session extended to `deadline_ms`."""
        return new(Member, (*self[:-1], deadline_ms))

    def joined(self, deadline_ms: int | None) -> Member:
        """The member in a new generation, with no assignment yet."""
        return new(Member, (*self[:_WHO], b"", None, self.sync_waiter, False, False, deadline_ms))

    def syncing(self, waiter: int) -> Member:
        """The member while it waits for its assignment."""
        return new(Member, (*self[:_WHO], self.assignment, self.join_waiter, waiter, True, self.new, None))

    def served(self, assignment: bytes, deadline_ms: int | None) -> Member:
        """The member with its assignment, no longer waiting."""
        return new(Member, (*self[:_WHO], assignment, self.join_waiter, None, self.synced, self.new, deadline_ms))


_WHO: Final = 7
"""Number of leading fields that identify a member and its offers; the others are its progress."""


class CommitPart(NamedTuple):
    """The commits of one request."""

    waiter: int
    commits: tuple[tuple[NamedPartition, Commit], ...]
    """In the order of the appended records."""
    errors: tuple[ErrorCode, ...]
    """The answer, one code for each offset of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitWrite:
    """Commit requests that arrived together, in the order of the appended records."""

    parts: tuple[CommitPart, ...]

    @property
    def commits(self) -> list[tuple[NamedPartition, Commit]]:
        return [commit for part in self.parts for commit in part.commits]


class TransactionalProducer(NamedTuple):
    """The producer of a transaction."""

    id: int
    epoch: int


class OpenCommit(NamedTuple):
    """An offset of a transaction that is open."""

    place: int
    """Its place in the order of the group's records: a later one has a larger number."""
    commit: Commit


OpenCommits: TypeAlias = immutables.Map[NamedPartition, OpenCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCommitWrite:
    """One request's offsets, as a part of a transaction."""

    producer: TransactionalProducer
    part: CommitPart


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWrite:
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementWrite:
    """A static member took its old place in a stable group."""

    waiter: int
    """Its JoinGroup request."""
    member_id: str
    instance_id: str
    old: Member
    """The member whose place it takes."""
    generation: int
    leader_before: str
    skips_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyWrite:
    """The last member has left the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetWrite:
    """Tombstones of some partitions' offsets."""

    partitions: tuple[NamedPartition, ...]
    waiter: int | None = None
    """None where no request waits. Several writes with one waiter are answered together."""
    errors: tuple[ErrorCode, ...] = ()
    """The answer, one code for each partition of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWrite:
    """Tombstones of all that the log holds of the group, or of as much as fits one batch."""

    waiter: int | None
    """None where no request waits: the group had expired."""
    partitions: tuple[NamedPartition, ...] = ()
    """Partitions whose offsets this batch removes."""
    rest: tuple[NamedPartition, ...] = ()
    """Partitions whose offsets the next batches remove; the last batch also removes the group."""
    error: ErrorCode = ErrorCode.NONE
    """The error of earlier batches, for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerWrite:
    """A change of a consumer group, to one, or back to a classic one."""

    before: Group
    """The group to return to if the write is refused; without writes."""
    replies: tuple[tuple[int, AnyReply], ...] = ()
    """Waiters and their answers once the write is durable."""
    released: tuple[tuple[int, AnyReply], ...] = ()
    """As `replies`, for waiters that keep waiting if the write is refused."""
    recorded: bool | None = None
    """Whether the log holds a classic group's record after this; None: unchanged."""
    heartbeats: tuple[ConsumerHeartbeat, ...] = ()
    """The heartbeats that caused the change, if several: together they may be too large for the log."""


Write: TypeAlias = (
    CommitWrite
    | OpenCommitWrite
    | AssignmentWrite
    | ReplacementWrite
    | EmptyWrite
    | ForgetWrite
    | DeleteWrite
    | ConsumerWrite
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group. A group without any content does not exist (`is_nothing`)."""

    id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    """Number of the membership. It rises with each one, and fences members of an older one."""
    protocol_type: str = ""
    """`consumer`, `connect`...; empty until somebody joins."""
    protocol: str | None = None
    """The protocol chosen for this generation."""
    leader: str | None = None
    """The member that computes the assignment."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """Members by id, in the order of joining."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Member ids handed out (KIP-394) that have not yet returned, with the monotonic time at which they expire."""
    rebalance_deadline_ms: int | None = None
    """PREPARING only: the time when the generation is formed without the members that have not joined."""
    initial_delay_left_ms: int | None = None
    """PREPARING from EMPTY only: time by which newcomers may still delay the first generation."""
    newcomer: bool = False
    """A new member joined since the initial delay last began."""
    sync_deadline_ms: int | None = None
    """Members of this generation that have not sent SyncGroup by this time are dropped."""
    consumer: ConsumerGroup | None = None
    """Members of a group of the new protocol (KIP-848); then there are no classic ones."""
    offsets: immutables.Map[NamedPartition, Commit] = field(default_factory=immutables.Map)
    """Durably committed offsets."""
    open: immutables.Map[int, OpenCommits] = field(default_factory=immutables.Map)
    """Durable offsets of open transactions, by producer id. No later record of their partitions is durable."""
    writes: Mapping[int, Write] = field(default_factory=dict)
    """Writes that are appended but not yet durable, in the order of the log."""
    next_write: int = 0
    since_ms: int = -1
    """Wall clock of the last change of membership."""
    recorded: bool = False
    """Whether the log holds a metadata record of this group, so that a delete needs a tombstone for it."""

    @property
    def is_nothing(self) -> bool:
        """Whether it may vanish: it has no member, no offset, no record and no write under way."""
        idle = self.state in (GroupState.EMPTY, GroupState.DEAD) and not self.pending and not self.writes
        kept = self.offsets or self.open or self.recorded or self.consumer is not None
        return idle and (self.state is GroupState.DEAD or not kept)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def static_member(self, instance_id: str) -> Member | None:
        """The present holder of this instance id."""
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether this is a member. One that names its instance id must be that id's present holder (KIP-345)."""
        member = self.members.get(member_id)
        if instance_id is None or (member is not None and member.instance_id == instance_id):
            return ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID
        taken = self.static_member(instance_id) is not None
        return ErrorCode.FENCED_INSTANCE_ID if taken else ErrorCode.UNKNOWN_MEMBER_ID

    def earliest_deadline_ms(self) -> int | None:
        """The earliest deadline in it, on the monotonic clock."""
        due = [member.deadline_ms for member in self.members.values() if member.deadline_ms is not None]
        due.extend(self.pending.values())
        consumer_due = None if self.consumer is None else self.consumer.earliest_deadline_ms()
        due.extend(at for at in (self.rebalance_deadline_ms, self.sync_deadline_ms, consumer_due) if at is not None)
        return min(due, default=None)

    def validate(self) -> None:
        """Assert the invariants between any two steps."""
        if self.consumer is not None:
            assert not self.members
            assert self.leader is None
            assert self.rebalance_deadline_ms is None
            assert self.state is GroupState.DEAD or (self.state is GroupState.EMPTY) == (not self.consumer.members)
            self.consumer.validate()
            return
        assert self.state not in (GroupState.ASSIGNING, GroupState.RECONCILING)
        members = self.members.values()
        assert (self.leader in self.members) if self.members else (self.leader is None)
        assert not self.members.keys() & self.pending.keys()
        instances = [member.instance_id for member in members if member.instance_id is not None]
        assert len(instances) == len(set(instances))
        assert (self.rebalance_deadline_ms is not None) == (self.state is GroupState.PREPARING)
        assert self.initial_delay_left_ms is None or self.state is GroupState.PREPARING
        for member in members:
            assert member.join_waiter is None or member.sync_waiter is None
            waits = member.join_waiter is not None or member.sync_waiter is not None
            assert (member.deadline_ms is not None) or (waits and not member.new)
            assert member.join_waiter is None or self.state is GroupState.PREPARING
            assert member.sync_waiter is None or self.state is GroupState.COMPLETING
        match self.state:
            case GroupState.EMPTY | GroupState.DEAD:
                assert not self.members
            case GroupState.COMPLETING | GroupState.STABLE:
                assert self.members
                assert self.protocol is not None
                assert self.generation > 0
                assert not any(member.new for member in members)
                unsynced = any(not member.synced for member in members)
                assert not unsynced or self.sync_deadline_ms is not None
            case GroupState.PREPARING:
                assert self.sync_deadline_ms is None


def topic_matches(commit: Commit, topic_id: uuid.UUID | None) -> bool:
    """Whether a commit was made for the topic that has the name now; None: no topic has it."""
    return topic_id is not None and (commit.topic_id in (NO_TOPIC_ID, topic_id))
