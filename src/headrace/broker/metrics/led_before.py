"""Counts what was appended to partitions that this broker led, and leads no more. Its counters never fall."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.partitions.partition import Partition
from headrace.metadata.image import MetadataImage


class LedBefore:
    """One per broker whose metrics are asked for."""

    def __init__(self) -> None:
        self._appended: dict[str, tuple[int, int]] = {}
        """Records and bytes, by topic."""

    def on_forgotten(self, partition: Partition) -> None:
        """Count the partition's appends, as this broker does not lead it any more."""
        records, size = self._appended.get(partition.topic, (0, 0))
        self._appended[partition.topic] = (records + partition.appended_records, size + partition.appended_bytes)

    def of(self, image: MetadataImage) -> Mapping[str, tuple[int, int]]:
        """Return the records and bytes of each topic; those of deleted topics are forgotten."""
        self._appended = {topic: counts for topic, counts in self._appended.items() if image.contains(topic)}
        return self._appended
