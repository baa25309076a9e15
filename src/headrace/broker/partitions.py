"""All partitions that this broker leads, kept in step with the metadata image.

Promises: a log is opened where the image says that this broker leads, and nowhere else, and closed where it leads no
more; carrying out the same change twice changes nothing; a deleted topic's waiting requests are answered before its
files go. What cannot be opened is offline, answered with KAFKA_STORAGE_ERROR and logged, and keeps nothing else from
being served. Never decides who leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import structlog

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import BrokerId, DirectoryId, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import LOGS_CLOSED_AT_ONCE_MAX, LOGS_OPENED_AT_ONCE_MAX, LOGS_TAKEN_UP_PER_TURN_MAX
from headrace.base.ports import Clock, Space
from headrace.broker.flusher import Flusher
from headrace.broker.partition import Partition, Suspect
from headrace.broker.partition_settings import log_config, partition_settings
from headrace.broker.repacking import Repacker
from headrace.broker.tasks import OnBug, started
from headrace.metadata.configs import TopicConfig, topic_config
from headrace.metadata.delta import ImageDelta, LocalPartition
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.replica.leader import Leader
from headrace.replica.producers import ProducerStates
from headrace.storage.engine import Damage, LogEngine, LogIdentity, LogOpening, PartitionLog
from headrace.storage.log.names import DAMAGED, LOG, numbered
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

T = TypeVar("T")
Place: TypeAlias = tuple[str | TopicId, PartitionIndex]
"""A partition as clients call it: by its topic's name or id."""


class Opened(NamedTuple):
    """A log, and the producers that wrote to it."""

    log: PartitionLog
    producers: ProducerStates


class Partitions:
    """See the module. Loop-only; blocking work goes to worker threads, in the order in which it was asked for."""

    def __init__(
        self,
        *,
        node: BrokerId,
        directory_id: DirectoryId,
        engine: LogEngine,
        flusher: Flusher,
        clock: Clock,
        broker_configs: Mapping[str, str],
        on_bug: OnBug,
    ) -> None:
        self._node = node
        self._directory_id = directory_id
        self._engine = engine
        self._flusher = flusher
        self._clock = clock
        self._repacker = Repacker(on_bug)
        self._broker_configs = broker_configs
        self._on_bug = on_bug
        self._image = EMPTY_IMAGE
        """As of the last change."""
        self._serving: dict[TopicPartition, Partition] = {}
        self._places: dict[Place, Partition] = {}
        """The same by all that clients call them."""
        self.on_departure: list[Callable[[], object]] = []
        """Told when a partition is served no more: what was found before is to be looked for again."""
        self._resigning: set[TopicPartition] = set()
        """What is led by others, or by nobody, and still to be closed here."""
        self._offline: dict[TopicPartition, str] = {}
        """What could not be opened, and why."""
        self.before_closing: list[Callable[[Sequence[PartitionLog]], Awaitable[None]]] = []
        """Awaited before logs are closed or deleted, so that whoever works on them lets go."""
        self.suspect: Suspect = _nobody_looks
        """Whom partitions tell of what they could not read."""
        self._work: asyncio.Task[None] | None = None
        """The last of the openings and deletions, each of which awaits the one before it."""

    # asking

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._serving.values())

    def __len__(self) -> int:
        return len(self._serving)

    def find(self, key: TopicPartition, image: MetadataImage) -> Partition | ErrorCode:
        """The partition where this broker serves it, else the error for the client."""
        partition = self._serving.get(key)
        if partition is not None and partition.availability is ErrorCode.NONE:
            return partition
        known = image.partition(key)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known.leader != self._node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition is not None:
            return partition.availability
        return ErrorCode.KAFKA_STORAGE_ERROR if key in self._offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def called(self, place: Place) -> Partition | None:
        """The partition that a client means, where this broker serves it; None: ask `find` why not."""
        partition = self._places.get(place)
        return None if partition is None or partition.availability is not ErrorCode.NONE else partition

    @property
    def log_directory(self) -> Path:
        """Where the logs are."""
        return self._engine.root

    async def space(self) -> Space:
        """Of the volume that the logs are on. Raises OSError."""
        return await self._in_thread(self._engine.space)

    @property
    def offline(self) -> Mapping[TopicPartition, str]:
        """Partitions that are led here but could not be opened, with the reason."""
        return self._offline

    async def settled(self) -> None:
        """Wait until what the image asked for so far is carried out."""
        while self._work is not None and not self._work.done():
            await asyncio.shield(self._work)

    # following the image

    def on_delta(self, delta: ImageDelta) -> None:
        """Carry out one committed change. Refusals begin at once; files are opened and deleted in worker threads."""
        self._image = delta.after
        changes = delta.local_changes(self._node)
        for topic in changes.reconfigured:
            self._reconfigure(topic, delta.after)
        for key in changes.deleted:
            if (partition := self._serving.get(key)) is not None:
                partition.end(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        resigned = [local.key for local in changes.followers if self._resign(local.key)]
        gone = [self._identity(_topic(delta.before, key), key.partition) for key in changes.deleted]
        led = [local for local in changes.leaders if not self._lead_on(local)]
        if gone or resigned or led:
            work = self._carry_out(self._work, gone, resigned, led)
            self._work = started(work, "opening and deleting of logs", self._on_bug)

    def _lead_on(self, local: LocalPartition) -> bool:
        """A partition that is served already goes on under its new epoch; False where it is not served."""
        serving = self._serving.get(local.key)
        if serving is None or local.key in self._resigning:
            return False
        serving.lead(local.partition.leader_epoch, local.partition.isr, in_sync(local.partition))
        return True

    def _resign(self, key: TopicPartition) -> bool:
        """What is held here is not led here (any more): False where there is nothing to end."""
        self._offline.pop(key, None)
        if (serving := self._serving.get(key)) is not None:
            serving.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._work is None or self._work.done():
            return False
        self._resigning.add(key)
        return True

    def _identity(self, topic: TopicImage, partition: PartitionIndex) -> LogIdentity:
        return LogIdentity(
            topic_name=topic.name, topic_id=topic.id, partition=partition, directory_id=self._directory_id
        )

    async def _carry_out(
        self,
        before: asyncio.Task[None] | None,
        gone: Sequence[LogIdentity],
        resigned: Sequence[TopicPartition],
        led: Sequence[LocalPartition],
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        if gone:
            await self._remove(gone)
        if resigned:
            await self._close_resigned(resigned)
        if opened := [local for local in led if not self._lead_on(local)]:
            topics = {local.topic.id: local.topic for local in opened}
            image = self._image
            configs = {topic_id: self._config(topic, image) async for topic_id, topic in _by_turns(topics.items())}
            results = await self._open_all(opened, configs)
            async for local, result in _by_turns(zip(opened, results, strict=True)):
                self._take_up(local, configs[local.topic.id], result)
            if self._image is not image:
                self._reconfigure_all(topics)

    async def _close_resigned(self, resigned: Sequence[TopicPartition]) -> None:
        """Flush and close, so that whoever leads next finds all there is."""
        ended = [partition for key in resigned if (partition := self._forget(key)) is not None]
        self._resigning.difference_update(resigned)
        if not ended:
            return
        for tell in self.on_departure:
            tell()
        await self._flush(ended)
        logs = [partition.log for partition in ended]
        for let_go in self.before_closing:
            await let_go(logs)
        for partition in ended:
            if not partition.log.failed:
                partition.snapshot_producers()
        await self._in_thread(partial(_close_all, logs, clean=True))

    def _forget(self, key: TopicPartition) -> Partition | None:
        """It is served no more; None where it was not."""
        partition = self._serving.pop(key, None)
        if partition is not None:
            del self._places[key]
            if self._places.get(by_name := (partition.topic, key.partition)) is partition:
                del self._places[by_name]
        return partition

    async def _flush(self, ended: Sequence[Partition]) -> None:
        """Nothing is appended to them any more: one round more than is under way has all of it."""
        for _ in range(2):
            for partition in ended:
                if partition.log.needs_flush and not partition.log.failed:
                    self._flusher.request(partition)
            await self._flusher.round_over()

    async def _remove(self, gone: Sequence[LogIdentity]) -> None:
        """Close and delete, once no flush of theirs is under way."""
        logs: list[PartitionLog] = []
        for identity in gone:
            key = TopicPartition(identity.topic_id, identity.partition)
            self._offline.pop(key, None)
            if (partition := self._forget(key)) is not None:
                partition.end(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                logs.append(partition.log)
        for tell in self.on_departure:
            tell()
        await self._flusher.round_over()
        for let_go in self.before_closing:
            await let_go(logs)
        await self._in_thread(lambda: self._delete(logs, gone))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    def _delete(self, logs: Sequence[PartitionLog], gone: Sequence[LogIdentity]) -> None:
        """In a worker thread."""
        for each in logs:
            _close(each, clean=False)
        for identity in gone:
            try:
                self._engine.delete(identity)
            except (OSError, HeadraceError) as error:
                log.warning("a deleted partition's files are left", topic=identity.topic_name, reason=str(error))

    async def _open_all(
        self, led: Sequence[LocalPartition], configs: Mapping[TopicId, TopicConfig]
    ) -> list[Opened | Exception]:
        """Read one after the other, for that takes the processor; then several at a time wait for the disk."""
        begun = await self._in_thread(lambda: [self._begin_open(local, configs[local.topic.id]) for local in led])
        waiting = [at for at, each in enumerate(begun) if not isinstance(each, Exception) and each.must_sync]
        at_once = LOGS_OPENED_AT_ONCE_MAX if len(waiting) >= LOGS_OPENED_AT_ONCE_MAX else 1
        slow = [waiting[first::at_once] for first in range(at_once)]
        slow_ones = set(waiting)
        quick = [at for at in range(len(begun)) if at not in slow_ones]
        opened: dict[int, Opened | Exception] = {}

        def finish(share: Sequence[int]) -> None:
            for at in share:
                opened[at] = self._finish_open(begun[at])

        await asyncio.gather(*(self._in_thread(partial(finish, share)) for share in [quick, *slow] if share))
        return [opened[at] for at in range(len(begun))]

    def _begin_open(self, local: LocalPartition, config: TopicConfig) -> LogOpening | Exception:
        """In a worker thread."""
        try:
            return self._engine.begin_open(self._identity(local.topic, local.partition.index), log_config(config))
        except (OSError, HeadraceError) as error:
            return error

    def _finish_open(self, begun: LogOpening | Exception) -> Opened | Exception:
        """In a worker thread: recover the log, then the producers' state from its snapshot and what follows it."""
        if isinstance(begun, Exception):
            return begun
        try:
            opened = begun.finish()
            try:
                producers = _recover_producers(opened, self._clock.now_ms())
            except CorruptData as error:
                log.warning(
                    "a log is examined: its batches cannot be walked", log=str(opened.directory), reason=str(error)
                )
                _examine_all(opened)
                producers = _recover_producers(opened, self._clock.now_ms())
        except (OSError, HeadraceError) as error:
            return error
        return Opened(opened, producers)

    def _take_up(
        self,
        local: LocalPartition,
        config: TopicConfig,
        opened: Opened | Exception,
    ) -> None:
        if isinstance(opened, Exception):
            self._offline[local.key] = str(opened)
            log.error(
                "partition offline: its log could not be opened",
                topic=local.topic.name,
                partition=local.partition.index,
                reason=str(opened),
            )
            return
        partition_log, producers = opened
        if partition_log.set_aside is not None:
            log.warning(
                "another topic's files were under this name and are kept beside it",
                topic=local.topic.name,
                partition=local.partition.index,
                kept_in=str(partition_log.set_aside),
            )
        if partition_log.read_only is not None:
            log.error(
                "partition for reading only: what was flushed last is gone; put it back and restart the broker, or "
                "copy what is left to another topic",
                topic=local.topic.name,
                partition=local.partition.index,
                reason=partition_log.read_only,
            )
        tell_damage(local.topic.name, local.partition.index, partition_log, partition_log.damages)
        partition_log.assign_epoch(local.partition.leader_epoch)
        leader = Leader.elected(
            node=self._node,
            epoch=local.partition.leader_epoch,
            isr=local.partition.isr,
            flushed_end=partition_log.flushed_end,
            high_watermark=partition_log.flushed_end,
        )
        partition = Partition(
            topic=local.topic.name,
            topic_partition=local.key,
            partition_log=partition_log,
            leader=leader,
            isr_size=in_sync(local.partition),
            producers=producers,
            settings=partition_settings(config),
            flusher=self._flusher,
            repacker=self._repacker,
            clock=self._clock,
            suspect=lambda partition, offset: self.suspect(partition, offset),
        )
        self._serving[local.key] = self._places[local.key] = partition
        self._places[partition.topic, local.key.partition] = partition
        if local.key in self._resigning:  # while it was being opened, another was elected
            partition.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # configuration

    def _reconfigure_all(self, topics: Iterable[TopicId]) -> None:
        """Their configurations may have changed while their logs were being opened."""
        for topic_id in topics:
            if (topic := self._image.topics.get(topic_id)) is not None:
                self._reconfigure(topic, self._image)

    def _config(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return topic_config(image, topic, self._broker_configs, node=self._node)

    def _reconfigure(self, topic: TopicImage, image: MetadataImage) -> None:
        config = self._config(topic, image)
        for partition in topic.partitions:
            serving = self._serving.get(TopicPartition(topic.id, partition.index))
            if serving is not None:
                serving.settings = partition_settings(config)
                serving.log.reconfigure(log_config(config))

    # ending

    def wake_readers(self) -> None:
        """Answer every parked fetch with what there is."""
        for partition in self._serving.values():
            partition.wake_readers()

    def _close_engine(self, *, clean: bool) -> None:
        """In a worker thread, after every log was closed."""
        try:
            self._engine.close(clean=clean)
        except OSError as error:
            log.warning("the journal was not closed cleanly", reason=str(error))

    async def close(self, *, clean: bool = True) -> None:
        """A clean stop: what was appended is flushed and acknowledged, then every log is closed cleanly. Any other:
        nothing more is written, and the next start recovers."""
        await self.settled()
        await self._flusher.idle()
        for partition in self._serving.values():
            partition.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if clean and not partition.log.failed:
                partition.snapshot_producers()
        logs = [partition.log for partition in self._serving.values()]
        shares = [logs[first::LOGS_CLOSED_AT_ONCE_MAX] for first in range(LOGS_CLOSED_AT_ONCE_MAX)]
        await asyncio.gather(*(self._in_thread(partial(_close_all, share, clean=clean)) for share in shares if share))
        await self._in_thread(partial(self._close_engine, clean=clean))
        self._serving.clear()
        self._places.clear()


def in_sync(partition: PartitionImage) -> int:
    """How many replicas count for min.insync.replicas. Followers do not copy yet: where there are to be some, nobody
    counts, so that acks=all is refused (NOT_ENOUGH_REPLICAS, which clients retry) rather than taken for replicated."""
    return 1 if len(partition.replicas) == 1 else 0


async def _by_turns(things: Iterable[T]) -> AsyncIterator[T]:
    """Some of them in each turn of the event loop, so that others have theirs."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % LOGS_TAKEN_UP_PER_TURN_MAX == 0:
            await asyncio.sleep(0)


def _nobody_looks(_: Partition, __: Offset | None) -> bool:
    return False


def tell_damage(topic: str, partition: int, partition_log: PartitionLog, damages: Sequence[Damage]) -> None:
    """One line for each range: what is wrong, and what to do."""
    for damage in damages:
        path = numbered(partition_log.directory, damage.segment, LOG)
        log.error(
            "a log is damaged: fetches in this range are answered with CORRUPT_MESSAGE, all else is served; put back a "
            "sound copy of the file and restart the broker, or let consumers seek to next_offset",
            topic=topic,
            partition=partition,
            first_offset=damage.start,
            next_offset=damage.end,
            file=str(path),
            kept_as=path.name + DAMAGED,
            reason=damage.reason,
        )


def _topic(image: MetadataImage, key: TopicPartition) -> TopicImage:
    topic = image.topics.get(key.topic_id)
    assert topic is not None, "what is deleted was there before"
    return topic


def _close_all(logs: Sequence[PartitionLog], *, clean: bool) -> None:
    for each in logs:
        _close(each, clean=clean and not each.failed)


def _close(partition_log: PartitionLog, *, clean: bool) -> None:
    """In a worker thread. A log that cannot be closed cleanly is recovered at the next start."""
    try:
        partition_log.close(clean=clean)
    except (OSError, HeadraceError) as error:
        log.warning("a log was not closed cleanly", directory=str(partition_log.directory), reason=str(error))


def _examine_all(partition_log: PartitionLog) -> None:
    """In a worker thread, before anybody else has the log."""
    for base in partition_log.segments:
        if (examination := partition_log.begin_examination(base)) is not None:
            examination.run()
            partition_log.end_examination(examination, done=True)


def _recover_producers(partition_log: PartitionLog, now_ms: int) -> ProducerStates:
    """When a batch behind the snapshot was appended is not known: it counts as appended now, so that no producer is
    forgotten too early."""
    snapshot = partition_log.latest_producer_snapshot()
    producers = ProducerStates()
    start = partition_log.log_start_offset
    if snapshot is not None and snapshot[0] <= partition_log.log_end_offset:
        try:
            producers = ProducerStates.restore(snapshot[1])
            start = Offset(max(start, snapshot[0]))
        except CorruptData as error:
            log.warning("producers are rebuilt from the whole log", log=str(partition_log.directory), reason=str(error))
    for header in partition_log.batches_from(start):
        producers.on_appended(header, Offset(header.base_offset), now_ms)
    return producers
