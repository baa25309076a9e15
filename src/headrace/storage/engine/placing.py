"""Gives batches their place in the log: sets base offset and leader epoch, and leaves the rest as it came, uncopied.

This is the hot path of produce. A batch's CRC does not cover the fields set here, except where its timestamp is set
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.wire.batches import CRC_START, HEADER, HEADER_BYTES, LENGTH_END, LOG_APPEND_TIME, PREFIX, BatchHeader

PREFIX_BYTES = PREFIX.size


class Placed(NamedTuple):
    """Batches as they will stand in the log."""

    buffers: Sequence[Buffer]
    """Buffers to write, in order."""
    headers: Sequence[BatchHeader]
    """One for each batch. The base offset and epoch that the log assigns need not be in them."""
    size: int
    """Bytes in all."""
    max_timestamp: int
    end: Offset
    """Offset after the last record."""
    has_place: bool = False
    """True: the headers have the log's base offsets. False: each batch begins where the one before it ends."""


def place(batches: Buffer, headers: Sequence[tuple[int, BatchHeader]], base: int, epoch: int) -> Placed:
    """Returns two buffers for each batch: the new prefix, and the rest."""
    view = memoryview(batches)
    buffers: list[Buffer] = []
    placed: list[BatchHeader] = []
    size, max_timestamp = 0, -1
    for at, header in headers:
        length = header.batch_length
        buffers.append(PREFIX.pack(base, length, epoch))
        buffers.append(view[at + PREFIX_BYTES : at + LENGTH_END + length])
        placed.append(header)
        size += LENGTH_END + length
        base += header.last_offset_delta + 1
        if header.max_timestamp > max_timestamp:
            max_timestamp = header.max_timestamp
    return Placed(buffers, placed, size, max_timestamp, Offset(base))


def place_in_time(
    batches: Buffer, headers: Sequence[tuple[int, BatchHeader]], base: int, epoch: int, now_ms: int
) -> Placed:
    """As `place`, with log append time: sets the attribute, the highest timestamp and the CRC."""
    view = memoryview(batches)
    buffers: list[Buffer] = []
    placed: list[BatchHeader] = []
    for at, header in headers:
        stamped = header._replace(
            base_offset=base,
            leader_epoch=epoch,
            attributes=header.attributes | LOG_APPEND_TIME,
            max_timestamp=now_ms,
            crc=0,
        )
        records = view[at + HEADER_BYTES : at + header.size]
        stamped = stamped._replace(crc=crc32c(records, crc32c(HEADER.pack(*stamped)[CRC_START:])))
        buffers += (HEADER.pack(*stamped), records)
        placed.append(stamped)
        base += header.last_offset_delta + 1
    return Placed(buffers, placed, sum(header.size for header in placed), now_ms, Offset(base))


def place_verbatim(batches: Buffer, headers: Sequence[tuple[int, BatchHeader]], end: Offset) -> Placed:
    """A leader's batches, which have their offsets already."""
    placed = [header for _, header in headers]
    times = [header.max_timestamp for header in placed]
    return Placed([batches], placed, len(batches), max(times), end, has_place=True)
