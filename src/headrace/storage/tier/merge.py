"""Makes one durable segment of several contiguous ones: fewer objects, the same batches.

Promises: the result holds their batches verbatim and in order, except emptied ones that clients could not read. Each
source is first proven by the SHA-256 of its object. Equal sources in one codec always give the same object. Never
publishes the result. Until the metadata accept it in place of the others (`controller.durable.replace_segments`), it is
an orphan that costs only space. All of it blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch
from headrace.base.limits import DURABLE_SEGMENT_BYTES_MAX, MERGE_READ_BYTES_MAX, SEGMENTS_REPLACED_AT_ONCE_MAX
from headrace.base.ports import Buffer, Objects
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.tier.blocks import check_footer
from headrace.storage.tier.ended import told_together
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.format import SegmentFooter, decode_footer
from headrace.storage.tier.packed import batches_of
from headrace.wire.batches import mend_emptied
from headrace.wire.compression import Compression


def mergeable(
    catalog: PartitionCatalog, *, bytes_max: int = DURABLE_SEGMENT_BYTES_MAX
) -> Iterator[tuple[SegmentDescriptor, ...]]:
    """Groups of small segments that may become one, at least two each, in offset order. A group's segments are
    neighbours of one exporter's epoch, with at most `bytes_max` bytes of batches together. None has more than half of
    that, so that nothing is merged again and again. The catalog's last segment is excluded.
    """
    group: list[SegmentDescriptor] = []
    for entry in catalog:
        one = entry.descriptor
        is_taken = one.start_offset != catalog.last_start and one.batch_bytes <= bytes_max // 2
        if not (is_taken and group and _fits(group, one, bytes_max)):
            if len(group) > 1:
                yield tuple(group)
            group = []
        if is_taken:
            group.append(one)
    if len(group) > 1:
        yield tuple(group)


def _fits(group: Sequence[SegmentDescriptor], one: SegmentDescriptor, bytes_max: int) -> bool:
    size = sum(each.batch_bytes for each in group) + one.batch_bytes
    read = sum(read_bytes_of(each) for each in group) + read_bytes_of(one)
    is_like = group[-1].leader_epoch == one.leader_epoch and group[-1].next_offset == one.start_offset
    return is_like and size <= bytes_max and read <= MERGE_READ_BYTES_MAX and len(group) < SEGMENTS_REPLACED_AT_ONCE_MAX


def read_bytes_of(segment: SegmentDescriptor) -> int:
    """Most bytes of it that are in memory while it is read: its object's, or its unpacked batches'."""
    return max(segment.object_bytes, segment.batch_bytes)


def merge_segments(
    objects: Objects,
    segments: Sequence[SegmentDescriptor],
    *,
    made_in: LeaderEpoch,
    codec: Compression = Compression.NONE,
) -> SegmentDescriptor:
    """Store one segment made of these, which must be contiguous, in blocks of this codec.

    `made_in` is the partition's leader epoch, which limits how long the result may still replace the others. Merging
    the same segments again stores nothing, and returns the same descriptor. The stored object is read back and proven,
    since the others will be deleted.

    Raises CorruptData where one of them, or the result, differs from its descriptor, FileNotFoundError, StorageFailure.
    """
    read = [read_proven(objects, segment) for segment in segments]
    parts = [
        mend_emptied(batches) if segment.lacks_records else batches
        for segment, (batches, _) in zip(segments, read, strict=True)
    ]
    return made_of(objects, segments, parts, [footer for _, footer in read], made_in=made_in, codec=codec)


def made_of(
    objects: Objects,
    segments: Sequence[SegmentDescriptor],
    parts: Sequence[Buffer],
    footers: Sequence[SegmentFooter],
    *,
    made_in: LeaderEpoch,
    codec: Compression = Compression.NONE,
    unmarked: Collection[int] = (),
) -> SegmentDescriptor:
    """Store and prove one segment of these batches, which hold the offsets of `segments`. `unmarked`:
    offsets of the markers that are not among them any more. Raises as `merge_segments`.
    """
    last = footers[-1]
    source = ExportSource(
        cluster_id=last.cluster_id,
        topic_id=last.topic_id,
        topic=last.topic,
        partition=last.partition,
        leader_epoch=segments[-1].leader_epoch,
        start_offset=segments[0].start_offset,
        limit_offset=segments[-1].next_offset,
        producers=last.producers,
        aborted_transactions=tuple(told_together(footers, unmarked)),
        undecided_transactions=last.undecided_transactions,
        gaps_below=segments[-1].next_offset,
        first_timestamp_ms=segments[0].first_timestamp_ms,
        codec=codec,
    )
    made = export_segment(objects, source, parts, made_in=made_in)
    read_proven(objects, made)
    return made


def read_proven(objects: Objects, segment: SegmentDescriptor) -> tuple[bytes, SegmentFooter]:
    """A segment's proven batches, without the rest of its object, and its footer. Raises CorruptData,
    FileNotFoundError, StorageFailure.
    """
    body = objects.get(segment.key)
    if len(body) != segment.object_bytes or hashlib.sha256(body).hexdigest() != segment.sha256:
        raise CorruptData(f"Object '{segment.key}' fails its SHA-256: nothing is made of it.")
    footer = decode_footer(body)
    check_footer(segment, footer)
    return bytes(batches_of(body, footer)), footer
