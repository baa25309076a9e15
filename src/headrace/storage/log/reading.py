"""Cutting what was read from a segment at batch boundaries: the hot path of fetch.

Its slow twin is in tests/storage/log/test_log_read.py.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.wire.batches import HEADER_BYTES, LENGTH_END, MAGIC

FRONT: Final = Struct(">qi4xb6xi")
"""Base offset, length, magic, last offset delta."""
SHORTEST: Final = HEADER_BYTES - LENGTH_END


class Cut(NamedTuple):
    """The whole batches that a buffer opens with."""

    size: int
    next_offset: int
    """Offset after the last of them; the offset asked for where there is none."""


def cut(data: bytes, limit: int, start: int, end: int) -> Cut:
    """How much of `data`, which opens with the batch that holds `start`, is whole batches below `end`, within `limit`
    bytes. Raises CorruptData where the bytes are no batches with rising offsets."""
    unpack = FRONT.unpack_from
    at, next_offset, stop = 0, start, min(len(data), limit)
    while at + HEADER_BYTES <= stop:
        base, length, magic, delta = unpack(data, at)
        batch_end, batch_next = at + LENGTH_END + length, base + delta + 1
        if length < SHORTEST or magic != MAGIC or delta < 0 or batch_next <= next_offset or (at and base < next_offset):
            raise CorruptData(f"What should be the batch at offset {next_offset} is none.")
        if batch_end > stop or batch_next > end:
            break
        at, next_offset = batch_end, batch_next
    return Cut(at, next_offset)


def first_batch(data: bytes) -> tuple[int, int]:
    """Bytes of the first batch, and the offset after it."""
    base, length, _, delta = FRONT.unpack_from(data, 0)
    return LENGTH_END + length, base + delta + 1
