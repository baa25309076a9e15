"""Decides which durable segments join the catalog: the fence against a stale owner's exports (DESIGN section 4)."""

from __future__ import annotations

from headrace.base.ids import TopicPartition
from headrace.controller.decision import Decision, Refusal, Verdict, decided
from headrace.metadata.events import SegmentPublished
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import SegmentDescriptor
from headrace.wire.errors import ErrorCode


def publish_segment(
    image: MetadataImage, key: TopicPartition, descriptor: SegmentDescriptor, previous_hash: str
) -> Decision[Refusal | None]:
    """Accepted only from the current leader epoch, for a topic id that still is, where the catalog ends, and with
    the chain's head. A segment that is already there as its last is accepted, and changes nothing."""
    return decided(_publish(image, key, descriptor, previous_hash))


def _publish(image: MetadataImage, key: TopicPartition, descriptor: SegmentDescriptor, previous_hash: str) -> Verdict:
    if image.topic_by_id(key.topic_id) is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic with id {key.topic_id} does not exist")
    partition = image.partition(key)
    if partition is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {key.partition} does not exist")
    catalog = image.durable(key)
    if catalog.last is not None and catalog.last.descriptor == descriptor:
        return []
    if descriptor.leader_epoch != partition.leader_epoch:
        stale = descriptor.leader_epoch < partition.leader_epoch
        return Refusal(
            ErrorCode.FENCED_LEADER_EPOCH if stale else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"The segment was exported in leader epoch {descriptor.leader_epoch}, now it is {partition.leader_epoch}.",
        )
    if problem := catalog.refusal(descriptor, previous_hash):
        return Refusal(ErrorCode.INVALID_REQUEST, problem)
    published = SegmentPublished(
        topic_id=key.topic_id, partition=key.partition, descriptor=descriptor, previous_hash=previous_hash
    )
    return [published]
