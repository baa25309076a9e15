"""Reads where a log begins that begins behind durable history: for copies that have nothing, and for leaders that have
less than history has.

Promises: the event loop only waits; a store that hangs is waited for no longer than twice FRONTIER_SILENCE_MS_MAX, by
few, and then by one at a time, until it answers: nobody else waits for it, or for those. One that is slow, and answers,
is waited for. Copies, leaders, readers of history and exports have threads of their own, so that none holds up another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import structlog

from headrace.base.errors import CorruptData, HeadraceError, StorageFailure
from headrace.base.limits import (
    FRONTIER_PAGE_SEGMENTS,
    FRONTIER_PAGES_MAX,
    FRONTIER_READS_AT_ONCE_MAX,
    FRONTIER_SILENCE_MS_MAX,
)
from headrace.base.ports import Clock, ObjectMeta, ReadableObjects
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.partitions.replica import Replica
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.frontier import Beginning, check_all, read_beginning

log = structlog.get_logger(__name__)

DAMAGE: Final = (CorruptData, EOFError)
"""What says that the store was read, and that what is there is not what the catalog says. An object that is not there
is no damage: so is every object of a store that is not mounted, or is another one."""


class Heard:
    """A store, and how often it has answered. `is_over`: nobody wants an answer any more, and nothing more is asked."""

    def __init__(self, objects: ReadableObjects, pages: int = 1) -> None:
        """`pages`: that a listing has, about; a store may tell all of them at once."""
        self._objects = objects
        self._pages = pages
        self.answers = 0
        self.patience = 1
        """Answers that are due at once."""
        self.is_over = False

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._ask()
        data = self._objects.get_range(key, start, length)
        self.answers += 1
        return data

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        self._ask()
        self.patience = self._pages
        for meta in self._objects.list(prefix):
            self.patience = 1
            self.answers += 1
            yield meta
            self._ask()

    def _ask(self) -> None:
        if self.is_over:
            raise StorageFailure("nobody waits for it any more")


class Lane:
    """Readings that wait for each other. Loop-only, but for the reads."""

    def __init__(self, objects: ReadableObjects, clock: Clock, name: str) -> None:
        self._objects = objects
        self._clock = clock
        self._threads = StoreThreads(FRONTIER_READS_AT_ONCE_MAX, name)
        self._turns = asyncio.Semaphore(FRONTIER_READS_AT_ONCE_MAX)
        self._silent_until: float | None = None
        """In monotonic seconds: a reading was given up, and none has ended since. Then it is tried once more."""
        self._is_tried = False
        """That is under way."""

    def stop(self) -> None:
        """Nothing is read any more; what is under way is not waited for."""
        self._threads.stop()

    async def run(self, work: Callable[[Heard], Beginning], *, pages: int = 1) -> Beginning:
        """As `work`. Raises StorageFailure where the store is silent."""
        self._check()
        async with self._turns:
            self._check()  # else each of very many would wait for it
            self._is_tried = self._silent_until is not None
            heard = Heard(self._objects, pages)
            reading = self._threads.run(partial(work, heard))
            try:
                await self._until_silent(reading, heard)
            finally:
                heard.is_over = True
                self._is_tried = False
                reading.cancel()
            if reading.cancelled():
                self._silent_until = self._clock.monotonic() + FRONTIER_SILENCE_MS_MAX / 1000
                raise StorageFailure(f"the store has not answered for {FRONTIER_SILENCE_MS_MAX} ms")
            self._silent_until = None
            return reading.result()

    async def _until_silent(self, reading: asyncio.Future[Beginning], heard: Heard) -> None:
        """Until it is done, or the store has not answered."""
        answers = -1
        while not reading.done() and heard.answers > answers:
            answers = heard.answers
            await asyncio.wait([reading], timeout=FRONTIER_SILENCE_MS_MAX / 1000)
            for _ in range(heard.patience - 1):
                await asyncio.wait([reading], timeout=FRONTIER_SILENCE_MS_MAX / 1000)

    def _check(self) -> None:
        silent_until = self._silent_until
        if silent_until is not None and (self._is_tried or self._clock.monotonic() < silent_until):
            raise StorageFailure("the store has not answered lately")


class Frontiers:
    """One per broker that has a durable store. Loop-only, but for the reads."""

    def __init__(self, objects: ReadableObjects, clock: Clock) -> None:
        self._clock = clock
        self._copies = Lane(objects, clock, "frontier-of-copy")
        self._leaders = Lane(objects, clock, "frontier-of-leader")

    def stop(self) -> None:
        """Nothing is read any more; what is under way is not waited for."""
        self._copies.stop()
        self._leaders.stop()

    async def read(self, catalog: PartitionCatalog) -> Beginning:
        """For a leader, who has no other choice than what history says. Raises one of DAMAGE; StorageFailure or another
        OSError where the store cannot be read now."""
        now_ms = self._clock.now_ms()
        return await self._leaders.run(lambda store: read_beginning(store, catalog, now_ms=now_ms, reads_batches=True))

    async def beginning(self, copy: Replica) -> Beginning | None:
        """Where a copy is to begin; None where that cannot be proven, and the leader is to send all that it has."""
        catalog, now_ms = copy.history, self._clock.now_ms()
        if catalog is None:
            return None  # its topic is gone, since it was looked at

        def work(store: Heard) -> Beginning:
            found = read_beginning(store, catalog, now_ms=now_ms)
            check_all(store, catalog)
            return found

        pages = min(1 + len(catalog.entries) // FRONTIER_PAGE_SEGMENTS, FRONTIER_PAGES_MAX)
        try:
            found = await self._copies.run(work, pages=pages)
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
