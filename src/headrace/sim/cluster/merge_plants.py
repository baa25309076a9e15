"""Bugs to plant in merging, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from headrace.base.ids import LAST_OFFSET, Offset, TopicPartition
from headrace.base.ports import Buffer
from headrace.broker.durable import sweeper
from headrace.broker.durable.merger import Make, Merger
from headrace.broker.partitions import bounds
from headrace.broker.partitions.replica import Replica
from headrace.metadata.image import MetadataImage
from headrace.metadata.orphans import is_orphan
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.tier.merge import merge_segments


class _NotYet:
    """A store that delays what is put into it."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects
        self.kept: dict[str, bytes] = {}

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        self.kept[key] = bytes(data)
        return True

    def get(self, key: str) -> bytes:
        found: bytes = self.kept[key] if key in self.kept else self._objects.get(key)
        return found


@contextmanager
def merged_event_before_object() -> Iterator[None]:
    """A merged segment replaces others before it is stored."""
    replace_group = Merger._replace

    async def hasty(
        self: Merger, key: TopicPartition, group: Sequence[SegmentDescriptor], make: Make
    ) -> SegmentDescriptor | None:
        objects: Any = self._objects
        later: Any = _NotYet(objects)
        made = await replace_group(self, key, group, partial(merge_segments, later, group))
        for name, body in later.kept.items():
            await asyncio.get_running_loop().run_in_executor(None, partial(objects.put, name, body))
        return made

    with patch.object(Merger, "_replace", hasty):
        yield


@contextmanager
def merged_is_swept_on_its_way() -> Iterator[None]:
    """The sweep takes a merged object for an export that came too late: it lies below the catalog's end, and no catalog
    names it."""

    def blind(image: MetadataImage, key: SegmentKey) -> bool:
        catalog = image.durable(TopicPartition(key.topic_id, key.partition))
        entry = catalog.entries.holding(key.start_offset)
        if key.made_in is not None and (entry is None or entry.descriptor.key != str(key)):
            return key.start_offset < catalog.next_offset
        return is_orphan(image, key)

    with patch.object(sweeper, "is_orphan", blind):
        yield


@contextmanager
def vouchers_go_with_what_they_hang_on() -> Iterator[None]:
    """A replaced segment's vouchers of earlier replacements are not carried on."""
    replaced = PartitionCatalog.replaced

    def forgets(self: PartitionCatalog, descriptor: SegmentDescriptor) -> PartitionCatalog:
        bare = replace(self, deletions=())
        link = replaced(bare, descriptor).deletions[-1][:1]
        after = replaced(self, descriptor)
        return replace(after, deletions=self.deletions, head=self.head).with_links([link])

    with patch.object(PartitionCatalog, "replaced", forgets):
        yield


@contextmanager
def log_is_compacted_before_its_history() -> Iterator[None]:
    """A log is compacted as far as it is stable, with all tombstones."""
    with (
        patch.object(Replica, "cleanable_end", property(lambda self: self.last_stable_offset)),
        patch.object(bounds, "tombstones_kept_from", lambda _: LAST_OFFSET),
    ):
        yield


@contextmanager
def tombstones_go_above_the_seam() -> Iterator[None]:
    """Where a log is compacted above the end of its history, tombstones are removed as in any other log."""
    with patch.object(bounds, "tombstones_kept_from", lambda _: LAST_OFFSET):
        yield


@contextmanager
def log_behind_history_is_compacted() -> Iterator[None]:
    """A log that begins behind its history is compacted like one that is read by itself."""
    end_of: Any = Replica.__dict__["cleanable_end"]

    def blind(self: Replica) -> Offset:
        if self.history is not None and self.start_offset < self.log.log_start_offset:
            return min(self.history.mirrored_end, self.last_stable_offset)
        known: Offset = end_of.fget(self)
        return known

    with patch.object(Replica, "cleanable_end", property(blind)):
        yield


MERGE_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "merged-event-before-object": merged_event_before_object,
    "merged-is-swept-on-its-way": merged_is_swept_on_its_way,
    "vouchers-go-with-what-they-hang-on": vouchers_go_with_what_they_hang_on,
}
"""Found by the copies' part of a seed (`copies.run.run_copies`)."""
TABLE_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "log-behind-history-is-compacted": log_behind_history_is_compacted,
    "log-is-compacted-before-its-history": log_is_compacted_before_its_history,
    "tombstones-go-above-the-seam": tombstones_go_above_the_seam,
}
"""Found by a seed's run with tables (`copies.tables_run.run_tables`)."""
