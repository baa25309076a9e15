"""Gives more replicas, as brokers come, to partitions with fewer than their topic shall have.

Promises:
- An added replica is a live broker, and begins outside the ISR. Nothing is removed, and no leader changes.
- A topic shall have as many replicas as it was created with. Where its creator left that to the broker, it is
  `default.replication.factor`, even where fewer brokers lived then.
- An operator may give a partition fewer replicas, or cancel what is under way. The topic then shall have no more than
  that.

Source: DESIGN, "Placement and failover".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.base.ids import NO_LEADER, BrokerId, TopicPartition
from headrace.controller.decision import Decision
from headrace.controller.lacking import is_growing, lacks_replicas
from headrace.controller.placement import Placement
from headrace.controller.reassignments import changes
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage


def grow_replicas(image: MetadataImage, among: Iterable[TopicPartition]) -> Decision[tuple[TopicPartition, ...]]:
    """Give replicas to those of `among` that lack some, where that can be done now. The result names them. Partitions
    that have no leader, are being reassigned or handed over, are left alone. A broker that is being added and is down
    holds no other back."""
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
