"""The batches of a durable segment, whether or not its object has them in compressed blocks.

Promises: what is returned are the batches as they were in the log. Their checksums are for the caller to check. A block
unpacks to no more than the footer, or the block itself, says, and to at most STORED_BLOCK_BYTES_MAX bytes. All of it
blocks: never call it on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.limits import PACKED_SEGMENT_BYTES_MAX, STORED_BLOCK_BYTES_MAX
from headrace.base.ports import Buffer, ReadableObjects
from headrace.storage.packed_blocks import read_header, unpack_block
from headrace.storage.tier.format import SegmentFooter


class PackedPart(NamedTuple):
    """One block of a segment. Positions in bytes, ends exclusive."""

    position: int
    """Position of its batches among all unpacked batches."""
    end_position: int
    at: int
    """Position of the block in the object."""
    end_at: int


def parts_of(footer: SegmentFooter, start: int = 0, end: int | None = None) -> tuple[PackedPart, ...]:
    """The blocks with the batches from position `start` up to `end`; none where the segment is not packed."""
    if not footer.blocks:
        return ()
    ends = pairwise([*(entry.position for entry in footer.index), footer.batch_bytes])
    found = (PackedPart(*place, *stored) for place, stored in zip(ends, pairwise(footer.blocks), strict=True))
    return tuple(part for part in found if part.end_position > start and (end is None or part.position < end))


def read_parts(objects: ReadableObjects, key: str, parts: Sequence[PackedPart]) -> bytes:
    """The batches of neighbouring blocks, in one range read. Raises CorruptData, FileNotFoundError, EOFError,
    StorageFailure.
    """
    begin, end = parts[0].at, parts[-1].end_at
    return b"".join(_unpacked(objects.get_range(key, begin, end - begin), begin, parts))


def batches_of(body: bytes, footer: SegmentFooter) -> Buffer:
    """All batches of a whole object. Raises CorruptData."""
    if not footer.blocks:
        return memoryview(body)[: footer.batch_bytes]
    if footer.batch_bytes > PACKED_SEGMENT_BYTES_MAX:
        raise CorruptData(f"its blocks are said to hold {footer.batch_bytes} bytes of batches")
    return b"".join(_unpacked(body, 0, parts_of(footer)))


def walked(body: bytes, batch_bytes: int) -> Iterator[PackedPart]:
    """The blocks of an object whose footer is unreadable, by their own headers, as far as these lead."""
    position = at = 0
    while position < batch_bytes:
        try:
            header = read_header(body, at)
        except CorruptData:
            return
        part = PackedPart(position, position + header.content_bytes, at, at + header.size)
        if not header.content_bytes or part.end_position > batch_bytes or part.end_at > len(body):
            return
        yield part
        position, at = part.end_position, part.end_at


def _unpacked(data: Buffer, begin: int, parts: Sequence[PackedPart]) -> Iterator[Buffer]:
    """`data` are the object's bytes from `begin` on."""
    view = memoryview(data)
    for part in parts:
        wanted = part.end_position - part.position
        try:
            found = unpack_block(view[part.at - begin : part.end_at - begin], min(wanted, STORED_BLOCK_BYTES_MAX))
        except CorruptData as error:
            raise CorruptData(f"its bytes {part.at} to {part.end_at} are no sound block: {error}") from error
        if len(found) != wanted:
            raise CorruptData(f"its block at byte {part.at} holds {len(found)} bytes of batches, not {wanted}")
        yield found
