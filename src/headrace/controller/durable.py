"""Decides which durable segments join the catalog, and which leave it: the fence against a stale owner's exports and
deletions (DESIGN section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.ids import FIRST_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import SEGMENTS_DELETED_AT_ONCE_MAX
from headrace.controller.decision import Decision, Refusal, decided
from headrace.metadata.events import SegmentPublished, SegmentsDeleted
from headrace.metadata.image import MetadataImage
from headrace.metadata.segment_keys import is_misnamed
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
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
    log_start_offset: Offset = FIRST_OFFSET,
) -> Decision[Refusal | None]:
    """Accepted only from the current leader epoch, for a topic id that still is, where the catalog ends, and with
    the chain's head. A segment that is already there as its last is accepted, and changes nothing. `log_start_offset`:
    where the owner's log starts. The first batch of history may hold records that were deleted from the log before:
    history begins, in the same entry, where the log does."""
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
    if is_misnamed(image.cluster_id, key, descriptor):
        return decided(Refusal(ErrorCode.INVALID_REQUEST, f"Object '{descriptor.key}' is named as another segment's."))
    if problem := catalog.refusal(descriptor, previous_hash):
        return decided(Refusal(ErrorCode.INVALID_REQUEST, problem))
    published = SegmentPublished(
        topic_id=topic_id, partition=partition, descriptor=descriptor, previous_hash=previous_hash
    )
    after = catalog.published(descriptor)
    start = min(log_start_offset, after.next_offset)
    if catalog.entries or start <= max(descriptor.start_offset, after.log_start_offset):
        return decided([published])
    return decided([published, _deleted(key, after, start, after.below(start))])


def _deleted(
    key: TopicPartition, catalog: PartitionCatalog, start: Offset, gone: Sequence[SegmentDescriptor]
) -> SegmentsDeleted:
    return SegmentsDeleted(
        topic_id=key.topic_id,
        partition=key.partition,
        log_start_offset=start,
        removed=tuple(descriptor.sha256 for descriptor in gone),
        previous_hash=catalog.head,
    )


def delete_history(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    log_start_offset: Offset,
) -> Decision[Refusal | None]:
    """Durable history is to begin at `log_start_offset`, or at its end where that is lower. Accepted only from the
    current leader epoch. As many segments leave as one event names; who wants more asks again."""
    key = TopicPartition(topic_id, partition)
    known = image.partition(key)
    if known is None:
        message = f"Partition {partition} of the topic with id {topic_id} does not exist"
        return decided(Refusal(ErrorCode.UNKNOWN_TOPIC_ID, message))
    if leader_epoch != known.leader_epoch:
        return decided(
            Refusal(
                ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < known.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"History is to be deleted in leader epoch {leader_epoch}, but the partition is in "
                f"{known.leader_epoch}.",
            )
        )
    catalog = image.durable(key)
    start = min(log_start_offset, catalog.next_offset)
    gone = catalog.below(start)
    if len(gone) > SEGMENTS_DELETED_AT_ONCE_MAX:
        gone = gone[:SEGMENTS_DELETED_AT_ONCE_MAX]
        start = gone[-1].next_offset
    if start <= catalog.log_start_offset:
        return decided([])
    return decided([_deleted(key, catalog, start, gone)])


def _stale(leader_epoch: LeaderEpoch, descriptor: SegmentDescriptor, known: PartitionImage) -> Refusal:
    behind = min(leader_epoch, descriptor.leader_epoch) < known.leader_epoch
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"The segment was exported in leader epoch {descriptor.leader_epoch} and published in {leader_epoch}, "
        f"but the partition is in {known.leader_epoch}.",
    )
