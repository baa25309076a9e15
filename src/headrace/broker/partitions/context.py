"""The base of everything that keeps logs in step with the image."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.ports import Clock
from headrace.base.values import Value
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.assigned import Assigned
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.events import PartitionEvents
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.partitions import Partitions
from headrace.storage.engine.engines import LogEngine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LogContext(Value):
    """One per broker, shared by `Assignments`, `Roles`, `Closing` and `TakingUp`."""

    engine: LogEngine
    partitions: Partitions
    assigned: Assigned
    events: PartitionEvents
    flusher: Flusher
    room: DiskRoom
    clock: Clock
    has_store: bool
    """Whether there is a durable store."""
    on_bug: OnBug
