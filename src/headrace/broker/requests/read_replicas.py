"""Sends consumers to the replica in their own rack, where `replica.selector.class` says so (KIP-392). Loop-only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.base.ids import BrokerId, Offset
from headrace.broker.partitions.partition import Partition
from headrace.metadata.image import MetadataImage
from headrace.replica.selector import preferred_replica


class ReadReplicas:
    """Chooses the replica for a consumer. One per broker. `by_rack`: whether consumers are sent anywhere at all."""

    def __init__(self, image: Callable[[], MetadataImage], *, by_rack: bool) -> None:
        self._image = image
        self._by_rack = by_rack

    def preferred(self, partition: Partition, rack: str, offset: Offset, listener: str) -> BrokerId | None:
        """Return the replica that should serve a consumer in `rack` (empty: it names none) from `offset` on. None: the
        leader does. It is reached by the consumer's `listener`."""
        if not (self._by_rack and rack and partition.has_followers):
            return None
        return preferred_replica(partition.isr.leader, rack, partial(self._rack_of, listener), offset)

    def _rack_of(self, listener: str, broker: BrokerId) -> str | None:
        """Return a broker's rack; None: it has none, is fenced, or cannot be reached."""
        known = self._image().brokers.get(broker)
        return None if known is None or known.fenced or known.endpoint(listener) is None else known.rack
