"""The facts that make up cluster state: each one something that has happened, in the past tense.

Promises: an event carries absolute values (the epoch that now holds, not "one more"), so that replaying it twice
changes nothing; its `TYPE` number is never reused and its `VERSION` rises when a field is added. Never decides and
never reads a clock. Numbers 20 to 23 are kept for events that no code emits yet
(docs/ARCHITECTURE.md names them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionIndex,
    ProducerId,
    TopicId,
)
from headrace.metadata.descriptors import SegmentDescriptor
from headrace.metadata.moves import UNLIMITED_RATE, StorageStateSealed
from headrace.metadata.pieces import Piece
from headrace.metadata.quotas import QuotaEntity
from headrace.metadata.values import Endpoint, PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBorn:
    """The first event of every cluster: its identity, given once."""

    TYPE: ClassVar[int] = 0
    VERSION: ClassVar[int] = 0
    cluster_id: ClusterId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """One process start of a broker: a new incarnation, fenced until a `BrokerUnfenced` of the same epoch."""

    TYPE: ClassVar[int] = 1
    VERSION: ClassVar[int] = 1
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    directory_id: DirectoryId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    incarnation: IncarnationId | None = None
    """The process's own name for this start of it (version 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFenced:
    """The broker may lead nothing and joins no ISR, until it is unfenced."""

    TYPE: ClassVar[int] = 2
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnfenced:
    TYPE: ClassVar[int] = 3
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRemoved:
    """The broker is no part of the cluster any more; it holds no replica by then. It may register again, as anew."""

    TYPE: ClassVar[int] = 4
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic with all its partitions, their first leaders and its own configs (never the defaults). Version 1: its
    partitions may have `kept_in`; version 2: `adding` and `removing`; version 3: `assignment_epoch` and `move`;
    version 4: `is_unclean`; version 5: `recovered_epoch`, and `desired_replicas` of the topic."""

    TYPE: ClassVar[int] = 5
    VERSION: ClassVar[int] = 5
    topic_id: TopicId
    name: str
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    desired_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredReplicasChanged:
    """How many replicas each partition of the topic shall have, as brokers come."""

    TYPE: ClassVar[int] = 32
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    desired_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """The topic, its partitions, configs and catalog are gone; its name is free."""

    TYPE: ClassVar[int] = 6
    VERSION: ClassVar[int] = 0
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """More partitions, numbered on from those that the topic has. Versions: as TopicCreated."""

    TYPE: ClassVar[int] = 7
    VERSION: ClassVar[int] = 4
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """Configs set or (None) removed: of a topic, else of a broker, else the default of all brokers."""

    TYPE: ClassVar[int] = 8
    VERSION: ClassVar[int] = 0
    topic_id: TopicId | None = None
    broker_id: BrokerId | None = None
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigChanged:
    """Configs of a consumer group set or (None) removed, whether or not there is such a group."""

    TYPE: ClassVar[int] = 33
    VERSION: ClassVar[int] = 0
    group: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged:
    """An election: a new leader epoch, with the leader (or NO_LEADER) and the ISR that it starts with."""

    TYPE: ClassVar[int] = 9
    VERSION: ClassVar[int] = 2
    topic_id: TopicId
    partition: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    kept_in: DirectoryId | None = None
    """As `PartitionImage.kept_in` (version 1)."""
    unclean: bool = False
    """The leader was not in sync, or has lost its disk (version 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChanged:
    """The in-sync replicas changed within one leader epoch."""

    TYPE: ClassVar[int] = 10
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasChanged:
    """The brokers that hold the partition; all of its ISR is among them. Version 1: a step of a reassignment, with the
    ISR in the order of the replicas (None: it is as it was), and as `PartitionImage` has them what comes and goes.
    Version 2: `recovered_epoch`, where all of them begin behind durable history in an assignment that begins with that
    leader epoch; in one entry with the `LeaderChanged` that begins it."""

    TYPE: ClassVar[int] = 11
    VERSION: ClassVar[int] = 2
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...] | None = None
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    recovered_epoch: int = 0
    """As `PartitionImage.recovered_epoch`; 0: it is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStarted:
    """The partition is to be handed over to `target` by its only replica."""

    TYPE: ClassVar[int] = 12
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    source: BrokerId
    target: BrokerId
    bytes_per_second: int = UNLIMITED_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSealed:
    """The source has written its last record, and durable history has it. In one entry with the `LeaderChanged` and
    `ReplicasChanged` that make the target the owner, in the leader epoch `assignment_epoch`."""

    TYPE: ClassVar[int] = 13
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    assignment_epoch: int
    state: StorageStateSealed


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFinished:
    """The target goes on where the source ended, and may write; nobody needs the source's log any more."""

    TYPE: ClassVar[int] = 14
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCancelled:
    """The source stays the owner, in a new leader epoch: a seal that was proposed in the one before it is refused."""

    TYPE: ClassVar[int] = 15
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPublished:
    """A durable segment joined the catalog. `previous_hash` is the chain's head that it continues. Version 1: the
    descriptor may say of which epoch its last batch is."""

    TYPE: ClassVar[int] = 16
    VERSION: ClassVar[int] = 1
    topic_id: TopicId
    partition: PartitionIndex
    descriptor: SegmentDescriptor
    previous_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAnchored:
    """Where a catalog goes on whose beginning is deleted. In snapshots alone: it is what earlier events came to."""

    TYPE: ClassVar[int] = 17
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    head: str
    end_offset: Offset
    """Up to which history was held before what follows, inclusive; -1: none was."""
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted:
    """Durable history begins at `log_start_offset` now. `removed`: segments, by their SHA-256, that lie whole below it
    and leave the catalog; their objects go later. `previous_hash` is the chain's head that this continues."""

    TYPE: ClassVar[int] = 18
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    log_start_offset: Offset
    removed: tuple[str, ...]
    previous_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogListed:
    """What a catalog holds behind what was told of it before, and what has happened behind its last entry. In snapshots
    alone: it is what earlier events came to."""

    TYPE: ClassVar[int] = 30
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    piece: Piece
    links: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsReplaced:
    """One segment takes the place of those (by their SHA-256, in order) that hold its offsets; their objects go later.
    `previous_hash` is the chain's head that this continues."""

    TYPE: ClassVar[int] = 31
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    descriptor: SegmentDescriptor
    removed: tuple[str, ...]
    previous_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated:
    """A broker may hand out producer ids `start` to `end - 1` (KIP-730)."""

    TYPE: ClassVar[int] = 19
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    start: ProducerId
    end: ProducerId


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChanged:
    """Quotas of one entity set or (None) removed, by Kafka's names for them (KIP-546)."""

    TYPE: ClassVar[int] = 24
    VERSION: ClassVar[int] = 0
    entity: QuotaEntity
    changes: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumGrown:
    """Older versions wrote it when the quorum had `controller.voters` voters, and then promoted nobody any more. Read,
    and of no effect."""

    TYPE: ClassVar[int] = 25
    VERSION: ClassVar[int] = 0
    voters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteWithheld:
    """An operator has taken the broker's vote: it is not promoted by itself. Not `withheld`: it may be again."""

    TYPE: ClassVar[int] = 40
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    withheld: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumRecovered:
    """The quorum was lost, and an operator had one broker go on with what it knew: a new lineage begins."""

    TYPE: ClassVar[int] = 41
    VERSION: ClassVar[int] = 0
    number: int
    recovery: str
    """A random id: as `Lineage`."""
    broker_id: BrokerId
    """Whose metadata it goes on with."""
    at_ms: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProven:
    """The target, in this incarnation, has read what the source exported."""

    TYPE: ClassVar[int] = 28
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRetargeted:
    """After the seal, another broker is to go on. In one entry as `MoveSealed`."""

    TYPE: ClassVar[int] = 29
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    assignment_epoch: int
    target: BrokerId


MetadataEvent: TypeAlias = (
    ClusterBorn
    | BrokerRegistered
    | BrokerFenced
    | BrokerUnfenced
    | BrokerRemoved
    | TopicCreated
    | DesiredReplicasChanged
    | TopicDeleted
    | PartitionsAdded
    | ConfigChanged
    | GroupConfigChanged
    | LeaderChanged
    | IsrChanged
    | ReplicasChanged
    | MoveStarted
    | MoveSealed
    | MoveFinished
    | MoveCancelled
    | SegmentPublished
    | CatalogAnchored
    | SegmentsDeleted
    | SegmentsReplaced
    | CatalogListed
    | ProducerIdsAllocated
    | QuotaChanged
    | QuorumGrown
    | VoteWithheld
    | QuorumRecovered
    | MoveProven
    | MoveRetargeted
)
