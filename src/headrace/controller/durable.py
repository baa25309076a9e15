"""Decides which durable segments join the catalog, and which leave it. This fences a stale owner's exports and
deletions (DESIGN section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.ids import FIRST_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import CATALOG_LINKS_MAX, SEGMENTS_DELETED_AT_ONCE_MAX
from headrace.controller.decision import Decision, Refusal, decided
from headrace.metadata.events import SegmentPublished, SegmentsDeleted, SegmentsReplaced
from headrace.metadata.image import MetadataImage
from headrace.metadata.segment_keys import SegmentKey, is_misnamed
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
    """Add a segment to the catalog. It must come from the current leader epoch, for an existing topic id, where the
    catalog ends, and with the chain's head. A segment that is already the last is accepted, and changes nothing.

    `log_start_offset` is the start of the owner's log. The first batch of history may hold records that were deleted
    from the log before. History begins, in the same entry, where the log does.
    """
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


def replace_segments(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    descriptor: SegmentDescriptor,
    removed: Sequence[str],
) -> Decision[Refusal | None]:
    """Replace the segments with these SHA-256 hashes, in order, by one that holds their offsets. It must come from the
    current leader epoch, in which its object was made, as its key says. It is refused while the partition is handed
    over. A segment that is there already is accepted, and changes nothing."""
    key = TopicPartition(topic_id, partition)
    known = image.partition(key)
    if known is None:
        message = f"Partition {partition} of the topic with id {topic_id} does not exist"
        return decided(Refusal(ErrorCode.UNKNOWN_TOPIC_ID, message))
    catalog = image.durable(key)
    there = catalog.entries.get(descriptor.start_offset)
    if there is not None and there.descriptor == descriptor:
        return decided([])
    if leader_epoch != known.leader_epoch:
        return decided(_of_another_epoch("replaced", leader_epoch, known))
    if refusal := refusal_of_all(image, key):
        return decided(refusal)
    if descriptor.key != str(SegmentKey.of(image.cluster_id, key, descriptor, made_in=leader_epoch)):
        problem = (
            f"Object '{descriptor.key}' is not named as one that was made of others in leader epoch {leader_epoch}."
        )
        return decided(Refusal(ErrorCode.INVALID_REQUEST, problem))
    if problem := catalog.replacement_refusal(descriptor, removed) or "":
        return decided(Refusal(ErrorCode.INVALID_REQUEST, problem))
    replaced = SegmentsReplaced(
        topic_id=topic_id,
        partition=partition,
        descriptor=descriptor,
        removed=tuple(removed),
        previous_hash=catalog.head,
    )
    return decided([replaced])


def refusal_of_all(image: MetadataImage, key: TopicPartition) -> Refusal | None:
    """Return why no segment of a partition may be replaced now; None where that depends on the segment. Also asked
    before the object is made."""
    if key in image.moves:
        problem = "The partition is being handed over: ask again after that."
        return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, problem)
    links = len(image.durable(key).deletions)
    if links >= CATALOG_LINKS_MAX:
        problem = f"{links} changes are linked behind the last segment: ask again after the next one."
        return Refusal(ErrorCode.POLICY_VIOLATION, problem)
    return None


def delete_history(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    log_start_offset: Offset,
) -> Decision[Refusal | None]:
    """Let durable history begin at `log_start_offset`, or at its end where that is lower. It must come from the current
    leader epoch. At most as many segments leave as one event names; the leader asks again for more."""
    key = TopicPartition(topic_id, partition)
    known = image.partition(key)
    if known is None:
        message = f"Partition {partition} of the topic with id {topic_id} does not exist"
        return decided(Refusal(ErrorCode.UNKNOWN_TOPIC_ID, message))
    if leader_epoch != known.leader_epoch:
        return decided(_of_another_epoch("deleted", leader_epoch, known))
    catalog = image.durable(key)
    start = min(log_start_offset, catalog.next_offset)
    gone = catalog.below(start, SEGMENTS_DELETED_AT_ONCE_MAX + 1)
    if len(gone) > SEGMENTS_DELETED_AT_ONCE_MAX:
        gone = gone[:SEGMENTS_DELETED_AT_ONCE_MAX]
        start = gone[-1].next_offset
    if start <= catalog.log_start_offset:
        return decided([])
    return decided([_deleted(key, catalog, start, gone)])


def _of_another_epoch(what: str, leader_epoch: LeaderEpoch, known: PartitionImage) -> Refusal:
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < known.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"History is to be {what} in leader epoch {leader_epoch}, but the partition is in {known.leader_epoch}.",
    )


def _stale(leader_epoch: LeaderEpoch, descriptor: SegmentDescriptor, known: PartitionImage) -> Refusal:
    behind = min(leader_epoch, descriptor.leader_epoch) < known.leader_epoch
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"The segment was exported in leader epoch {descriptor.leader_epoch} and published in {leader_epoch}, "
        f"but the partition is in {known.leader_epoch}.",
    )
