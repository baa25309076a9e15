"""Opening the logs of partitions, many at a time: recovery, and the producers that wrote to each.

Promises: what cannot be opened keeps nothing else from being opened; the event loop only waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import structlog

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import Offset
from headrace.base.limits import LOGS_OPENED_AT_ONCE_MAX
from headrace.base.ports import Clock
from headrace.replica.producers import ProducerStates
from headrace.storage.engine import LogConfig, LogEngine, LogIdentity, LogOpening, PartitionLog

log = structlog.get_logger(__name__)

T = TypeVar("T")
Wanted: TypeAlias = tuple[LogIdentity, LogConfig]


class Opened(NamedTuple):
    """A log, and the producers that wrote to it."""

    log: PartitionLog
    producers: ProducerStates


class Opener:
    """Opens logs of one engine."""

    def __init__(self, engine: LogEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def open_all(self, wanted: Sequence[Wanted]) -> list[Opened | Exception]:
        """Read one after the other, for that takes the processor; then several at a time wait for the disk."""
        begun = await in_thread(lambda: [self._begin(identity, config) for identity, config in wanted])
        waiting = [at for at, each in enumerate(begun) if not isinstance(each, Exception) and each.must_sync]
        at_once = LOGS_OPENED_AT_ONCE_MAX if len(waiting) >= LOGS_OPENED_AT_ONCE_MAX else 1
        slow = [waiting[first::at_once] for first in range(at_once)]
        slow_ones = set(waiting)
        quick = [at for at in range(len(begun)) if at not in slow_ones]
        opened: dict[int, Opened | Exception] = {}

        def finish(share: Sequence[int]) -> None:
            for at in share:
                opened[at] = self._finish(begun[at])

        await asyncio.gather(*(in_thread(partial(finish, share)) for share in [quick, *slow] if share))
        return [opened[at] for at in range(len(begun))]

    async def open_aside(self, wanted: Wanted) -> Opened | Exception:
        """What is under its name is of another disk or assignment: it is kept beside, and the log is empty."""
        try:
            kept = await in_thread(partial(self._engine.set_aside, wanted[0]))
        except (OSError, HeadraceError) as error:
            return error
        log.warning(
            "a log of another disk or assignment is kept beside, and taken anew from its leader",
            topic=wanted[0].topic_name,
            partition=wanted[0].partition,
            kept_in=str(kept),
        )
        (opened,) = await self.open_all([wanted])
        return opened

    def _begin(self, identity: LogIdentity, config: LogConfig) -> LogOpening | Exception:
        """In a worker thread."""
        try:
            return self._engine.begin_open(identity, config)
        except (OSError, HeadraceError) as error:
            return error

    def _finish(self, begun: LogOpening | Exception) -> Opened | Exception:
        """In a worker thread: recover the log, then the producers' state from its snapshot and what follows it."""
        if isinstance(begun, Exception):
            return begun
        try:
            opened = begun.finish()
            try:
                producers = recover_producers(opened, self._clock.now_ms())
            except CorruptData as error:
                log.warning(
                    "a log is examined: its batches cannot be walked", log=str(opened.directory), reason=str(error)
                )
                _examine_all(opened)
                producers = recover_producers(opened, self._clock.now_ms())
        except (OSError, HeadraceError) as error:
            return error
        return Opened(opened, producers)


async def in_thread(work: Callable[[], T]) -> T:
    """Its result, from a worker thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _examine_all(partition_log: PartitionLog) -> None:
    """In a worker thread, before anybody else has the log."""
    for base in partition_log.segments:
        if (examination := partition_log.begin_examination(base)) is not None:
            examination.run()
            partition_log.end_examination(examination, done=True)


def recover_producers(partition_log: PartitionLog, now_ms: int) -> ProducerStates:
    """When a batch behind the snapshot was appended is not known: it counts as appended now, so that no producer is
    forgotten too early."""
    snapshot = partition_log.latest_producer_snapshot()
    producers = ProducerStates()
    start = partition_log.log_start_offset
    if snapshot is not None and snapshot[0] <= partition_log.log_end_offset:
        try:
            producers = ProducerStates.restore(snapshot[1])
            start = Offset(max(start, snapshot[0]))
        except CorruptData as error:
            log.warning("producers are rebuilt from the whole log", log=str(partition_log.directory), reason=str(error))
    for header in partition_log.batches_from(start):
        producers.on_appended(header, Offset(header.base_offset), now_ms)
    return producers
