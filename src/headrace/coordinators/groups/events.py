"""The events of a group, its replies to requests, its effects, and the records that it keeps.

A `waiter` is the driver's number for one request, which gets exactly one `Reply`. A group appends only through
`Append`. The driver reports the outcome of each: `WriteRefused` at once, or `Written`, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.base.ids import LeaderEpoch, Offset, TopicId
from headrace.coordinators.groups.consumer.changes import ConsumerRecord
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import ConsumerHeartbeatReply
from headrace.coordinators.groups.model import Commit, NamedPartition, Protocol, TransactionalProducer
from headrace.wire.errors import ErrorCode

# --- events ---


class Join(NamedTuple):
    """JoinGroup (KIP-62, KIP-345, KIP-394)."""

    waiter: int
    member_id: str
    """Empty: the client has no id yet."""
    new_member_id: str
    """The id for a member without one: chosen by the driver, unique. Empty where the member has one."""
    require_known_id: bool
    """JoinGroup 4+: a newcomer gets its id first and joins again with it (KIP-394)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    instance_id: str | None = None
    """`group.instance.id` of a static member."""
    skips_assignment: bool = False
    """JoinGroup 9+: the leader understands that it need not compute an assignment (KIP-814)."""
    reason: str = ""
    """The client's own words (KIP-800)."""


class Sync(NamedTuple):
    """SyncGroup; `assignments` (member id to bytes) counts only from the leader."""

    waiter: int
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    """None: this version of the request lacks it (KIP-559)."""
    protocol: str | None = None


class Heartbeat(NamedTuple):
    waiter: int
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    """A member that leaves, or, without a member id, the present holder of the instance id."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""
    """The reason in words (KIP-800)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """LeaveGroup (KIP-345's batch)."""

    waiter: int
    members: tuple[Leaver, ...]


class NewOffset(NamedTuple):
    partition: NamedPartition
    topic_id: TopicId
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str


class CommitOffsets(NamedTuple):
    """OffsetCommit. A negative generation without a member id comes from a consumer without a group, or an admin."""

    waiter: int
    member_id: str
    generation: int
    offsets: tuple[NewOffset, ...]
    instance_id: str | None = None


class CommitInTransaction(NamedTuple):
    """TxnOffsetCommit. Before v3 it names no member."""

    waiter: int
    producer: TransactionalProducer
    offsets: tuple[NewOffset, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class TransactionEnded(NamedTuple):
    """A marker is durable in the partition of the offsets topic: the producer's transaction counts, or is undone."""

    producer_id: int
    is_committed: bool


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits that arrived together. Each counts as if it came by itself, in this order; they share one append."""

    commits: tuple[CommitOffsets, ...]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeats:
    """Heartbeats that arrived together, of different members. They count as if one came after the other, and share one
    append."""

    heartbeats: tuple[ConsumerHeartbeat, ...]


class Heard(NamedTuple):
    """Heartbeats of a classic group that `membership.answered` has answered: the sessions of these members go on."""

    at_ms: Mapping[str, int]
    """By member id: the monotonic time of the last one. No other event of the group came since."""


@dataclass(frozen=True, slots=True)
class Together:
    """Events that arrived together. They apply one after the other, and changed data is copied once."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """DeleteGroups, for one group."""

    waiter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """OffsetDelete (KIP-496): forget the committed offsets of these."""

    waiter: int
    partitions: tuple[NamedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTopics:
    """These topics were deleted, and offsets committed for them go, too."""

    topic_ids: frozenset[TopicId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Remove offsets that have outlived offsets.retention.minutes (KIP-211)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time asked for with `Wake` has come. An early or needless tick does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff:
    """No heartbeat of a consumer group could be accepted for this long, so running deadlines are extended by it."""

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An append is durable on the whole ISR, and so is every one before it."""

    write: int
    error: ErrorCode = ErrorCode.NONE
    """The answer despite that: by then the ISR was smaller than the acks=all rule requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRefused:
    """Nothing of an append is in the log, nor will be. (Where that is uncertain, the driver drops the whole shard and
    loads it again.)"""

    write: int
    error: ErrorCode


Request: TypeAlias = Join | Sync | Heartbeat | Leave | CommitOffsets | Delete | DeleteOffsets | ConsumerHeartbeat
Event: TypeAlias = (
    Request
    | Commits
    | CommitInTransaction
    | TransactionEnded
    | ConsumerHeartbeats
    | Heard
    | Together
    | ForgetTopics
    | Expire
    | Tick
    | PutOff
    | Written
    | WriteRefused
)

# --- replies ---


class Subscriber(NamedTuple):
    """A member in the leader's JoinGroup answer."""

    id: str
    instance_id: str | None
    subscription: bytes


class JoinReply(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[Subscriber, ...] = ()
    """Only for the leader."""
    skip_assignment: bool = False
    """It leads, and the previous assignment stands (KIP-814)."""


class SyncReply(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReply:
    """One code for each member of the request; `error`, if set, applies to all."""

    error: ErrorCode
    members: tuple[ErrorCode, ...] = ()


class CommitReply(NamedTuple):
    errors: tuple[ErrorCode, ...]
    """One code for each offset of the request, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReply:
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsetsReply:
    """One code for each partition of the request; `error`, if set, applies to all."""

    error: ErrorCode
    partitions: tuple[ErrorCode, ...] = ()


AnyReply: TypeAlias = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | LeaveReply
    | CommitReply
    | DeleteReply
    | DeleteOffsetsReply
    | ConsumerHeartbeatReply
)

# --- records: what the log of the offsets topic holds ---


class OffsetCommitted(NamedTuple):
    group: str
    partition: NamedPartition
    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForgotten:
    group: str
    partition: NamedPartition


class MemberRecord(NamedTuple):
    id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFormed:
    """A membership: the members, the protocol and the assignment. Without members, the group is empty."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[MemberRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForgotten:
    group: str


GroupRecord: TypeAlias = OffsetCommitted | OffsetForgotten | GroupFormed | GroupForgotten | ConsumerRecord

# --- effects ---


class Reply(NamedTuple):
    waiter: int
    reply: AnyReply


@dataclass(frozen=True, slots=True)
class Append:
    """Append these as one batch, and report the outcome under this number."""

    write: int
    records: tuple[GroupRecord, ...]
    producer: TransactionalProducer | None = None
    """They are a part of its transaction; None: of none."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Deliver a `Tick` by this time (monotonic ms). Only the earliest of the requested times must be kept; each `Tick`
    requests the next."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Rebalancing:
    """Log message of the broker: the members are asked to join again."""

    reason: str


@dataclass(frozen=True, slots=True)
class SplitHeartbeats:
    """Deliver these again, in order and in two halves, because together they are too large for the log."""

    heartbeats: tuple[ConsumerHeartbeat, ...]


Effect: TypeAlias = Reply | Append | Wake | Rebalancing | SplitHeartbeats
