"""Replaces several small durable segments by one, on request, and compacts the history of compacted topics.

Of a compacted topic, the new segment has only the last record of each key (`storage.tier.compact`). That takes as many
passes as the keys need.

Promises:
- The object is stored before the event that names it.
- Only segments verified by their SHA-256 are replaced, and only by the leader.
- The replaced objects go later (`history_keeper`), so that their readers are not disturbed.
- A crash leaves at worst an object that nothing refers to.

Loop-only, but for the store's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import Offset, TopicId, TopicPartition
from headrace.base.limits import MERGE_PROBLEMS_TOLD_MAX
from headrace.base.ports import Clock, Objects
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.controller.asks.history import ReplaceSegments
from headrace.controller.durable import refusal_of_all
from headrace.logs import get_logger
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.tier.compact import Keys, compact_segments, compactable
from headrace.storage.tier.merge import merge_segments, mergeable
from headrace.wire.durable import MergeTotals
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

Make: TypeAlias = Callable[..., SegmentDescriptor | None]
"""Makes the object that replaces others, in the leader epoch `made_in`."""


class RefusedError(HeadraceError):
    """The controller refused one group: its contents have changed."""


class Made(NamedTuple):
    """The number and size of the original segments that a new segment replaces."""

    segments: int
    bytes: int
    """Bytes of their batches."""


class Merger:
    """One per broker that has a durable store. One merge at a time."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        metadata: MetadataDriver,
        control: Control,
        objects: Objects,
        clock: Clock,
        turn_of: Callable[[Partition], asyncio.Lock],
        mirror_up: Callable[[Partition], Awaitable[None]],
        threads: StoreThreads,
    ) -> None:
        """`turn_of`: a lock held by a caller that moves the head of a partition's history, so that no export finds
        another head. `mirror_up` brings the mirror of a partition up to the image, for readers of the store."""
        self._in_thread = threads.run
        self._turn_of = turn_of
        self._mirror_up = mirror_up
        self._partitions = partitions
        self._metadata = metadata
        self._control = control
        self._objects = objects
        self._clock = clock
        self._turn = asyncio.Lock()

    async def merge(
        self, topic_id: TopicId, wanted: int | None, *, execute: bool, below: Offset | None = None
    ) -> MergeTotals:
        """Merge a topic's partitions that this broker leads, or one of them. Without `execute`, only report what would
        be done. `below`: in compacted topics, records from this offset on replace none. A failure of one partition
        keeps no other from its turn."""
        merged = MergeTotals()
        async with self._turn:
            for partition in list(self._partitions):
                key = partition.topic_partition
                if key.topic_id != topic_id or wanted not in (None, key.partition):
                    continue
                merged.partitions.append(key.partition)
                try:
                    await self._merge(key, merged, execute, below)
                except (HeadraceError, OSError) as error:
                    merged.problems.append(f"Partition {key.partition}: {error}")
        return merged

    async def _merge(self, key: TopicPartition, merged: MergeTotals, execute: bool, below: Offset | None) -> None:
        catalog = self._catalog(key)
        role = self._partitions.role(key)
        if isinstance(role, Partition) and _compacts(role):
            await self._compact(role, catalog, merged, execute, below)
            return
        for group in await self._in_thread(lambda: list(mergeable(catalog))):
            if execute and not await self._is_replaced(key, group, merged):
                continue
            _count(merged, group)

    async def _compact(
        self, role: Partition, catalog: PartitionCatalog, merged: MergeTotals, execute: bool, below: Offset | None
    ) -> None:
        """Compact: the last record of each key stays."""
        end = catalog.next_offset if below is None else min(below, catalog.next_offset)
        groups = await self._in_thread(lambda: list(compactable(catalog)))
        if execute and groups:
            made: dict[Offset, Made] = {}
            try:
                await self._compact_all(role.topic_partition, end, made)
            finally:
                merged.count(
                    before=sum(each.segments for each in made.values()),
                    after=len(made),
                    size=sum(each.bytes for each in made.values()),
                )
            return
        for group in groups:
            if len(group) > 1:
                _count(merged, group)
            else:
                merged.unread += 1

    async def _compact_all(self, key: TopicPartition, end: Offset, made: dict[Offset, Made]) -> None:
        """Compact pass after pass up to `end`, each pass with the keys of a stretch, as many as fit in memory. Each
        begins at the first segment, and ends at the first that cannot be replaced. A tombstone behind it may be the
        only trace of a deletion. `made` gets the results, by start offset."""
        read_to = int(self._catalog(key).readable_start)
        while True:
            keys = Keys(read_to, below=end)
            await self._read_keys(key, keys)
            while not await self._pass(key, keys, made):
                pass
            if not keys.is_full:
                return
            read_to = keys.read_to
            log.info(
                "durable history is compacted in several passes, for it has more keys than are kept in memory",
                topic=self._leading(key).topic,
                partition=key.partition,
                compacted_to=read_to,
                end_offset=end - 1,
            )

    async def _read_keys(self, key: TopicPartition, keys: Keys) -> None:
        """Read on from where the last pass stopped."""
        catalog = self._catalog(key)
        for entry in catalog.reaching(keys.read_to):
            if keys.is_read or entry.descriptor.start_offset >= keys.below:
                return
            self._check_wanted(key)
            try:
                await self._in_thread(partial(keys.read, self._objects, entry.descriptor, catalog))
            except FileNotFoundError:
                if not self._is_gone(key, entry.descriptor):
                    raise

    async def _pass(self, key: TopicPartition, keys: Keys, made: dict[Offset, Made]) -> bool:
        """Compact everything below the end of these keys. Returns False where history's beginning was deleted
        meanwhile, so that the rest has to be gone through again.

        Readers are first shown the results of earlier rounds. A tombstone's time begins where these have left nothing
        for it to delete (see `Keeping.is_shown_later`).
        """
        role = self._leading(key)
        await self._mirror_up(role)
        retention_ms = role.log.config.delete_retention_ms
        keeping = keys.keeping(now_ms=self._clock.now_ms(), delete_retention_ms=retention_ms)
        catalog = self._catalog(key)
        for group in await self._in_thread(lambda: list(compactable(catalog))):
            if group[0].start_offset >= keeping.clean_to:
                break
            self._check_wanted(key)
            keeping.now_ms = self._clock.now_ms()
            joins = not keys.is_full  # once, when nothing more goes
            codec = role.settings.storage_codec
            make = partial(compact_segments, self._objects, group, keeping, joins=joins, codec=codec, history=catalog)
            try:
                one = await self._replace(key, group, make)
            except (RefusedError, FileNotFoundError):
                if not self._is_gone(key, group[0]):
                    raise
                return False
            if one is not None:
                known = [made.pop(each.start_offset, Made(1, each.batch_bytes)) for each in group]
                segments, sizes = zip(*known, strict=True)
                made[one.start_offset] = Made(sum(segments), sum(sizes))
        return True

    def _catalog(self, key: TopicPartition) -> PartitionCatalog:
        return self._metadata.image.durable(key)

    def _is_gone(self, key: TopicPartition, segment: SegmentDescriptor) -> bool:
        """Whether the segment's records are gone from history: retention took them, or compaction left nothing of
        them."""
        return self._catalog(key).entries.holding(segment.start_offset) is None

    async def _is_replaced(self, key: TopicPartition, group: Sequence[SegmentDescriptor], merged: MergeTotals) -> bool:
        """Whether a group was replaced. A group that cannot be merged, as one of its objects is damaged, does not stop
        the groups behind it. Raises HeadraceError where nothing goes on, as another broker leads or the store fails."""
        try:
            codec = self._leading(key).settings.storage_codec
            await self._replace(key, group, partial(merge_segments, self._objects, group, codec=codec))
        except (CorruptData, FileNotFoundError, RefusedError) as error:
            if len(merged.problems) < MERGE_PROBLEMS_TOLD_MAX:
                merged.problems.append(f"Partition {key.partition}: {error}")
            return False
        return True

    def _check_wanted(self, key: TopicPartition) -> None:
        """Check, before anything is read, that history may still be compacted. Raises HeadraceError."""
        if not _compacts(self._leading(key)):
            raise HeadraceError("its history is not to be compacted any more.")

    def _leading(self, key: TopicPartition) -> Partition:
        """Return the partition as its leader. Raises HeadraceError where nothing of it may be replaced now."""
        role = self._partitions.role(key)
        if not isinstance(role, Partition):
            raise HeadraceError("another broker leads it now; ask again.")
        if hindrance := refusal_of_all(self._metadata.image, key):
            raise HeadraceError(hindrance.message)
        return role

    async def _replace(
        self, key: TopicPartition, group: Sequence[SegmentDescriptor], make: Make
    ) -> SegmentDescriptor | None:
        """Store the object, then have the event committed; the exporter brings the mirror up. None: nothing has to be
        replaced. Raises HeadraceError, OSError."""
        role = self._leading(key)  # before anything is read and stored
        epoch = role.leader_epoch
        made = await self._in_thread(partial(make, made_in=epoch))
        if made is None:
            return None
        ask = ReplaceSegments(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=epoch,
            descriptor=made,
            removed=tuple(segment.sha256 for segment in group),
        )
        async with self._turn_of(role):
            refusal = await self._control.submit(ask)
        if refusal is not None:
            raise (RefusedError if refusal.code is ErrorCode.INVALID_REQUEST else HeadraceError)(refusal.message)
        log.info(
            "durable segments are merged",
            topic=role.topic,
            partition=key.partition,
            start_offset=made.start_offset,
            end_offset=made.end_offset,
            segments=len(group),
            bytes=made.object_bytes,
        )
        return made


def _count(merged: MergeTotals, group: Sequence[SegmentDescriptor]) -> None:
    """Count a group of segments that one other replaces, or would."""
    merged.count(before=len(group), after=1, size=sum(segment.batch_bytes for segment in group))


def _compacts(role: Partition) -> bool:
    """Whether its history is to be compacted: its topic says so."""
    return role.settings.compact and role.settings.durable
