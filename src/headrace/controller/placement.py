"""Places the replicas of new partitions, and chooses their leaders.

Promises:
- The result is the same for the same image.
- Every replica that is chosen here is a live broker.
- Replicas of one partition are on different brokers, and on different racks while there are any.
- The least loaded broker comes first, then the smallest id.
- The ISR of a new partition is all of its live replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, PartitionImage


class Placement:
    """Places one request's partitions, each counting those before it. A new one is made for each decision."""

    def __init__(self, image: MetadataImage) -> None:
        self._known = image.brokers
        self._brokers = {broker.id: broker for broker in image.live_brokers()}
        self.registered = frozenset(image.brokers)
        self.shares_logs = image.shares_logs
        """Whether a partition has one replica, whatever factor is asked for (`controller.shared_logs`)."""
        self._leaders = Counter(dict(image.leaderships))
        self._replicas = Counter(dict(image.copies))
        self._preferences = Counter(dict(image.preferences))

    @property
    def live(self) -> frozenset[BrokerId]:
        return frozenset(self._brokers)

    def place(self, index: int, replication_factor: int) -> PartitionImage:
        """Return a new partition on `replication_factor` live brokers. The caller has checked that there are enough."""
        assert 0 < replication_factor <= len(self._brokers), "the caller has checked the factor"
        chosen = [min(self._brokers.values(), key=lambda broker: (self._leaders[broker.id], broker.id))]
        while len(chosen) < replication_factor:
            chosen.append(self._next_replica(chosen))
        return self.assign(index, [broker.id for broker in chosen])

    def assign(self, index: int, replicas: Sequence[BrokerId]) -> PartitionImage:
        """Return a new partition on these brokers, of which at least one is live. The first live one leads."""
        isr = tuple(replica for replica in replicas if replica in self._brokers)
        partition = PartitionImage(
            index=PartitionIndex(index),
            leader=isr[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
            replicas=tuple(replicas),
            isr=isr,
        )
        self._leaders[partition.leader] += 1
        self._replicas.update(partition.replicas)
        return partition

    def widen(self, replicas: Sequence[BrokerId], replication_factor: int) -> list[BrokerId]:
        """Return the replicas of an existing partition, and more live brokers up to the factor. The first, which is to
        lead, is the broker that is first in the fewest partitions; the present first one where numbers are equal."""
        chosen = [self._known[replica] for replica in replicas if replica in self._known]
        wanted = min(replication_factor - len(replicas), len(self.live.difference(replicas)))
        for _ in range(wanted):
            chosen.append(self._next_replica(chosen))
        added = [broker.id for broker in chosen if broker.id not in replicas]
        self._replicas.update(added)
        self._preferences[replicas[0]] -= 1
        widened = [*replicas, *added]
        first = min(widened, key=lambda broker: (broker not in self._brokers, self._preferences[broker]))
        self._preferences[first] += 1
        return [first, *(broker for broker in widened if broker != first)]

    def _next_replica(self, chosen: Sequence[BrokerImage]) -> BrokerImage:
        racks = {broker.rack for broker in chosen if broker.rack is not None}
        free = (broker for broker in self._brokers.values() if broker not in chosen)
        return min(free, key=lambda broker: (broker.rack in racks, self._replicas[broker.id], broker.id))
