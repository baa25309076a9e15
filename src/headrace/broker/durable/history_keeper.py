"""Retention of durable history: segments past `retention.*` leave the catalog, and their objects go later.

Objects of segments that have left the catalog, or were replaced there, are deleted after a grace period. Where
compaction has left nothing of a log's beginning, the history below it goes too.

Promises: the event comes first and the deletion later, so that no catalog names a missing object. A reader with an
older image still finds its object. A crash in between leaves an object that nothing refers to. Only the leader asks,
and the controller decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import Offset, TopicId, TopicPartition
from headrace.base.limits import (
    HISTORY_DELETE_GRACE_MS,
    HISTORY_DOOMED_MAX,
    HISTORY_STOP_MS_MAX,
    SEGMENTS_DELETED_AT_ONCE_MAX,
)
from headrace.base.ports import Clock, Objects
from headrace.broker.cluster.control import Control
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions import bounds
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.controller.asks.history import DeleteHistory
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.engine.identity import LogConfig
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.tier.mirror import MirroredState, read_state
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)


class Doomed(NamedTuple):
    """An object that is to be deleted."""

    due: float
    """When nobody reads it any more, in monotonic seconds."""
    object_key: str
    partition: TopicPartition
    next_offset: Offset
    """The offset after its last."""
    start_offset: Offset
    raft_index: int
    """The index of the commit log's entry that removed it from the catalog."""
    is_replaced: bool
    is_seen: bool = False
    """True: the mirror did not name it any more when it was looked at one grace period ago."""


class HistoryKeeper:
    """One per broker that has a durable store."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        control: Control,
        objects: Objects,
        threads: StoreThreads,
        clock: Clock,
        interval_ms: int,
        has_topic: Callable[[TopicId], bool],
        look_again: Callable[[TopicPartition], object],
        on_bug: OnBug,
    ) -> None:
        """`has_topic`: whether the image has it. `look_again` has the mirror of a partition checked, for another broker
        may have written it."""
        self._has_topic = has_topic
        self._look_again = look_again
        self._partitions = partitions
        self._control = control
        self._objects = objects
        self._in_thread = threads.run
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._on_bug = on_bug
        self._doomed: deque[Doomed] = deque()
        """Objects that left the catalog."""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = started(self._run(), "retention of durable history", self._on_bug)

    async def stop(self) -> None:
        """Finish the deletion under way. Objects that were still to be deleted stay, and nothing refers to them."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=HISTORY_STOP_MS_MAX / 1000)
            self._task.cancel()
            await asyncio.wait([self._task])

    def on_delta(self, delta: ImageDelta) -> None:
        """Note segments that leave a catalog. The leader of the partition at that time deletes their objects."""
        before, after = delta.before.catalog, delta.after.catalog
        if before is after:
            return
        topic_ids = delta.after.topics.keys() if delta.topic_ids is None else delta.topic_ids
        for topic_id in topic_ids:
            topic = delta.after.topics.get(topic_id)
            for partition in () if topic is None else topic.partitions:
                key = TopicPartition(topic_id, partition.index)
                known, now = before.get(key), after.get(key)
                if known is None or now is None or known is now:
                    continue
                if isinstance(self._partitions.role(key), Partition):
                    self._doom(key, known.entries.gone(now.entries), now, delta.after.index)

    def _doom(self, key: TopicPartition, gone: Iterable[SegmentDescriptor], now: PartitionCatalog, index: int) -> None:
        due = self._clock.monotonic() + HISTORY_DELETE_GRACE_MS / 1000
        for descriptor in gone:
            if len(self._doomed) < HISTORY_DOOMED_MAX:
                replaced = now.entries.holding(descriptor.start_offset) is not None
                start, end = descriptor.start_offset, descriptor.next_offset
                self._doomed.append(Doomed(due, descriptor.key, key, end, start, index, replaced))

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._interval_s)
                return
            await self._apply_all()
            await self._delete_objects()

    async def _apply_all(self) -> None:
        """Apply retention to all partitions. A failure of one keeps no other from its turn."""
        for partition in list(self._partitions):
            try:
                await self._apply_retention(partition)
            except (HeadraceError, OSError) as error:
                log.warning(
                    "retention of durable history failed; it is tried again",
                    topic=partition.topic,
                    partition=partition.topic_partition.partition,
                    reason=str(error),
                )

    async def _apply_retention(self, partition: Partition) -> None:
        history = partition.history
        if history is None or partition.availability is not ErrorCode.NONE:
            return
        start = history.log_start_offset
        was_replaced = partition.is_read_alone and partition.log.knows_gaps
        if partition.is_exported and was_replaced and partition.differs_from is None:
            start = min(partition.log.log_start_offset, history.next_offset)  # records below were replaced, or deleted
        if partition.settings.delete:
            start = max(start, _retained_from(partition, history, self._clock.now_ms()))
        if start <= history.log_start_offset:
            return
        key = partition.topic_partition
        refusal = await self._control.submit(
            DeleteHistory(
                topic_id=key.topic_id,
                partition=key.partition,
                leader_epoch=partition.leader_epoch,
                log_start_offset=start,
            )
        )
        if refusal is None:
            log.info(
                "durable history past its retention is deleted",
                topic=partition.topic,
                partition=key.partition,
                log_start_offset=start,
            )

    async def _delete_objects(self) -> None:
        """Delete objects that the mirror no longer names. One that cannot be deleted waits behind the others."""
        mirrored: dict[TopicPartition, MirroredState | None] = {}
        for _ in range(len(self._doomed)):
            if self._doomed[0].due > self._clock.monotonic() or self._stopping.is_set():
                return
            doomed = self._doomed[0]
            role = self._partitions.role(doomed.partition)
            catalog = role.history if isinstance(role, Partition) else None
            if (catalog is None and doomed.is_replaced) or not self._has_topic(doomed.partition.topic_id):
                self._doomed.popleft()  # its new leader sweeps it, or the controller where its topic is gone
                continue
            try:
                is_deleted = await self._in_thread(partial(self._delete, doomed, catalog, mirrored))
            except (HeadraceError, OSError) as error:
                is_deleted = False
                log.warning(
                    "an object of the durable store is not deleted yet", object=doomed.object_key, reason=str(error)
                )
            self._doomed.popleft()
            if is_deleted:
                continue
            self._look_again(doomed.partition)
            due = self._clock.monotonic() + HISTORY_DELETE_GRACE_MS / 1000
            self._doomed.append(doomed._replace(due=due, is_seen=is_deleted is None))

    def _delete(
        self, doomed: Doomed, catalog: PartitionCatalog | None, mirrored: dict[TopicPartition, MirroredState | None]
    ) -> bool | None:
        """Delete an object, in a worker thread. False: the mirror still names it. None: the mirror does not, and has to
        be asked again: a replaced segment is still history, and a deposed leader may write late. `mirrored`: the
        mirrors read so far."""
        key = doomed.partition
        if key not in mirrored:
            mirrored[key] = read_state(self._objects, key.topic_id, key.partition)
        state = mirrored[key]
        if state is None or not _is_forgotten(state, doomed, catalog):
            return False
        stands = None if catalog is None else catalog.entries.holding(doomed.start_offset)
        if stands is not None:
            there = self._objects.size(stands.descriptor.key)
            if stands.descriptor.key == doomed.object_key or there != stands.descriptor.object_bytes:
                return False
            if not doomed.is_seen:
                return None
        self._objects.delete(doomed.object_key)
        return True


def _is_forgotten(state: MirroredState, doomed: Doomed, catalog: PartitionCatalog | None) -> bool:
    """Whether the mirror no longer names it. A mirror of another leader may be as new at a lower index."""
    is_new = state.raft_index >= doomed.raft_index or (catalog is not None and state.head == catalog.head)
    return is_new or state.log_start_offset >= doomed.next_offset


def retained_from(history: PartitionCatalog, config: LogConfig, bytes_above: int, now_ms: int) -> Offset:
    """Return the offset where history is to begin. Segments below go whose records are all older than `retention_ms`,
    or without which the partition still holds `retention_bytes`. At most SEGMENTS_DELETED_AT_ONCE_MAX go at once.
    `bytes_above`: bytes that are not exported yet."""
    size = history.batch_bytes + bytes_above
    start = history.log_start_offset
    for entry in islice(history, SEGMENTS_DELETED_AT_ONCE_MAX):
        segment = entry.descriptor
        is_old = config.retention_ms >= 0 and 0 <= segment.last_timestamp_ms < now_ms - config.retention_ms
        is_surplus = config.retention_bytes >= 0 and size - segment.batch_bytes >= config.retention_bytes
        if not (is_old or is_surplus):
            break
        size -= segment.batch_bytes
        start = segment.next_offset
    return start


def _retained_from(partition: Partition, history: PartitionCatalog, now_ms: int) -> Offset:
    """As `retained_from`, for the partition. A compacted log that is read by itself has another size than history of
    the same records. So segments go for their size only where both are too large."""
    held = partition.log
    config, above = held.config, bytes_above(held, history)
    if not bounds.keeps_all(partition) or partition.start_offset < held.log_start_offset:
        return retained_from(history, config, above, now_ms)
    by_age = retained_from(history, replace(config, retention_bytes=-1), above, now_ms)
    by_size = retained_from(history, replace(config, retention_ms=-1), above, now_ms)
    return max(by_age, min(by_size, surplus_end(held)))


def surplus_end(partition_log: PartitionLog) -> Offset:
    """Return the end of the closed ranges without which the log still holds `retention_bytes`."""
    size, end = partition_log.size_bytes, partition_log.log_start_offset
    for part in partition_log.ranges():
        size -= part.size
        if not part.is_closed or size < partition_log.config.retention_bytes:
            break
        end = part.next_offset
    return end


def bytes_above(partition_log: PartitionLog, history: PartitionCatalog) -> int:
    """Return the bytes of the log that are not exported yet. The rest of a partly exported range counts. Less of it
    counts where a durable segment begins below and ends in it: rather too much is kept."""
    size, base = partition_log.size_bytes, history.next_offset
    for part in partition_log.ranges():
        if part.is_closed and part.next_offset <= history.next_offset:
            size -= part.size
        elif part.next_offset > part.base_offset:
            base = min(base, part.base_offset)
    if base < history.next_offset:
        size -= sum(entry.descriptor.batch_bytes for entry in history.reaching(base))
    return max(0, size)
