"""Follows history that grows: updates a known catalog, and finds the offset at a time.

Promises the catalog that a full read would give, with chain and continuity verified. Only newly published segments are
read; where more has changed than that, the whole catalog is.
"""

from __future__ import annotations

from headrace.base.errors import CorruptData
from headrace.base.ids import PartitionIndex
from headrace.base.limits import CATALOG_CHUNK_ENTRIES
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.storage.tier.blocks import first_at_or_after, read_plan
from headrace.storage.tier.mirror import (
    MirroredState,
    MirroredTopic,
    read_document,
    segment_document_key,
    state_key,
)
from headrace.storage.tier.reader import DamagedHistory, Store


def followed(
    store: Store, topic: MirroredTopic, partition: PartitionIndex, known: PartitionCatalog
) -> PartitionCatalog:
    """The present catalog, given the earlier one. Raises DamagedHistory."""
    try:
        document = read_document(store.objects, state_key(topic.topic_id, partition))
        state = None if document is None else MirroredState.from_json(document)
        found = None if state is None else _grown(store, topic, partition, known, state)
    except CorruptData:
        found = None
    return store.catalog(topic, partition) if found is None else found


def _grown(
    store: Store, topic: MirroredTopic, partition: PartitionIndex, known: PartitionCatalog, state: MirroredState
) -> PartitionCatalog | None:
    """The known catalog with the newly published segments. None where other changes happened, or too many. Raises
    CorruptData.
    """
    if state.segments - len(known.entries) > CATALOG_CHUNK_ENTRIES:
        return None
    catalog = known
    while catalog.end_offset < state.end_offset:
        if len(catalog.entries) >= state.segments:
            return None
        document = read_document(store.objects, segment_document_key(topic.topic_id, partition, catalog.next_offset))
        if document is None:
            return None
        entry = CatalogEntry.from_json(document)
        if entry.deletions != catalog.deletions or catalog.refusal(entry.descriptor, entry.previous_hash):
            return None
        catalog = catalog.published(entry.descriptor)
    return catalog if MirroredState.of(catalog, state.raft_index) == state else None


def first_at(store: Store, topic: str, partition: int, catalog: PartitionCatalog, timestamp_ms: int) -> int | None:
    """The offset of the first record whose timestamp is at least `timestamp_ms`. Raises DamagedHistory."""
    for entry in catalog:
        segment = entry.descriptor
        if segment.last_timestamp_ms < timestamp_ms or segment.next_offset <= catalog.readable_start:
            continue
        try:
            plan = read_plan(store.objects, segment)
            found = first_at_or_after(store.objects, plan, timestamp_ms, catalog.readable_start)
        except (CorruptData, EOFError, FileNotFoundError) as error:
            raise DamagedHistory(topic, partition, segment.start_offset, segment.key, error) from error
        if found is not None:
            return found.offset
    return None
