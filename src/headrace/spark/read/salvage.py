"""Reads around damage: finds the good batches, and the offsets of the bad ones, for ``mode=PERMISSIVE``.

Promises:

- A batch is good only if it stands in its place and passes every check that it would pass elsewhere.
- Each offset of the bytes is in a good batch or in a range reported as bad.
- A bad range is as small as the bytes allow. It is one batch, if its frame still leads to the next one. Otherwise it
  reaches to the next batch in an index. A compressed block that cannot be unpacked is bad as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from headrace.base.ports import Buffer
from headrace.storage.tier.reader import DamagedHistory, SegmentGone, SegmentSlice, Store
from headrace.wire.batches import (
    HEADER_BYTES,
    LENGTH_END,
    OFFSET_AND_LENGTH,
    BatchHeader,
    CorruptBatch,
    check_batch,
    parse_header,
)


class Good(NamedTuple):
    """Whole batches in a buffer."""

    data: Buffer
    batches: list[tuple[int, BatchHeader]]


class Bad(NamedTuple):
    """Offsets, both inclusive, of which nothing is known."""

    first: int
    last: int
    reason: str


def walk(data: Buffer, expected: int, end: int, *, gaps: bool, thinned: bool = False) -> Iterator[Good | Bad]:
    """Yields the good batches and bad ranges from offset `expected` up to `end` (exclusive). With `gaps`, offsets may
    be missing, and the last batch may end below `end`. With only `thinned`, batches are contiguous but may lack
    records.
    """
    good: list[tuple[int, BatchHeader]] = []
    at = 0
    while at < len(data):
        try:
            header = check_batch(data, at, compacted=gaps or thinned)
            if not _in_place(header, expected, end, gaps=gaps, is_first=at == 0):
                raise CorruptBatch(f"A batch begins at offset {header.base_offset}.")
        except CorruptBatch as error:
            if good:
                yield Good(data, good)
                good = []
            framed = _framed(data, at, expected, end, gaps=gaps)
            if framed is None:
                yield Bad(expected, end - 1, str(error))
                return
            yield Bad(expected, framed.next_offset - 1, str(error))
            header = framed
        else:
            good.append((at, header))
        at, expected = at + header.size, header.next_offset
    if good:
        yield Good(data, good)
    if expected < end and not gaps:
        yield Bad(expected, end - 1, f"Its batches end before offset {end}.")


def _in_place(header: BatchHeader, expected: int, end: int, *, gaps: bool, is_first: bool) -> bool:
    """Whether the batch is in its place: no checksum covers its base offset. With gaps, the first batch may begin below
    the requested offset.
    """
    if not gaps:
        return header.base_offset == expected
    return expected < header.next_offset <= end and (is_first or header.base_offset >= expected)


def _framed(data: Buffer, at: int, expected: int, end: int, *, gaps: bool) -> BatchHeader | None:
    """The header of a bad batch, where its length and offsets fit the bytes around it."""
    if len(data) - at < HEADER_BYTES:
        return None
    header = parse_header(data, at)
    following = at + header.size
    fits = header.batch_length >= HEADER_BYTES - LENGTH_END and following <= len(data) and header.last_offset_delta >= 0
    if not fits or not expected < header.next_offset <= end or (header.base_offset != expected and not gaps):
        return None
    if following == len(data):
        whole = header.next_offset == end or (gaps and header.count == header.last_offset_delta + 1)
        return header if whole else None
    if len(data) - following < HEADER_BYTES:
        return None
    base = OFFSET_AND_LENGTH.unpack_from(data, following)[0]
    return header if base == header.next_offset or (gaps and header.next_offset < base <= end) else None


def salvaged(store: Store, part: SegmentSlice, marks: Sequence[tuple[int, int]]) -> Iterator[Good | Bad]:
    """Yields the good batches and bad ranges of a slice. `marks` are base offsets and positions of batches in an index.
    Raises SegmentGone, DamagedHistory where the bytes cannot be read at all.
    """
    inner = [(base, position) for base, position in marks if part.position < position < part.end_position]
    ends = [(part.base_offset, part.position), *inner, (part.end_offset, part.end_position)]
    for (base, position), (following, end_position) in pairwise(ends):
        try:
            data = store.read_bytes(part, position, end_position - position)
        except SegmentGone:
            raise
        except DamagedHistory as error:
            if not part.blocks:
                raise
            yield Bad(base, following - 1, str(error.reason))
            continue
        yield from walk(data, base, following, gaps=False, thinned=part.is_thinned)


def blocks_found(store: Store, part: SegmentSlice, object_bytes: int) -> tuple[SegmentSlice, list[tuple[int, int]]]:
    """The slice of a whole packed segment with its blocks, and their marks, where its footer is unreadable. A block's
    mark is what its first batch says. Raises as `salvaged`.
    """
    part = part._replace(blocks=store.found_blocks(part, object_bytes))
    marks: list[tuple[int, int]] = []
    for block in part.blocks:
        try:
            data = store.read_bytes(part, block.position, block.end_position - block.position)
        except SegmentGone:
            raise
        except DamagedHistory:
            continue
        base = OFFSET_AND_LENGTH.unpack_from(data)[0] if len(data) >= OFFSET_AND_LENGTH.size else part.end_offset
        if (marks[-1][0] if marks else part.base_offset - 1) < base < part.end_offset:
            marks.append((base, block.position))
    return part, marks
