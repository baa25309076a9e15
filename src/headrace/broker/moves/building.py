"""Builds the room of the moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.values import Value
from headrace.broker.moves.door import MoveDoor
from headrace.broker.moves.party import Party
from headrace.broker.moves.reading import Readers

if TYPE_CHECKING:
    from headrace.broker.cluster.building import Cluster
    from headrace.broker.core import Core
    from headrace.broker.durable.building import Durable
    from headrace.broker.moves.service import Moves
    from headrace.broker.partitions.building import Logs
    from headrace.broker.traces import Span


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Moving(Value):
    """The moves of partitions from this broker, and to it."""

    cluster: Cluster
    service: Moves | None
    """None: there is no durable store, and nothing can be handed over."""
    door: MoveDoor

    def start(self) -> None:
        if self.service is not None:
            self.cluster.metadata.subscribe(self.service.on_delta)
            self.service.start()
        self.door.start()

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
    readers = Readers(
        core.node,
        core.image,
        None if durable.exports is None else durable.exports.history,
        cluster.address_of,
        core.peer_security,
    )
    return Moving(cluster=cluster, service=service, door=MoveDoor(party, service, readers))
