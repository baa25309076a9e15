"""What happens to a group (events), what it answers (replies), what it wants done (effects), and what it keeps
(records).

A `waiter` is the driver's number for one request; it gets exactly one `Reply`. A group appends only through `Append`,
and the driver tells the fate of each: `WriteRefused` at once, or `Written`, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.base.ids import LeaderEpoch, Offset, TopicId
from headrace.coordinators.groups.consumer.changes import ConsumerRecord
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import ConsumerHeartbeatReply
from headrace.coordinators.groups.model import Commit, NamedPartition, Protocol
from headrace.wire.errors import ErrorCode

# --- events ---


class Join(NamedTuple):
    """JoinGroup (KIP-62, KIP-345, KIP-394)."""

    waiter: int
    member_id: str
    """Empty: the client has none yet."""
    new_member_id: str
    """What it is called if it has none: chosen by the driver, unique. Empty where it has one."""
    require_known_id: bool
    """JoinGroup 4+: a newcomer is told its id first and joins with that (KIP-394)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    instance_id: str | None = None
    """`group.instance.id` of a static member."""
    skips_assignment: bool = False
    """JoinGroup 9+: a leader knows what it means that it need not share out (KIP-814)."""
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
    """None: the version does not say (KIP-559)."""
    protocol: str | None = None


class Heartbeat(NamedTuple):
    waiter: int
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    """Who is to go: a member, or whoever has the instance id now, where no member id is given."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""
    """In words (KIP-800)."""


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
    """OffsetCommit. A generation below zero with no member id: a consumer that is in no group, or an admin."""

    waiter: int
    member_id: str
    generation: int
    offsets: tuple[NewOffset, ...]
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Commits:
    """Several of them that came together: each as if it came by itself, in this order, and in one append."""

    commits: tuple[CommitOffsets, ...]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeats:
    """Several that came together, of members that are all different: as if one came after the other, and in one
    append."""

    heartbeats: tuple[ConsumerHeartbeat, ...]


class Heard(NamedTuple):
    """Heartbeats of a classic group that `membership.answered` has answered: these members' sessions go on."""

    at_ms: Mapping[str, int]
    """By member id: when the last of each came, monotonic. No other event of the group came since."""


@dataclass(frozen=True, slots=True)
class Together:
    """Several of them that came together: one after the other, with what they change copied once."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """DeleteGroups, for one group."""

    waiter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """OffsetDelete (KIP-496): forget what was committed for these."""

    waiter: int
    partitions: tuple[NamedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTopics:
    """These topics were deleted, and what was committed for them goes too."""

    topic_ids: frozenset[TopicId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Look for what has outlived offsets.retention.minutes (KIP-211)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time asked for with `Wake` has come; one that is early or needless does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff:
    """For so long no heartbeat of a consumer group could be taken: whose time is running has that much more."""

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An append is durable on all that are in sync, and so is every one before it."""

    write: int
    error: ErrorCode = ErrorCode.NONE
    """What is to be answered all the same: by then fewer were in sync than the acks=all rule wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRefused:
    """Nothing of an append is in the log, nor will be. (Where that is in doubt, the driver drops the whole shard and
    loads it again.)"""

    write: int
    error: ErrorCode


Request: TypeAlias = Join | Sync | Heartbeat | Leave | CommitOffsets | Delete | DeleteOffsets | ConsumerHeartbeat
Event: TypeAlias = (
    Request
    | Commits
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
    """A member, as its leader is told of it."""

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
    """For the leader only."""
    skip_assignment: bool = False
    """It leads, and what it shared out before stands (KIP-814)."""


class SyncReply(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReply:
    """One code for each member of the request; `error` stands for all."""

    error: ErrorCode
    members: tuple[ErrorCode, ...] = ()


class CommitReply(NamedTuple):
    errors: tuple[ErrorCode, ...]
    """One for each offset of the request, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReply:
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsetsReply:
    """One code for each partition of the request; `error` stands for all."""

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
    """A membership: who, under which protocol, with what assigned. Without members: the group is empty."""

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
    """Append these as one batch, and report under this number."""

    write: int
    records: tuple[GroupRecord, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """Deliver a `Tick` by then (monotonic ms). A group has all that it needs if the earliest of those asked for is
    kept; a `Tick` asks for the next."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Rebalancing:
    """For the broker's log: the members are asked to join again."""

    reason: str


@dataclass(frozen=True, slots=True)
class SplitHeartbeats:
    """Deliver these again, in their order and in two halves: together they are too large for the log."""

    heartbeats: tuple[ConsumerHeartbeat, ...]


Effect: TypeAlias = Reply | Append | Wake | Rebalancing | SplitHeartbeats
