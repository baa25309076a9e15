"""Slices of durable segments that are read on their own, and the errors of history that differs from its catalog."""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.errors import CorruptData
from headrace.storage.tier.packed import PackedPart


class DamagedHistory(CorruptData):
    """Durable history that differs from its catalog. The text names topic, partition, offset and object."""

    def __init__(self, topic: str, partition: int, offset: int, key: str, reason: object) -> None:
        super().__init__(topic, partition, offset, key, str(reason))  # all in args, so that it survives pickling
        self.topic, self.partition, self.offset, self.key, self.reason = self.args

    def __str__(self) -> str:
        return (
            f"Durable history of topic '{self.topic}', partition {self.partition} is damaged at offset {self.offset} "
            f"in object '{self.key}': {self.reason}"
        )


class SegmentGone(DamagedHistory):
    """An object is not in the store, though the catalog named it when it was read."""


class SegmentSlice(NamedTuple):
    """Whole batches of one segment, to be read on their own. Cheap to pickle. Bytes and offsets, ends exclusive."""

    topic: str
    partition: int
    key: str
    position: int
    end_position: int
    base_offset: int
    """Base offset of the batch at `position`."""
    end_offset: int
    """Offset after the last batch of the slice."""
    first_offset: int
    """The first wanted offset. Records below it in the first batch are not wanted."""
    next_offset: int
    """Records from this offset on in the last batch are not wanted."""
    crc32c: int | None
    """CRC32C of these bytes, where they are a whole segment's; otherwise None."""
    is_thinned: bool = False
    """Compaction has removed records of the segment: its batches may have fewer records than offsets."""
    blocks: tuple[PackedPart, ...] = ()
    """The blocks with these bytes, where the segment is packed. Positions are those of unpacked batches."""

    def blocks_between(self, start: int, end: int) -> list[PackedPart]:
        """The blocks with the bytes from `start`, where one begins, up to `end`, or further to the end of a block.
        Raises CorruptData.
        """
        found = [block for block in self.blocks if start <= block.position < end]
        if not found or found[0].position != start:
            raise CorruptData(f"No block begins with byte {start} of its batches.")
        return found

    def damaged(self, offset: int, reason: object) -> DamagedHistory:
        kind = SegmentGone if isinstance(reason, FileNotFoundError) else DamagedHistory
        return kind(self.topic, self.partition, offset, self.key, reason)
