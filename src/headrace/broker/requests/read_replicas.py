"""Sends consumers to the replica in their own rack, where `replica.selector.class` says so (KIP-392). Loop-only."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.ids import BrokerId, Offset
from headrace.broker.partitions.partition import Partition
from headrace.metadata.image import MetadataImage
from headrace.replica.selector import preferred_replica


class ReadReplicas:
    """Chooses the replica for a consumer. One per broker. `by_rack`: whether consumers are sent anywhere at all."""

    def __init__(self, image: Callable[[], MetadataImage], *, by_rack: bool) -> None:
        self._image = image
        self._by_rack = by_rack

    def preferred(self, partition: Partition, rack: str, offset: Offset) -> BrokerId | None:
        """Return the replica that should serve a consumer in `rack` (empty: it names none) from `offset` on. None: the
        leader does."""
        if not (self._by_rack and rack and partition.has_followers):
            return None
        return preferred_replica(partition.isr.leader, rack, self._rack_of, offset)

    def _rack_of(self, broker: BrokerId) -> str | None:
        """Return a broker's rack; None: it has none, or is fenced."""
        known = self._image().brokers.get(broker)
        return None if known is None or known.fenced else known.rack
