"""The beginning of a log that follows durable history, and the state that must be known there.

Promises: the result is returned only once the store was read, and the footer and the end of the last segment match the
catalog. A copy may be the only data beside the store. It begins there only if the store has all segments, in their
sizes, and some of their footers are sound. All of it blocks: never call it on the event loop.
"""

from __future__ import annotations

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch
from headrace.base.limits import FRONTIER_BATCHES_BYTES_MAX, FRONTIER_FOOTERS_READ_MAX, FRONTIER_SEGMENTS_READ_MAX
from headrace.base.ports import ReadableObjects
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.replica.producers import ProducerStates
from headrace.storage.tier.beginnings import Beginning, NotTold
from headrace.storage.tier.blocks import Plan, plan_of, read_block, read_footer
from headrace.storage.tier.producers import producers_of, replayed


def read_beginning(
    objects: ReadableObjects,
    catalog: PartitionCatalog,
    *,
    now_ms: int,
    reads_batches: bool = False,
) -> Beginning:
    """The beginning at the durable frontier. Where the last footer has no producers, `reads_batches` derives them from
    its batches and those before it. A transaction is open there only if the last footer calls it undecided. All others
    were decided when they were exported, and nobody may have their markers any more. Raises CorruptData where a segment
    differs from the catalog, or the producers are unknown (NotTold); FileNotFoundError, EOFError, StorageFailure.
    """
    if catalog.last is None:
        raise NotTold("all of its durable history is deleted")
    last = catalog.last.descriptor
    footer = read_footer(objects, last)
    if not footer.leader_epochs:
        raise CorruptData(f"the footer of object '{last.key}' names no leader epoch")
    producers = producers_of(footer.producers, now_ms=now_ms)
    if producers is None and reads_batches:
        producers = producers_in_batches(objects, catalog, now_ms=now_ms)
    if producers is None:
        raise NotTold(f"object '{last.key}' is of a version that does not tell its producers")
    producers.transactions.keep(footer.undecided_transactions)
    plan = plan_of(last, footer)
    read_block(objects, plan, len(plan.starts) - 1)
    return Beginning(last.next_offset, LeaderEpoch(footer.leader_epochs[-1].leader_epoch), producers)


def check_all(objects: ReadableObjects, catalog: PartitionCatalog) -> None:
    """Check that the store has all of history, by its listing and some footers. Raises as `read_beginning`."""
    if catalog.last is None:
        return
    wanted = {entry.descriptor.key: entry.descriptor for entry in catalog}
    prefix, slash, _ = catalog.last.descriptor.key.rpartition("/")
    for meta in objects.list(prefix + slash):
        segment = wanted.pop(meta.key, None)
        if segment is not None and meta.size != segment.object_bytes:
            raise CorruptData(f"object '{meta.key}' has {meta.size} bytes, not {segment.object_bytes}")
    for key in wanted:
        raise FileNotFoundError(f"object '{key}' is not in the store")
    for segment in some_of(catalog):
        read_footer(objects, segment)


def producers_in_batches(objects: ReadableObjects, catalog: PartitionCatalog, *, now_ms: int) -> ProducerStates | None:
    """The state of all producers, from the headers of all batches since the last footer with producers, or since offset
    0. None where these exceed FRONTIER_BATCHES_BYTES_MAX bytes or FRONTIER_SEGMENTS_READ_MAX segments, or are gone.
    Raises as `read_beginning`.
    """
    plans: list[Plan] = []
    size, producers = 0, None
    for entry in reversed(list(catalog)):
        footer = read_footer(objects, entry.descriptor)
        if (producers := producers_of(footer.producers, now_ms=now_ms)) is not None:
            break
        size += footer.batch_bytes
        if size > FRONTIER_BATCHES_BYTES_MAX or len(plans) == FRONTIER_SEGMENTS_READ_MAX:
            return None
        plans.append(plan_of(entry.descriptor, footer))
    if producers is None:
        if not plans or plans[-1].footer.start_offset > 0:
            return None
        producers = ProducerStates()
    for plan in reversed(plans):
        for number in range(len(plan.starts)):
            for _ in replayed(producers, read_block(objects, plan, number).data, now_ms):
                pass
    return producers


def some_of(catalog: PartitionCatalog) -> list[SegmentDescriptor]:
    """The first segment, and others at even distances; all but the last where there are few enough."""
    segments = [entry.descriptor for entry in catalog][:-1]
    step = max(1, -(-len(segments) // FRONTIER_FOOTERS_READ_MAX))
    return segments[::step]
