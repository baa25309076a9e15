"""Reads the batches of a file one after another: headers alone, or every byte with its CRC.

Reads in bounded chunks. Never trusts a length beyond the end of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.limits import REQUEST_BYTES_MAX
from headrace.base.ports import File
from headrace.wire.batches import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, CorruptBatch, check_batch, parse_header

HEADER_CHUNK_BYTES: Final = 64 * 1024
CHECK_CHUNK_BYTES: Final = 1024 * 1024


def headers_in(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from position `start` to `end`. CRCs are not checked. Raises CorruptData where
    the bytes are no batches, or the last batch is cut.
    """
    chunk, chunk_at, at = b"", start, start
    while at < end:
        if at + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = file.read(at, min(HEADER_CHUNK_BYTES, end - at)), at
        header = parse_header(chunk, at - chunk_at)
        if header.batch_length < HEADER_BYTES - LENGTH_END or header.magic != MAGIC or at + header.size > end:
            raise CorruptData(f"{file.path.name} holds no record batch at position {at}.")
        yield at, header
        at += header.size


class Checked(NamedTuple):
    """A batch that is sound and continues the log."""

    position: int
    header: BatchHeader


def checked_batches(
    file: File, start: int, end: int, next_offset: int, epoch: int, gaps_below: int = 0
) -> Iterator[Checked]:
    """Yield the sound batches from position `start`, up to the first that is not sound.

    A sound batch is whole, passes its CRC, and has a leader epoch not below the one before. It begins at the offset
    where the batch before it ended; below `gaps_below`, where compaction ran, it may begin later. Never raises for bad
    bytes.
    """
    chunk, chunk_at, at = b"", start, start
    while at < end:
        wanted = HEADER_BYTES
        if at + wanted <= chunk_at + len(chunk):
            wanted = parse_header(chunk, at - chunk_at).size
        if not HEADER_BYTES <= wanted <= min(end - at, REQUEST_BYTES_MAX):
            return
        if at + wanted > chunk_at + len(chunk):
            chunk, chunk_at = file.read(at, min(max(CHECK_CHUNK_BYTES, wanted), end - at)), at
            if len(chunk) < wanted:
                return
            continue
        try:
            header = check_batch(chunk, at - chunk_at, compacted=next_offset < gaps_below)
        except CorruptBatch:
            return
        if not next_offset <= header.base_offset <= max(next_offset, gaps_below) or header.leader_epoch < epoch:
            return
        yield Checked(at, header)
        at += header.size
        next_offset, epoch = header.next_offset, header.leader_epoch


def raw_batches(file: File, end: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield every batch up to position `end`, checked, as bytes of its own. Raises CorruptData where one is not
    sound.
    """
    chunk, chunk_at, at = b"", 0, 0
    while at < end:
        wanted = HEADER_BYTES
        if at + wanted <= chunk_at + len(chunk):
            wanted = parse_header(chunk, at - chunk_at).size
        if not HEADER_BYTES <= wanted <= min(end - at, REQUEST_BYTES_MAX):
            raise CorruptData(f"{file.path.name} holds no record batch at position {at}.")
        if at + wanted > chunk_at + len(chunk):
            chunk, chunk_at = file.read(at, min(max(CHECK_CHUNK_BYTES, wanted), end - at)), at
            if len(chunk) < wanted:
                raise CorruptData(f"{file.path.name} was cut while it was read.")
            continue
        header = check_batch(chunk, at - chunk_at, compacted=True)
        yield header, chunk[at - chunk_at : at - chunk_at + header.size]
        at += header.size
