"""Puts one durable segment in the place of several small ones, where somebody asks for it; of a compacted topic one
that has only the last record of each key (`storage.tier.compact`).

Promises: the object is stored before the event that names it; nothing is put in the place of what was not proven by
its SHA-256, nor by who does not lead; the objects that were replaced go later (`history_keeper`), so that whoever reads
them is not disturbed. A crash leaves at worst an object that nothing refers to. Loop-only, but for the store's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import structlog

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import TopicId, TopicPartition
from headrace.base.limits import MERGE_PROBLEMS_TOLD_MAX
from headrace.base.ports import Clock, Objects
from headrace.broker.control import Control
from headrace.broker.metadata import MetadataDriver
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.store_threads import StoreThreads
from headrace.controller.asks import ReplaceSegments
from headrace.controller.durable import refusal_of_all
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.tier.compact import Keys, compact_segments, compactable
from headrace.storage.tier.merge import merge_segments, mergeable
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

Make: TypeAlias = Callable[..., SegmentDescriptor | None]
"""Makes the object that is to take the place of others, in the leader epoch `made_in`."""


class RefusedError(HeadraceError):
    """Of one group, by the controller: what it holds has changed."""


@dataclass(slots=True)
class Merged:
    """What came of one request, for the partitions of a topic that this broker leads."""

    partitions: list[int] = field(default_factory=list)
    before: int = 0
    """Segments that were replaced, or would be."""
    after: int = 0
    """Segments in their place."""
    bytes: int = 0
    """Of their batches."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each group that is not merged, and each partition that is not through."""


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
        threads: StoreThreads,
    ) -> None:
        """`turn_of`: held by who moves the head of a partition's history, so that no export finds another one."""
        self._in_thread = threads.run
        self._turn_of = turn_of
        self._partitions = partitions
        self._metadata = metadata
        self._control = control
        self._objects = objects
        self._clock = clock
        self._turn = asyncio.Lock()

    async def merge(self, topic_id: TopicId, wanted: int | None, *, execute: bool) -> Merged:
        """Of a topic's partitions that this broker leads, or of one; without `execute` it is only said what would be
        done. What one partition cannot keeps no other from its turn."""
        merged = Merged()
        async with self._turn:
            for partition in list(self._partitions):
                key = partition.topic_partition
                if key.topic_id != topic_id or wanted not in (None, key.partition):
                    continue
                merged.partitions.append(key.partition)
                try:
                    await self._merge(key, merged, execute)
                except (HeadraceError, OSError) as error:
                    merged.problems.append(f"Partition {key.partition}: {error}")
        return merged

    async def _merge(self, key: TopicPartition, merged: Merged, execute: bool) -> None:
        catalog = self._metadata.image.durable(key)
        role = self._partitions.role(key)
        if isinstance(role, Partition) and _compacts(role):
            await self._compact(role, catalog, merged, execute)
            return
        for group in await self._in_thread(lambda: list(mergeable(catalog))):
            if execute and not await self._is_replaced(key, group, merged):
                continue
            merged.before += len(group)
            merged.after += 1
            merged.bytes += sum(segment.batch_bytes for segment in group)

    async def _compact(self, role: Partition, catalog: PartitionCatalog, merged: Merged, execute: bool) -> None:
        """Of each key the last record stays. From the first segment on, and no further than to the first that cannot be
        replaced: a tombstone behind it may be all that tells of a deletion."""
        key, keys = role.topic_partition, Keys(catalog.readable_start)
        groups = await self._in_thread(lambda: list(compactable(catalog)))
        for entry in catalog if execute and groups else ():
            if keys.is_full:
                break
            self._check_wanted(key)
            await self._in_thread(partial(keys.read, self._objects, entry.descriptor))
        retention_ms = role.log.config.delete_retention_ms
        keeping = keys.keeping(now_ms=self._clock.now_ms(), delete_retention_ms=retention_ms)
        for group in groups:
            if execute:
                if group[0].start_offset >= keeping.clean_to:
                    return
                self._check_wanted(key)
                keeping.now_ms = self._clock.now_ms()  # a tombstone's time begins when what it deletes goes
            make = partial(compact_segments, self._objects, group, keeping)
            is_less = await self._replace(key, group, make) if execute else len(group) > 1
            if is_less:
                merged.before += len(group)
                merged.after += 1
                merged.bytes += sum(segment.batch_bytes for segment in group)

    async def _is_replaced(self, key: TopicPartition, group: Sequence[SegmentDescriptor], merged: Merged) -> bool:
        """A group that cannot be merged, for one of its objects is damaged, keeps none behind it from that. Raises
        HeadraceError where nothing goes on, for another leads or the store fails."""
        try:
            await self._replace(key, group, partial(merge_segments, self._objects, group))
        except (CorruptData, FileNotFoundError, RefusedError) as error:
            if len(merged.problems) < MERGE_PROBLEMS_TOLD_MAX:
                merged.problems.append(f"Partition {key.partition}: {error}")
            return False
        return True

    def _check_wanted(self, key: TopicPartition) -> None:
        """Before anything is read. Raises HeadraceError where nothing may be compacted any more."""
        if not _compacts(self._leading(key)):
            raise HeadraceError("its history is not to be compacted any more.")

    def _leading(self, key: TopicPartition) -> Partition:
        """Raises HeadraceError where nothing of it may be replaced now."""
        role = self._partitions.role(key)
        if not isinstance(role, Partition):
            raise HeadraceError("another broker leads it now; ask again.")
        if hindrance := refusal_of_all(self._metadata.image, key):
            raise HeadraceError(hindrance.message)
        return role

    async def _replace(self, key: TopicPartition, group: Sequence[SegmentDescriptor], make: Make) -> bool:
        """Object, then event; the exporter brings the mirror up. False: all is as it should be. Raises HeadraceError,
        OSError."""
        role = self._leading(key)  # before anything is read and stored
        epoch = role.leader_epoch
        made = await self._in_thread(partial(make, made_in=epoch))
        if made is None:
            return False
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
        return True


def _compacts(role: Partition) -> bool:
    """Whether its history is to be: its topic says so."""
    return role.settings.compact and role.settings.durable
