"""Makes one durable segment of whole record batches.

Promises: the stored batches were checked (every CRC32C, offsets without a gap, nothing at or above the bound). They are
durable when the descriptor is returned. Never publishes the segment. Until the metadata accept the descriptor, the
object is an orphan that costs only space, so a crash between the two loses nothing.

With a codec, batches are stored in compressed blocks, where that makes the object smaller. All of it blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import FIRST_OFFSET, ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import PACKED_SEGMENT_BYTES_MAX, STORED_BLOCK_BYTES, STORED_BLOCK_BYTES_MAX
from headrace.base.ports import Buffer, Objects
from headrace.metadata.segments import SegmentDescriptor
from headrace.storage.packed_blocks import pack_block
from headrace.storage.tier.format import (
    INDEX_INTERVAL_BYTES,
    EpochStart,
    IndexEntry,
    SegmentFooter,
    encode_footer,
    segment_key,
)
from headrace.wire.batches import check_batches
from headrace.wire.compression import Compression
from headrace.wire.transactions import AbortedTransaction, OpenTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """The partition of the batches, and the offsets between which they must lie."""

    cluster_id: ClusterId
    topic_id: TopicId
    topic: str
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    """Epoch of the exporting leader. It is part of the object's key, so that a stale leader never overwrites."""
    start_offset: Offset
    """The catalog's end + 1: the base offset of the first batch."""
    limit_offset: Offset
    """Exclusive: the high watermark, or the last stable offset. No batch may reach it."""
    producers: Any = None
    """State of the producers after the last batch, in the form of `storage.tier.producers`; None: unknown."""
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    """All that overlap with the batches, in the order of their markers."""
    undecided_transactions: tuple[OpenTransaction, ...] = ()
    """Those that are still open, and begin below the end of the batches."""
    gaps_below: Offset = FIRST_OFFSET
    """Batches below it may lack records, because of compaction."""
    first_timestamp_ms: int | None = None
    """Timestamp of the first record before compaction; None: taken from the first batch."""
    codec: Compression = Compression.NONE
    """The codec of the object's blocks, beyond those of the batches inside: a value of `packed_blocks.CODECS`."""


def export_segment(
    objects: Objects,
    source: ExportSource,
    batches: Buffer | Iterable[Buffer],
    *,
    made_in: LeaderEpoch | None = None,
) -> SegmentDescriptor:
    """Store whole batches (one buffer, or chunks of whole batches) as one durable segment. Blocking: never on the loop.

    The caller bounds the bytes by DURABLE_SEGMENT_BYTES_MAX; they are held in memory once. Exporting the same batches
    again stores nothing and returns the same descriptor. `made_in`: the leader epoch in which the segment is made of
    others; None where it is not. Raises CorruptData where the batches do not match `source`, StorageFailure where the
    store refuses.
    """
    chunks = [batches] if isinstance(batches, (bytes, bytearray, memoryview)) else list(batches)
    footer, body = _packed(source, chunks) or _plain(source, chunks)
    digest = hashlib.sha256(body).hexdigest()
    key = segment_key(footer, digest, made_in)
    if not objects.put(key, body) and hashlib.sha256(objects.get(key)).hexdigest() != digest:
        raise CorruptData(f"Object '{key}' is in the store already and does not hold what its name says: remove it.")
    return SegmentDescriptor(
        key=key,
        start_offset=footer.start_offset,
        end_offset=footer.end_offset,
        leader_epoch=footer.leader_epoch,
        first_timestamp_ms=footer.first_timestamp_ms,
        last_timestamp_ms=footer.last_timestamp_ms,
        records=footer.records,
        batch_bytes=footer.batch_bytes,
        object_bytes=len(body),
        crc32c=footer.crc32c,
        sha256=digest,
        last_epoch=LeaderEpoch(footer.leader_epochs[-1].leader_epoch),
    )


def _plain(source: ExportSource, chunks: Sequence[Buffer]) -> tuple[SegmentFooter, bytes]:
    """The footer, and the object with the batches as they are."""
    footer = _describe(source, chunks)
    return footer, b"".join([*chunks, encode_footer(footer)])


def _packed(source: ExportSource, chunks: Sequence[Buffer]) -> tuple[SegmentFooter, bytes] | None:
    """The footer, and the object with the batches in blocks. None where the object would not be smaller for it, or
    readers would refuse so much."""
    if source.codec is Compression.NONE or sum(map(len, chunks)) > PACKED_SEGMENT_BYTES_MAX:
        return None
    footer = _describe(source, chunks, is_packed=True)
    cuts = [*(entry.position for entry in footer.index), footer.batch_bytes]
    if max(end - start for start, end in pairwise(cuts)) > STORED_BLOCK_BYTES_MAX:
        return None
    blocks = [pack_block(source.codec, content) for content in _cut(chunks, cuts[1:])]
    footer = replace(footer, blocks=tuple(accumulate(map(len, blocks), initial=0)))
    body = b"".join([*blocks, encode_footer(footer)])
    return (footer, body) if len(body) <= footer.batch_bytes else None


def _cut(chunks: Iterable[Buffer], ends: Iterable[int]) -> Iterator[Buffer]:
    """The bytes of the chunks, cut at these positions, of which the last is their end."""
    views, held = (memoryview(chunk) for chunk in chunks), memoryview(b"")
    position = 0
    for end in ends:
        found: list[memoryview] = []
        while position < end:
            held = held or next(views)
            found.append(held[: end - position])
            held = held[end - position :]
            position += len(found[-1])
        yield found[0] if len(found) == 1 else b"".join(found)


def _describe(source: ExportSource, chunks: Sequence[Buffer], *, is_packed: bool = False) -> SegmentFooter:
    """Check every batch and gather the fields of the footer, but for the blocks of a packed one."""
    expected, records, checksum, position = int(source.start_offset), 0, 0, 0
    first_timestamp, last_timestamp = -1, -1
    epochs: list[EpochStart] = []
    index: list[IndexEntry] = []
    checksums: list[int] = []
    for chunk in chunks:
        for at, header in check_batches(chunk, gaps_below=source.gaps_below):
            if header.base_offset != expected or header.next_offset > source.limit_offset:
                raise _misplaced(source, header.base_offset, header.last_offset, expected)
            if not index:
                first_timestamp = header.base_timestamp
            last_timestamp = max(last_timestamp, header.max_timestamp)
            if not epochs or epochs[-1].leader_epoch != header.leader_epoch:
                epochs.append(EpochStart(header.leader_epoch, expected))
            begun = index[-1].position if index else -1
            if not index or _begins(position + at - begun, header.size, is_packed=is_packed):
                index.append(IndexEntry(expected, position + at, last_timestamp))
                checksums.append(0)
            checksums[-1] = crc32c(memoryview(chunk)[at : at + header.size], checksums[-1])
            expected, records = header.next_offset, records + header.count
        checksum = crc32c(chunk, checksum)
        position += len(chunk)
    if not index:
        raise CorruptData(f"There is nothing to export of {source.topic}-{source.partition} at {source.start_offset}.")
    return SegmentFooter(
        cluster_id=source.cluster_id,
        topic_id=source.topic_id,
        topic=source.topic,
        partition=source.partition,
        start_offset=source.start_offset,
        end_offset=Offset(expected - 1),
        leader_epoch=source.leader_epoch,
        first_timestamp_ms=first_timestamp if source.first_timestamp_ms is None else source.first_timestamp_ms,
        last_timestamp_ms=last_timestamp,
        records=records,
        batch_bytes=position,
        crc32c=checksum,
        leader_epochs=tuple(epochs),
        index=tuple(index),
        producers=source.producers,
        aborted_transactions=source.aborted_transactions,
        undecided_transactions=source.undecided_transactions,
        checksums=tuple(checksums),
    )


def _begins(before: int, size: int, *, is_packed: bool) -> bool:
    """Whether a batch of this size gets an entry in the index, after so many bytes since the last one that has."""
    return before + size > STORED_BLOCK_BYTES if is_packed else before >= INDEX_INTERVAL_BYTES


def _misplaced(source: ExportSource, base: int, last: int, expected: int) -> CorruptData:
    return CorruptData(
        f"A batch of {source.topic}-{source.partition} holds offsets {base} to {last}, "
        f"where {expected} should follow, below {source.limit_offset}: not exported."
    )
