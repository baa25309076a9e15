"""Proves durable history, object by object, and continues after an unsound one. Reads only.

Promises: every byte of every object that a catalog names is read and checked, and each problem is reported in one
sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from headrace.base.errors import HeadraceError
from headrace.base.ids import FIRST_OFFSET, Offset, PartitionIndex
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.tier.marked import TransactionCheck
from headrace.storage.tier.reader import DamagedHistory, Store


def segment_problems(
    store: Store,
    topic: str,
    partition: PartitionIndex,
    catalog: PartitionCatalog,
    on_read: Callable[[SegmentDescriptor], object],
    *,
    begin: Offset = FIRST_OFFSET,
) -> Iterator[tuple[Offset, str]]:
    """Yields the problem of each unsound object, with its start offset. `on_read` is called with each object, once it
    was checked. `begin`: objects that end below are left out, as they were checked before. The last of them is read
    again, for the transactions that are open behind it. Raises StorageFailure where the store cannot be read at all.
    """
    transactions = TransactionCheck()
    before = None
    for entry in catalog:
        if entry.descriptor.end_offset < begin:
            before = entry.descriptor
            continue
        if before is not None:
            transactions.forget()
            with suppress(DamagedHistory):  # it was told of then
                store.verify_segment(topic, partition, before, transactions)
            before = None
        try:
            store.verify_segment(topic, partition, entry.descriptor, transactions)
        except DamagedHistory as error:
            yield entry.descriptor.start_offset, sentence(error)
        on_read(entry.descriptor)


def mirror_problems(
    topic: str, partition: PartitionIndex, mirrored: PartitionCatalog, catalog: PartitionCatalog
) -> Iterator[str]:
    """Yields the problems of the mirror, compared with the cluster's own catalog, which was read after it. The mirror
    may be behind the catalog, but must never contradict it.
    """
    where = f"The mirror of topic '{topic}', partition {partition}"
    if mirrored.next_offset > catalog.next_offset or mirrored.log_start_offset > catalog.log_start_offset:
        yield f"{where} is ahead of what the brokers know: look for what else writes to this store."
        return
    for entry in mirrored:
        known = catalog.entries.holding(entry.descriptor.start_offset)
        if known is not None and known.is_substitute and known.descriptor != entry.descriptor:
            continue  # it was replaced since
        if known is None and entry.descriptor.end_offset < catalog.log_start_offset:
            continue  # it was deleted since
        if known is None or known.hash != entry.hash:
            yield f"{where} names other segments than the catalog from offset {entry.descriptor.start_offset} on."
            return


def seam_problems(
    topic: str, partition: PartitionIndex, catalog: PartitionCatalog, local_start: int, end: int
) -> Iterator[str]:
    """Yields a problem where history and the leader's log do not meet. `local_start`: the log's start; `end`: the end
    of the committed records.
    """
    where = f"Topic '{topic}', partition {partition}"
    if catalog.entries and local_start > catalog.next_offset:
        yield f"{where}: offsets {catalog.next_offset} to {local_start - 1} are neither in history nor in the log."
    if catalog.next_offset > end:
        yield f"{where}: history ends behind the log, at {catalog.end_offset} where {end} is the next offset."


def sentence(error: HeadraceError) -> str:
    return str(error).rstrip(".") + "."
