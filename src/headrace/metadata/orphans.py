"""Finds objects of durable segments that nothing will ever refer to.

Promises: `is_orphan` is true only of an object that no catalog names, in this image and in every later one. That holds
whatever an exporter has under way, in this leader epoch or an older one, on this broker or another. It depends on the
image alone, which may be outdated. Never looks at a store, nor at a clock.

An exported segment enters a catalog only by `controller.durable.publish_segment`, which decides on an image that
includes this one. It accepts the segment only if:
- (1) the topic's id is known;
- (2) its leader epoch is the partition's;
- (3) it starts where the catalog ends, or above that where the catalog is empty;
- (4) its key agrees with all of this.

So these keys are refused for ever:
- A leader epoch below the partition's: that epoch only rises, so (2) never holds again.
- A start below the catalog's end: the end only rises, also through deletions, so (3) never holds again.
- A topic that was deleted: ids are never reused, so (1) never holds again. `broker.durable.sweeper` decides this case.

Any other object may be on its way, and is kept.

A merged segment (its key has the leader epoch of the merge) enters only by `replace_segments`. It is accepted only if:
- (5) that epoch is the partition's leader epoch;
- (6) it holds exactly the range of some segments in the catalog.

So these keys are refused for ever:
- Made in an epoch below the partition's: (5) never holds again.
- Below the catalog's end, with a start or an end at which no segment starts or ends: (6) never holds. Boundaries
  between segments only disappear, by deletion or merging; a new one never arises there.

Another event by which a segment enters a catalog must be added to this list.

An object that is kept falls under one of the other cases in time: the leader publishes the next segment, or changes.
"""

from __future__ import annotations

from headrace.base.ids import TopicPartition
from headrace.metadata.image import MetadataImage
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import PartitionCatalog


def is_orphan(image: MetadataImage, key: SegmentKey) -> bool:
    """Whether the object is an orphan, as the module says. False for an unknown topic: it may not be in the image
    yet."""
    where = TopicPartition(key.topic_id, key.partition)
    partition = image.partition(where)
    if partition is None or key.cluster_id != image.cluster_id:
        return False
    catalog = image.durable(where)
    entry = catalog.entries.holding(key.start_offset)
    if entry is not None and entry.descriptor.key == str(key):
        return False
    if key.made_in is not None:
        return key.made_in < partition.leader_epoch or not _may_fit(catalog, key)
    return key.leader_epoch < partition.leader_epoch or key.start_offset < catalog.next_offset


def _may_fit(catalog: PartitionCatalog, key: SegmentKey) -> bool:
    """Whether segments that exist now, or will, may hold exactly the range of this key."""
    first, last = catalog.entries.holding(key.start_offset), catalog.entries.holding(key.end_offset)
    starts = key.start_offset > catalog.end_offset
    ends = key.end_offset > catalog.end_offset
    return (starts or (first is not None and first.descriptor.start_offset == key.start_offset)) and (
        ends or (last is not None and last.descriptor.end_offset == key.end_offset)
    )


def has_left(image: MetadataImage, key: SegmentKey) -> bool:
    """Whether an orphan may have been in its catalog before, so that a reader may still be using it."""
    catalog = image.durable(TopicPartition(key.topic_id, key.partition))
    entry = catalog.entries.holding(key.start_offset)
    return key.end_offset < catalog.log_start_offset or (entry is not None and entry.is_substitute)
