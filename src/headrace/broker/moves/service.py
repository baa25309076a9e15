"""Moves of partitions, as the brokers at both ends carry them out (DESIGN section 4).

Every step begins with the state in the image, so that a restart of any broker goes on. `handing_over` has the owner's
steps, `taking_over` the target's.

Promises: a failed step is tried again for as long as the image wants it, after a pause that doubles up to a limit. It
never decides: the controller does. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.base.limits import MOVE_RETRY_MS_MAX, MOVE_RETRY_MS_MIN, MOVE_WAIT_TOLD_MS
from headrace.broker.kit.tasks import OnBug, started, wait_for_event
from headrace.broker.moves.handing_over import Owner, now, sentence_of
from headrace.broker.moves.taking_over import Finished, Target
from headrace.broker.partitions.partition import Partition
from headrace.logs import get_logger

if TYPE_CHECKING:
    from headrace.base.ids import TopicPartition
    from headrace.broker.durable.exporter import Exporter
    from headrace.broker.durable.history import History
    from headrace.broker.moves.party import Party
    from headrace.metadata.delta import ImageDelta
    from headrace.metadata.moves import Move
    from headrace.metadata.values import PartitionImage

log = get_logger(__name__)


class Phase(Enum):
    """The phase of a move, as commands show it."""

    COPYING = "pre-copy"
    PROVING = "waiting for the target"
    SEALING = "seal"
    RECOVERING = "recover"


@dataclass(slots=True)
class Obstacle:
    """Why the last step of a move failed, or what the move waits for."""

    reason: str
    since_ms: int
    """In milliseconds since 1970."""
    since: float
    """In the loop's time."""
    is_told: bool
    """Whether the log says so."""


class Moves:
    """One per broker that has a durable store."""

    def __init__(
        self,
        party: Party,
        *,
        exporter: Exporter,
        history: History,
        open_again: Callable[[TopicPartition], Awaitable[None]],
        on_bug: OnBug,
    ) -> None:
        """`open_again`: see `Target`."""
        self._node = party.node
        self._now_ms = party.clock.now_ms
        self._image = party.image
        self._partitions = party.partitions
        self._on_bug = on_bug
        self._span = party.span
        self.owner = Owner(party, exporter)
        self.target = Target(party, history, open_again)
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._changed: dict[TopicPartition, asyncio.Event] = {}
        """Set when the image of a move, or of brokers, has changed."""
        self._stopping = False
        self._obstacles: dict[TopicPartition, Obstacle] = {}

    def start(self) -> None:
        self._look()

    async def stop(self) -> None:
        """Cut off the moves under way; the next start goes on with them."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def finished(self) -> deque[Finished]:
        """Moves that this broker has taken over lately."""
        return self.target.finished

    def obstacle(self, key: TopicPartition) -> str:
        """Return why the last step of a move failed, or what the move waits for; empty: neither."""
        found = self._obstacles.get(key)
        return "" if found is None else found.reason

    def obstacle_since_ms(self, key: TopicPartition) -> int:
        """Return since when there is the obstacle, in milliseconds since 1970; 0: there is none."""
        found = self._obstacles.get(key)
        return 0 if found is None else found.since_ms

    def phase(self, key: TopicPartition) -> Phase:
        """Return the phase of a move that is under way."""
        move = self._image().moves[key]
        if move.state is not None:
            return Phase.RECOVERING
        if key in self.owner.sealing:
            return Phase.SEALING
        partition = self._partitions.role(key)
        is_copied = isinstance(partition, Partition) and not self.owner.is_to_copy(partition)
        return Phase.PROVING if is_copied else Phase.COPYING

    def bytes_left(self, key: TopicPartition) -> int:
        """Return the bytes of the partition that this broker has still to export."""
        partition = self._partitions.role(key)
        return self.owner.bytes_left(partition) if isinstance(partition, Partition) else 0

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
        """Whether this broker has anything to do in the move now, or soon."""
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
                with self._span("Move", **{"headrace.topic": self._name(key), "headrace.partition": known.index}):
                    awaited = await self._step(key, known, known.move)
            except (HeadraceError, OSError, TimeoutError) as error:
                self._tell_failure(key, known, sentence_of(error))
                pause_ms = min(2 * pause_ms, MOVE_RETRY_MS_MAX)
                await wait_for_event(changed, pause_ms / 1000)
                continue
            pause_ms = MOVE_RETRY_MS_MIN
            self._note_wait(key, known, awaited or "")
            if awaited is not None:  # a role may change without the image
                await wait_for_event(changed, MOVE_RETRY_MS_MAX / 1000)
        self._obstacles.pop(key, None)
        self.owner.forget(key)
        self.target.forget(key)
        del self._tasks[key], self._changed[key]

    def _tell_failure(self, key: TopicPartition, known: PartitionImage, reason: str) -> None:
        if self._noted(key, reason).is_told:
            return
        self._obstacles[key].is_told = True
        log.warning("a move is tried again", topic=self._name(key), partition=known.index, reason=reason)

    def _note_wait(self, key: TopicPartition, known: PartitionImage, reason: str) -> None:
        """Note what the move waits for; empty: nothing. It is logged where that lasts."""
        if not reason:
            self._obstacles.pop(key, None)
            return
        found = self._noted(key, reason)
        waited_s = now() - found.since
        if not found.is_told and waited_s * 1000 >= MOVE_WAIT_TOLD_MS:
            found.is_told = True
            seconds = round(waited_s)
            log.warning("a move waits", topic=self._name(key), partition=known.index, reason=reason, seconds=seconds)

    def _noted(self, key: TopicPartition, reason: str) -> Obstacle:
        found = self._obstacles.get(key)
        if found is None or found.reason != reason:
            found = self._obstacles[key] = Obstacle(reason, self._now_ms(), now(), is_told=False)
        return found

    def _name(self, key: TopicPartition) -> str:
        topic = self._image().topics.get(key.topic_id)
        return str(key.topic_id) if topic is None else topic.name

    async def _step(self, key: TopicPartition, known: PartitionImage, move: Move) -> str | None:
        """Take the next step. Returns None where another may follow at once; else what the move waits for, as a
        clause, or nothing where the other broker tells that."""
        if move.state is not None:
            return await self.target.finish(key, known, move.source, move.state)
        if move.source == self._node:
            return await self.owner.hand_over(key, move, self._changed[key])
        return await self.target.prove(key, move)
