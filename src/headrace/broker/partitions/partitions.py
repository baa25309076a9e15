"""All partitions that this broker holds, those that it leads and those that it copies, in step with the metadata image.

Promises:
- A log is opened where the image says that this broker is a replica, and nowhere else. It is closed where the broker is
  none any more.
- One log has one role at a time, and none while a flush or a cut of an earlier role is under way.
- Carrying out the same change twice changes nothing.
- A deleted topic's waiting requests are answered before its files go.
- No log is removed that anybody counts on, even where the broker is a replica again by then (see `_ending`).
- A log that cannot be opened is offline, answered with KAFKA_STORAGE_ERROR and logged, and keeps nothing else from
  being served.

It never decides who leads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import structlog

from headrace.base.errors import HeadraceError, NoRoom
from headrace.base.ids import (
    NO_LEADER,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import LOGS_CLOSED_AT_ONCE_MAX, LOGS_TAKEN_UP_PER_TURN_MAX
from headrace.base.ports import Buffer, Clock, Space
from headrace.broker.kit.tasks import OnBug, in_thread, started
from headrace.broker.partitions.discarding import Discarding
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.durable_wins import DurableWins, agrees, wins
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.forwarding import Done, Forward
from headrace.broker.partitions.opening import Opened, Opener, Wanted
from headrace.broker.partitions.partition import Partition, Propose
from headrace.broker.partitions.repacking import Repacker
from headrace.broker.partitions.replica import Common, Failed, Replica, Suspect
from headrace.broker.partitions.settings import PartitionSettings, log_config, partition_settings
from headrace.broker.partitions.strays import Strays, may_hold_more
from headrace.metadata.configs import TopicConfig, topic_config
from headrace.metadata.delta import ImageDelta, LocalPartition
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.segments import PartitionCatalog
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.replica.leader import Leader, ProposeIsr
from headrace.replica.producers import ProducerStates
from headrace.replica.recovery_start import recovery_start
from headrace.storage.engine import Damage, LogEngine, LogIdentity, PartitionLog, StampMismatch
from headrace.storage.log.names import DAMAGED, LOG, numbered
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

T = TypeVar("T")
UNFLUSHED: Final = (
    "a partition is led by who came back from a crash: with flush.policy=os, records that were acknowledged and that "
    "the machine had not written yet are lost if it lost its power"
)
Place: TypeAlias = tuple[str | TopicId, PartitionIndex]
"""A partition as clients name it: by its topic's name or id."""


class Feeding(Protocol):
    """Brings followers the data of their leaders (`broker.replication.copying`)."""

    def copy(self, partition: FollowerPartition) -> None:
        """Copy the partition from its present leader, in its present epoch."""

    def drop(self, key: TopicPartition) -> None:
        """Stop copying it."""


class NoFeeding:
    """Stands in before there is any copying."""

    def copy(self, partition: FollowerPartition) -> None:
        """Does nothing: the copy stays as it is."""

    def drop(self, key: TopicPartition) -> None:
        """Does nothing: nothing is copied."""


class Unopened(NamedTuple):
    """`Waiting`: a log that could not be opened for want of room."""

    partitions: Partitions
    key: TopicPartition
    has_stepped_down: bool = False

    def go_on(self) -> bool:
        self.partitions.open_soon(self.key)
        return True


class Unled(NamedTuple):
    """`Waiting`: a log that this broker is to lead, and that could not give way to history for want of room."""

    partitions: Partitions
    key: TopicPartition
    has_stepped_down: bool = False

    def go_on(self) -> bool:
        self.partitions.try_again(self.key)
        return True


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
        room: DiskRoom,
        broker_configs: Mapping[str, str],
        has_store: bool = False,
        on_bug: OnBug,
    ) -> None:
        self._node = node
        self._directory_id = directory_id
        self._engine = engine
        self._flusher = flusher
        self._clock = clock
        self._room = room
        self._repacker = Repacker(on_bug)
        self._broker_configs = broker_configs
        self._has_store = has_store
        self._on_bug = on_bug
        self._opener = Opener(engine, clock)
        self._discarding = Discarding(engine, on_bug)
        self._strays = Strays(engine, node, directory_id)
        self.durable_wins = DurableWins(on_bug)
        self.durable_wins.again = self.try_again
        self.durable_wins.wanted = self._history_to_lead
        self.feeding: Feeding = NoFeeding()
        self.propose: Propose = _nobody_decides
        """Called by partitions with an ISR that they propose."""
        self.forward: Forward = _nobody_forwards
        """May accept a batch of a partition that is handed over, and that this broker does not lead any more, or
        yet."""
        self.on_led: list[Callable[[Partition], object]] = []
        """Called with each partition that this broker begins to lead, before anybody else finds it."""
        self._image = EMPTY_IMAGE
        """The image as of the last change."""
        self._serving: dict[TopicPartition, Partition] = {}
        """Partitions that this broker leads."""
        self._following: dict[TopicPartition, FollowerPartition] = {}
        self._places: dict[Place, Partition] = {}
        """Led partitions by every name that clients have for them."""
        self.on_departure: list[Callable[[], object]] = []
        """Called when a partition is served no more: earlier results of look-ups are void."""
        self.on_forgotten: list[Callable[[Partition], object]] = []
        """Called with each partition that this broker led, once it does not."""
        self._crashed: set[TopicPartition] = set()
        """Partitions that were opened after a crash, and whose counted records were not flushed (flush.policy=os)."""
        self._offline: dict[TopicPartition, str] = {}
        """Logs that could not be opened, with the reason."""
        self._said_in: dict[TopicPartition, LeaderEpoch] = {}
        """`FollowerPartition.said_in` of copies that were closed in the middle of a change and are not open again."""
        self.before_closing: list[Callable[[Sequence[PartitionLog]], Awaitable[None]]] = []
        """Awaited before logs are closed or deleted, so that other work on them ends."""
        self.suspect: Suspect = _nobody_looks
        """Called by partitions with an offset that they could not read."""
        self.failed: Failed = _nobody_leaves
        """Called by partitions whose disk has failed."""
        self.damaged: Callable[[TopicPartition], object] = _nobody_leaves
        """Called with logs that are damaged, or have a replaced log kept beside them."""
        self.let_in: Callable[[TopicPartition], object] = _nobody_leaves
        """Called with copies that are in sync and have a replaced log kept beside them."""
        self._work: asyncio.Task[None] | None = None
        """The last of the openings and deletions, each of which awaits the one before it."""
        self._ending: Counter[TopicPartition] = Counter()
        """How often each log is still to be removed, or left to its next owner. Until that is done it gets no role,
        even where the image says by then that the broker is a replica again. The work under way would give the old log
        to the new assignment. The work behind it would remove that log again, with everything counted on meanwhile.

        So nothing is said of a log between the change that ends its assignment and its removal. Earlier reports belong
        to an earlier leader epoch (`controller.reassignments.changes`), in which nothing counts any more. A log that is
        opened after that belongs to the new assignment.
        """
        self._closing = False
        """The logs are closed, or about to be: later changes of the image are for the next start."""

    # look-ups

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the partitions that this broker leads."""
        return iter(self._serving.values())

    def __len__(self) -> int:
        return len(self._serving)

    @property
    def replicas(self) -> list[Replica]:
        """All partitions that this broker holds, as leader or follower."""
        return [*self._serving.values(), *self._following.values()]

    def follower(self, key: TopicPartition) -> FollowerPartition | None:
        """Return the partition where this broker copies it."""
        return self._following.get(key)

    def find(self, key: TopicPartition, image: MetadataImage) -> Partition | ErrorCode:
        """Return the partition where this broker serves it, else the error for the client."""
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

    def find_readable(self, key: TopicPartition, image: MetadataImage) -> Replica | ErrorCode:
        """As `find`, for a consumer that may read from a follower too (KIP-392)."""
        copy = self._following.get(key)
        if copy is None or copy.has_stepped_down or image.partition(key) is None:
            return self.find(key, image)
        return copy

    def called(self, place: Place) -> Partition | None:
        """Return the partition that a client names, where this broker serves it; None: ask `find` why not."""
        partition = self._places.get(place)
        return None if partition is None or partition.availability is not ErrorCode.NONE else partition

    @property
    def log_directory(self) -> Path:
        """The directory of the logs."""
        return self._engine.root

    async def space(self) -> Space:
        """Return the space on the logs' volume. Raises OSError."""
        return await in_thread(self._engine.space)

    @property
    def offline(self) -> Mapping[TopicPartition, str]:
        """Partitions that this broker should lead but could not open, with the reason."""
        return self._offline

    async def settled(self) -> None:
        """Wait until every earlier change of the image is carried out."""
        while self._work is not None and not self._work.done():
            await asyncio.shield(self._work)

    # changes of the image

    def on_delta(self, delta: ImageDelta) -> None:
        """Carry out one committed change. Refusals begin at once; files are opened and deleted in worker threads."""
        self._image = delta.after
        if delta.before is EMPTY_IMAGE:
            self._work = started(self._clear(delta.after), "clearing of logs that are not held any more", self._on_bug)
        if self._has_store and delta.before.catalog is not delta.after.catalog:
            self._follow_history(delta)
        changes = delta.local_changes(self._node)
        for topic in changes.reconfigured:
            self._reconfigure(topic, delta.after)
        for key in changes.deleted:
            self._end(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for key in changes.left:
            self._end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        gone = [self._gone(delta.before, key) for key in changes.deleted]
        touched = [local for local in (*changes.leaders, *changes.followers) if not self._goes_on(local)]
        if (gone or changes.left or touched) and not self._closing:
            self._ending.update((*changes.deleted, *changes.left))
            work = self._carry_out(self._work, gone, changes.left, [local.key for local in touched])
            self._work = started(work, "opening and deleting of logs", self._on_bug)

    async def _clear(self, image: MetadataImage) -> None:
        self._discarding.add(await self._strays.clear(image))

    def _gone(self, before: MetadataImage, key: TopicPartition) -> LogIdentity:
        """Return the identity of the log whose assignment ends."""
        topic = _topic(before, key)
        return self._identity(topic, key.partition, topic.partitions[key.partition].assignment_epoch)

    def _follow_history(self, delta: ImageDelta) -> None:
        """Note the history of partitions. Readers find records there before they may be deleted here because the
        catalog has them."""
        before = delta.before.catalog
        for role in self.replicas if delta.topic_ids is None else self._of_topics(delta.topic_ids):
            key = role.topic_partition
            if (known := self._history(key)) is not before.get(key):
                role.on_history(known)

    def _history(self, key: TopicPartition) -> PartitionCatalog | None:
        """Return the partition's history. None: it has none, or it does not count. An internal topic is read from its
        leader's log alone, and may have been exported by earlier versions."""
        topic = self._image.topics.get(key.topic_id)
        return None if topic is None or topic.internal else self._image.catalog.get(key)

    def _of_topics(self, topic_ids: Iterable[TopicId]) -> Iterator[Replica]:
        for topic_id in topic_ids:
            topic = self._image.topics.get(topic_id)
            for partition in () if topic is None else topic.partitions:
                if (role := self.role(TopicPartition(topic_id, partition.index))) is not None:
                    yield role

    def _goes_on(self, local: LocalPartition) -> bool:
        """Whether the present role goes on under the new epoch. Otherwise that role is over, and the partition is to
        get the other."""
        key, image = local.key, local.partition
        leads = image.leader == self._node
        if self._is_of_another(local):
            self._end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return False
        if leads and (serving := self._serving.get(key)) is not None and not serving.has_stepped_down:
            others_led = image.leader_epoch != serving.leader_epoch
            if not (others_led and wins(self._history(key), serving.log)):
                serving.lead(image)
                return True
        if (copy := self._following.get(key)) is not None and not copy.has_stepped_down:
            if not leads:
                self._follow_on(copy, image)
                return True
            if copy.log.has_replaced and _is_elected_cleanly(copy, image):
                self.let_in(key)  # it came to be in sync in the same entry
        self._end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return False

    def _is_of_another(self, local: LocalPartition) -> bool:
        """Whether the open log was left behind when the partition was handed over."""
        role = self.role(local.key)
        return role is not None and role.log.identity.assignment_epoch != local.partition.assignment_epoch

    def _follow_on(self, copy: FollowerPartition, image: PartitionImage) -> None:
        was_throttled = copy.is_throttled
        copy.is_in_sync = self._node in image.isr
        self._tell_let_in(copy)
        if (copy.leader, copy.leader_epoch) == (image.leader, image.leader_epoch):
            if was_throttled and not copy.is_throttled:
                self._feed(copy)  # at once: producers wait for it from now on
            return
        copy.follow(image.leader, image.leader_epoch)
        self._feed(copy)

    def _tell_let_in(self, copy: FollowerPartition) -> None:
        if copy.is_in_sync and copy.log.has_replaced:
            self.let_in(copy.topic_partition)

    def _feed(self, copy: FollowerPartition) -> None:
        if copy.leader != NO_LEADER and not copy.has_ended:  # even while it is cut: it goes on after that
            self.feeding.copy(copy)
        else:
            self.feeding.drop(copy.topic_partition)

    def _end(self, key: TopicPartition, error: ErrorCode) -> None:
        """End the partition's role, whichever it is."""
        self.feeding.drop(key)
        for role in (self._serving.get(key), self._following.get(key)):
            if role is not None:
                role.step_down(error)

    def _identity(self, topic: TopicImage, partition: PartitionIndex, assignment_epoch: int) -> LogIdentity:
        return LogIdentity(
            topic_name=topic.name,
            topic_id=topic.id,
            partition=partition,
            directory_id=self._directory_id,
            assignment_epoch=assignment_epoch,
        )

    async def _carry_out(
        self,
        before: asyncio.Task[None] | None,
        gone: Sequence[LogIdentity],
        left: Sequence[TopicPartition],
        touched: Sequence[TopicPartition],
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        if gone:
            await self._remove(gone)
        held = [local for key in touched if (local := self._local(key)) is not None]
        if closing := [*left, *(local.key for local in held if self._is_of_another(local))]:
            await self._leave(closing)
        self._has_ended([*(TopicPartition(each.topic_id, each.partition) for each in gone), *left])
        if changing := [key for key in touched if self.role(key) is not None]:
            await self._change_roles(changing)
        if wanted := [local for key in touched if self.role(key) is None and (local := self._local(key)) is not None]:
            await self._open(wanted)

    def _has_ended(self, keys: Iterable[TopicPartition]) -> None:
        """Count one removal less of each, as noted in `_ending`."""
        for key in keys:
            self._ending[key] -= 1
            if not self._ending[key]:
                del self._ending[key]

    def role(self, key: TopicPartition) -> Replica | None:
        """Return the role of a log that is open here."""
        return self._serving.get(key) or self._following.get(key)

    def _local(self, key: TopicPartition) -> LocalPartition | None:
        """Return the partition as the image has it now. None where this broker does not hold it, or has to remove its
        old log first."""
        if key in self._ending:
            return None
        topic = self._image.topics.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        partition = topic.partitions[key.partition]
        return LocalPartition(topic, partition) if self._node in partition.replicas else None

    def _local_of(self, role: Replica) -> LocalPartition | None:
        """As `_local`, where the role's log belongs to the present assignment."""
        local = self._local(role.topic_partition)
        if local is None or local.partition.assignment_epoch != role.log.identity.assignment_epoch:
            return None
        return local

    async def _change_roles(self, keys: Sequence[TopicPartition]) -> None:
        """Change the roles of open logs: leaders become followers, or the other way round."""
        ended = [role for key in keys if (role := self.role(key)) is not None and role.has_stepped_down]
        if not ended:
            return
        for tell in self.on_departure:
            tell()
        await self.quiet([role.log for role in ended])
        for role in ended:
            await role.settled()
        async for role in _by_turns(ended):
            key = role.topic_partition
            if self.role(key) is not role or (local := self._local_of(role)) is None:
                continue  # it is to be removed, or closed
            if self._gives_way(local, role.log) and not await self._begin_anew(local, role):
                continue  # it serves nothing before that is done
            if (local := self._local_of(role)) is None:
                continue
            self._forget(key)
            known = min(role.high_watermark, role.log.log_end_offset)  # the log may have begun again
            has_failed = role.has_failed or (role.log.failed and role.log.read_only is None)
            self._assume(local, role.log, role.producers, role.settings, known, failed=has_failed)

    def _gives_way(self, local: LocalPartition, partition_log: PartitionLog) -> bool:
        """Whether this broker is to lead it, and durable history has more records than the log, or others."""
        leads = local.partition.leader == self._node
        return leads and wins(self._history(local.key), partition_log)

    async def _begin_anew(self, local: LocalPartition, role: Replica) -> bool:
        """Let the log give way (see `durable_wins`). False: not now; it is tried again once more is known."""
        catalog = self._image.catalog[local.key]
        try:
            producers = await self.durable_wins.begin_anew(local.key, catalog, role.log, role.producers)
        except NoRoom as error:
            log.error("a log cannot be begun anew before there is room", log=str(role.log.directory), reason=str(error))
            if role.log.failed:
                self.open_anew(local.key)
            else:
                self._room.lack(Unled(self, local.key), is_full=True)
            return False
        except HeadraceError as error:
            log.error("a log could not be begun anew", log=str(role.log.directory), reason=str(error))
            return role.log.failed  # then it is not served
        if producers is None:
            return False
        role.producers = producers
        return True

    def _history_to_lead(self, key: TopicPartition) -> PartitionCatalog | None:
        local = self._local(key)
        leads = local is not None and local.partition.leader == self._node
        return self._history(key) if leads else None

    def try_again(self, key: TopicPartition) -> None:
        """Give the partition its role again: its history is known now, or there is room."""
        if not self._closing:
            self._work = started(self._carry_out(self._work, [], [], [key]), "leading behind history", self._on_bug)

    async def quiet(self, logs: Sequence[PartitionLog]) -> None:
        """Return once no flush of the logs is under way, and nobody else works on them. The caller has made sure that
        nothing of them can be flushed then."""
        await self._flusher.round_over()
        for let_go in self.before_closing:
            await let_go(logs)

    def _forget(self, key: TopicPartition) -> Replica | None:
        """Remove the partition's role, and return it; None where it had none."""
        if (role := self._following.pop(key, None)) is not None:
            self.feeding.drop(key)
        elif (partition := self._serving.pop(key, None)) is not None:
            del self._places[key]
            if self._places.get(by_name := (partition.topic, key.partition)) is partition:
                del self._places[by_name]
            for tell in self.on_forgotten:
                tell(partition)
            return partition
        return role

    async def _open(self, wanted: Sequence[LocalPartition]) -> None:
        topics = {local.topic.id: local.topic for local in wanted}
        image = self._image
        configs = {topic_id: self._config(topic, image) async for topic_id, topic in _by_turns(topics.items())}
        asked = [self._asked(local, configs[local.topic.id]) for local in wanted]
        results = await self._opener.open_all(asked)
        for at, (local, result) in enumerate(zip(wanted, results, strict=True)):
            if isinstance(result, StampMismatch) and self._is_copied_anew(local.key):
                results[at] = await self._opener.open_aside(asked[at])
        unwanted: list[PartitionLog] = []
        giving_way: list[TopicPartition] = []
        async for local, result in _by_turns(zip(wanted, results, strict=True)):
            now = self._local(local.key)
            if now is not None and now.partition.assignment_epoch == local.partition.assignment_epoch:
                if not isinstance(result, Exception) and self._gives_way(now, result.log):
                    now = LocalPartition(now.topic, replace(now.partition, leader=NO_LEADER))
                    giving_way.append(now.key)
                self._take_up(now, configs[local.topic.id], result)
            elif not isinstance(result, Exception):  # not its any more: later work deletes its files
                unwanted.append(result.log)
        if unwanted:
            await in_thread(partial(_close_all, unwanted, clean=True))
        if self._image is not image:
            self._reconfigure_all(topics)
        for key in giving_way:
            self._end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if giving_way:
            await self._change_roles(giving_way)

    def _is_copied_anew(self, key: TopicPartition) -> bool:
        """Whether another broker leads, and nobody counts on this broker's copy."""
        local = self._local(key)
        if local is None or local.partition.leader in (NO_LEADER, self._node):
            return False
        return self._node not in local.partition.isr

    def _asked(self, local: LocalPartition, config: TopicConfig) -> Wanted:
        identity = self._identity(local.topic, local.partition.index, local.partition.assignment_epoch)
        return Wanted(identity, log_config(config), partial(recovery_start, local.partition, self._node))

    def discard(self, left: Sequence[Path]) -> None:
        """Remove the directories that `LogEngine.start` has found, beside all other work."""
        self._discarding.add(left)

    async def open_again(self, key: TopicPartition) -> None:
        """Try once more to open a log, in case the obstacle is gone. It was tried on return."""
        self.open_soon(key)
        await self.settled()

    def open_soon(self, key: TopicPartition) -> None:
        """As `open_again`, without waiting for it."""
        if key in self._offline and self.role(key) is None and not self._closing:
            work = self._carry_out(self._work, [], [], [key])
            self._work = started(work, "opening of a log", self._on_bug)

    def open_anew(self, key: TopicPartition) -> None:
        """Close a log that was being changed when the disk was full. It is opened as after a crash once there is
        room."""
        if not self._closing:
            self._work = started(self._close_half_changed(self._work, key), "closing of a log", self._on_bug)

    async def _close_half_changed(self, before: asyncio.Task[None] | None, key: TopicPartition) -> None:
        if before is not None:
            await asyncio.wait([before])
        role = self.role(key)
        if role is None or not role.log.failed:
            return
        logs = await self._let_go([key], ErrorCode.KAFKA_STORAGE_ERROR)
        await in_thread(partial(_close_all, logs, clean=False))
        if isinstance(role, FollowerPartition):
            self._said_in[key] = role.said_in
        self._offline[key] = "Its log was being changed when the disk was full."
        self._room.lack(Unopened(self, key))
        self.failed(key)

    async def _remove(self, gone: Sequence[LogIdentity]) -> None:
        """Close and delete logs, once no flush of theirs is under way. A log that may be the only copy of acknowledged
        records is set aside."""
        keys = [TopicPartition(identity.topic_id, identity.partition) for identity in gone]
        logs = await self._let_go(keys, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        kept = [identity for identity in gone if may_hold_more(identity, self._image)]
        self._discarding.add(await in_thread(lambda: self._delete(logs, gone, kept)))

    async def _leave(self, keys: Sequence[TopicPartition]) -> None:
        """Close the logs that are handed over; their files stay until nobody needs them."""
        logs = await self._let_go(keys, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await in_thread(partial(_close_all, logs, clean=True))

    async def _let_go(self, keys: Sequence[TopicPartition], error: ErrorCode) -> list[PartitionLog]:
        """End the roles of these partitions and all work on their logs. Returns the open logs."""
        logs: list[PartitionLog] = []
        for key in keys:
            self._offline.pop(key, None)
            self._said_in.pop(key, None)
            self._crashed.discard(key)
            self.durable_wins.forget(key)
            if (role := self._forget(key)) is not None:
                role.step_down(error)
                await role.settled()
                logs.append(role.log)
        for tell in self.on_departure:
            tell()
        await self._flusher.round_over()
        for let_go in self.before_closing:
            await let_go(logs)
        return logs

    def _delete(
        self, logs: Sequence[PartitionLog], gone: Sequence[LogIdentity], kept: Collection[LogIdentity]
    ) -> list[Path]:
        """Delete the logs of `gone`, in a worker thread; those in `kept` are set aside. Returns the directories that
        are left, which nobody waits for."""
        for each in logs:
            _close(each, clean=each.identity in kept and not each.failed)
        left = []
        for identity in gone:
            try:
                if identity in kept:
                    self._set_aside(identity)
                else:
                    left.append(self._engine.begin_delete(identity))
            except (OSError, HeadraceError) as error:
                log.warning("a deleted partition's files are left", topic=identity.topic_name, reason=str(error))
        return [directory for directory in left if directory is not None]

    def _set_aside(self, identity: LogIdentity) -> None:
        """Set a log aside, in a worker thread. Raises OSError, HeadraceError."""
        is_there = self._engine.stamped(identity) is not None
        if is_there and (directory := self._engine.set_aside(identity)) is not None:
            log.error(
                "a partition was recovered elsewhere, behind durable history, while this broker was thought gone for "
                "good: its log is set aside, and what it has beyond that is nowhere else",
                topic=identity.topic_name,
                partition=identity.partition,
                kept_in=str(directory),
            )

    def _take_up(
        self,
        local: LocalPartition,
        config: TopicConfig,
        opened: Opened | Exception,
    ) -> None:
        if isinstance(opened, NoRoom):
            self._room.lack(Unopened(self, local.key))
        if isinstance(opened, Exception):
            if self._offline.get(local.key) == str(opened):
                return  # it was tried again, and is logged already
            self._offline[local.key] = str(opened)
            log.error(
                "partition offline: its log could not be opened",
                topic=local.topic.name,
                partition=local.partition.index,
                reason=str(opened),
            )
            self.failed(local.key)
            return
        partition_log, producers = opened
        self._offline.pop(local.key, None)
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
        if not (partition_log.was_closed or partition_log.config.fsync):
            self._crashed.add(local.key)
        settings = partition_settings(config, internal=local.topic.internal)
        self._assume(local, partition_log, producers, settings, partition_log.log_start_offset)
        if partition_log.damages or partition_log.read_only is not None or partition_log.has_replaced:
            self.damaged(local.key)

    def _assume(
        self,
        local: LocalPartition,
        partition_log: PartitionLog,
        producers: ProducerStates,
        settings: PartitionSettings,
        high_watermark: Offset,
        *,
        failed: bool = False,
    ) -> None:
        """Give the log the role that the image says. `high_watermark`: known to be committed; `failed`: the log's disk
        has failed, and it serves nothing."""
        image = local.partition
        common = Common(
            topic=local.topic.name,
            topic_partition=local.key,
            partition_log=partition_log,
            producers=producers,
            settings=settings,
            flusher=self._flusher,
            clock=self._clock,
            room=self._room,
            is_internal=local.topic.internal,
            suspect=lambda replica, offset: self.suspect(replica, offset),
            failed=lambda key: self.failed(key),
            has_store=self._has_store,
        )
        role: Replica
        if image.leader == self._node:
            role = self._lead(image, common, high_watermark)
        else:
            role = self._following[local.key] = FollowerPartition(
                **common,
                node=self._node,
                leader=image.leader,
                leader_epoch=image.leader_epoch,
                is_in_sync=self._node in image.isr,
                high_watermark=high_watermark,
            )
        if isinstance(role, FollowerPartition):
            role.said_in = self._said_in.pop(local.key, role.said_in)
        if failed:
            role.fail_again()
        if self._has_store:
            role.on_history(self._history(local.key))
        if isinstance(role, FollowerPartition):
            self._tell_let_in(role)
            role.begin()
            self._feed(role)
        if partition_log.needs_flush:  # requests of the earlier role are not carried out for it any more
            self._flusher.request(role)

    def _lead(self, image: PartitionImage, common: Common, high_watermark: Offset) -> Partition:
        partition_log, key = common["partition_log"], common["topic_partition"]
        catalog = self._history(key)
        if self._has_store and catalog is not None and agrees(catalog, partition_log):
            high_watermark = max(high_watermark, min(catalog.next_offset, partition_log.flushed_end))
        if key in self._crashed:
            self._crashed.discard(key)
            log.error(
                UNFLUSHED,
                topic=common["topic"],
                partition=key.partition,
                log_end=partition_log.log_end_offset,
                in_sync=list(image.isr),
            )
        partition_log.assign_epoch(image.leader_epoch)
        leader = Leader.elected(
            node=self._node,
            epoch=image.leader_epoch,
            isr=image.isr,
            flushed_end=partition_log.flushed_end,
            high_watermark=high_watermark,
            log_end=partition_log.log_end_offset,
            partition_epoch=image.partition_epoch,
            replicas=image.replicas,
            now=self._clock.monotonic(),
        )
        partition = Partition(
            **common,
            leader=leader,
            repacker=self._repacker,
            propose=lambda which, wanted: self.propose(which, wanted),
            forward=lambda *batch: self.forward(*batch),
            takes_over=image.is_sealed,
            is_unclean=image.is_unclean,
        )
        self._serving[key] = self._places[key] = partition
        self._places[partition.topic, key.partition] = partition
        for tell in self.on_led:
            tell(partition)
        return partition

    def on_contact(self, heard: bool) -> None:
        """Note whether the controller has heard this broker within the last session: see `Partition.doubt`."""
        for partition in self._serving.values():
            if not heard and partition.has_followers:
                partition.doubt()
            else:
                partition.trust()

    # configuration

    def _reconfigure_all(self, topics: Iterable[TopicId]) -> None:
        """Reconfigure topics whose configs may have changed while their logs were being opened."""
        for topic_id in topics:
            if (topic := self._image.topics.get(topic_id)) is not None:
                self._reconfigure(topic, self._image)

    def _config(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return topic_config(image, topic, self._broker_configs, node=self._node)

    def _reconfigure(self, topic: TopicImage, image: MetadataImage) -> None:
        config = self._config(topic, image)
        for partition in topic.partitions:
            role = self.role(TopicPartition(topic.id, partition.index))
            if role is not None:
                role.settings = partition_settings(config, internal=topic.internal)
                role.log.reconfigure(log_config(config))

    # ending

    def wake_readers(self) -> None:
        """Answer every parked fetch with what there is."""
        for role in self.replicas:
            role.wake_readers()

    def _close_engine(self, *, clean: bool) -> None:
        """Close the engine, in a worker thread, after every log was closed."""
        try:
            self._engine.close(clean=clean)
        except OSError as error:
            log.warning("the journal was not closed cleanly", reason=str(error))

    async def close(self, *, clean: bool = True) -> None:
        """Close all logs. A clean stop flushes and acknowledges every append, then closes every log cleanly. Otherwise
        nothing more is written, and the next start recovers."""
        await self.settled()
        await self._flusher.idle()
        self._closing = True
        await self.settled()  # work that was asked for meanwhile
        await self._discarding.stop()
        await self._flusher.idle()
        for role in self.replicas:
            role.step_down(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if clean and not role.log.failed:
                role.snapshot_producers()
        for role in self.replicas:
            await role.settled()
        logs = [role.log for role in self.replicas]
        shares = [logs[first::LOGS_CLOSED_AT_ONCE_MAX] for first in range(LOGS_CLOSED_AT_ONCE_MAX)]
        await asyncio.gather(*(in_thread(partial(_close_all, share, clean=clean)) for share in shares if share))
        await in_thread(partial(self._close_engine, clean=clean))
        self._serving.clear()
        self._following.clear()
        self._places.clear()


async def _by_turns(things: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over some things in each turn of the event loop, so that others have theirs."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % LOGS_TAKEN_UP_PER_TURN_MAX == 0:
            await asyncio.sleep(0)


def _nobody_looks(_: Replica, __: Offset | None) -> bool:
    return False


def _nobody_leaves(_: TopicPartition) -> None:
    """Stands in before anybody handles it."""


def _nobody_forwards(_: TopicPartition, __: Buffer, ___: bool, ____: Done) -> bool:
    return False


def _nobody_decides(_: Partition, __: ProposeIsr) -> None:
    """Stands in before anybody handles it."""


def tell_damage(topic: str, partition: int, partition_log: PartitionLog, damages: Sequence[Damage]) -> None:
    """Log one line for each range: what is wrong, and what to do."""
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


def _is_elected_cleanly(copy: FollowerPartition, image: PartitionImage) -> bool:
    """Whether the copy leads by the one election since the epoch that it knows, and as a member of the ISR. Any
    elections in between may have been unclean."""
    return image.leader_epoch == copy.leader_epoch + 1 and not image.is_unclean


def _topic(image: MetadataImage, key: TopicPartition) -> TopicImage:
    topic = image.topics.get(key.topic_id)
    assert topic is not None, "what is deleted was there before"
    return topic


def _close_all(logs: Sequence[PartitionLog], *, clean: bool) -> None:
    for each in logs:
        _close(each, clean=clean and not each.failed)


def _close(partition_log: PartitionLog, *, clean: bool) -> None:
    """Close a log, in a worker thread. One that cannot be closed cleanly is recovered at the next start."""
    try:
        partition_log.close(clean=clean)
    except (OSError, HeadraceError) as error:
        log.warning("a log was not closed cleanly", directory=str(partition_log.directory), reason=str(error))
