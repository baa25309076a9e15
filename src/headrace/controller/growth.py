"""Partitions that have fewer replicas than their topic shall have get more as brokers come.

Promises: what is added is a live broker, and begins out of the ISR; nothing is taken away, and nobody leads anything
else by it. How many a topic shall have is what it was made with, or, where its creator left that to the broker,
`default.replication.factor`, also where fewer brokers lived then. An operator who gives a partition fewer replicas, or
takes back what was under way, is heeded: the topic then shall have no more than that. Source: DESIGN, "Placement and
failover".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from headrace.base.ids import NO_LEADER, BrokerId, TopicPartition
from headrace.controller.decision import Decision
from headrace.controller.placement import Placement
from headrace.controller.reassignments import changes
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage


def lacks_replicas(topic: TopicImage, partition: PartitionImage, live: Collection[BrokerId]) -> bool:
    """Whether it has fewer than it shall have, and somebody lives who has none of it."""
    few = partition.replication_factor < topic.desired_replicas
    return few and any(broker not in partition.replicas for broker in live)


def is_growing(partition: PartitionImage, live: Collection[BrokerId]) -> bool:
    """Whether somebody who lives is being added to it, and is not in sync yet."""
    return any(broker in live and broker not in partition.isr for broker in partition.adding)


def grow_replicas(image: MetadataImage, among: Iterable[TopicPartition]) -> Decision[tuple[TopicPartition, ...]]:
    """Those of `among` that lack replicas, and can be given more now, get them. The result names them. What nobody
    leads, what is being reassigned and what is handed over is left alone; but who is being added and is down keeps
    nobody else from that."""
    placement = Placement(image)
    events: list[MetadataEvent] = []
    grown: list[TopicPartition] = []
    for key in dict.fromkeys(among):
        topic, partition = image.topics.get(key.topic_id), image.partition(key)
        if topic is None or partition is None or not lacks_replicas(topic, partition, placement.live):
            continue
        if partition.leader == NO_LEADER or partition.removing or partition.move is not None:
            continue
        if is_growing(partition, placement.live):
            continue
        after = _grown(partition, placement.widen(partition.replicas, topic.desired_replicas))
        if after.adding != partition.adding:
            events += changes(topic.id, partition, after)[0]
            grown.append(key)
    return Decision(tuple(events), tuple(grown))


def _grown(partition: PartitionImage, replicas: Sequence[BrokerId]) -> PartitionImage:
    return replace(
        partition,
        replicas=tuple(replicas),
        isr=tuple(replica for replica in replicas if replica in partition.isr),
        adding=tuple(
            replica for replica in replicas if replica in partition.adding or replica not in partition.replicas
        ),
    )
