"""Tells which partitions have fewer replicas than they shall have. `controller.growth` decides what they get."""

from __future__ import annotations

from collections.abc import Collection

from headrace.base.ids import BrokerId
from headrace.metadata.values import PartitionImage, TopicImage


def lacks_replicas(topic: TopicImage, partition: PartitionImage, live: Collection[BrokerId]) -> bool:
    """Whether the partition has fewer replicas than it shall have, and a live broker holds none of it."""
    few = partition.replication_factor < topic.desired_replicas
    return few and any(broker not in partition.replicas for broker in live)


def is_growing(partition: PartitionImage, live: Collection[BrokerId]) -> bool:
    """Whether a live broker is being added to the partition, and is not in sync yet."""
    return any(broker in live and broker not in partition.isr for broker in partition.adding)
