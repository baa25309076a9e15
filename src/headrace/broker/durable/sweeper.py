"""Removes objects from the durable store that nothing refers to.

These are objects that were stored and never published, and those that left their catalogs and were not deleted then.
The history of deleted topics goes too, with its mirror.

Promises:
- No object is removed that a catalog refers to, now or ever after (`metadata.orphans` says why).
- No object is removed that is younger than the grace period, or that the mirror names.
- No object is removed that left its catalog so lately that somebody may still read it.
- Each leader sweeps its own partitions; the controller sweeps deleted topics.
- No topic that is yet to come is taken for deleted. The controller judges by an image newer than its look at the store,
  as a quorum has confirmed.
- A few objects go in a second; a failed store is asked again the next time.
- Objects of another cluster are never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import ClusterId, TopicId, TopicPartition
from headrace.base.limits import (
    HISTORY_DELETE_GRACE_MS,
    SWEEP_DELETES_PER_SECOND_MAX,
    SWEEP_REMEMBERED_MAX,
    SWEEP_STOP_MS_MAX,
    SWEEP_TOLD_MAX,
    SWEEP_UNFINISHED_MS_MIN,
)
from headrace.base.ports import Clock, ObjectMeta, Objects
from headrace.base.reading import uuid_of
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.partitions import Partitions
from headrace.logs import get_logger
from headrace.metadata.image import MetadataImage
from headrace.metadata.orphans import has_left, is_orphan
from headrace.metadata.segment_keys import SegmentKey, partition_prefix, topics_prefix
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.mirror import (
    NAMES,
    TOPICS,
    MirroredState,
    MirroredTopic,
    MirrorWriter,
    read_document,
    read_state,
    remove_chunk,
    unnamed_chunks,
)
from headrace.wire.durable import Stray

log = get_logger(__name__)

UNREFERENCED: Final = "nothing refers to it"
DELETED: Final = "its topic is deleted"


@dataclass(slots=True)
class Sweep:
    """The result of one look at the store."""

    strays: list[Stray] = field(default_factory=list)
    """The first SWEEP_TOLD_MAX."""
    count: int = 0
    bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """A sentence for each thing that could not be looked at, or removed; the first SWEEP_TOLD_MAX."""

    def note(self, stray: Stray) -> None:
        self.count += 1
        self.bytes += stray.bytes
        if stray.removed:
            self.removed += 1
            self.removed_bytes += stray.bytes
        if len(self.strays) < SWEEP_TOLD_MAX:
            self.strays.append(stray)

    def blame(self, error: Exception) -> None:
        if len(self.problems) < SWEEP_TOLD_MAX:
            self.problems.append(str(error))


class Sweeper:
    """One per broker that has a durable store."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        metadata: MetadataDriver,
        cluster_id: ClusterId,
        objects: Objects,
        threads: StoreThreads,
        clock: Clock,
        grace_ms: int,
        interval_ms: int,
        look_again: Callable[[TopicPartition], object],
        on_bug: OnBug,
    ) -> None:
        """`look_again` has the mirror of a partition checked, for another broker may have written it."""
        self._look_again = look_again
        self._partitions = partitions
        self._metadata = metadata
        self._objects = objects
        self._in_thread = threads.run
        self._clock = clock
        self._grace_ms = grace_ms
        self._interval_s = interval_ms / 1000
        self._on_bug = on_bug
        self._mirror = MirrorWriter(objects, cluster_id=cluster_id)
        self._left: dict[TopicPartition, dict[str, float]] = {}
        """Objects that have left their catalogs and chunks that the mirror does not name. Each has the time when that
        was first seen, in monotonic seconds."""
        self._turn = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = started(self._run(), "sweep of the durable store", self._on_bug)

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=SWEEP_STOP_MS_MAX / 1000)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not await self._rested(self._interval_s):
            sweep = await self.sweep(execute=True)
            if sweep.removed:
                log.info(
                    "objects of the durable store that nothing refers to are removed",
                    objects=sweep.removed,
                    bytes=sweep.removed_bytes,
                )
            if sweep.problems:
                log.warning("not all of the durable store was swept; it is tried again", reason=sweep.problems[0])

    async def _rested(self, seconds: float) -> bool:
        """Wait, and return whether the sweeper is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def sweep(self, *, execute: bool) -> Sweep:
        """Look at everything that this broker has to sweep; with `execute`, remove what is due."""
        async with self._turn:
            sweep = Sweep()
            for partition in list(self._partitions):
                key = partition.topic_partition
                await self._noting(sweep, self._of_partition(key, sweep, execute))
                self._look_again(key)  # at a mirror, too, that cannot be read
            self._forget()
            if self._metadata.is_controller:
                await self._noting(sweep, self._of_deleted_topics(sweep, execute))
            return sweep

    async def _noting(self, sweep: Sweep, work: Awaitable[None]) -> None:
        """Await `work`, and note its failure, which keeps no other partition from its turn."""
        try:
            await work
        except (HeadraceError, OSError) as error:
            sweep.blame(error)

    # objects that were never published, or are no longer

    async def _of_partition(self, key: TopicPartition, sweep: Sweep, execute: bool) -> None:
        image = self._metadata.image
        orphans = await self._in_thread(partial(self._orphans, image, partition_prefix(image.cluster_id, key)))
        known, seen = self._left.pop(key, {}), dict[str, float]()
        mirrored: list[MirroredState | None] = []
        for meta, named in orphans:
            due = self._age_ms(meta) >= self._grace_ms
            if has_left(image, named):
                if not mirrored:
                    mirrored = [await self._in_thread(partial(read_state, self._objects, *key))]
                seen[meta.key] = since = known.get(meta.key, self._clock.monotonic())
                due = due and is_forgotten(mirrored[0], image.durable(key), named) and self._is_past(since)
                due = due and await self._in_thread(partial(self._stands, image.durable(key), named))
            await self._take(meta, UNREFERENCED, sweep, due=due, execute=execute)
        for meta in await self._in_thread(partial(unnamed_chunks, self._objects, *key)):
            seen[meta.key] = since = known.get(meta.key, self._clock.monotonic())
            due = self._age_ms(meta) >= self._grace_ms and self._is_past(since)
            remove = partial(remove_chunk, self._objects, *key, meta)
            await self._take(meta, UNREFERENCED, sweep, due=due, execute=execute, remove=remove)
        if seen and sum(map(len, self._left.values())) < SWEEP_REMEMBERED_MAX:
            self._left[key] = seen

    def _orphans(self, image: MetadataImage, prefix: str) -> list[tuple[ObjectMeta, SegmentKey]]:
        """Return the orphans. Runs in a worker thread, for there may be very many objects."""
        named = ((meta, SegmentKey.parse(meta.key)) for meta in self._objects.list(prefix))
        return [(meta, key) for meta, key in named if key is not None and is_orphan(image, key)]

    def _stands(self, catalog: PartitionCatalog, named: SegmentKey) -> bool:
        """Whether the segment that replaced it is there, whole; True where none did. Runs in a worker thread."""
        entry = catalog.entries.holding(named.start_offset)
        return entry is None or self._objects.size(entry.descriptor.key) == entry.descriptor.object_bytes

    def _is_past(self, since: float) -> bool:
        """Whether nobody still reads an object that left its catalog at `since`."""
        return self._clock.monotonic() - since >= min(self._grace_ms, HISTORY_DELETE_GRACE_MS) / 1000

    def _forget(self) -> None:
        """Forget the objects of partitions that others lead now."""
        led = {partition.topic_partition for partition in self._partitions}
        for key in [key for key in self._left if key not in led]:
            del self._left[key]

    # topics that are gone

    async def _of_deleted_topics(self, sweep: Sweep, execute: bool) -> None:
        here, named = await self._in_thread(self._topics_there)
        await self._metadata.confirmed()  # a topic that was created before its objects were found is in the image now
        image = self._metadata.image
        for topic_id in sorted({*here, *named}.difference(image.topics)):
            await self._noting(sweep, self._of_deleted_topic(image, topic_id, named.get(topic_id), sweep, execute))
        if execute:
            unfinished_ms = max(self._grace_ms, SWEEP_UNFINISHED_MS_MIN)
            await self._in_thread(partial(self._objects.discard_unfinished, self._clock.now_ms() - unfinished_ms))

    def _topics_there(self) -> tuple[set[TopicId], dict[TopicId, ObjectMeta]]:
        """Return topics with objects of this cluster, and the documents of topics of any cluster. Runs in a worker
        thread."""
        prefix = topics_prefix(self._metadata.image.cluster_id)
        here = {found for name in self._objects.directories(prefix) if (found := _topic_id(name)) is not None}
        names = ((meta, _topic_id(meta.key.removeprefix(NAMES))) for meta in self._objects.list(NAMES))
        return here, {found: meta for meta, found in names if found is not None}

    async def _of_deleted_topic(
        self, image: MetadataImage, topic_id: TopicId, document: ObjectMeta | None, sweep: Sweep, execute: bool
    ) -> None:
        """Remove its segments, then their mirror, then its name, so that it is found again until all of it is gone."""
        due = await self._is_given_up(image, document, execute)
        if due is None:
            return
        for prefix in (f"{topics_prefix(image.cluster_id)}{topic_id}/", f"{TOPICS}{topic_id}/"):
            is_empty = True
            for meta in await self._in_thread(partial(self._listed, prefix)):
                is_due = due and self._age_ms(meta) >= self._grace_ms
                is_empty &= await self._take(meta, DELETED, sweep, due=is_due, execute=execute)
            if execute and not is_empty:
                return
        if document is not None:
            await self._take(document, DELETED, sweep, due=due, execute=execute)

    async def _is_given_up(self, image: MetadataImage, document: ObjectMeta | None, execute: bool) -> bool | None:
        """Whether the grace period of a deleted topic is over. It begins when readers of the mirror are told of the
        deletion; with `execute` they are told now. None: the topic is another cluster's, or of an unknown one."""
        if document is None:
            return True
        topic = await self._in_thread(partial(self._read_topic, document.key))
        if topic is None or topic.cluster_id != image.cluster_id:
            return None
        if not topic.deleted and execute:
            marked = replace(topic, deleted=True, raft_index=image.index)
            await self._in_thread(partial(self._mirror.write_topic, marked))
        if not topic.deleted or self._age_ms(document) < self._grace_ms:
            return False
        # It may have been marked since it was listed. Its age counts as of now, when it is known to be marked.
        listed = await self._in_thread(partial(self._listed, document.key))
        return all(self._age_ms(meta) >= self._grace_ms for meta in listed if meta.key == document.key)

    def _read_topic(self, key: str) -> MirroredTopic | None:
        """Read a topic's document, in a worker thread. None: it cannot be read."""
        try:
            document = read_document(self._objects, key)
            return None if document is None else MirroredTopic.from_json(document)
        except CorruptData:
            return None

    # both kinds

    def _listed(self, prefix: str) -> list[ObjectMeta]:
        """List objects, in a worker thread."""
        return list(self._objects.list(prefix))

    def _age_ms(self, meta: ObjectMeta) -> int:
        return self._clock.now_ms() - meta.modified_ms

    async def _take(
        self,
        meta: ObjectMeta,
        reason: str,
        sweep: Sweep,
        *,
        due: bool,
        execute: bool,
        remove: Callable[[], object] | None = None,
    ) -> bool:
        """Remove an object, where it is due, and return whether it was removed. `remove`: how, where it is not just
        deleted."""
        stray = Stray(meta.key, meta.size, max(0, self._age_ms(meta)), reason, due=due, removed=False)
        if not due or not execute or self._stopping.is_set():
            sweep.note(stray)
            return False
        try:
            await self._in_thread(remove or partial(self._objects.delete, meta.key))
        except (HeadraceError, OSError) as error:
            sweep.note(stray)
            sweep.blame(error)
            return False
        sweep.note(stray._replace(removed=True))
        await self._rested(1 / SWEEP_DELETES_PER_SECOND_MAX)
        return True


def is_forgotten(mirrored: MirroredState | None, catalog: PartitionCatalog, named: SegmentKey) -> bool:
    """Whether the mirror no longer names a segment that left the catalog."""
    if mirrored is None:
        return False
    return mirrored.log_start_offset > named.end_offset or mirrored.head == catalog.head


def _topic_id(text: str) -> TopicId | None:
    """Return the topic id in `text`; None: there is none."""
    try:
        return TopicId(uuid_of(text))
    except ValueError:
        return None
