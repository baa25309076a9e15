"""Decides which durable segments join the catalog: the fence against a stale owner's exports (DESIGN section 4)."""

from __future__ import annotations

from headrace.base.ids import LeaderEpoch, PartitionIndex, TopicId, TopicPartition
from headrace.controller.decision import Decision, Refusal, decided
from headrace.metadata.events import SegmentPublished
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import SegmentDescriptor
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode


def publish_segment(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    descriptor: SegmentDescriptor,
    previous_hash: str,
) -> Decision[Refusal | None]:
    """Accepted only from the current leader epoch, for a topic id that still is, where the catalog ends, and with
    the chain's head. A segment that is already there as its last is accepted, and changes nothing."""
    key = TopicPartition(topic_id, partition)
    known = image.partition(key)
    if known is None:
        message = f"Partition {partition} of the topic with id {topic_id} does not exist"
        return decided(Refusal(ErrorCode.UNKNOWN_TOPIC_ID, message))
    catalog = image.durable(key)
    if catalog.last is not None and catalog.last.descriptor == descriptor:
        return decided([])
    if not leader_epoch == descriptor.leader_epoch == known.leader_epoch:
        return decided(_stale(leader_epoch, descriptor, known))
    if problem := catalog.refusal(descriptor, previous_hash):
        return decided(Refusal(ErrorCode.INVALID_REQUEST, problem))
    published = SegmentPublished(
        topic_id=topic_id, partition=partition, descriptor=descriptor, previous_hash=previous_hash
    )
    return decided([published])


def _stale(leader_epoch: LeaderEpoch, descriptor: SegmentDescriptor, known: PartitionImage) -> Refusal:
    behind = min(leader_epoch, descriptor.leader_epoch) < known.leader_epoch
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"The segment was exported in leader epoch {descriptor.leader_epoch} and published in {leader_epoch}, "
        f"but the partition is in {known.leader_epoch}.",
    )
