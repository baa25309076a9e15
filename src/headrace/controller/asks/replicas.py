"""Requests to the controller about leaders and replicas of partitions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.base.ids import BrokerEpoch, BrokerId, PartitionIndex, TopicId, TopicPartition
from headrace.controller.asks.asking import Command, Setting
from headrace.controller.decision import Decision, Refusal
from headrace.controller.isr import IsrProposal, alter_isr, leave_isr
from headrace.controller.leaders import Election, ElectionOutcome, PartitionRef, elect_leaders
from headrace.controller.renewals import CopyRenewal, renew_copies
from headrace.metadata.configs import topic_config
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage
from headrace.wire.errors import ErrorCode


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
        if self.for_room:
            keys = [key for key in keys if self._others_have_room(image, key, setting.full)]
        return leave_isr(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch, partitions=keys)

    def _others_have_room(self, image: MetadataImage, key: TopicPartition, full: Collection[BrokerId]) -> bool:
        """Whether another in-sync replica has reported no full disk: otherwise leadership would go round in circles."""
        known = image.partition(key)
        others = () if known is None else known.isr
        return any(each != self.broker_id and each not in full for each in others)


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
