"""Builds the room of the moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.broker.moves.party import Party

if TYPE_CHECKING:
    from headrace.broker.cluster.building import Cluster
    from headrace.broker.core import Core
    from headrace.broker.durable.building import Durable
    from headrace.broker.moves.door import MoveDoor
    from headrace.broker.moves.service import Moves
    from headrace.broker.partitions.building import Logs
    from headrace.broker.traces import Span


class Moving:
    """The moves of partitions from this broker, and to it."""

    def __init__(self, cluster: Cluster, service: Moves | None, make_door: Callable[[], MoveDoor]) -> None:
        """`service`: None: there is no durable store, and nothing can be handed over."""
        self.service: Final = service
        self._cluster = cluster
        self._make_door = make_door
        self._door: MoveDoor | None = None
        self._is_started = False

    @property
    def door(self) -> MoveDoor:
        """The door for requests about moves. It is loaded and made for the first of them."""
        if self._door is None:
            self._door = self._make_door()
            if self._is_started:
                self._door.start()
        return self._door

    def start(self) -> None:
        if self.service is not None:
            self._cluster.metadata.subscribe(self.service.on_delta)
            self.service.start()
        self._is_started = True
        if self._door is not None:
            self._door.start()

    async def stop(self) -> None:
        if self.service is not None:
            await self.service.stop()


def build_moves(core: Core, cluster: Cluster, logs: Logs, durable: Durable, span: Span) -> Moving:
    """Build the room. `span` traces the steps of moves."""
    party = Party(
        node=core.node,
        broker_epoch=core.broker_epoch,
        image=core.image,
        partitions=logs.partitions,
        control=cluster.control,
        clock=core.clock,
        span=span,
    )
    service = None
    if durable.exports is not None:
        from headrace.broker.moves.service import Moves

        service = Moves(
            party,
            exporter=durable.exports.exporter,
            history=durable.exports.history,
            open_again=logs.assignments.open_again,
            on_bug=core.on_bug,
        )

    def make_door() -> MoveDoor:
        from headrace.broker.moves.door import MoveDoor
        from headrace.broker.moves.reading import Readers

        history = None if durable.exports is None else durable.exports.history
        readers = Readers(core.node, core.image, history, cluster.address_of, core.peer_security)
        return MoveDoor(party, service, readers)

    return Moving(cluster, service, make_door)
