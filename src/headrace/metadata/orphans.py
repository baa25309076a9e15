"""Which objects of durable segments nothing will ever refer to.

Promises: `is_orphan` is true only of an object that no catalog names, in this image and in every later one: whatever an
exporter has under way, of this leader epoch or of an older one, on this broker or another. It rests on the image alone
and may be asked of one that is behind. Never looks at a store, nor at a clock.

An exported segment enters a catalog by `controller.durable.publish_segment` alone, which decides on an image that holds
this one, and takes it only where (1) the topic's id is known, (2) its leader epoch is the partition's, (3) it starts
where the catalog ends, or above it where the catalog is empty, and (4) its key says the same of it. So it is refused
for ever:

======================================  ==========================================================================
the key says                            because
======================================  ==========================================================================
a leader epoch below the partition's    a partition's leader epoch only rises: (2) never holds again
a start below the catalog's end         the end of a catalog only rises, through deletions too: (3) never holds again
a topic that was, and is gone           an id is given once: (1) never holds again (`broker.durable.sweeper` sees to it)
anything else                           it may be on its way: kept
======================================  ==========================================================================

One that was made of others (its key says in which leader epoch) enters by `replace_segments` alone, and only where (5)
that is the partition's leader epoch, and (6) it holds just what some segments there hold. So it is refused for ever:

======================================  ==========================================================================
the key says                            because
======================================  ==========================================================================
made in an epoch below the partition's  (5) never holds again
below the catalog's end, a start or an  where segments meet only changes by their leaving, or by one taking the place
end at which no segment starts or ends  of several: they never meet there again, and (6) never holds
======================================  ==========================================================================

Whoever adds another event by which a segment enters a catalog has to add to this.

An object that is kept comes under one of the others in time: the leader publishes the next segment, or another leads.
"""

from __future__ import annotations

from headrace.base.ids import TopicPartition
from headrace.metadata.image import MetadataImage
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import PartitionCatalog


def is_orphan(image: MetadataImage, key: SegmentKey) -> bool:
    """See the module. False for a topic that is not in the image: it may not be in it yet."""
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
    """Whether segments that are here, or are yet to come, may hold just what it does."""
    first, last = catalog.entries.holding(key.start_offset), catalog.entries.holding(key.end_offset)
    starts = key.start_offset > catalog.end_offset
    ends = key.end_offset > catalog.end_offset
    return (starts or (first is not None and first.descriptor.start_offset == key.start_offset)) and (
        ends or (last is not None and last.descriptor.end_offset == key.end_offset)
    )


def has_left(image: MetadataImage, key: SegmentKey) -> bool:
    """Whether an orphan may have been in its catalog before, so that somebody may still be reading it."""
    catalog = image.durable(TopicPartition(key.topic_id, key.partition))
    entry = catalog.entries.holding(key.start_offset)
    return key.end_offset < catalog.log_start_offset or (entry is not None and entry.is_substitute)
