"""Requests of brokers to the controller, as values: the same whether the controller is here or on another node.

`Command`s are decided on the image alone; the others concern the quorum or the session of a broker.

Promises:
- `decode_ask(encode_ask(c, x)) == (c, x)`. Input that is not such JSON raises CorruptData.
- A `REPEATABLE` request may be repeated when its answer got lost. That does no harm and gives an answer that is as
  good.
- No request that comes from people is repeatable: another may have undone it in between, and it would be done again.
"""

from __future__ import annotations

import json
import typing
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypedDict, TypeVar

from headrace.base.errors import CorruptData
from headrace.base.ids import (
    FIRST_OFFSET,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicPartition,
)
from headrace.base.values import Value
from headrace.controller.access.acls import AclsDeleted, create_acls, delete_acls
from headrace.controller.access.quotas import QuotaAlteration, alter_quotas
from headrace.controller.access.scram import ScramAlteration, alter_scram
from headrace.controller.brokers import allocate_producer_ids
from headrace.controller.configs import ResourceAlteration, alter_configs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import delete_history, publish_segment, replace_segments
from headrace.controller.isr import IsrProposal, alter_isr, leave_isr
from headrace.controller.leaders import Election, ElectionOutcome, PartitionRef, elect_leaders
from headrace.controller.levels import finalize_level
from headrace.controller.moves import HandsOver, Seal, fail_target, finish_move, give_up_move, prove_move, seal_move
from headrace.controller.moving import MoveOutcome, MoveWish, move_partitions
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.controller.recovery import Recovery, RecoveryWish, recover_partitions
from headrace.controller.renewals import CopyRenewal, renew_copies
from headrace.controller.topic_changes import NewPartitions, TopicRef, create_partitions, delete_topics
from headrace.controller.topics import NewTopic, TopicOutcome, create_topics
from headrace.metadata.access.acls import Acl, AclFilter
from headrace.metadata.codec import shape_of
from headrace.metadata.configs import topic_config
from headrace.metadata.events import AclCreated, AclDeleted, LevelFinalized, ScramCredentialChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.moves import UNLIMITED_RATE
from headrace.metadata.segments import SegmentDescriptor
from headrace.metadata.values import Endpoint, Engine, TopicImage
from headrace.wire.ailments import State
from headrace.wire.errors import ErrorCode

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Setting(Value):
    """The place of a decision: the configs with which the controller's broker was started."""

    broker_configs: Mapping[str, str]
    node: BrokerId
    has_store: bool = False
    """Whether there is a durable store."""
    unable: Mapping[BrokerId, str] = field(default_factory=dict)
    """As in `moves.Unable`."""
    voters: tuple[BrokerId, ...] = ()
    """The quorum's voters; empty where the commit log has none."""


class Ask(Value, Generic[R_co]):
    """A request to the controller, with an answer of type R_co or a Refusal."""

    __slots__ = ()
    RESULT: ClassVar[Any]
    """R_co, as a type with a known JSON form."""
    LEVEL: ClassVar[int] = 0
    """The lowest metadata level (`metadata.levels`) of a controller that knows this request."""
    SUBJECT: ClassVar[str] = ""
    """The name, for people, of what a controller below that does not know."""
    REPEATABLE: ClassVar[bool] = True


class Command(Ask[R_co]):
    """A request that is decided on the image."""

    __slots__ = ()

    @abstractmethod
    def decide(self, image: MetadataImage, setting: Setting) -> Decision[R_co | Refusal]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TopicAnswer(Value):
    """The outcome for one topic of a request. A topic that was created, or would be, is described."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID
    refusal: Refusal | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] | None = None

    @classmethod
    def of(cls, outcome: TopicOutcome, *, made: bool = False) -> TopicAnswer:
        topic = outcome.topic
        if topic is None or not made:
            return cls(name=outcome.name, topic_id=outcome.topic_id, refusal=outcome.refusal)
        return cls(
            name=topic.name,
            topic_id=topic.id,
            partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            configs=dict(topic.configs),
        )


TopicAnswers = tuple[TopicAnswer, ...]


def _answers(decision: Decision[list[TopicOutcome]], *, made: bool = False) -> Decision[TopicAnswers | Refusal]:
    return Decision(decision.events, tuple(TopicAnswer.of(outcome, made=made) for outcome in decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CreateTopics(Command[TopicAnswers]):
    """Create topics. One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False  # another may have deleted it meanwhile, and it would be there again
    topics: tuple[NewTopic, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        decision = create_topics(
            image,
            self.topics,
            broker_configs=setting.broker_configs,
            node=setting.node,
            validate_only=self.validate_only,
        )
        return _answers(decision, made=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopics(Command[TopicAnswers]):
    """Delete topics. One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False
    topics: tuple[TopicRef, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        return _answers(delete_topics(image, self.topics, broker_configs=setting.broker_configs, node=setting.node))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitions(Command[TopicAnswers]):
    """Add partitions to topics. One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False
    topics: tuple[NewPartitions, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        return _answers(create_partitions(image, self.topics, validate_only=self.validate_only))


Refusals = tuple[Refusal | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterConfigs(Command[Refusals]):
    """Change configs. One answer for each resource, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    resources: tuple[ResourceAlteration, ...]
    replace_all: bool = False
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_configs(
            image,
            self.resources,
            replace_all=self.replace_all,
            validate_only=self.validate_only,
            broker_configs=setting.broker_configs,
            node=setting.node,
        )
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterQuotas(Command[Refusals]):
    """Change client quotas. One answer for each entity, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_quotas(image, self.alterations, validate_only=self.validate_only)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CreateAcls(Command[Refusals]):
    """Create ACLs. One answer for each, in order; None: it is in force."""

    RESULT: ClassVar[Any] = Refusals
    LEVEL: ClassVar[int] = AclCreated.LEVEL
    SUBJECT: ClassVar[str] = AclCreated.SUBJECT
    REPEATABLE: ClassVar[bool] = False  # another may have deleted it meanwhile
    acls: tuple[Acl, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = create_acls(image, self.acls)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeleteAcls(Command[tuple[AclsDeleted, ...]]):
    """Delete the ACLs that filters match. One answer for each filter, in order."""

    RESULT: ClassVar[Any] = tuple[AclsDeleted, ...]
    LEVEL: ClassVar[int] = AclDeleted.LEVEL
    SUBJECT: ClassVar[str] = AclDeleted.SUBJECT
    REPEATABLE: ClassVar[bool] = False  # another may have created it again meanwhile
    filters: tuple[AclFilter, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[AclsDeleted, ...] | Refusal]:
        decision = delete_acls(image, self.filters)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterScram(Command[Refusals]):
    """Change SCRAM credentials. One answer for each alteration, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    LEVEL: ClassVar[int] = ScramCredentialChanged.LEVEL
    SUBJECT: ClassVar[str] = ScramCredentialChanged.SUBJECT
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    alterations: tuple[ScramAlteration, ...]
    secret: bytes = field(default=b"", repr=False)
    """As in `alter_scram`."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_scram(image, self.alterations, self.secret)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FinalizeLevel(Command[None]):
    """Raise the cluster's feature level."""

    RESULT: ClassVar[Any] = None
    LEVEL: ClassVar[int] = LevelFinalized.LEVEL
    SUBJECT: ClassVar[str] = LevelFinalized.SUBJECT
    level: int
    may_fall: bool = False
    """As in `finalize_level`."""
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return finalize_level(
            image, self.level, may_fall=self.may_fall, voters=setting.voters, validate_only=self.validate_only
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ElectLeaders(Command[tuple[ElectionOutcome, ...]]):
    """As `elect_leaders`."""

    RESULT: ClassVar[Any] = tuple[ElectionOutcome, ...]
    REPEATABLE: ClassVar[bool] = False  # another may have moved the new leader meanwhile
    election: Election
    partitions: tuple[PartitionRef, ...] | None

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ElectionOutcome, ...] | Refusal]:
        return elect_leaders(image, self.election, self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReassignPartitions(Command[Refusals]):
    """Reassign partitions. One answer for each partition, in order; None: its reassignment has begun."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have wished otherwise meanwhile
    partitions: tuple[Reassignment, ...]
    factor_may_change: bool = True
    bytes_per_second: int = UNLIMITED_RATE
    """The rate limit for exports before a partition is handed over."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        return reassign_partitions(
            image,
            self.partitions,
            factor_may_change=self.factor_may_change,
            hands_over=_handing_over(image, setting),
            unable=setting.unable,
            bytes_per_second=self.bytes_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MovePartitions(Command[tuple[MoveOutcome, ...]]):
    """As `move_partitions`."""

    RESULT: ClassVar[Any] = tuple[MoveOutcome, ...]
    REPEATABLE: ClassVar[bool] = False  # another may have wished otherwise meanwhile
    wish: MoveWish
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[MoveOutcome, ...] | Refusal]:
        return move_partitions(
            image,
            self.wish,
            hands_over=_handing_over(image, setting),
            unable=setting.unable,
            validate_only=self.validate_only,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecoverPartitions(Command[Recovery]):
    """As `recover_partitions`."""

    RESULT: ClassVar[Any] = Recovery
    # an old leader may have come back meanwhile by another request, and would lose it again
    REPEATABLE: ClassVar[bool] = False
    wish: RecoveryWish
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Recovery | Refusal]:
        return recover_partitions(image, self.wish, validate_only=self.validate_only)


def _handing_over(image: MetadataImage, setting: Setting) -> HandsOver:
    """Return a test of whether a topic's history is durable, so that its partitions can be handed over. Where there is
    any history, there is a store, though the controller's broker may lack it."""
    has_store = setting.has_store or any(catalog.entries for catalog in image.catalog.values())

    def hands_over(topic: TopicImage) -> bool:
        if not has_store or topic.internal or image.shares_logs:
            return False
        config = topic_config(image, topic, setting.broker_configs, node=setting.node)
        return config.durable_enable and "compact" not in config.cleanup_policy

    return hands_over


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AllocateProducerIds(Command[tuple[ProducerId, int]]):
    """Allocate a block of producer ids. The answer is its first id, and their number."""

    RESULT: ClassVar[Any] = tuple[ProducerId, int]
    broker_id: BrokerId
    broker_epoch: BrokerEpoch

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ProducerId, int] | Refusal]:
        return allocate_producer_ids(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PublishSegment(Command[None]):
    """Note a durable segment that a leader has exported."""

    RESULT: ClassVar[Any] = None
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    descriptor: SegmentDescriptor
    previous_hash: str
    log_start_offset: Offset = FIRST_OFFSET

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return publish_segment(
            image,
            topic_id=self.topic_id,
            partition=self.partition,
            leader_epoch=self.leader_epoch,
            descriptor=self.descriptor,
            previous_hash=self.previous_hash,
            log_start_offset=self.log_start_offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeleteHistory(Command[None]):
    """Note that durable history below an offset is deleted."""

    RESULT: ClassVar[Any] = None
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    log_start_offset: Offset

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return delete_history(
            image,
            topic_id=self.topic_id,
            partition=self.partition,
            leader_epoch=self.leader_epoch,
            log_start_offset=self.log_start_offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReplaceSegments(Command[None]):
    """Note that one segment takes the place of several."""

    RESULT: ClassVar[Any] = None
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    descriptor: SegmentDescriptor
    removed: tuple[str, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return replace_segments(
            image,
            topic_id=self.topic_id,
            partition=self.partition,
            leader_epoch=self.leader_epoch,
            descriptor=self.descriptor,
            removed=self.removed,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProveMove(Command[None]):
    """As `prove_move`."""

    RESULT: ClassVar[Any] = None
    topic_id: TopicId
    partition: PartitionIndex
    broker_id: BrokerId
    broker_epoch: BrokerEpoch

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return prove_move(
            image,
            topic_id=self.topic_id,
            partition=self.partition,
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SealMove(Command[None]):
    """As `seal_move`. A repeated request changes nothing, or is refused: each seal begins a leader epoch."""

    RESULT: ClassVar[Any] = None
    seal: Seal

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return seal_move(image, self.seal)


class Standing(TypedDict):
    """The sender of a request about a move: the leader of the partition in that epoch, in that incarnation."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MoveStep(Command[None]):
    """A request of a partition's leader about its move."""

    RESULT: ClassVar[Any] = None
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    broker_id: BrokerId
    broker_epoch: BrokerEpoch

    @property
    def standing(self) -> Standing:
        return Standing(
            topic_id=self.topic_id,
            partition=self.partition,
            leader_epoch=self.leader_epoch,
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FinishMove(MoveStep):
    """As `finish_move`."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return finish_move(image, **self.standing)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FailTarget(MoveStep):
    """As `fail_target`."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return fail_target(image, **self.standing, unable=setting.unable)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GiveUpMove(MoveStep):
    """As `give_up_move`."""

    for_good: bool = True
    """False: the move itself stays, and begins again."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return give_up_move(image, **self.standing, for_good=self.for_good)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterIsr(Command[tuple[ErrorCode, ...]]):
    """Change the ISR of partitions, as their leader proposes. One error code for each proposal, in order."""

    RESULT: ClassVar[Any] = tuple[ErrorCode, ...]
    REPEATABLE: ClassVar[bool] = False  # the leader has to know that an earlier request may yet arrive
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    proposals: tuple[IsrProposal, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ErrorCode, ...] | Refusal]:
        return alter_isr(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch, proposals=self.proposals)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LeaveIsr(Command[None]):
    """Leave the ISR of these partitions, as the disk under the broker's copies failed: others lead, and count.
    `for_room`: the disk is only full; then others lead and count only where they have room."""

    RESULT: ClassVar[Any] = None
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[tuple[TopicId, PartitionIndex], ...]
    for_room: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        keys = [TopicPartition(*each) for each in self.partitions]
        return leave_isr(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch, partitions=keys)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RenewCopies(Command[tuple[ErrorCode, ...]]):
    """Let a broker drop damaged copies and copy them again from their leaders. One error code for each, in order."""

    RESULT: ClassVar[Any] = tuple[ErrorCode, ...]
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    copies: tuple[CopyRenewal, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ErrorCode, ...] | Refusal]:
        def min_in_sync(topic: TopicImage) -> int:
            return topic_config(image, topic, setting.broker_configs, node=setting.node).min_insync_replicas

        return renew_copies(
            image,
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
            copies=self.copies,
            min_in_sync=min_in_sync,
        )


# requests that are more than a decision on the image


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RegisterBroker(Ask[BrokerEpoch]):
    """Register a process that has started. It becomes a learner of the quorum, where it is no member, and gets its
    epoch."""

    RESULT: ClassVar[Any] = BrokerEpoch
    cluster_id: ClusterId
    broker_id: BrokerId
    directory_id: DirectoryId
    incarnation: IncarnationId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    lineage: str | None = None
    """The lineage of its log; None: it has none yet, and follows any."""
    engine: Engine = Engine.LOCAL
    """The keeper of its partition logs. Brokers of older versions do not say; theirs are local."""
    level: int = 0
    """The highest feature level of its release. Brokers of older versions do not say; theirs is 0."""
    level_min: int = 0
    """The lowest one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Heartbeat(Ask[bool]):
    """Report that the broker lives; the answer is whether it is unfenced now.

    - `ready`: it has replayed its registration and serves.
    - `stopping`: it wants to lead nothing any more.
    - `is_full`: its disk has no room for what clients write.
    - `states`: its other problems.
    - `clock_ms`: its clock when it sent this; 0: it does not say.
    - `level`: as in `RegisterBroker`, which may have reached a controller that did not know it.
    """

    RESULT: ClassVar[Any] = bool
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    ready: bool
    stopping: bool = False
    is_full: bool = False
    states: tuple[State, ...] = ()
    clock_ms: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RemoveBroker(Ask[None]):
    """Remove a stopped broker for good, from the quorum too."""

    RESULT: ClassVar[Any] = None
    REPEATABLE: ClassVar[bool] = False
    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ChangeVoter(Ask[None]):
    """Make a member a voter, or a learner. Without a directory: whichever the broker has."""

    RESULT: ClassVar[Any] = None
    REPEATABLE: ClassVar[bool] = False
    broker_id: BrokerId
    directory_id: DirectoryId | None
    voter: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumReplica(Value):
    """One member of the quorum, as the leader knows it. Times in milliseconds since 1970; -1: not known."""

    broker_id: BrokerId
    directory_id: DirectoryId
    voter: bool
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumView(Value):
    """The quorum, as its leader knows it."""

    leader: BrokerId
    epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]
    outlook: str = ""
    """The prospects of the learners while there are fewer voters than `controller.voters`; empty: there are enough."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadQuorum(Ask[QuorumView]):
    """Ask for the state of the quorum."""

    RESULT: ClassVar[Any] = QuorumView


ASKS: Final[Mapping[str, type[Ask[Any]]]] = {
    cls.__name__: cls
    for cls in typing.cast(
        "Sequence[type[Ask[Any]]]",
        (
            CreateTopics,
            DeleteTopics,
            CreatePartitions,
            AlterConfigs,
            AlterQuotas,
            CreateAcls,
            DeleteAcls,
            AlterScram,
            FinalizeLevel,
            ElectLeaders,
            ReassignPartitions,
            MovePartitions,
            RecoverPartitions,
            AllocateProducerIds,
            PublishSegment,
            DeleteHistory,
            ReplaceSegments,
            ProveMove,
            SealMove,
            FinishMove,
            FailTarget,
            GiveUpMove,
            AlterIsr,
            LeaveIsr,
            RenewCopies,
            RegisterBroker,
            Heartbeat,
            RemoveBroker,
            ChangeVoter,
            ReadQuorum,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Answer(Value, Generic[R_co]):
    """An answer of the controller. `index`: the entry of the commit log that it rests on."""

    index: int
    result: R_co | Refusal


def encode_ask(cluster_id: ClusterId, ask: Ask[Any]) -> bytes:
    """Return the request as one JSON object, UTF-8."""
    kind: Any = type(ask)
    fields = {"cluster": cluster_id, "ask": kind.__name__, **shape_of(kind).encode(ask)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_ask(data: bytes) -> tuple[ClusterId, Ask[Any]]:
    """Return the asking broker's cluster, and its request. Raises CorruptData."""
    value = _object(data)
    cluster_id = ClusterId(shape_of(str).decode(value.get("cluster"), "cluster"))
    cls: Any = ASKS.get(name) if isinstance(name := value.get("ask"), str) else None
    if cls is None:
        raise CorruptData(f"What a broker asks, {value.get('ask')!r:.60}, is unknown to this controller's version.")
    return cluster_id, typing.cast("Ask[Any]", shape_of(cls).decode(value, cls.__name__))


def encode_answer(ask: Ask[Any], answer: Answer[Any]) -> bytes:
    value: dict[str, Any] = {"index": answer.index}
    if isinstance(answer.result, Refusal):
        value["refusal"] = shape_of(Refusal).encode(answer.result)
    elif ask.RESULT is not None:
        value["result"] = shape_of(ask.RESULT).encode(answer.result)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_answer(ask: Ask[R_co], data: bytes) -> Answer[R_co]:
    """Return the answer. Raises CorruptData."""
    value = _object(data)
    index = shape_of(int).decode(value.get("index"), "index")
    if "refusal" in value:
        return Answer(index=index, result=shape_of(Refusal).decode(value["refusal"], "refusal"))
    result = None if ask.RESULT is None else shape_of(ask.RESULT).decode(value.get("result"), "result")
    return Answer(index=index, result=typing.cast("R_co", result))


def encode_leader(address: tuple[str, int] | None) -> bytes:
    """Return the leader's address as JSON, for the answer of a broker that is not the controller."""
    return json.dumps({"leader": address}).encode()


def decode_leader(data: bytes) -> tuple[str, int] | None:
    """Return host and port. Raises CorruptData."""
    return typing.cast("tuple[str, int] | None", shape_of(_LEADER).decode(_object(data).get("leader"), "leader"))


_LEADER: Final[Any] = tuple[str, int] | None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"What a broker sent to another is not JSON: {data[:60]!r}.") from error
    if not isinstance(value, dict):
        raise CorruptData(f"What a broker sent to another is not a JSON object: {data[:60]!r}.")
    return value
