"""Where the replicas of new partitions go, and who leads them.

Promises: deterministic for one image; every replica is a live broker; replicas of one partition are on different
brokers, and on different racks while there are any. Least loaded first, then the smallest id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, PartitionImage


class Placement:
    """Places one request's partitions, each counting those before it. Made anew for each decision."""

    def __init__(self, image: MetadataImage) -> None:
        self._brokers = {broker.id: broker for broker in image.live_brokers()}
        self._leaders: Counter[BrokerId] = Counter()
        self._replicas: Counter[BrokerId] = Counter()
        self._alone = len(self._brokers) <= 1  # with one there is nothing to balance, and nothing to count
        if not self._alone:
            for partition in _partitions(image):
                self._count(partition)

    @property
    def live(self) -> frozenset[BrokerId]:
        return frozenset(self._brokers)

    def place(self, index: int, replication_factor: int) -> PartitionImage:
        """A new partition on `replication_factor` live brokers, of which there are as many."""
        assert 0 < replication_factor <= len(self._brokers), "the caller has checked the factor"
        chosen = [min(self._brokers.values(), key=lambda broker: (self._leaders[broker.id], broker.id))]
        while len(chosen) < replication_factor:
            chosen.append(self._next_replica(chosen))
        return self.assign(index, [broker.id for broker in chosen])

    def assign(self, index: int, replicas: Sequence[BrokerId]) -> PartitionImage:
        """A new partition on these live brokers, led by the first."""
        partition = PartitionImage(
            index=PartitionIndex(index),
            leader=replicas[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
            replicas=tuple(replicas),
            isr=tuple(replicas),
        )
        if not self._alone:
            self._count(partition)
        return partition

    def _next_replica(self, chosen: Sequence[BrokerImage]) -> BrokerImage:
        racks = {broker.rack for broker in chosen if broker.rack is not None}
        free = (broker for broker in self._brokers.values() if broker not in chosen)
        return min(free, key=lambda broker: (broker.rack in racks, self._replicas[broker.id], broker.id))

    def _count(self, partition: PartitionImage) -> None:
        self._leaders[partition.leader] += 1
        self._replicas.update(partition.replicas)


def _partitions(image: MetadataImage) -> Iterator[PartitionImage]:
    for topic in image.topics.values():
        yield from topic.partitions
