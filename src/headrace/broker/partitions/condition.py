"""The states in which this broker serves less than the metadata says, or soon will.

Each begins and ends with a log line. They are in a metric, in the broker's heartbeats, and in the answer to `headrace
doctor`.

Promises: nothing is reported that a look has not found. A look takes at most METRICS_PARTITIONS_PER_TURN_MAX partitions
in a turn of the loop. It only reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.base.ids import BrokerId
from headrace.base.limits import (
    DESCRIPTORS_USED_FRACTION_MAX,
    METRICS_PARTITIONS_PER_TURN_MAX,
    STATE_LOOK_MS,
    STATE_PARTITIONS_NAMED_MAX,
)
from headrace.base.ports import Buffer
from headrace.broker.kit.tasks import OnBug, in_thread, started
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.logs import get_logger
from headrace.metadata.image import MetadataImage
from headrace.net.server.connection import Connection
from headrace.storage.engine.medium import DISK
from headrace.wire.ailments import (
    KINDS,
    Ailment,
    Levels,
    Report,
    State,
    encode_ailments,
    encode_report,
    version_of,
)

log = get_logger(__name__)

DISK_FULL: Final = "disk full"

Source = Callable[[], Iterable[State]]
"""Looks at one part of the broker. On the loop, and fast."""
Descriptors = Callable[[], tuple[int, int]]
"""Returns how many file descriptors are used, and how many there may be. Called in a worker thread. Raises OSError."""


class Condition:
    """One per broker."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        room: DiskRoom,
        sources: Sequence[Source],
        damaged: Callable[[], Sequence[Ailment]],
        heard: Callable[[], Mapping[BrokerId, Sequence[State]]],
        image: Callable[[], MetadataImage],
        descriptors: Descriptors | None,
        on_bug: OnBug,
    ) -> None:
        self._partitions = partitions
        self._room = room
        self._sources = sources
        self._damaged = damaged
        self._heard = heard
        self._image = image
        self._descriptors = descriptors
        self._on_bug = on_bug
        self._looking: asyncio.Task[None] | None = None
        self.states: tuple[State, ...] = ()
        """The states that the last look found, the worst first."""

    def start(self) -> None:
        self._looking = started(self._look_on(), "looks at what is wrong", self._on_bug)

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def serve(self, frame: memoryview, _: Connection) -> list[Buffer]:
        """Answer a frame that asks for all states (`wire.ailments`)."""
        damaged = self._damaged()
        if version_of(frame) == 0:
            return [encode_ailments(damaged)]
        heard = {int(broker): states for broker, states in self._heard().items()}
        return [encode_report(Report(damaged, self.states, heard, _levels(self._image())))]

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(STATE_LOOK_MS / 1000)

    async def look(self) -> None:
        """Look now."""
        found = [each async for each in self._of_partitions()]
        found += states_of_disk(self._room)
        for source in self._sources:
            found += source()
        if self._descriptors is not None:
            found += await self._of_descriptors(self._descriptors)
        self._tell(sorted(found, key=lambda state: KINDS.index(state.kind)))

    def _tell(self, found: Sequence[State]) -> None:
        before, now = {state.kind for state in self.states}, {state.kind for state in found}
        for state in found:
            if state.kind not in before and state.kind != DISK_FULL:  # this one is logged at once
                log.warning("this broker serves less than it should", kind=state.kind, what=state.text, todo=state.todo)
        for kind in sorted(before - now - {DISK_FULL}):
            log.info("what was wrong with this broker is over", kind=kind)
        self.states = tuple(found)

    async def _of_partitions(self) -> AsyncIterator[State]:
        names = [f"{role.topic}-{role.topic_partition.partition}" async for role in self._failed()]
        count = len(names) + len(self._partitions.offline)
        if count:
            names += [str(reason) for reason in self._partitions.offline.values()]
            store, first = ("disk", "replace the disk, or ") if self._room.medium is DISK else ("Redis", "")
            yield State(
                kind="partition offline",
                text=f"{count} of its partitions serve nothing, for their {store} failed or their log cannot be opened "
                f"({listed(names)})",
                todo=f"{first}mend what its log tells of, then restart the broker; what finds no room is opened by "
                "itself once there is some",
            )

    async def _failed(self) -> AsyncIterator[Replica]:
        for number, role in enumerate(self._partitions.replicas, 1):
            if role.has_failed:
                yield role
            if number % METRICS_PARTITIONS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)

    async def _of_descriptors(self, look: Descriptors) -> list[State]:
        try:
            used, limit = await in_thread(look)
        except OSError:
            return []
        if used <= limit * DESCRIPTORS_USED_FRACTION_MAX:
            return []
        text = f"{used} of its {limit} file descriptors are in use"
        return [State(kind="descriptors", text=text, todo="raise its limit (ulimit -n, LimitNOFILE) and restart it")]


def states_of_disk(room: DiskRoom) -> list[State]:
    """Return the states of the logs' disk, or of what keeps them in its place."""
    medium = room.medium
    if room.is_read_only:
        todo = "see why the kernel mounted it so (dmesg), mend it, then restart the broker"
        return [State(kind="read-only disk", text="its logs' disk is mounted for reading only", todo=todo)]
    if room.usable < 0 or not (room.is_short or room.usable < 2 * room.reserve):
        return []
    if room.is_short and room.usable >= room.reserve:
        text = f"{medium.of_broker} takes nothing more, though it says that {room.usable} bytes are left"
        todo = "raise the quota that is used up, or make room for more files: writes go on by themselves"
        return [State(kind=DISK_FULL, text=text, todo=todo)]
    text = f"{medium.of_broker} has {room.usable} bytes left; with fewer than {room.reserve} (log.disk.min.free.bytes) "
    todo = f"free space (delete topics, shorten retention), or {medium.larger}"
    if room.is_short:
        text += "what clients write is refused"
        return [State(kind=DISK_FULL, text=text, todo=f"{todo}: writes go on by themselves")]
    return [State(kind="disk nearly full", text=f"{text}what clients write will be refused", todo=todo)]


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - STATE_PARTITIONS_NAMED_MAX
    return ", ".join(names[:STATE_PARTITIONS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _levels(image: MetadataImage) -> Levels:
    return Levels(image.level, {int(key): (each.level_min, each.level) for key, each in image.brokers.items()})
