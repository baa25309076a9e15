"""Requests to the controller about durable history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.base.ids import FIRST_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.controller.asks.asking import Command, Setting
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import delete_history, publish_segment, replace_segments
from headrace.controller.recovery import Recovery, RecoveryWish, recover_partitions
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import SegmentDescriptor


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
class RecoverPartitions(Command[Recovery]):
    """As `recover_partitions`."""

    RESULT: ClassVar[Any] = Recovery
    # an old leader may have come back meanwhile by another request, and would lose it again
    REPEATABLE: ClassVar[bool] = False
    wish: RecoveryWish
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Recovery | Refusal]:
        return recover_partitions(image, self.wish, validate_only=self.validate_only)
