"""Which objects of durable segments nothing will ever refer to.

Promises: `is_orphan` is true only of an object that no catalog names, in this image and in every later one: whatever an
exporter has under way, of this leader epoch or of an older one, on this broker or another. It rests on the image alone
and may be asked of one that is behind. Never looks at a store, nor at a clock.

A segment enters a catalog by `controller.durable.publish_segment` alone, which decides on an image that holds this one,
and takes it only where (1) the topic's id is known, (2) its leader epoch is the partition's, (3) it starts where the
catalog ends, or above it where the catalog is empty, and (4) its key says the same of it. So it is refused for ever:

======================================  ==========================================================================
the key says                            because
======================================  ==========================================================================
a leader epoch below the partition's    a partition's leader epoch only rises: (2) never holds again
a start below the catalog's end         the end of a catalog only rises, through deletions too: (3) never holds again
a topic that was, and is gone           an id is given once: (1) never holds again (`broker.sweeper` sees to it)
anything else                           it may be on its way: kept
======================================  ==========================================================================

Whoever adds another event by which a segment enters a catalog has to add to this: one that replaces segments below the
catalog's end would break the second line.

An object that is kept comes under one of the others in time: the leader publishes the next segment, or another leads.
"""

from __future__ import annotations

from headrace.base.ids import TopicPartition
from headrace.metadata.image import MetadataImage
from headrace.metadata.segment_keys import SegmentKey


def is_orphan(image: MetadataImage, key: SegmentKey) -> bool:
    """See the module. False for a topic that is not in the image: it may not be in it yet."""
    where = TopicPartition(key.topic_id, key.partition)
    partition = image.partition(where)
    if partition is None or key.cluster_id != image.cluster_id:
        return False
    catalog = image.durable(where)
    entry = catalog.entries.get(key.start_offset)
    if entry is not None and entry.descriptor.key == str(key):
        return False
    return key.leader_epoch < partition.leader_epoch or key.start_offset < catalog.next_offset


def has_left(image: MetadataImage, key: SegmentKey) -> bool:
    """Whether an orphan may have been in its catalog before, so that somebody may still be reading it."""
    return key.end_offset < image.durable(TopicPartition(key.topic_id, key.partition)).log_start_offset
