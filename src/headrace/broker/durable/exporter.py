"""Exports closed segments to the durable store: object first, then the event, then the mirror.

Promises:
- Every object that the catalog names is in the store, whole and synced.
- Only whole batches below the high watermark are exported, each offset once.
- A crash leaves at worst an object that nothing refers to.
- A failed store is tried again, after a pause that doubles up to a limit, and holds nothing else up.

It never decides: the controller does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from weakref import WeakKeyDictionary, WeakSet

from headrace.base.errors import CorruptData, HeadraceError, without_frames
from headrace.base.ids import ClusterId, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import (
    DURABLE_SEGMENT_BYTES_MAX,
    EXPORT_READ_BYTES,
    EXPORT_RETRY_MS_MAX,
    EXPORT_RETRY_MS_MIN,
    EXPORT_STOP_MS_MAX,
    EXPORT_TICK_MS,
    EXPORT_WITNESSES_MAX,
)
from headrace.base.ports import Buffer, Clock, Objects
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.durable.footers import Footers, continued
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.condition import listed
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.controller.asks.history import PublishSegment
from headrace.controller.moves import SealedTail
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.metadata.values import TopicImage
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.engine.reading import read_or_fetch
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter
from headrace.storage.tier.producers import producers_after
from headrace.wire.ailments import State
from headrace.wire.batches import parse_header
from headrace.wire.transactions import AbortedTransaction, joined

log = get_logger(__name__)


class _Logged:
    """Logs with troubles that were logged."""

    __slots__ = ("differing", "gapped", "missing", "stuck")

    def __init__(self) -> None:
        self.missing: WeakSet[PartitionLog] = WeakSet()
        """The store lacks their last object."""
        self.stuck: WeakSet[PartitionLog] = WeakSet()
        """They have damage."""
        self.gapped: WeakSet[PartitionLog] = WeakSet()
        """They have gaps above their exported records."""
        self.differing: WeakSet[PartitionLog] = WeakSet()
        """They differ from what was exported."""


class Exporter:
    """One per broker that has a durable store. It exports one segment at a time."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        metadata: MetadataDriver,
        control: Control,
        cluster_id: ClusterId,
        objects: Objects,
        threads: StoreThreads,
        clock: Clock,
        bytes_per_second: int,
        on_bug: OnBug,
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._control = control
        self._objects = objects
        self._in_thread = threads.run
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._rest_until = 0.0
        """The time until which the last export uses up `bytes_per_second`, in monotonic seconds."""
        self._last: TopicPartition | None = None
        """The partition that was exported last."""
        self._on_bug = on_bug
        self._mirror = MirrorWriter(objects, cluster_id=cluster_id)
        self._mirrored: dict[TopicPartition, PartitionCatalog] = {}
        self._doubted: set[TopicPartition] = set()
        """Partitions whose mirror is looked at again, though this broker wrote it."""
        self._failing: str | None = None
        """The failure of the last look at all partitions."""
        self._logged = _Logged()
        self._turns: WeakKeyDictionary[PartitionLog, asyncio.Lock] = WeakKeyDictionary()
        """A lock for each log, held by the caller that exports from it."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._footers = Footers(objects)
        self._deleted: dict[TopicId, MirroredTopic] = {}
        """Deleted topics that the mirror does not yet mark as deleted."""

    def start(self) -> None:
        self._metadata.subscribe(self._on_delta)
        self._task = started(self._run(), "exporter", self._on_bug)

    async def stop(self) -> None:
        """Finish the segment under way, if the store is fast enough. Where it is cut off, it leaves at worst an
        unreferenced object, or a mirror that the next start repairs."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=EXPORT_STOP_MS_MAX / 1000)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_ms = EXPORT_TICK_MS
        while not self._stopping.is_set():
            failure = await self._pass()
            if failure is None:
                pause_ms, self._failing = EXPORT_TICK_MS, None
            else:
                self._failing = str(failure)
                pause_ms = min(max(2 * pause_ms, EXPORT_RETRY_MS_MIN), EXPORT_RETRY_MS_MAX)
                log.warning("durable export failed; it is tried again", reason=str(failure), retry_ms=pause_ms)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_ms / 1000)

    async def _pass(self) -> Exception | None:
        """Export closed segments, and close those that have been open for too long. Returns the last failure, where
        there was one. A failure of one partition does not keep others from their turn."""
        failure = await self._mark_deleted()
        for partition in self._by_turns():
            if self._stopping.is_set():
                break
            if partition.topic_partition in self._metadata.image.moves:
                continue  # the broker that moves it exports it
            try:
                async with self.turn_of(partition):
                    await self._mirror_up(partition)
                    if not partition.is_exported:
                        self._tell_gaps(partition)
                    elif not self._is_stuck(partition):
                        await self._export_all(partition)
                self._logged.missing.discard(partition.log)
            except FileNotFoundError as error:
                self._tell_missing(partition, error)
                failure = error
            except CorruptData as error:
                failure = self._on_corrupt(partition, error) or failure
            except (HeadraceError, OSError) as error:
                failure = error
        return failure

    def _by_turns(self) -> list[Partition]:
        """Return all partitions, beginning with the one after the last exported."""
        partitions = list(self._partitions)
        keys = [partition.topic_partition for partition in partitions]
        after = keys.index(self._last) + 1 if self._last in keys else 0
        return partitions[after:] + partitions[:after]

    def turn_of(self, partition: Partition) -> asyncio.Lock:
        """Return the lock of the partition, held by a caller that moves the head of its history."""
        return self._turns.setdefault(partition.log, asyncio.Lock())

    async def export_next(self, partition: Partition, bytes_max: int) -> int:
        """Export one durable segment of committed records for a move, from the open segment too. Returns its bytes; 0
        where there is nothing to export. Raises HeadraceError, OSError."""
        stored = await self.store_next(partition, bytes_max)
        if stored is None:
            return 0
        await self.publish(partition, stored.descriptor, stored.previous_hash)
        await self.mirror_up(partition)
        return stored.descriptor.batch_bytes

    async def store_next(self, partition: Partition, bytes_max: int, *, undecided: bool = False) -> SealedTail | None:
        """As `export_next`, but only store the segment, and do not publish it. `undecided`: it may reach above the last
        stable offset, which is right only where the partition is to be sealed. Returns None where there is nothing to
        export. Raises HeadraceError, OSError."""
        async with self.turn_of(partition):
            if not partition.is_exported or self._is_stuck(partition):
                raise HeadraceError("Its log cannot be exported: durable.enable is off, or it differs from history.")
            start = self._next_start(partition)
            end = partition.high_watermark if undecided else partition.last_stable_offset
            if start >= end:
                return None
            await self._look_for_others(partition)
            chunks = await self._read(partition, start, end, bytes_max)
            stored = await self._store(partition, chunks, end)
            if stored is None:
                raise HeadraceError("Its topic is gone, or there is nothing that could be read.")
            return stored

    def states(self) -> Iterator[State]:
        """Iterate over the problems: partitions whose export waits for an operator, and a store that cannot be written
        to."""
        stuck = {*self._logged.stuck, *self._logged.missing, *self._logged.gapped, *self._logged.differing}
        names = [
            f"{each.topic}-{each.topic_partition.partition}"
            for each in (self._partitions if stuck else ())
            if each.log in stuck and (each.settings.durable and not self._is_well(each))
        ]
        if names:
            text = f"the durable export of {len(names)} partitions that it leads is stuck ({listed(names)})"
            todo = "its log says why of each, and what to do; what is not exported is not deleted"
            yield State(kind="export stuck", text=text, todo=todo)
        if self._failing is not None:
            text = f"its durable exports fail, and are tried again ({self._failing})"
            yield State(kind="export stuck", text=text, todo="see that the store (durable.url) is there, and has room")

    def _is_well(self, partition: Partition) -> bool:
        """Whether the logged problem of a partition is over."""
        log = partition.log
        return not (
            (log in self._logged.stuck and log.damages)
            or log in self._logged.missing
            or (log in self._logged.gapped and not partition.is_exported)
            or (log in self._logged.differing and partition.differs_from is not None)
        )

    def _is_stuck(self, partition: Partition) -> bool:
        if partition.log in self._logged.stuck and partition.log.damages:
            return True
        differs_from = partition.differs_from
        if differs_from is None:
            return False
        if partition.log not in self._logged.differing:
            self._logged.differing.add(partition.log)
            log.error(
                "durable export of a partition has stopped: its log is not what was exported, and nothing from there "
                "on is deleted; copy what is to be kept to another topic, or set durable.enable=false for the topic",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                offset=differs_from,
            )
        return True

    def _on_corrupt(self, partition: Partition, error: CorruptData) -> CorruptData | None:
        """Note damage in the log, before which history ends until the log is sound again: it has no gaps. Returns the
        error; None where the damage is known to be the reason."""
        partition.on_unreadable(error, self._next_start(partition))
        if not partition.log.damages:
            return error
        if partition.log not in self._logged.stuck:
            self._logged.stuck.add(partition.log)
            log.error(
                "durable export of a partition ends before damage, and nothing behind it is deleted: put back a sound "
                "copy of the file and restart the broker, or set durable.enable=false for the topic",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                reason=str(error),
            )
        return None

    def _tell_missing(self, partition: Partition, error: FileNotFoundError) -> None:
        if partition.log not in self._logged.missing:
            self._logged.missing.add(partition.log)
            log.error(
                "durable export of a partition waits, and what is not exported is not deleted: the store lacks what "
                "was put there last; see that it is the right one (durable.url), and is mounted, put the object back, "
                "or set durable.enable=false for the topic",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                reason=str(error),
            )

    def _tell_gaps(self, partition: Partition) -> None:
        """Log the gaps, where they are why a partition is not exported."""
        if partition.settings.durable and partition.log not in self._logged.gapped:
            self._logged.gapped.add(partition.log)
            log.error(
                "a partition is not exported: its log was compacted above the end of its durable history, which has no "
                "gaps; copy what is to be there to another topic, or set durable.enable=false for the topic",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                gaps_below=partition.log.gaps_below,
                history_end=self._catalog(partition, self._metadata.image).next_offset,
            )

    def _next_start(self, partition: Partition) -> Offset:
        catalog = self._catalog(partition, self._metadata.image)
        return Offset(max(catalog.next_offset, partition.log.log_start_offset))

    def _on_delta(self, delta: ImageDelta) -> None:
        for before, after in delta.changed_topics():
            if before is not None and after is None:
                self._deleted[before.id] = _mirrored(before, delta.after, deleted=True)

    async def _mark_deleted(self) -> Exception | None:
        """Tell the mirror's readers which topics are gone; their objects are swept later."""
        for topic_id, topic in list(self._deleted.items()):
            for index in range(topic.partitions):
                self._forget(TopicPartition(topic_id, PartitionIndex(index)))
            try:
                await self._in_thread(partial(self._mirror.write_topic, topic))
            except (HeadraceError, OSError) as error:
                return without_frames(error)
            del self._deleted[topic_id]
        return None

    def _forget(self, key: TopicPartition) -> None:
        self._mirrored.pop(key, None)
        self._doubted.discard(key)

    async def _export_all(self, partition: Partition) -> None:
        """Export what is closed now. After it others have their turn, before what is closed meanwhile."""
        self._roll_if_late(partition)
        closed = partition.log.log_end_offset
        while (span := self._next_span(partition)) is not None and span[0] < closed:
            if self._stopping.is_set() or partition.topic_partition in self._metadata.image.moves:
                return
            if not partition.is_exported:
                return  # it was switched off meanwhile, and may be compacted from now on
            if self._clock.monotonic() < self._rest_until:
                return
            self._last = partition.topic_partition
            if not await self._export(partition, *span):
                return  # the partition or its topic is gone

    def _roll_if_late(self, partition: Partition) -> None:
        lag_ms = partition.settings.durable_lag_ms_max
        since_ms = partition.open_since_ms
        if lag_ms >= 0 and since_ms is not None and self._clock.now_ms() - since_ms >= lag_ms:
            partition.roll()

    def _catalog(self, partition: Partition, image: MetadataImage) -> PartitionCatalog:
        return image.durable(partition.topic_partition)

    def _next_span(self, partition: Partition) -> tuple[Offset, Offset] | None:
        """Return the next offsets to export, from one closed range; None where there are none."""
        catalog = self._catalog(partition, self._metadata.image)
        start = catalog.next_offset
        for part in partition.log.ranges():
            if part.is_closed and start < part.next_offset <= partition.last_stable_offset:
                return Offset(max(start, part.base_offset, partition.log.log_start_offset)), part.next_offset
        return None

    async def _export(self, partition: Partition, start: Offset, end: Offset) -> bool:
        """Write object, event, and mirror. Returns False where there is nothing to export any more."""
        await self._look_for_others(partition)
        chunks = await self._read(partition, start, end, DURABLE_SEGMENT_BYTES_MAX)
        stored = await self._store(partition, chunks, partition.last_stable_offset)
        if stored is None:
            return False
        await self.publish(partition, stored.descriptor, stored.previous_hash)
        await self._mirror_up(partition)
        return True

    async def _store(self, partition: Partition, chunks: Sequence[Buffer], limit: Offset) -> SealedTail | None:
        """Store the object alone; no batch may reach `limit`. Returns None where there is nothing to export any
        more."""
        image = self._metadata.image
        topic = image.topic_by_id(partition.topic_partition.topic_id)
        if topic is None or not chunks:
            return None
        start, end = Offset(parse_header(chunks[0]).base_offset), _end_of(chunks[-1])
        aborted: list[AbortedTransaction] = []
        overlapping = partition.aborted.between(start, end)
        undecided = partition.producers.open_below(end)
        encoded, begun = await self._producers(partition, self._catalog(partition, image), start, chunks, aborted)
        told = tuple(joined(overlapping, aborted, begun))
        source = ExportSource(
            cluster_id=image.cluster_id,
            topic_id=topic.id,
            topic=topic.name,
            partition=partition.topic_partition.partition,
            leader_epoch=partition.leader_epoch,
            start_offset=start,
            limit_offset=limit,
            producers=encoded,
            aborted_transactions=told,
            undecided_transactions=undecided,
            codec=partition.settings.storage_codec,
        )
        descriptor = await self._in_thread(partial(export_segment, self._objects, source, chunks))
        self._rest_until = self._clock.monotonic() + descriptor.object_bytes / self._bytes_per_second
        self._footers.keep(partition.topic_partition, descriptor, encoded, told)
        head = self._catalog(partition, self._metadata.image).head  # retention may have moved it meanwhile
        return SealedTail(descriptor=descriptor, previous_hash=head)

    async def _read(self, partition: Partition, start: Offset, end: Offset, bytes_max: int) -> Sequence[Buffer]:
        """Read whole batches of [start, end), up to `bytes_max` or one batch more, a little at a time."""
        chunks: list[Buffer] = []
        size = 0
        while partition.log.log_start_offset <= start < end and size < bytes_max:
            chunk = await read_or_fetch(partition.log, start, EXPORT_READ_BYTES, end, at_least_one=True)
            if not chunk:
                break
            chunks.append(bytes(chunk))
            size += len(chunk)
            start = _end_of(chunk)
            await asyncio.sleep(0)
        return chunks

    async def _producers(
        self,
        partition: Partition,
        catalog: PartitionCatalog,
        start: Offset,
        chunks: Sequence[Buffer],
        aborted: list[AbortedTransaction],
    ) -> tuple[str, Sequence[AbortedTransaction]]:
        """Return the producers' states for the footer of these batches, which begin at `start`, and the aborted
        transactions that begin below. `aborted` gets those that are aborted in these batches."""
        last, told = catalog.last, None
        if last is not None:
            told = await self._in_thread(partial(self._footers.of, partition.topic_partition, last.descriptor))
        before, begun = await continued(partition, told, start)
        known = partition.producers.ids
        encoded = await self._in_thread(partial(producers_after, before, chunks, known=known, aborted=aborted))
        return encoded, begun

    async def _look_for_others(self, partition: Partition) -> None:
        """Look for the last objects of some other exported partitions, before the first of this one. As in
        `Footers.of`, they must be there."""
        image = self._metadata.image
        if self._catalog(partition, image).last is not None:
            return
        exported = (catalog.last for key, catalog in image.catalog.items() if _is_exported(key, image))
        keys = [last.descriptor.key for last in islice(filter(None, exported), EXPORT_WITNESSES_MAX)]
        if keys:
            await self._in_thread(partial(self._look_for, keys))

    def _look_for(self, keys: Sequence[str]) -> None:
        """Check that any of them exists. Runs in a worker thread. Raises FileNotFoundError."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._objects.size(key)
                return
        raise FileNotFoundError(errno.ENOENT, "what other partitions have put in the store is not there", keys[0])

    async def publish(self, partition: Partition, descriptor: SegmentDescriptor, previous_hash: str) -> None:
        """Have the controller commit the event. Raises HeadraceError."""
        key = partition.topic_partition
        refusal = await self._control.submit(
            PublishSegment(
                topic_id=key.topic_id,
                partition=key.partition,
                leader_epoch=partition.leader_epoch,
                descriptor=descriptor,
                previous_hash=previous_hash,
                log_start_offset=partition.log.log_start_offset,
            )
        )
        if refusal is not None:
            raise HeadraceError(f"Partition {key.partition} of topic '{partition.topic}': {refusal.message}")
        log.info(
            "durable segment published",
            topic=partition.topic,
            partition=key.partition,
            start_offset=descriptor.start_offset,
            end_offset=descriptor.end_offset,
            bytes=descriptor.object_bytes,
        )

    def look_again(self, key: TopicPartition) -> None:
        """Look at the mirror of a partition again: a deposed leader may have written it late."""
        if key in self._mirrored:
            self._doubted.add(key)

    async def mirror_up(self, partition: Partition) -> None:
        """Bring the mirror up to the image, for readers of the store. Raises HeadraceError, OSError."""
        async with self.turn_of(partition):
            await self._mirror_up(partition)

    async def _mirror_up(self, partition: Partition) -> None:
        """Bring the mirror up to the image, where it is behind (after a crash, at the first look)."""
        key = partition.topic_partition
        image = self._metadata.image
        topic, catalog = image.topic_by_id(key.topic_id), self._catalog(partition, image)
        known = self._mirrored.get(key)
        is_known = known is not None and _mark(known) == _mark(catalog) and key not in self._doubted
        if topic is None or catalog.end_offset < 0 or is_known:
            return
        self._doubted.discard(key)
        try:
            await self._in_thread(lambda: self._write_mirror(topic, key, catalog, known, image))
        except (HeadraceError, OSError):
            self._doubted.add(key)
            raise
        self._mirrored[key] = catalog

    def _write_mirror(
        self,
        topic: TopicImage,
        key: TopicPartition,
        catalog: PartitionCatalog,
        known: PartitionCatalog | None,
        image: MetadataImage,
    ) -> None:
        """Write the mirror's documents. Runs in a worker thread."""
        self._mirror.write_topic(_mirrored(topic, image))
        self._mirror.write_partition(key.topic_id, key.partition, catalog, image.index, known=known)


def _mark(catalog: PartitionCatalog) -> tuple[str, Offset]:
    return catalog.head, catalog.log_start_offset


def _mirrored(topic: TopicImage, image: MetadataImage, *, deleted: bool = False) -> MirroredTopic:
    return MirroredTopic(
        cluster_id=image.cluster_id,
        topic_id=topic.id,
        name=topic.name,
        partitions=len(topic.partitions),
        deleted=deleted,
        raft_index=image.index,
    )


def _is_exported(key: TopicPartition, image: MetadataImage) -> bool:
    """Whether history of the partition is exported. It is not where `durable.enable` is off for its topic, as where its
    history is in another store."""
    topic = image.topic_by_id(key.topic_id)
    return topic is not None and topic.configs.get("durable.enable") != "false"


def _end_of(chunk: Buffer) -> Offset:
    """Return the offset after the last batch of a buffer of whole batches."""
    end, at = Offset(0), 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        end, at = Offset(header.next_offset), at + header.size
    return end
