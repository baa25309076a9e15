"""Partitions of which the store has no catalog: whether there should be one.

Promises that what is there and not named is told, and that a partition of which nothing was exported yet is not: its
first segment is looked for again until its mirror had time to be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep

from headrace.base.errors import CorruptData
from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.limits import AUDIT_MIRROR_LOOK_MS, AUDIT_MIRROR_TRIES_MAX
from headrace.metadata.segment_keys import partition_prefix
from headrace.metadata.segments import PartitionCatalog
from headrace.spark.extent import ReadTopic, Sources
from headrace.storage.tier.chunks import chunks_prefix
from headrace.storage.tier.mirror import segments_prefix


class Patience:
    """Of one audit: all of its partitions together are waited for no longer than one would be."""

    def __init__(self) -> None:
        self._looks = AUDIT_MIRROR_TRIES_MAX

    def stays_away(self, sources: Sources, topic: ReadTopic, partition: int) -> bool:
        """Whether the store has no catalog of it, even after some time."""
        while not _is_there(sources, topic, partition):
            if self._looks <= 0:
                return True
            self._looks -= 1
            sleep(AUDIT_MIRROR_LOOK_MS / 1000)
        return False


def _is_there(sources: Sources, topic: ReadTopic, partition: int) -> bool:
    assert sources.store is not None, "an audit has one"
    mirrored = topic.mirrored or sources.store.topic_of(topic.id)
    try:
        return sources.catalog(topic._replace(mirrored=mirrored), partition) is not None
    except CorruptData:
        return True  # it is being written


def unnamed_problems(sources: Sources, topic: ReadTopic, partition: int, patience: Patience) -> list[str]:
    """Of a store alone."""
    found = next(_left(sources, topic, partition), None)
    if found is None or not patience.stays_away(sources, topic, partition):
        return []
    return [
        f"{topic.name}-{partition}: its catalog is not in the store, though object '{found}' is, so that none of its "
        "history was looked at: audit it beside its brokers."
    ]


def unmirrored_problems(
    sources: Sources, topic: ReadTopic, partition: int, catalog: PartitionCatalog, patience: Patience
) -> list[str]:
    """`catalog`: the brokers'."""
    if not catalog.entries or not patience.stays_away(sources, topic, partition):
        return []
    return [
        f"{topic.name}-{partition}: its catalog is not in the store, though the brokers know {len(catalog.entries)} "
        "segments of it, so that none of its history was looked at."
    ]


def _left(sources: Sources, topic: ReadTopic, partition: int) -> Iterator[str]:
    """What the store has of it."""
    if sources.store is None or topic.mirrored is None:
        return
    index = PartitionIndex(partition)
    prefixes = [segments_prefix(topic.id, index), chunks_prefix(topic.id, index)]
    prefixes.append(partition_prefix(topic.mirrored.cluster_id, TopicPartition(topic.id, index)))
    for prefix in prefixes:
        for meta in sources.store.objects.list(prefix):
            yield meta.key
