"""Reads where a log begins that begins behind durable history: for copies that have nothing, and for leaders that have
less than history has.

Promises: the event loop only waits; a store that hangs is waited for no longer than FRONTIER_READ_MS_MAX, and holds up
neither readers of history nor exports, which have threads of their own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog

from headrace.base.errors import CorruptData, HeadraceError, StorageFailure
from headrace.base.limits import FRONTIER_READ_MS_MAX, FRONTIER_READS_AT_ONCE_MAX
from headrace.base.ports import Clock, Objects
from headrace.broker.replica import Replica
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.frontier import Beginning, read_beginning

log = structlog.get_logger(__name__)

DAMAGE: Final = (CorruptData, EOFError)
"""What says that the store was read, and that what is there is not what the catalog says. An object that is not there
is no damage: so is every object of a store that is not mounted, or is another one."""


class Frontiers:
    """One per broker that has a durable store. Loop-only, but for the reads."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._threads = ThreadPoolExecutor(FRONTIER_READS_AT_ONCE_MAX, thread_name_prefix="frontier")
        self._turns = asyncio.Semaphore(FRONTIER_READS_AT_ONCE_MAX)
        self._silent_until = 0.0
        """In monotonic seconds: a reading was given up."""

    def stop(self) -> None:
        """Nothing is read any more; what is under way is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, catalog: PartitionCatalog, *, reads_batches: bool = True) -> Beginning:
        """`reads_batches`: for producers of which no footer tells, within half of the time. Raises one of DAMAGE;
        StorageFailure or another OSError where the store cannot be read now."""
        async with self._turns:
            if self._clock.monotonic() < self._silent_until:  # else each of very many would wait for it
                raise StorageFailure("the store has not answered lately")
            now_ms, half = self._clock.now_ms(), self._clock.monotonic() + FRONTIER_READ_MS_MAX / 2000
            gives_up = lambda: not reads_batches or self._clock.monotonic() >= half  # noqa: E731
            work = partial(read_beginning, self._objects, catalog, now_ms=now_ms, gives_up=gives_up)
            reading = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.wait_for(reading, FRONTIER_READ_MS_MAX / 1000)
            except TimeoutError as error:
                self._silent_until = self._clock.monotonic() + FRONTIER_READ_MS_MAX / 1000
                raise StorageFailure(f"the store has not answered for {FRONTIER_READ_MS_MAX} ms") from error

    async def beginning(self, copy: Replica) -> Beginning | None:
        """Where a copy is to begin; None where that cannot be proven, and the leader is to send all that it has."""
        assert copy.history is not None, "it has looked"
        try:
            found = await self.read(copy.history, reads_batches=False)
        except (HeadraceError, OSError, EOFError) as error:
            log.warning(
                "a copy is taken whole from its leader, for durable history cannot be read to its end",
                topic=copy.topic,
                partition=copy.topic_partition.partition,
                reason=str(error),
            )
            return None
        log.info(
            "a copy begins behind durable history",
            topic=copy.topic,
            partition=copy.topic_partition.partition,
            offset=found.offset,
            producers=len(found.producers),
        )
        return found
