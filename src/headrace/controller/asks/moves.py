"""Requests to the controller about the brokers that hold a partition, and about moves under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, TopicId
from headrace.controller.asks.asking import Command, Refusals, Setting
from headrace.controller.decision import Decision, Refusal
from headrace.controller.moves import HandsOver, Seal, fail_target, finish_move, give_up_move, prove_move, seal_move
from headrace.controller.moving import MoveOutcome, MoveWish, move_partitions
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.metadata.configs import topic_config
from headrace.metadata.image import MetadataImage
from headrace.metadata.moves import UNLIMITED_RATE
from headrace.metadata.values import TopicImage


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
