"""Serves the requests of commands about moves (`wire.moves`): to list those under way, and to have partitions moved.

Promises: where the controller does not do what was asked, the answer is its refusal, or a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.broker.partitions.partition import Partition
from headrace.controller.decision import Refusal
from headrace.wire.moves import (
    LIST,
    MEASURE,
    READS,
    AskedView,
    FinishedView,
    MoveAnswer,
    MoveRequest,
    MoveView,
    decode_request,
    encode_answer,
)

if TYPE_CHECKING:
    from headrace.base.ports import Buffer
    from headrace.broker.moves.party import Party
    from headrace.broker.moves.reading import Readers
    from headrace.broker.moves.service import Moves
    from headrace.controller.moving import MoveOutcome, MoveWish
    from headrace.net.server.connection import Connection


class MoveDoor:
    """One per broker. `moves`: None: there is no durable store."""

    def __init__(self, party: Party, moves: Moves | None, readers: Readers) -> None:
        self._node = party.node
        self._image = party.image
        self._partitions = party.partitions
        self._control = party.control
        self._all_moves = moves
        self._readers = readers
        self._is_started = False

    def start(self) -> None:
        """Tell of this broker's own moves from now on."""
        self._is_started = True

    def serve(self, frame: memoryview, connection: Connection) -> list[Buffer] | Asked:
        """Serve one frame. Raises CorruptData."""
        request = decode_request(frame)
        if request.kind == LIST:
            return [encode_answer(self._under_way())]
        if request.kind == MEASURE:
            return [encode_answer(self._measured(request))]
        answering = self._reads(request) if request.kind == READS else self._ask(request)
        return Asked(asyncio.ensure_future(answering), connection)

    def _under_way(self) -> MoveAnswer:
        from headrace.broker.moves.service import Phase

        image, moves = self._image(), self._all_moves if self._is_started else None
        found = []
        for key, move in sorted(image.moves.items(), key=lambda item: item[0]):
            is_source = moves is not None and move.source == self._node and move.state is None
            phase = Phase.COPYING if move.state is None else Phase.RECOVERING
            found.append(
                MoveView(
                    topic=image.topics[key.topic_id].name,
                    partition=key.partition,
                    source=move.source,
                    target=move.target,
                    phase=(moves.phase(key) if moves is not None and is_source else phase).value,
                    bytes_left=moves.bytes_left(key) if moves is not None and is_source else -1,
                    obstacle="" if moves is None else moves.obstacle(key),
                    since_ms=0 if moves is None else moves.obstacle_since_ms(key),
                )
            )
        finished = [] if moves is None else list(moves.finished)
        return MoveAnswer(
            moves=tuple(found),
            finished=tuple(
                FinishedView(
                    topic=image.topics[one.key.topic_id].name,
                    partition=one.key.partition,
                    source=one.source,
                    offset=one.last_committed_offset + 1,
                    pause_ms=one.pause_ms,
                )
                for one in finished
                if one.key.topic_id in image.topics
            ),
        )

    def _measured(self, request: MoveRequest) -> MoveAnswer:
        from headrace.broker.moves.handing_over import bytes_from

        image = self._image()
        topic = None if request.topic is None else image.topic(request.topic)
        found = []
        for known in () if topic is None else topic.partitions:
            assert topic is not None
            key = TopicPartition(topic.id, known.index)
            role = self._partitions.role(key)
            if isinstance(role, Partition) and (not request.partitions or known.index in request.partitions):
                left = bytes_from(role.log, image.durable(key).next_offset)
                found.append(MoveView(topic.name, known.index, self._node, -1, "", left, ""))
        return MoveAnswer(moves=tuple(found))

    async def _reads(self, request: MoveRequest) -> MoveAnswer:
        return MoveAnswer(error=await self._readers.unreadable(request))

    async def _ask(self, request: MoveRequest) -> MoveAnswer:
        from headrace.controller.asks.moves import MovePartitions
        from headrace.controller.moving import MoveWish

        wish = MoveWish(
            topic=request.topic,
            partitions=tuple(PartitionIndex(each) for each in request.partitions),
            broker=None if request.broker is None else BrokerId(request.broker),
            to=None if request.to is None else BrokerId(request.to),
            bytes_per_second=request.bytes_per_second,
        )
        wish, outcomes = await self._tried(wish)
        if not request.dry_run and not isinstance(outcomes, Refusal):
            outcomes = await self._control.submit(MovePartitions(wish=wish))
        if isinstance(outcomes, Refusal):
            return MoveAnswer(error=outcomes.message)
        return MoveAnswer(
            asked=tuple(
                AskedView(
                    topic=one.topic,
                    partition=one.partition,
                    source=one.source,
                    target=one.target,
                    is_handed_over=one.is_handed_over,
                    refusal="" if one.refusal is None else one.refusal.message,
                    has_copy=one.has_copy,
                )
                for one in outcomes
            )
        )

    async def _tried(self, wish: MoveWish) -> tuple[MoveWish, tuple[MoveOutcome, ...] | Refusal]:
        """Return the wish without targets that cannot read the store, and what would come of it."""
        from headrace.controller.asks.moves import MovePartitions

        while True:
            outcomes = await self._control.submit(MovePartitions(wish=wish, validate_only=True))
            known = {one.broker for one in wish.unable}
            unable = [] if isinstance(outcomes, Refusal) else await self._readers.unable(outcomes)
            new = tuple(one for one in unable if one.broker not in known)
            if not new:
                return wish, outcomes
            wish = replace(wish, unable=(*wish.unable, *new))


class Asked:
    """A `Later`: the answer of the controller is pending."""

    pipelined: ClassVar[bool] = False

    def __init__(self, task: asyncio.Task[MoveAnswer], connection: Connection) -> None:
        self._task = task
        self._connection = connection

    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> object:
        return self._task.cancel()

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._task.add_done_callback(lambda _: callback(self))

    def answer(self) -> list[Buffer] | None:
        if self._task.cancelled() or self._task.exception() is not None:
            self._connection.abort()
            return None
        return [encode_answer(self._task.result())]
