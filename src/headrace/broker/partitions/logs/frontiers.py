"""Reads where a log begins that begins behind durable history: for empty copies, and for leaders that have less than
history.

Promises:
- The event loop only waits.
- A silent store is waited for at most twice FRONTIER_SILENCE_MS_MAX, by few, and then by one at a time, until it
  answers. Nobody else waits for it, or for those.
- A slow store that answers is waited for.
- Copies, leaders, readers of history and exports have threads of their own, so that none holds up another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from headrace.base.errors import HeadraceError, StorageFailure
from headrace.base.limits import (
    FRONTIER_PAGE_SEGMENTS,
    FRONTIER_PAGES_MAX,
    FRONTIER_READS_AT_ONCE_MAX,
    FRONTIER_SILENCE_MS_MAX,
)
from headrace.base.ports import Clock, ObjectMeta, ReadableObjects
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.partitions.replica import Replica
from headrace.logs import get_logger
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.beginnings import Beginning
from headrace.storage.tier.frontier import check_all, read_beginning

log = get_logger(__name__)


class Heard:
    """A store, and how often it has answered. `is_over`: nobody wants an answer any more, and nothing more is asked."""

    def __init__(self, objects: ReadableObjects, pages: int = 1) -> None:
        """`pages`: about how many pages a listing has; a store may return all of them at once."""
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
    """Reads that wait for each other. Loop-only, but for the reads."""

    def __init__(self, objects: ReadableObjects, clock: Clock, name: str) -> None:
        self._objects = objects
        self._clock = clock
        self._threads = StoreThreads(FRONTIER_READS_AT_ONCE_MAX, name)
        self._turns = asyncio.Semaphore(FRONTIER_READS_AT_ONCE_MAX)
        self._silent_until: float | None = None
        """In monotonic seconds: a read was given up, and none has ended since. One read is tried again at this time."""
        self._is_tried = False
        """True: that read is under way."""

    def stop(self) -> None:
        """Read nothing more; reads under way are not waited for."""
        self._threads.stop()

    async def run(self, work: Callable[[Heard], Beginning], *, pages: int = 1) -> Beginning:
        """Return the result of `work`. Raises StorageFailure where the store is silent."""
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
        """Wait until the read is done, or the store has not answered for too long."""
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
        """Read nothing more; reads under way are not waited for."""
        self._copies.stop()
        self._leaders.stop()

    async def read(self, catalog: PartitionCatalog) -> Beginning:
        """Read the beginning for a leader, which has to follow history. Raises one of DAMAGE; StorageFailure or another
        OSError where the store cannot be read now."""
        now_ms = self._clock.now_ms()
        return await self._leaders.run(lambda store: read_beginning(store, catalog, now_ms=now_ms, reads_batches=True))

    async def beginning(self, copy: Replica) -> Beginning | None:
        """Read where a copy is to begin. None where that cannot be proven, and the leader is to send everything that it
        has."""
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
