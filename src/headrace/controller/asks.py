"""What a broker asks of the controller, as values: so that it is the same to ask whether the controller is here or on
another node. `Command`s are decided on the image alone; the others concern the quorum or the session of a broker.

Promises: `decode_ask(encode_ask(c, x)) == (c, x)`; whatever is not such JSON raises CorruptData. To ask a second time
what is `REPEATABLE`, because the answer got lost, does no harm and gives an answer that is as good. Nothing that people
ask for is: what was made may have been undone by another in between, and would be made once more.
"""

from __future__ import annotations

import json
import typing
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from headrace.controller.brokers import allocate_producer_ids
from headrace.controller.configs import ResourceAlteration, alter_configs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import delete_history, publish_segment, replace_segments
from headrace.controller.isr import IsrProposal, alter_isr, leave_isr
from headrace.controller.leaders import Election, ElectionOutcome, PartitionRef, elect_leaders
from headrace.controller.moves import HandsOver, Seal, fail_target, finish_move, give_up_move, prove_move, seal_move
from headrace.controller.moving import MoveOutcome, MoveWish, move_partitions
from headrace.controller.quotas import QuotaAlteration, alter_quotas
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.controller.recovery import Recovery, RecoveryWish, recover_partitions
from headrace.controller.renewals import CopyRenewal, renew_copies
from headrace.controller.topic_changes import NewPartitions, TopicRef, create_partitions, delete_topics
from headrace.controller.topics import NewTopic, TopicOutcome, create_topics
from headrace.metadata.codec import shape_of
from headrace.metadata.configs import topic_config
from headrace.metadata.image import MetadataImage
from headrace.metadata.moves import UNLIMITED_RATE
from headrace.metadata.segments import SegmentDescriptor
from headrace.metadata.values import Endpoint, TopicImage
from headrace.wire.ailments import State
from headrace.wire.errors import ErrorCode

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a command is decided: the configs with which the controller's broker was started."""

    broker_configs: Mapping[str, str]
    node: BrokerId
    has_store: bool = False
    """Whether there is a durable store."""


class Ask(Generic[R_co]):
    """Something asked of the controller, with an answer of type R_co or a Refusal."""

    __slots__ = ()
    RESULT: ClassVar[Any]
    """R_co, as a type whose JSON is known."""
    REPEATABLE: ClassVar[bool] = True


class Command(Ask[R_co]):
    """Decided on the image."""

    __slots__ = ()

    @abstractmethod
    def decide(self, image: MetadataImage, setting: Setting) -> Decision[R_co | Refusal]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """What became of one topic of a request. What it looks like is told of one that was made, or would be."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics(Command[TopicAnswers]):
    """One answer for each topic, in order."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics(Command[TopicAnswers]):
    """One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False
    topics: tuple[TopicRef, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        return _answers(delete_topics(image, self.topics, broker_configs=setting.broker_configs, node=setting.node))


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions(Command[TopicAnswers]):
    """One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False
    topics: tuple[NewPartitions, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        return _answers(create_partitions(image, self.topics, validate_only=self.validate_only))


Refusals = tuple[Refusal | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs(Command[Refusals]):
    """One answer for each resource, in order; None: done."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQuotas(Command[Refusals]):
    """One answer for each entity, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_quotas(image, self.alterations, validate_only=self.validate_only)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(Command[tuple[ElectionOutcome, ...]]):
    """As `elect_leaders`."""

    RESULT: ClassVar[Any] = tuple[ElectionOutcome, ...]
    REPEATABLE: ClassVar[bool] = False  # whom it made lead may have been moved by another meanwhile
    election: Election
    partitions: tuple[PartitionRef, ...] | None

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ElectionOutcome, ...] | Refusal]:
        return elect_leaders(image, self.election, self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions(Command[Refusals]):
    """One answer for each partition, in order; None: it is on its way."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have wished otherwise meanwhile
    partitions: tuple[Reassignment, ...]
    factor_may_change: bool = True
    bytes_per_second: int = UNLIMITED_RATE
    """Most that is exported before a partition is handed over."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        return reassign_partitions(
            image,
            self.partitions,
            factor_may_change=self.factor_may_change,
            hands_over=_handing_over(image, setting),
            bytes_per_second=self.bytes_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePartitions(Command[tuple[MoveOutcome, ...]]):
    """As `move_partitions`."""

    RESULT: ClassVar[Any] = tuple[MoveOutcome, ...]
    REPEATABLE: ClassVar[bool] = False  # another may have wished otherwise meanwhile
    wish: MoveWish
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[MoveOutcome, ...] | Refusal]:
        hands_over = _handing_over(image, setting)
        return move_partitions(image, self.wish, hands_over=hands_over, validate_only=self.validate_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverPartitions(Command[Recovery]):
    """As `recover_partitions`."""

    RESULT: ClassVar[Any] = Recovery
    REPEATABLE: ClassVar[bool] = False  # who has come back meanwhile, and leads by another's word, would lose it again
    wish: RecoveryWish
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Recovery | Refusal]:
        return recover_partitions(image, self.wish, validate_only=self.validate_only)


def _handing_over(image: MetadataImage, setting: Setting) -> HandsOver:
    """Whether a topic's history is durable, so that a partition of it can be handed over."""

    def hands_over(topic: TopicImage) -> bool:
        if not setting.has_store or topic.internal:
            return False
        config = topic_config(image, topic, setting.broker_configs, node=setting.node)
        return config.durable_enable and "compact" not in config.cleanup_policy

    return hands_over


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(Command[tuple[ProducerId, int]]):
    """The first of a block of ids, and how many they are."""

    RESULT: ClassVar[Any] = tuple[ProducerId, int]
    broker_id: BrokerId
    broker_epoch: BrokerEpoch

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ProducerId, int] | Refusal]:
        return allocate_producer_ids(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSegment(Command[None]):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteHistory(Command[None]):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceSegments(Command[None]):
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SealMove(Command[None]):
    """As `seal_move`. To ask again changes nothing, or is refused: each begins a leader epoch."""

    RESULT: ClassVar[Any] = None
    seal: Seal

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return seal_move(image, self.seal)


class Standing(TypedDict):
    """Who asks something of a move: the leader of the partition in that epoch, in that incarnation."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStep(Command[None]):
    """What the leader of a partition asks of its move."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishMove(MoveStep):
    """As `finish_move`."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return finish_move(image, **self.standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailTarget(MoveStep):
    """As `fail_target`."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return fail_target(image, **self.standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpMove(MoveStep):
    """As `give_up_move`."""

    for_good: bool = True
    """Else the move itself stays, and begins anew."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return give_up_move(image, **self.standing, for_good=self.for_good)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIsr(Command[tuple[ErrorCode, ...]]):
    """A leader asks for other in-sync replicas. One error code for each proposal, in order."""

    RESULT: ClassVar[Any] = tuple[ErrorCode, ...]
    REPEATABLE: ClassVar[bool] = False  # whoever asks has to know that an ask may yet be heard
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    proposals: tuple[IsrProposal, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ErrorCode, ...] | Refusal]:
        return alter_isr(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch, proposals=self.proposals)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveIsr(Command[None]):
    """The disk under a broker's copies of these partitions failed: others are to lead, and to be counted on.
    `for_room`: it is only full, and they are so where they have room themselves."""

    RESULT: ClassVar[Any] = None
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[tuple[TopicId, PartitionIndex], ...]
    for_room: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        keys = [TopicPartition(*each) for each in self.partitions]
        return leave_isr(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch, partitions=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewCopies(Command[tuple[ErrorCode, ...]]):
    """A broker with damaged copies wants to take them anew from their leaders. One error code for each, in order."""

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


# what is more than a decision on the image


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(Ask[BrokerEpoch]):
    """A process has started: it becomes a member of the quorum, as a learner, where it is none, and gets its epoch."""

    RESULT: ClassVar[Any] = BrokerEpoch
    cluster_id: ClusterId
    broker_id: BrokerId
    directory_id: DirectoryId
    incarnation: IncarnationId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    lineage: str | None = None
    """Of its log; None: it has none yet, and follows any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Ask[bool]):
    """The broker lives; whether it is unfenced now. `ready`: it has replayed its registration and serves. `stopping`:
    it wants to lead nothing any more. `is_full`: its disk has no room for what clients write. `states`: what else is
    wrong with it. `clock_ms`: its clock when it said so; 0: it does not say."""

    RESULT: ClassVar[Any] = bool
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    ready: bool
    stopping: bool = False
    is_full: bool = False
    states: tuple[State, ...] = ()
    clock_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker(Ask[None]):
    """A stopped broker goes for good, also from the quorum."""

    RESULT: ClassVar[Any] = None
    REPEATABLE: ClassVar[bool] = False
    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVoter(Ask[None]):
    """A member becomes a voter, or a learner. Without a directory: whichever the broker has."""

    RESULT: ClassVar[Any] = None
    REPEATABLE: ClassVar[bool] = False
    broker_id: BrokerId
    directory_id: DirectoryId | None
    voter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """One member of the quorum, as the leader knows it. Times in milliseconds since 1970; -1: not known."""

    broker_id: BrokerId
    directory_id: DirectoryId
    voter: bool
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    leader: BrokerId
    epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]
    outlook: str = ""
    """What becomes of the learners while there are fewer voters than `controller.voters`; empty: there are as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadQuorum(Ask[QuorumView]):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[R_co]):
    """`index`: of the commit log's entry that what is told rests on."""

    index: int
    result: R_co | Refusal


def encode_ask(cluster_id: ClusterId, ask: Ask[Any]) -> bytes:
    """One JSON object, UTF-8."""
    kind: Any = type(ask)
    fields = {"cluster": cluster_id, "ask": kind.__name__, **shape_of(kind).encode(ask)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_ask(data: bytes) -> tuple[ClusterId, Ask[Any]]:
    """The cluster that the asker belongs to, and what it asks. Raises CorruptData."""
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
    """Raises CorruptData."""
    value = _object(data)
    index = shape_of(int).decode(value.get("index"), "index")
    if "refusal" in value:
        return Answer(index=index, result=shape_of(Refusal).decode(value["refusal"], "refusal"))
    result = None if ask.RESULT is None else shape_of(ask.RESULT).decode(value.get("result"), "result")
    return Answer(index=index, result=typing.cast("R_co", result))


def encode_leader(address: tuple[str, int] | None) -> bytes:
    """Where to ask instead, as who is not the controller says it."""
    return json.dumps({"leader": address}).encode()


def decode_leader(data: bytes) -> tuple[str, int] | None:
    """Host and port. Raises CorruptData."""
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
