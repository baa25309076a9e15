"""Builds the room of the partitions: their logs, and the roles that these have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.values import Value
from headrace.broker.core import Core
from headrace.broker.partitions.assigned import Assigned
from headrace.broker.partitions.assignments import Assignments
from headrace.broker.partitions.context import LogContext
from headrace.broker.partitions.disk_room import DiskRoom, Waiting
from headrace.broker.partitions.events import PartitionEvents
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.logs.strays import Strays
from headrace.broker.partitions.partitions import Partitions
from headrace.storage.engine.engines import LogEngine

if TYPE_CHECKING:
    from headrace.broker.partitions.logs.frontiers import Frontiers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Logs(Value):
    """The logs of this broker, in step with the image."""

    partitions: Partitions
    flusher: Flusher
    room: DiskRoom
    assignments: Assignments
    engine: LogEngine

    def start(self) -> None:
        self.room.start()

    def begin_stop(self) -> None:
        """Watch the disk no more: a stop opens no logs again, and asks for no leave. Nobody waits long for a store that
        is elsewhere and does not answer."""
        self.room.stop()
        self.engine.begin_stop()

    async def stop(self, *, clean: bool) -> None:
        """Close all logs. Not clean: nothing more is written, and the next start recovers."""
        await self.assignments.stop(clean=clean)


def build_logs(
    core: Core,
    engine: LogEngine,
    partitions: Partitions,
    events: PartitionEvents,
    *,
    frontiers: Frontiers | None,
    on_waiting: Callable[[Sequence[Waiting]], object],
) -> Logs:
    """Build the room. `partitions` is empty, and others have it already. `frontiers`: None: there is no durable store.
    `on_waiting`: see `DiskRoom`."""
    directory_id = core.identity.directory_id
    context = LogContext(
        engine=engine,
        partitions=partitions,
        assigned=Assigned(node=core.node, directory_id=directory_id, configs=core.config.configs),
        events=events,
        flusher=Flusher(engine, core.on_bug),
        room=DiskRoom(
            engine.space, lambda: core.number("log.disk.min.free.bytes"), core.on_bug, on_waiting, engine.medium
        ),
        clock=core.clock,
        has_store=core.objects is not None,
        on_bug=core.on_bug,
    )
    assignments = Assignments(context, Strays(engine, core.node, directory_id), frontiers)
    return Logs(
        partitions=partitions, flusher=context.flusher, room=context.room, assignments=assignments, engine=engine
    )
