"""Finds the remains in a store of history whose catalog, or whose topic's name, is gone. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.metadata.segment_keys import partition_prefix
from headrace.storage.tier.chunks import chunks_prefix
from headrace.storage.tier.mirror import NAMES, TOPICS, MirroredTopic, segments_prefix
from headrace.storage.tier.reader import Store


def left_of(store: Store, topic: MirroredTopic, partition: PartitionIndex) -> Iterator[str]:
    """Keys of a partition's mirror and segments. A single segment may have been put and never published."""
    prefixes = [segments_prefix(topic.topic_id, partition), chunks_prefix(topic.topic_id, partition)]
    prefixes.append(partition_prefix(topic.cluster_id, TopicPartition(topic.topic_id, partition)))
    for prefix in prefixes:
        for meta in store.objects.list(prefix):
            yield meta.key


def is_a_store(store: Store) -> bool:
    """Whether there is, or was, any topic."""
    return next(iter(store.objects.list(NAMES)), None) is not None or bool(store.objects.directories(TOPICS))


def nameless(store: Store) -> list[str]:
    """Ids of topics that have a mirror but no name: the name is written before everything else."""
    mirrored = store.objects.directories(TOPICS)  # first: a new topic has its name by then
    named = {meta.key.removeprefix(NAMES) for meta in store.objects.list(NAMES)}
    left = {*mirrored} - named
    return [topic for topic in store.objects.directories(TOPICS) if topic in left] if left else []  # else swept
