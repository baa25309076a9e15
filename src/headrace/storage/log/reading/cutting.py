"""Cuts the data of a segment at batch boundaries: the hot path of fetch.

Its slow twin is in tests/storage/log/reading/test_log_read.py.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.wire.batches import HEADER_BYTES, LENGTH_END, MAGIC

FRONT: Final = Struct(">qi4xb6xi")
"""Base offset, length, magic, last offset delta."""
BATCHES_MAX: Final = 2**31
SHORTEST: Final = HEADER_BYTES - LENGTH_END
ANYWHERE: Final = 2**63


class Cut(NamedTuple):
    """The whole batches that a buffer begins with."""

    size: int
    next_offset: int
    """Offset after the last batch; the requested offset where there is none."""
    finished: bool
    """False: there may be more batches, since only `batches_max` were examined."""


def cut(
    data: bytes,
    limit: int,
    start: int,
    end: int,
    *,
    at: int = 0,
    batches_max: int = BATCHES_MAX,
    gaps_below: int = ANYWHERE,
) -> Cut:
    """How much of `data` is whole batches below `end`, within `limit` bytes. A batch begins at position `at` that holds
    `start` or comes after it. Raises CorruptData where the bytes are no batches with rising offsets, or where offsets
    are missing between two batches at or above `gaps_below`.
    """
    unpack = FRONT.unpack_from
    first, next_offset, stop = at, start, min(len(data), limit)
    for _ in range(batches_max):
        if at + HEADER_BYTES > stop:
            break
        base, length, magic, delta = unpack(data, at)
        batch_end, batch_next = at + LENGTH_END + length, base + delta + 1
        if length < SHORTEST or magic != MAGIC or delta < 0 or batch_next <= next_offset:
            raise CorruptData(f"What should be the batch at offset {next_offset} is none.")
        if base != next_offset and at != first and (base < next_offset or next_offset >= gaps_below):
            raise CorruptData(f"A batch at offset {base} follows offset {next_offset - 1}.")
        if batch_end > stop or batch_next > end:
            break
        at, next_offset = batch_end, batch_next
    else:
        return Cut(at, next_offset, finished=False)
    return Cut(at, next_offset, finished=True)


def first_batch(data: bytes) -> tuple[int, int]:
    """Size of the first batch in bytes, and the offset after it."""
    base, length, _, delta = FRONT.unpack_from(data, 0)
    return LENGTH_END + length, base + delta + 1
