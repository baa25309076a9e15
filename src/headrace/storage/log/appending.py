"""Giving batches their place: base offset and leader epoch in front, the rest as it came, uncopied.

The hot path of produce. A batch's CRC does not cover what is set here, unless its time is set too.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from headrace.base.ports import Buffer
from headrace.wire.batches import CRC_START, HEADER, HEADER_BYTES, LOG_APPEND_TIME, PREFIX, BatchHeader


def place(
    batches: Buffer, headers: Sequence[tuple[int, BatchHeader]], base: int, epoch: int
) -> tuple[list[Buffer], list[BatchHeader]]:
    """Buffers to write, two for each batch, and the headers (their base offsets unchanged)."""
    view = memoryview(batches)
    buffers: list[Buffer] = []
    for at, header in headers:
        buffers.append(PREFIX.pack(base, header.batch_length, epoch))
        buffers.append(view[at + PREFIX.size : at + header.size])
        base += header.last_offset_delta + 1
    return buffers, [header for _, header in headers]


def place_in_time(
    batches: Buffer, headers: Sequence[tuple[int, BatchHeader]], base: int, epoch: int, now_ms: int
) -> tuple[list[Buffer], list[BatchHeader]]:
    """As `place`, with log append time: attribute and highest time are set, and the CRC with them."""
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
    return buffers, placed
