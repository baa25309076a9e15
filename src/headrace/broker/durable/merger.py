"""Puts one durable segment in the place of several small ones, where somebody asks for it; of a compacted topic one
that has only the last record of each key (`storage.tier.compact`), in as many passes as its keys take.

Promises: the object is stored before the event that names it; nothing is put in the place of what was not proven by
its SHA-256, nor by who does not lead; the objects that were replaced go later (`history_keeper`), so that whoever reads
them is not disturbed. A crash leaves at worst an object that nothing refers to. Loop-only, but for the store's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import structlog

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import Offset, TopicId, TopicPartition
from headrace.base.limits import MERGE_PROBLEMS_TOLD_MAX
from headrace.base.ports import Clock, Objects
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
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
    """Of the batches of those that were replaced."""
    unread: int = 0
    """Where nothing is done: other segments, of which only who reads them sees what would stay."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each group that is not merged, and each partition that is not through."""

    def add(self, made: Mapping[Offset, Made]) -> None:
        """What came of the segments of one partition."""
        self.before += sum(each.segments for each in made.values())
        self.bytes += sum(each.bytes for each in made.values())
        self.after += len(made)


class Made(NamedTuple):
    """What a segment that was made stands for, of those that there were at first."""

    segments: int
    bytes: int
    """Of their batches."""


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
        """`turn_of`: held by who moves the head of a partition's history, so that no export finds another one.
        `mirror_up`: has readers of the store shown what there is of it."""
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
    ) -> Merged:
        """Of a topic's partitions that this broker leads, or of one; without `execute` it is only said what would be
        done. `below`: of compacted ones, records from there on replace none. What one partition cannot keeps no other
        from its turn."""
        merged = Merged()
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

    async def _merge(self, key: TopicPartition, merged: Merged, execute: bool, below: Offset | None) -> None:
        catalog = self._catalog(key)
        role = self._partitions.role(key)
        if isinstance(role, Partition) and _compacts(role):
            await self._compact(role, catalog, merged, execute, below)
            return
        for group in await self._in_thread(lambda: list(mergeable(catalog))):
            if execute and not await self._is_replaced(key, group, merged):
                continue
            merged.before += len(group)
            merged.after += 1
            merged.bytes += sum(segment.batch_bytes for segment in group)

    async def _compact(
        self, role: Partition, catalog: PartitionCatalog, merged: Merged, execute: bool, below: Offset | None
    ) -> None:
        """Of each key the last record stays."""
        end = catalog.next_offset if below is None else min(below, catalog.next_offset)
        groups = await self._in_thread(lambda: list(compactable(catalog)))
        if execute and groups:
            made: dict[Offset, Made] = {}
            try:
                await self._compact_all(role.topic_partition, end, made)
            finally:
                merged.add(made)
            return
        for group in groups:
            if len(group) > 1:
                merged.before += len(group)
                merged.after += 1
                merged.bytes += sum(segment.batch_bytes for segment in group)
            else:
                merged.unread += 1

    async def _compact_all(self, key: TopicPartition, end: Offset, made: dict[Offset, Made]) -> None:
        """Pass after pass, each with the keys of a stretch, as many as fit in memory, until these go to `end`. From the
        first segment on, and no further than to the first that cannot be replaced: a tombstone behind it may be all
        that tells of a deletion. `made`, by start: what came of it."""
        read_to = int(self._catalog(key).readable_start)
        while True:
            keys = Keys(read_to, below=end)
            await self._read_keys(key, keys, end)
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

    async def _read_keys(self, key: TopicPartition, keys: Keys, end: Offset) -> None:
        """On from where the pass before has read to."""
        for entry in self._catalog(key).reaching(keys.read_to):
            if keys.is_full or entry.descriptor.start_offset >= end:
                return
            self._check_wanted(key)
            try:
                await self._in_thread(partial(keys.read, self._objects, entry.descriptor))
            except FileNotFoundError:
                if not self._is_gone(key, entry.descriptor):
                    raise

    async def _pass(self, key: TopicPartition, keys: Keys, made: dict[Offset, Made]) -> bool:
        """All that lies below the end of what these are the keys of. False: history's beginning was deleted meanwhile,
        and what is left has to be gone through from its beginning. Readers are shown first what earlier rounds made: a
        tombstone's time begins where these have left nothing for it to delete (see `Keeping.is_shown_later`)."""
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
            make = partial(compact_segments, self._objects, group, keeping, joins=joins)
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
        """Whether nothing of history is there any more: retention took it, or nothing was left of the log there."""
        return self._catalog(key).entries.holding(segment.start_offset) is None

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

    async def _replace(
        self, key: TopicPartition, group: Sequence[SegmentDescriptor], make: Make
    ) -> SegmentDescriptor | None:
        """Object, then event; the exporter brings the mirror up. None: all is as it should be. Raises HeadraceError,
        OSError."""
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


def _compacts(role: Partition) -> bool:
    """Whether its history is to be: its topic says so."""
    return role.settings.compact and role.settings.durable
