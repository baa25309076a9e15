"""The facts that make up cluster state: each is something that has happened, in the past tense.

Promises:
- An event carries absolute values (the epoch that now holds, not "one more"), so replaying it twice changes nothing.
- Its `TYPE` number is never reused, and its `VERSION` rises when a field is added. An event that older versions still
  understand whole may tell a `least_version` below that.
- It never decides and never reads a clock.
- An event that some earlier release does not know tells its `LEVEL`, the lowest that knows it, and its `SUBJECT`, for
  people. The controller emits none before the cluster is at that level (`levels`).

Number 23 is reserved for an event that no code emits yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from headrace.base.values import Value
from headrace.metadata.access.acls import Acl
from headrace.metadata.access.quotas import QuotaEntity
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.metadata.descriptors import SegmentDescriptor
from headrace.metadata.moves import UNLIMITED_RATE, StorageStateSealed
from headrace.metadata.pieces import Piece
from headrace.metadata.values import Endpoint, Engine, PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClusterBorn(Value):
    """The first event of every cluster: its identity, assigned once. Version 1: `engine`; before it, every cluster had
    local logs."""

    TYPE: ClassVar[int] = 0
    VERSION: ClassVar[int] = 1
    cluster_id: ClusterId
    engine: Engine = Engine.LOCAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BrokerRegistered(Value):
    """One process start of a broker: a new incarnation, fenced until a `BrokerUnfenced` with its epoch. For a known
    incarnation it raises the level alone."""

    TYPE: ClassVar[int] = 1
    VERSION: ClassVar[int] = 3
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    directory_id: DirectoryId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    incarnation: IncarnationId | None = None
    """The id that the process chose for this start (version 1)."""
    level: int = 0
    """The highest feature level that its release knows, as in `levels` (version 2)."""
    level_min: int = 0
    """The lowest one (version 3)."""

    @property
    def least_version(self) -> int:
        """Brokers of before do not ask for the levels."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LevelFinalized(Value):
    """The cluster's feature level is at least this one from now on. Events of it may follow, and no broker comes that
    does not know it."""

    TYPE: ClassVar[int] = 43
    VERSION: ClassVar[int] = 0
    LEVEL: ClassVar[int] = 2
    SUBJECT: ClassVar[str] = "feature levels"
    level: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BrokerFenced(Value):
    """The broker may lead no partition and join no ISR until it is unfenced."""

    TYPE: ClassVar[int] = 2
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BrokerUnfenced(Value):
    """The broker serves from now on: it has heard of all that was decided before it came."""

    TYPE: ClassVar[int] = 3
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BrokerRemoved(Value):
    """The broker is no longer part of the cluster; by then it holds no replica. It may register again as a new one."""

    TYPE: ClassVar[int] = 4
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TopicCreated(Value):
    """A topic with all its partitions, their first leaders and its own configs (never the defaults).

    Version 1: its partitions may have `kept_in`. Version 2: `adding` and `removing`. Version 3: `assignment_epoch` and
    `move`. Version 4: `is_unclean`. Version 5: `recovered_epoch`, and `desired_replicas` of the topic. Version 6:
    `created_index`, in snapshots of clusters that share logs.
    """

    TYPE: ClassVar[int] = 5
    VERSION: ClassVar[int] = 6
    topic_id: TopicId
    name: str
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    desired_replicas: int = 0
    created_index: int = 0
    """See `TopicImage.created_index`. 0: the index of this event's own entry."""

    @property
    def least_version(self) -> int:
        """The lowest version that understands this event whole."""
        return 6 if self.created_index else 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DesiredReplicasChanged(Value):
    """The number of replicas that each partition of the topic gets as brokers join."""

    TYPE: ClassVar[int] = 32
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    desired_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TopicDeleted(Value):
    """The topic, its partitions, configs and catalog are gone; its name is free."""

    TYPE: ClassVar[int] = 6
    VERSION: ClassVar[int] = 0
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PartitionsAdded(Value):
    """More partitions, numbered on from those that the topic has. Versions are those of TopicCreated."""

    TYPE: ClassVar[int] = 7
    VERSION: ClassVar[int] = 4
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConfigChanged(Value):
    """Configs that were set or (None) removed: those of a topic, else of a broker, else the default of all brokers."""

    TYPE: ClassVar[int] = 8
    VERSION: ClassVar[int] = 0
    topic_id: TopicId | None = None
    broker_id: BrokerId | None = None
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupConfigChanged(Value):
    """Configs of a consumer group that were set or (None) removed. The group need not exist."""

    TYPE: ClassVar[int] = 33
    VERSION: ClassVar[int] = 0
    group: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LeaderChanged(Value):
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
    """The leader was not in sync, or had lost its disk (version 2)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IsrChanged(Value):
    """The in-sync replicas changed within one leader epoch."""

    TYPE: ClassVar[int] = 10
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReplicasChanged(Value):
    """The brokers that hold the partition; all of its ISR is among them.

    Version 1: a step of a reassignment. It has the ISR in the order of the replicas (None: unchanged). It also has the
    replicas that are added and removed, as in `PartitionImage`. Version 2: `recovered_epoch`, where all replicas begin
    behind durable history. The assignment begins with that leader epoch, and the `LeaderChanged` that begins the epoch
    is in the same entry.
    """

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
    """As in `PartitionImage.recovered_epoch`; 0: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveStarted(Value):
    """The partition's only replica is to hand it over to `target`."""

    TYPE: ClassVar[int] = 12
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    source: BrokerId
    target: BrokerId
    bytes_per_second: int = UNLIMITED_RATE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveSealed(Value):
    """The source has written its last record, and durable history has it. The entry also has the `LeaderChanged` and
    `ReplicasChanged` that make the target the owner, in the leader epoch `assignment_epoch`."""

    TYPE: ClassVar[int] = 13
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    assignment_epoch: int
    state: StorageStateSealed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveFinished(Value):
    """The target continues where the source ended, and may write. The source's log is no longer needed."""

    TYPE: ClassVar[int] = 14
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveCancelled(Value):
    """The source stays the owner, in a new leader epoch. A seal that was proposed in the epoch before is refused."""

    TYPE: ClassVar[int] = 15
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SegmentPublished(Value):
    """A durable segment joined the catalog. `previous_hash` is the head of the chain that it continues. Version 1: the
    descriptor may have the epoch of its last batch. Version 2: it may be packed."""

    TYPE: ClassVar[int] = 16
    VERSION: ClassVar[int] = 2
    topic_id: TopicId
    partition: PartitionIndex
    descriptor: SegmentDescriptor
    previous_hash: str

    @property
    def least_version(self) -> int:
        return 2 if self.descriptor.is_packed else 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CatalogAnchored(Value):
    """The point where a catalog continues whose beginning is deleted. Only in snapshots, as the result of earlier
    events."""

    TYPE: ClassVar[int] = 17
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    head: str
    end_offset: Offset
    """Last offset of the history held before that point, inclusive; -1: there was none."""
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SegmentsDeleted(Value):
    """Durable history begins at `log_start_offset` now. `removed` are the segments, by their SHA-256, that lie wholly
    below it and leave the catalog; their objects go later. `previous_hash` is the head of the chain that this
    continues."""

    TYPE: ClassVar[int] = 18
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    log_start_offset: Offset
    removed: tuple[str, ...]
    previous_hash: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CatalogListed(Value):
    """Entries of a catalog behind those listed before, and the links behind its last entry. Only in snapshots, as the
    result of earlier events. Version 1: segments may be packed."""

    TYPE: ClassVar[int] = 30
    VERSION: ClassVar[int] = 1
    topic_id: TopicId
    partition: PartitionIndex
    piece: Piece
    links: tuple[tuple[str, ...], ...] = ()

    @property
    def least_version(self) -> int:
        return 1 if self.piece.has_packed else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SegmentsReplaced(Value):
    """One segment replaces those (by their SHA-256, in order) that hold its offsets; their objects go later.
    `previous_hash` is the head of the chain that this continues. Version 1: the segment may be packed."""

    TYPE: ClassVar[int] = 31
    VERSION: ClassVar[int] = 1
    topic_id: TopicId
    partition: PartitionIndex
    descriptor: SegmentDescriptor
    removed: tuple[str, ...]
    previous_hash: str

    @property
    def least_version(self) -> int:
        return 1 if self.descriptor.is_packed else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProducerIdsAllocated(Value):
    """A broker may hand out producer ids `start` to `end - 1` (KIP-730)."""

    TYPE: ClassVar[int] = 19
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    start: ProducerId
    end: ProducerId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuotaChanged(Value):
    """Quotas of one entity that were set or (None) removed, by Kafka's names for them (KIP-546)."""

    TYPE: ClassVar[int] = 24
    VERSION: ClassVar[int] = 0
    entity: QuotaEntity
    changes: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AclCreated(Value):
    """An ACL that is in force from now on."""

    TYPE: ClassVar[int] = 20
    VERSION: ClassVar[int] = 0
    LEVEL: ClassVar[int] = 1
    SUBJECT: ClassVar[str] = "ACLs"
    acl: Acl


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AclDeleted(Value):
    """An ACL that is in force no longer."""

    TYPE: ClassVar[int] = 21
    VERSION: ClassVar[int] = 0
    LEVEL: ClassVar[int] = 1
    SUBJECT: ClassVar[str] = "ACLs"
    acl: Acl


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScramCredentialChanged(Value):
    """A user's credential for one mechanism was set or (None) deleted."""

    TYPE: ClassVar[int] = 22
    VERSION: ClassVar[int] = 0
    LEVEL: ClassVar[int] = 1
    SUBJECT: ClassVar[str] = "SCRAM credentials"
    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SecretMade(Value):
    """The cluster got a secret that all brokers share, and no client knows."""

    TYPE: ClassVar[int] = 42
    VERSION: ClassVar[int] = 0
    LEVEL: ClassVar[int] = 1
    SUBJECT: ClassVar[str] = "SCRAM credentials"
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumGrown(Value):
    """Older versions wrote this when the quorum had `controller.voters` voters, and promoted nobody after it. It is
    read and has no effect."""

    TYPE: ClassVar[int] = 25
    VERSION: ClassVar[int] = 0
    voters: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class VoteWithheld(Value):
    """An operator has removed the broker's vote, so it is not promoted automatically. With `withheld` false it may be
    again."""

    TYPE: ClassVar[int] = 40
    VERSION: ClassVar[int] = 0
    broker_id: BrokerId
    withheld: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumRecovered(Value):
    """The quorum was lost, and an operator let one broker continue with its own state. A new lineage begins."""

    TYPE: ClassVar[int] = 41
    VERSION: ClassVar[int] = 0
    number: int
    recovery: str
    """A random id, as in `Lineage`."""
    broker_id: BrokerId
    """The broker whose metadata the cluster continues with."""
    at_ms: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ChangesDoubted(Value):
    """The store of the commit log may have lost its last entries. Every partition's epochs, and producer ids, rise
    above what these may have given out. So do indexes: this entry's own leaves a gap."""

    TYPE: ClassVar[int] = 34
    VERSION: ClassVar[int] = 0
    number: int
    """Counted from 1. Epochs and ids rise once for each number above the last one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveProven(Value):
    """The target, in this incarnation, has read what the source exported."""

    TYPE: ClassVar[int] = 28
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveRetargeted(Value):
    """After the seal, another broker is to continue. The entry has the other events of `MoveSealed`, too."""

    TYPE: ClassVar[int] = 29
    VERSION: ClassVar[int] = 0
    topic_id: TopicId
    partition: PartitionIndex
    partition_epoch: PartitionEpoch
    assignment_epoch: int
    target: BrokerId


MetadataEvent: TypeAlias = (
    ClusterBorn
    | LevelFinalized
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
    | AclCreated
    | AclDeleted
    | ScramCredentialChanged
    | SecretMade
    | QuorumGrown
    | VoteWithheld
    | QuorumRecovered
    | ChangesDoubted
    | MoveProven
    | MoveRetargeted
)
