"""Emptied batches as older compactions left them: with the codec of the records that are gone, and no bytes behind."""

from __future__ import annotations

from headrace.storage.keeping import sealed
from headrace.wire.batches import COMPRESSION_MASK, BatchHeader, iterate_headers
from headrace.wire.compression import Compression

PACKED = tuple(codec for codec in Compression if codec is not Compression.NONE)


def unreadable(header: BatchHeader, codec: Compression) -> bytes:
    """The batch of this header, emptied by an older compaction."""
    return sealed(header._replace(count=0, attributes=header.attributes & ~COMPRESSION_MASK | codec), b"")


def as_left_by_older(batches: bytes, codec: Compression) -> bytes:
    """These batches, with the emptied ones as an older compaction would have left them."""
    found = ((header, batches[at : at + header.size]) for at, header in iterate_headers(batches))
    return b"".join(raw if header.count else unreadable(header, codec) for header, raw in found)


def unreadable_in(batches: bytes) -> int:
    """How many there are."""
    headers = [header for _, header in iterate_headers(batches)]
    return sum(not header.count and bool(header.attributes & COMPRESSION_MASK) for header in headers)
