"""The target's part of a move: it proves that it reads the store, and finishes once its log is there and durable.

Promises: it asks to finish only where its log is open, empty and durable, and begins where the owner's ended. A log
that cannot be opened is tried again; after six tries another broker is to go on. It never decides: the controller does.
Loop-only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import MOVE_OPENINGS_TRIED_MAX, MOVES_REMEMBERED_MAX
from headrace.broker.cluster.control import check_accepted
from headrace.broker.durable.history import History
from headrace.broker.moves.party import Party
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Replica
from headrace.controller.asks.moves import FailTarget, FinishMove, ProveMove
from headrace.logs import get_logger
from headrace.metadata.moves import Move, StorageStateSealed
from headrace.metadata.values import PartitionImage

log = get_logger(__name__)


class Finished(NamedTuple):
    """A move that this broker has taken over."""

    key: TopicPartition
    source: BrokerId
    last_committed_offset: Offset
    pause_ms: int
    """Milliseconds from the owner's last accepted record to the first that could be accepted here, by both brokers'
    wall clocks."""


class Target:
    """One per broker that has a durable store."""

    def __init__(self, party: Party, history: History, open_again: Callable[[TopicPartition], Awaitable[None]]) -> None:
        """`open_again` tries once more to open a log, and returns once that was tried."""
        self._node = party.node
        self._broker_epoch = party.broker_epoch
        self._image = party.image
        self._partitions = party.partitions
        self._control = party.control
        self._history = history
        self._clock = party.clock
        self._open_again = open_again
        self._failures: dict[TopicPartition, tuple[LeaderEpoch, int]] = {}
        """How often a log that is to be taken over could not be opened, and in which leader epoch."""
        self.finished: deque[Finished] = deque(maxlen=MOVES_REMEMBERED_MAX)

    def forget(self, key: TopicPartition) -> None:
        """Forget the failures, as the move is over."""
        self._failures.pop(key, None)

    async def prove(self, key: TopicPartition, move: Move) -> str:
        """Read what the owner has exported, where there is anything, and tell the controller so. Returns nothing: the
        owner tells what the move waits for."""
        catalog = self._image().durable(key)
        if not catalog.entries or move.proven_by == self._broker_epoch():
            return ""
        await self._history.epoch_at(key, catalog, catalog.end_offset)
        ask = ProveMove(
            topic_id=key.topic_id, partition=key.partition, broker_id=self._node, broker_epoch=self._broker_epoch()
        )
        check_accepted(await self._control.submit(ask))
        return ""

    async def finish(
        self, key: TopicPartition, known: PartitionImage, source: BrokerId, state: StorageStateSealed
    ) -> str | None:
        """Ask the controller to finish, once the log is open, and durable where the owner's ended. Returns None, or
        what is missing."""
        seen_ms = self._since(state)
        await self._partitions.settled()
        if key in self._partitions.offline:
            await self._open_again(key)
        role = self._partitions.role(key)
        if (problem := _unable(role, self._partitions.offline.get(key))) is not None:
            await self._count_failure(key, known, problem)
        if not isinstance(role, Partition) or not role.gate.takes_over or role.leader_epoch != known.leader_epoch:
            return f"broker {self._node} has not opened its log yet"
        recovered_ms = self._since(state)
        ask = FinishMove(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=known.leader_epoch,
            broker_id=self._node,
            broker_epoch=self._broker_epoch(),
        )
        check_accepted(await self._control.submit(ask))
        pause_ms = self._since(state)
        self.finished.append(Finished(key, source, state.last_committed_offset, pause_ms))
        log.info(
            "partition taken over",
            topic=role.topic,
            partition=key.partition,
            source=source,
            offset=state.next_offset,
            seen_ms=seen_ms,
            recovered_ms=recovered_ms,
            pause_ms=pause_ms,
        )
        return None

    def _since(self, state: StorageStateSealed) -> int:
        """Return the milliseconds since the owner accepted its last record."""
        return max(0, self._clock.now_ms() - state.timestamp_ms)

    async def _count_failure(self, key: TopicPartition, known: PartitionImage, problem: str) -> None:
        """Count a failure to open the log, and raise HeadraceError: it is tried again. After too many, ask for another
        target."""
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


def _unable(role: Replica | None, offline: str | None) -> str | None:
    """Return why a log that is to be taken over cannot be, as a sentence; None where it can, or is not open yet."""
    if role is None:
        return offline
    if role.log.read_only is not None:
        return f"The log that is to be taken over is for reading only: {role.log.read_only}."
    return "The disk of the log that is to be taken over has failed." if role.has_failed or role.log.failed else None
