"""Hand-overs of partitions, as the brokers that they are between carry them out (DESIGN section 4).

The owner exports while it serves, then stops writing, exports the rest, and proposes the seal; the target proves that
it reads the store, and, once its log is there, finishes. Every step begins with what the image says, so that a restart
of any of them goes on. Promises: from a proposal on the owner writes nothing in that leader epoch, whatever it is told;
what was not proposed is gone on with; a step that fails is tried again for as long as the image wants it, but an owner
that has stopped in vain writes for ten times as long first, and gives up after twenty such tries. Never
decides: the controller does. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import (
    MOVE_EXPORT_BYTES_MAX,
    MOVE_OPENINGS_TRIED_MAX,
    MOVE_RETRY_MS_MAX,
    MOVE_RETRY_MS_MIN,
    MOVE_SEAL_MS_MAX,
    MOVE_SEAL_PAUSE_MS_MAX,
    MOVE_SEAL_PAUSES,
    MOVE_SEALS_AT_ONCE_MAX,
    MOVE_SEALS_TRIED_MAX,
    MOVE_TAIL_BYTES,
    MOVE_TAIL_ROUNDS_MAX,
    MOVES_REMEMBERED_MAX,
)
from headrace.base.ports import Clock
from headrace.broker.control import Control
from headrace.broker.exporter import Exporter
from headrace.broker.history import History
from headrace.broker.opening import in_thread
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.replica import Replica
from headrace.broker.tasks import OnBug, started
from headrace.controller.asks import FailTarget, FinishMove, GiveUpMove, ProveMove, SealMove
from headrace.controller.decision import Refusal
from headrace.controller.moves import Seal, is_live
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.moves import Move, StorageStateSealed
from headrace.metadata.values import PartitionImage
from headrace.replica.producer_snapshots import encode_snapshot
from headrace.replica.sealing import packed
from headrace.storage.engine import PartitionLog
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

UNKNOWN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})
"""Whether it was decided is not known, or it was not: it is asked again."""


class Phase(Enum):
    """Where a move is, as people are told."""

    COPYING = "pre-copy"
    PROVING = "waiting for the target"
    SEALING = "seal"
    RECOVERING = "recover"


class Finished(NamedTuple):
    """A move that this broker has taken over."""

    key: TopicPartition
    source: BrokerId
    last_committed_offset: Offset
    pause_ms: int
    """From the owner's last accepted record to the first that could be accepted here, by both brokers' wall clocks."""


class Vain(NamedTuple):
    """Tries to seal that came to nothing."""

    tries: int
    not_before: float
    """By the loop's time: when the owner may stop writing again."""
    reason: str


NOT_TRIED: Final = Vain(0, 0.0, "")


class Moves:
    """One per broker that has a durable store."""

    def __init__(
        self,
        *,
        node: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
        image: Callable[[], MetadataImage],
        partitions: Partitions,
        control: Control,
        exporter: Exporter,
        history: History,
        clock: Clock,
        on_bug: OnBug,
    ) -> None:
        self._node = node
        self._broker_epoch = broker_epoch
        self._image = image
        self._partitions = partitions
        self._control = control
        self._exporter = exporter
        self._history = history
        self._clock = clock
        self._on_bug = on_bug
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._changed: dict[TopicPartition, asyncio.Event] = {}
        """Set when what the image says of a move, or of brokers, has changed."""
        self._turns = asyncio.Semaphore(MOVE_SEALS_AT_ONCE_MAX)
        self._stopping = False
        self._obstacles: dict[TopicPartition, str] = {}
        """Why a step failed last, as it was told."""
        self._sealing: set[TopicPartition] = set()
        self._vain: dict[TopicPartition, Vain] = {}
        self._failures: dict[TopicPartition, tuple[LeaderEpoch, int]] = {}
        """How often a log that is to be taken over could not be opened, and in which epoch."""
        self.finished: deque[Finished] = deque(maxlen=MOVES_REMEMBERED_MAX)

    def start(self) -> None:
        self._look()

    async def stop(self) -> None:
        """What is under way is cut off; the next start goes on with it."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def obstacle(self, key: TopicPartition) -> str:
        """Why the last step of a move failed; empty: it did not."""
        return self._obstacles.get(key, "")

    def phase(self, key: TopicPartition) -> Phase:
        """Of a move that is under way."""
        move = self._image().moves[key]
        if move.state is not None:
            return Phase.RECOVERING
        if key in self._sealing:
            return Phase.SEALING
        partition = self._partitions.role(key)
        is_copied = isinstance(partition, Partition) and not self._is_to_copy(partition)
        return Phase.PROVING if is_copied else Phase.COPYING

    def bytes_left(self, key: TopicPartition) -> int:
        """That this broker has still to export of it."""
        partition = self._partitions.role(key)
        return self._left(partition) if isinstance(partition, Partition) else 0

    # following the image

    def on_delta(self, delta: ImageDelta) -> None:
        if not delta.after.moves and not self._tasks:
            return
        everything = delta.topic_ids is None or delta.before.brokers != delta.after.brokers
        for key, changed in self._changed.items():
            if everything or key.topic_id in (delta.topic_ids or ()):
                changed.set()
        self._look()

    def _look(self) -> None:
        for key, move in self._image().moves.items():
            if key not in self._tasks and not self._stopping and self._concerns(key, move):
                self._changed[key] = asyncio.Event()
                self._tasks[key] = started(self._tend(key), "a move of a partition", self._on_bug)

    def _concerns(self, key: TopicPartition, move: Move) -> bool:
        """Whether this broker has anything to do in it now, or soon."""
        known = self._image().partition(key)
        assert known is not None, "a move is of a partition"
        if move.state is None and move.source == self._node:
            return known.leader == self._node
        return move.target == self._node

    async def _tend(self, key: TopicPartition) -> None:
        pause_ms = MOVE_RETRY_MS_MIN
        changed = self._changed[key]
        while not self._stopping:
            changed.clear()
            known = self._image().partition(key)
            if known is None or known.move is None or not self._concerns(key, known.move):
                break
            try:
                is_done = await self._step(key, known, known.move)
            except (HeadraceError, OSError, TimeoutError) as error:
                self._tell(key, known, error)
                pause_ms = min(2 * pause_ms, MOVE_RETRY_MS_MAX)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), pause_ms / 1000)
                continue
            pause_ms = MOVE_RETRY_MS_MIN
            self._obstacles.pop(key, None)
            if not is_done:  # a role may change without the image
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), MOVE_RETRY_MS_MAX / 1000)
        self._obstacles.pop(key, None)
        self._failures.pop(key, None)
        self._vain.pop(key, None)
        del self._tasks[key], self._changed[key]

    def _tell(self, key: TopicPartition, known: PartitionImage, error: Exception) -> None:
        reason = _told(error)
        if self._obstacles.get(key) != reason:
            self._obstacles[key] = reason
            log.warning("a move is tried again", topic=self._name(key), partition=known.index, reason=reason)

    def _name(self, key: TopicPartition) -> str:
        topic = self._image().topics.get(key.topic_id)
        return str(key.topic_id) if topic is None else topic.name

    async def _step(self, key: TopicPartition, known: PartitionImage, move: Move) -> bool:
        """Whether the next may be taken at once; else something has to change first."""
        if move.state is not None:
            return await self._finish(key, known, move.source, move.state)
        if move.source == self._node:
            return await self._hand_over(key, move)
        return await self._prove(key, move)

    # the target

    async def _prove(self, key: TopicPartition, move: Move) -> bool:
        """Read what the owner has exported, where there is anything."""
        catalog = self._image().durable(key)
        if not catalog.entries or move.proven_by == self._broker_epoch():
            return False
        await self._history.epoch_at(key, catalog, catalog.end_offset)
        ask = ProveMove(
            topic_id=key.topic_id, partition=key.partition, broker_id=self._node, broker_epoch=self._broker_epoch()
        )
        _check(await self._control.submit(ask))
        return False

    async def _finish(
        self, key: TopicPartition, known: PartitionImage, source: BrokerId, state: StorageStateSealed
    ) -> bool:
        """The log is open, and durable where the owner's ended."""
        await self._partitions.settled()
        if key in self._partitions.offline:
            await self._partitions.open_again(key)
        role = self._partitions.role(key)
        if (problem := _unable(role, self._partitions.offline.get(key))) is not None:
            await self._count_failure(key, known, problem)
        if not isinstance(role, Partition) or not role.takes_over or role.leader_epoch != known.leader_epoch:
            return False
        ask = FinishMove(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=known.leader_epoch,
            broker_id=self._node,
            broker_epoch=self._broker_epoch(),
        )
        _check(await self._control.submit(ask))
        pause_ms = max(0, self._clock.now_ms() - state.timestamp_ms)
        self.finished.append(Finished(key, source, state.last_committed_offset, pause_ms))
        log.info(
            "partition taken over",
            topic=self._name(key),
            partition=key.partition,
            source=source,
            offset=state.next_offset,
            pause_ms=pause_ms,
        )
        return True

    async def _count_failure(self, key: TopicPartition, known: PartitionImage, problem: str) -> None:
        """Tried too often, another is to go on. Raises HeadraceError: it is tried again here until then."""
        epoch, tries = self._failures.get(key, (known.leader_epoch, 0))
        tries = tries + 1 if epoch == known.leader_epoch else 1
        self._failures[key] = known.leader_epoch, tries
        if tries >= MOVE_OPENINGS_TRIED_MAX:
            ask = FailTarget(
                topic_id=key.topic_id,
                partition=key.partition,
                leader_epoch=known.leader_epoch,
                broker_id=self._node,
                broker_epoch=self._broker_epoch(),
            )
            if (refusal := await self._control.submit(ask)) is not None:
                problem = f"{problem} Another broker cannot go on: {refusal.message}"
        raise HeadraceError(problem)

    # the owner

    async def _hand_over(self, key: TopicPartition, move: Move) -> bool:
        await self._partitions.settled()
        partition = self._partitions.find(key, self._image())
        if isinstance(partition, ErrorCode):
            return False
        if not partition.is_exported:
            await self._give_up(partition, "its topic is compacted, or has durable.enable=false")
            return True
        vain = self._vain.get(key, NOT_TRIED)
        if vain.tries >= MOVE_SEALS_TRIED_MAX:
            await self._give_up(partition, f"it was tried {vain.tries} times: {vain.reason}")
            return True
        async with self._turns:
            await self._copy(partition, move)
            if not self._may_seal(key, move):
                return False
            if _now() < vain.not_before:
                raise HeadraceError(vain.reason)
            self._sealing.add(key)
            try:
                await self._seal(partition, move)
            finally:
                self._sealing.discard(key)
        return True

    def _may_seal(self, key: TopicPartition, move: Move) -> bool:
        """Whether the image would have it so now."""
        image = self._image()
        now = image.moves.get(key)
        target = image.brokers.get(move.target)
        if now is None or now.target != move.target or target is None or not is_live(image, move.target):
            return False
        return not image.durable(key).entries or now.proven_by == target.epoch

    def _left(self, partition: Partition) -> int:
        return bytes_from(partition.log, self._image().durable(partition.topic_partition).next_offset)

    def _is_to_copy(self, partition: Partition) -> bool:
        """Whether there is more to export than is exported while nothing is written; and something, where the target
        is to read anything."""
        has_any = bool(self._image().durable(partition.topic_partition).entries)
        left = self._left(partition)
        return left > MOVE_TAIL_BYTES or (left > 0 and not has_any)

    async def _copy(self, partition: Partition, move: Move) -> None:
        """Export while records come, until what is left is little, or does not get less. Raises HeadraceError where
        that is more than can be exported while nothing is written."""
        least, rounds, rate = self._left(partition), 0, 0.0
        while self._is_to_copy(partition) and rounds < MOVE_TAIL_ROUNDS_MAX and self._is_wanted(partition, move):
            begun = _now()
            size = await self._exporter.export_next(partition, MOVE_EXPORT_BYTES_MAX, mirrored=True)
            if size == 0:
                break  # what is left is not committed yet
            rate = size / max(_now() - begun, 0.001)
            if move.bytes_per_second > 0:
                await asyncio.sleep(size / move.bytes_per_second)
            left = self._left(partition)
            rounds = 0 if left < least else rounds + 1
            least = min(least, left)
        left = self._left(partition)
        if left > max(MOVE_TAIL_BYTES, rate * MOVE_SEAL_MS_MAX / 2_000):
            raise HeadraceError(f"It is written to faster than it is exported, and {left} bytes are left.")

    def _is_wanted(self, partition: Partition, move: Move) -> bool:
        now = self._image().moves.get(partition.topic_partition)
        return now is not None and now.target == move.target and partition.availability is ErrorCode.NONE

    async def _seal(self, partition: Partition, move: Move) -> None:
        """Stop writing, have all of it in durable history, and propose that the target goes on."""
        key, epoch = partition.topic_partition, partition.leader_epoch
        partition.stop_writing()
        begun = _now()
        stopped_ms = self._clock.now_ms()
        try:
            async with asyncio.timeout(MOVE_SEAL_MS_MAX / 1000):
                mark = partial(partition.log.mark_sealed, epoch)
                await asyncio.gather(in_thread(mark), self._export_tail(partition))
                entries = list(partition.producers.entries())  # nothing is added any more
                producers = await in_thread(lambda: packed(encode_snapshot(entries)))
            self._check_still_stopped(partition, epoch)
            if not self._may_seal(key, move):
                raise HeadraceError("The target is not alive, or has not read what was exported.")
        except BaseException as error:
            if partition.leader_epoch == epoch:
                partition.go_on_writing()
            self._put_off(key, _now() - begun, _told(error))
            raise
        state = self._state_of(partition, stopped_ms, producers)
        partition.propose_seal()
        refused = await self._propose(
            partition,
            Seal(
                topic_id=partition.topic_partition.topic_id,
                partition=partition.topic_partition.partition,
                broker_epoch=self._broker_epoch(),
                target=move.target,
                state=state,
            ),
        )
        if refused is not None:
            self._put_off(key, _now() - begun, refused)
            raise HeadraceError(refused)

    def _put_off(self, key: TopicPartition, stopped_s: float, reason: str) -> None:
        """It was in vain: the owner writes for long before it stops again."""
        tries = self._vain.get(key, NOT_TRIED).tries + 1
        least_ms = min(MOVE_RETRY_MS_MIN * 2**tries, MOVE_SEAL_PAUSE_MS_MAX)
        self._vain[key] = Vain(tries, _now() + max(MOVE_SEAL_PAUSES * stopped_s, least_ms / 1000), reason)

    async def _export_tail(self, partition: Partition) -> None:
        """All that is appended is flushed, and in durable history."""
        while (waiting := partition.own_appends_visible()) is not None:
            await waiting
        while await self._exporter.export_next(partition, MOVE_EXPORT_BYTES_MAX, mirrored=False):
            pass

    def _check_still_stopped(self, partition: Partition, epoch: LeaderEpoch) -> None:
        catalog = self._image().durable(partition.topic_partition)
        end = partition.log.log_end_offset
        if partition.leader_epoch != epoch or partition.availability is not ErrorCode.NONE or partition.is_open:
            raise HeadraceError("Its leader epoch is over.")
        if catalog.next_offset != end and partition.start_offset != end:
            raise HeadraceError(f"Durable history ends at {catalog.end_offset}, and its log at {end - 1}.")

    def _state_of(self, partition: Partition, stopped_ms: int, producers: str) -> StorageStateSealed:
        partition_log = partition.log
        return StorageStateSealed(
            last_committed_offset=Offset(partition_log.log_end_offset - 1),
            log_start_offset=partition.start_offset,
            leader_epoch=partition.leader_epoch,
            broker_id=self._node,
            timestamp_ms=stopped_ms,
            epochs=tuple(partition_log.epochs),
            producers=producers,
        )

    async def _propose(self, partition: Partition, seal: Seal) -> str | None:
        """Until the image shows what became of it: another leader epoch, whoever leads in it. Why it was refused, where
        it was: the owner goes on in an epoch of its own then, and the move begins anew."""
        refused: str | None = None
        key, epoch = partition.topic_partition, seal.state.leader_epoch
        ask: SealMove | GiveUpMove = SealMove(seal=seal)
        pause_ms = MOVE_RETRY_MS_MIN
        while self._is_open(key, epoch):
            self._changed[key].clear()
            refusal = await self._control.submit(ask)
            if not self._is_open(key, epoch):
                break
            if refusal is not None and refusal.code not in UNKNOWN:
                log.warning("a seal is refused", topic=partition.topic, partition=key.partition, reason=refusal.message)
                refused = refused or refusal.message
                ask = self._giving_up(partition, for_good=False)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed[key].wait(), pause_ms / 1000)
            pause_ms = min(2 * pause_ms, MOVE_RETRY_MS_MAX)
        return refused

    def _is_open(self, key: TopicPartition, epoch: LeaderEpoch) -> bool:
        """Whether the image does not show yet what became of a proposal in that epoch."""
        known = self._image().partition(key)
        return known is not None and known.leader_epoch == epoch

    def _giving_up(self, partition: Partition, *, for_good: bool) -> GiveUpMove:
        key = partition.topic_partition
        return GiveUpMove(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=partition.leader_epoch,
            broker_id=self._node,
            broker_epoch=self._broker_epoch(),
            for_good=for_good,
        )

    async def _give_up(self, partition: Partition, reason: str) -> None:
        """It cannot be done, now or later."""
        _check(await self._control.submit(self._giving_up(partition, for_good=True)))
        log.error(
            "a move is cancelled", topic=partition.topic, partition=partition.topic_partition.partition, reason=reason
        )


def bytes_from(partition_log: PartitionLog, offset: Offset) -> int:
    """About how many bytes the log has from `offset` on."""
    found, closed, end = 0.0, 0, partition_log.log_start_offset
    for segment in partition_log.closed_segments():
        closed += segment.size
        found += segment.size * _part(segment.base_offset, segment.next_offset, offset)
        end = segment.next_offset
    active = partition_log.size_bytes - closed
    return int(found + active * _part(end, partition_log.log_end_offset, offset))


def _part(start: Offset, end: Offset, offset: Offset) -> float:
    """Which part of [start, end) lies at `offset` or above."""
    return 0.0 if end <= max(start, offset) else (end - max(start, offset)) / (end - start)


def _unable(role: Replica | None, offline: str | None) -> str | None:
    """Why a log that is to be taken over cannot be, as a sentence; None where it can, or is not open yet."""
    if role is None:
        return offline
    if role.log.read_only is not None:
        return f"The log that is to be taken over is for reading only: {role.log.read_only}."
    return "The disk of the log that is to be taken over has failed." if role.has_failed or role.log.failed else None


def _told(error: BaseException) -> str:
    return str(error) or "it took too long"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _check(refusal: Refusal | None) -> None:
    """Raises HeadraceError."""
    if refusal is not None:
        raise HeadraceError(refusal.message)
