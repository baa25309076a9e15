"""The owner's part of a move: it exports while it serves, then stops writing, stores the rest, and proposes the seal.

Promises:
- From a proposal on, it writes nothing in that leader epoch, whatever answer it gets.
- Where a stop ends without a proposal, it goes on writing.
- After a stop in vain, it writes for ten times as long before the next. After twenty such tries it gives up.
- The last part that it stores is published with the seal, in one entry.

It never decides: the controller does. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.ids import LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import (
    MOVE_EXPORT_BYTES_MAX,
    MOVE_RETRY_MS_MAX,
    MOVE_RETRY_MS_MIN,
    MOVE_SEAL_MS_MAX,
    MOVE_SEAL_PAUSE_MS_MAX,
    MOVE_SEAL_PAUSES,
    MOVE_SEALS_AT_ONCE_MAX,
    MOVE_SEALS_TRIED_MAX,
    MOVE_TAIL_BYTES,
    MOVE_TAIL_ROUNDS_MAX,
)
from headrace.broker.cluster.control import check_accepted
from headrace.broker.durable.exporter import Exporter
from headrace.broker.kit.tasks import in_thread, wait_for_event
from headrace.broker.moves.party import Party
from headrace.broker.partitions import bounds
from headrace.broker.partitions.partition import Partition
from headrace.controller.asks.moves import GiveUpMove, SealMove
from headrace.controller.moves import Seal, SealedTail, is_live
from headrace.logs import get_logger
from headrace.metadata.moves import Move, StorageStateSealed
from headrace.replica.producer_snapshots import encode_snapshot
from headrace.replica.sealing import packed
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

T = TypeVar("T")

UNKNOWN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})
"""Answers after which it is unknown whether the seal was decided, or it was not: the controller is asked again."""


class Vain(NamedTuple):
    """The failed tries to seal."""

    tries: int
    not_before: float
    """When the owner may stop writing again, by the loop's time."""
    reason: str


NOT_TRIED: Final = Vain(0, 0.0, "")


class Owner:
    """One per broker that has a durable store."""

    def __init__(self, party: Party, exporter: Exporter) -> None:
        self._node = party.node
        self._broker_epoch = party.broker_epoch
        self._image = party.image
        self._partitions = party.partitions
        self._control = party.control
        self._exporter = exporter
        self._clock = party.clock
        self._span = party.span
        self._turns = asyncio.Semaphore(MOVE_SEALS_AT_ONCE_MAX)
        self.sealing: set[TopicPartition] = set()
        """Partitions that have stopped writing in order to be sealed."""
        self._vain: dict[TopicPartition, Vain] = {}

    def forget(self, key: TopicPartition) -> None:
        """Forget the failed tries, as the move is over."""
        self._vain.pop(key, None)

    async def hand_over(self, key: TopicPartition, move: Move, changed: asyncio.Event) -> str | None:
        """Hand over as far as can be done now; `changed` is set when the image is another. Returns None where the next
        step may be taken at once, else what the move waits for. Raises HeadraceError, OSError, TimeoutError."""
        await self._partitions.settled()
        partition = self._partitions.find(key, self._image())
        if isinstance(partition, ErrorCode):
            return f"broker {self._node}, its owner, has not begun to lead it"
        if not partition.is_exported or bounds.keeps_all(partition):
            await self._give_up(partition, "its topic is compacted, or has durable.enable=false")
            return None
        vain = self._vain.get(key, NOT_TRIED)
        if vain.tries >= MOVE_SEALS_TRIED_MAX:
            await self._give_up(partition, f"it was tried {vain.tries} times: {vain.reason}")
            return None
        async with self._turns:
            await self._copy(partition, move)
            if (awaited := self._awaited(key, move)) is not None:
                return awaited
            if now() < vain.not_before:
                raise HeadraceError(vain.reason)
            self.sealing.add(key)
            try:
                with self._span("Seal"):
                    await self._seal(partition, move, changed)
            finally:
                self.sealing.discard(key)
        return None

    def _awaited(self, key: TopicPartition, move: Move) -> str | None:
        """Return what has to come before the image allows the seal, as a clause; None: it allows it now."""
        image = self._image()
        known = image.moves.get(key)
        target = image.brokers.get(move.target)
        if known is None or known.target != move.target or target is None:
            return "its move has changed"
        if not is_live(image, move.target):
            return f"broker {move.target} is not alive"
        if image.durable(key).entries and known.proven_by != target.epoch:
            return f"broker {move.target} has not read what was exported to the durable store"
        return None

    # while it serves

    def bytes_left(self, partition: Partition) -> int:
        """Return the bytes that are still to be exported."""
        return bytes_from(partition.log, self._image().durable(partition.topic_partition).next_offset)

    def is_to_copy(self, partition: Partition) -> bool:
        """Whether to export before writing stops: more than MOVE_TAIL_BYTES is left, or nothing is exported yet that
        the target could read."""
        has_any = bool(self._image().durable(partition.topic_partition).entries)
        left = self.bytes_left(partition)
        return left > MOVE_TAIL_BYTES or (left > 0 and not has_any)

    async def _copy(self, partition: Partition, move: Move) -> None:
        """Export while records arrive, until little is left, or no less than before. Raises HeadraceError where more is
        left than can be exported while nothing is written."""
        least, rounds, rate = self.bytes_left(partition), 0, 0.0
        while self.is_to_copy(partition) and rounds < MOVE_TAIL_ROUNDS_MAX and self._is_wanted(partition, move):
            begun = now()
            size = await self._exporter.export_next(partition, MOVE_EXPORT_BYTES_MAX)
            if size == 0:
                break  # the rest is not committed yet
            rate = size / max(now() - begun, 0.001)
            if move.bytes_per_second > 0:
                await asyncio.sleep(size / move.bytes_per_second)
            left = self.bytes_left(partition)
            rounds = 0 if left < least else rounds + 1
            least = min(least, left)
        left = self.bytes_left(partition)
        if left > max(MOVE_TAIL_BYTES, rate * MOVE_SEAL_MS_MAX / 2_000):
            raise HeadraceError(f"It is written to faster than it is exported, and {left} bytes are left.")

    def _is_wanted(self, partition: Partition, move: Move) -> bool:
        known = self._image().moves.get(partition.topic_partition)
        return known is not None and known.target == move.target and partition.availability is ErrorCode.NONE

    # the seal

    async def _seal(self, partition: Partition, move: Move, changed: asyncio.Event) -> None:
        """Stop writing, have everything in durable history, and propose that the target goes on."""
        key, epoch = partition.topic_partition, partition.leader_epoch
        partition.gate.stop()
        begun, stopped_ms, steps = now(), self._clock.now_ms(), Steps()
        try:
            async with asyncio.timeout(MOVE_SEAL_MS_MAX / 1000):
                mark = partial(partition.log.mark_sealed, epoch)
                tail, producers = await _both(in_thread(mark), self._prepare(partition, steps))
            self._check_still_stopped(partition, epoch, tail)
            if (awaited := self._awaited(key, move)) is not None:
                raise HeadraceError(f"It cannot be sealed: {awaited}.")
        except BaseException as error:
            if partition.leader_epoch == epoch:
                partition.go_on_writing()
            self._put_off(key, now() - begun, sentence_of(error))
            raise
        seal = Seal(
            topic_id=key.topic_id,
            partition=key.partition,
            broker_epoch=self._broker_epoch(),
            target=move.target,
            state=self._state_of(partition, stopped_ms, producers),
            tail=tail,
        )
        partition.gate.propose()
        steps.take("proposed_ms")
        refused = await self._propose(partition, seal, changed)
        if refused is not None:
            self._put_off(key, now() - begun, refused)
            raise HeadraceError(refused)
        steps.take("committed_ms")
        log.info(
            "partition handed over",
            topic=partition.topic,
            partition=key.partition,
            target=move.target,
            **steps.taken_ms,
        )

    async def _prepare(self, partition: Partition, steps: Steps) -> tuple[SealedTail | None, str]:
        """Flush everything that was appended, and store it. Returns the tail to publish, and the producers' state, to
        which nothing is added any more."""
        while (unpacking := partition.line.over()) is not None:
            await unpacking  # or later batches would be carried before it
        while (waiting := partition.own_appends_visible()) is not None:
            await waiting
        steps.take("flushed_ms")
        entries = list(partition.producers.entries())
        packing = in_thread(lambda: packed(encode_snapshot(entries)))
        tail, producers = await asyncio.gather(self._export_tail(partition), packing)
        steps.take("exported_ms")
        return tail, producers

    async def _export_tail(self, partition: Partition) -> SealedTail | None:
        """Store the last segment, which is published with the seal. None: everything is published. Transactions that
        are open go along."""
        while (tail := await self._exporter.store_next(partition, MOVE_EXPORT_BYTES_MAX, undecided=True)) is not None:
            has_any = bool(self._image().durable(partition.topic_partition).entries)
            if has_any and tail.descriptor.end_offset + 1 == partition.log.log_end_offset:
                return tail
            await self._exporter.publish(partition, tail.descriptor, tail.previous_hash)
        return None

    def _put_off(self, key: TopicPartition, stopped_s: float, reason: str) -> None:
        """Note a try in vain: the owner writes for long before it stops again."""
        tries = self._vain.get(key, NOT_TRIED).tries + 1
        least_ms = min(MOVE_RETRY_MS_MIN * 2**tries, MOVE_SEAL_PAUSE_MS_MAX)
        self._vain[key] = Vain(tries, now() + max(MOVE_SEAL_PAUSES * stopped_s, least_ms / 1000), reason)

    def _check_still_stopped(self, partition: Partition, epoch: LeaderEpoch, tail: SealedTail | None) -> None:
        """Check that the partition has stopped and everything is stored. Raises HeadraceError."""
        catalog = self._image().durable(partition.topic_partition)
        end, stored = partition.log.log_end_offset, catalog.next_offset
        if tail is not None and tail.descriptor.start_offset == stored and tail.previous_hash == catalog.head:
            stored = Offset(tail.descriptor.end_offset + 1)
        if partition.leader_epoch != epoch or partition.availability is not ErrorCode.NONE or partition.is_open:
            raise HeadraceError("Its leader epoch is over.")
        if stored != end and partition.start_offset != end:
            raise HeadraceError(f"Durable history ends at {stored - 1}, and its log at {end - 1}.")

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

    async def _propose(self, partition: Partition, seal: Seal, changed: asyncio.Event) -> str | None:
        """Propose until the image shows the outcome: another leader epoch, whoever leads in it. Returns the reason of a
        refusal, or None. After one, the owner goes on in a new epoch of its own, and the move begins again."""
        refused: str | None = None
        key, epoch = partition.topic_partition, seal.state.leader_epoch
        ask: SealMove | GiveUpMove = SealMove(seal=seal)
        pause_ms = MOVE_RETRY_MS_MIN
        while self._is_open(key, epoch):
            changed.clear()
            refusal = await self._control.submit(ask)
            if not self._is_open(key, epoch):
                break
            if refusal is not None and refusal.code not in UNKNOWN:
                log.warning("a seal is refused", topic=partition.topic, partition=key.partition, reason=refusal.message)
                refused = refused or refusal.message
                ask = self._giving_up(partition, for_good=False)
            await wait_for_event(changed, pause_ms / 1000)
            pause_ms = min(2 * pause_ms, MOVE_RETRY_MS_MAX)
        return refused

    def _is_open(self, key: TopicPartition, epoch: LeaderEpoch) -> bool:
        """Whether the image does not yet show the outcome of a proposal in that epoch."""
        known = self._image().partition(key)
        return known is not None and known.leader_epoch == epoch

    # giving up

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
        """Have the controller cancel the move: it cannot be done, now or later."""
        check_accepted(await self._control.submit(self._giving_up(partition, for_good=True)))
        log.error(
            "a move is cancelled", topic=partition.topic, partition=partition.topic_partition.partition, reason=reason
        )


async def _both(marking: Coroutine[Any, Any, None], preparing: Coroutine[Any, Any, T]) -> T:
    """Return the result of the second. Where one fails, the other is cancelled or awaited: the partition then goes on
    writing."""
    tasks = asyncio.create_task(marking), asyncio.create_task(preparing)
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        tasks[1].cancel()
        await asyncio.wait(tasks)
        raise
    return tasks[1].result()


class Steps:
    """The end of each step of a pause, in milliseconds since the pause began."""

    def __init__(self) -> None:
        self._begun = now()
        self.taken_ms: dict[str, float] = {}

    def take(self, name: str) -> None:
        self.taken_ms[name] = round(1000 * (now() - self._begun), 1)


def bytes_from(partition_log: PartitionLog, offset: Offset) -> int:
    """Return about how many bytes the log has from `offset` on."""
    found, closed, end = 0.0, 0, partition_log.log_start_offset
    for part in partition_log.ranges():
        if part.is_closed:
            closed += part.size
            found += part.size * _part(part.base_offset, part.next_offset, offset)
            end = part.next_offset
    active = partition_log.size_bytes - closed
    return int(found + active * _part(end, partition_log.log_end_offset, offset))


def _part(start: Offset, end: Offset, offset: Offset) -> float:
    """Return the fraction of [start, end) that lies at `offset` or above."""
    return 0.0 if end <= max(start, offset) else (end - max(start, offset)) / (end - start)


def sentence_of(error: BaseException) -> str:
    """Return why a step failed, as a sentence."""
    return str(error) or "it took too long"


def now() -> float:
    """Return the loop's time, in seconds."""
    return asyncio.get_running_loop().time()
