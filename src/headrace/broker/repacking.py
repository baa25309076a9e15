"""Unpacking off the event loop: for a `compression.type` other than `producer`, and for the keys of compacted topics.

Promises: the batches of one partition keep their order, whether they are unpacked or only stand behind one that is;
other partitions are not held up; how much is unpacked, waits and runs at a time is bounded. Never on the event loop:
unpacking and packing. Loop-only otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from headrace.base.limits import REPACK_WAITING_BYTES_MAX, REPACKED_BATCH_BYTES_MAX, REPACKS_AT_ONCE_MAX
from headrace.base.ports import Buffer
from headrace.broker.tasks import OnBug, started
from headrace.wire.batches import CorruptBatch, Repacked, repack
from headrace.wire.compression import Compression


class Overflow(NamedTuple):
    """Too much waits already: the batch was not taken."""


class Unsound(NamedTuple):
    """Why a batch cannot be unpacked, as a sentence. Not the exception: its frames hold what was unpacked so far."""

    reason: str


Result: TypeAlias = Buffer | Repacked | Unsound | Overflow


class Repacker:
    """One per broker: the worker threads and the bytes that wait for them, shared by all partitions."""

    def __init__(self, on_bug: OnBug) -> None:
        self.on_bug: Final = on_bug
        self.waiting_bytes = 0
        self._slots: Final = asyncio.Semaphore(REPACKS_AT_ONCE_MAX)

    async def repack(self, records: Buffer, codec: Compression, *, level: int | None = None) -> Repacked | Unsound:
        """In a worker thread, once there is one."""
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(None, _repack, records, codec, level)


class _Place(NamedTuple):
    records: bytes
    codec: Callable[[], Compression | None]
    done: Callable[[Result], None]


class RepackLine:
    """The batches of one partition that wait for their turn, in the order in which they came."""

    def __init__(self, repacker: Repacker, level: Callable[[], int | None]) -> None:
        self._repacker = repacker
        self._level = level
        """At which batches are packed now, where that is not the codec's own."""
        self._places: deque[_Place] | None = None
        """None until the first one joins: most partitions never recompress."""
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None

    def over(self) -> asyncio.Future[None] | None:
        """Done once nothing waits; None where nothing does."""
        if self.is_empty:
            return None
        if self._over is None or self._over.done():
            self._over = asyncio.get_running_loop().create_future()
        return self._over

    @property
    def is_empty(self) -> bool:
        """Nothing waits: what comes now needs to stand behind nobody."""
        return not self._places

    def join(self, records: bytes, codec: Callable[[], Compression | None], done: Callable[[Result], None]) -> None:
        """Stand last. When the turn comes, `codec` is asked what the batch is to be packed in (None: it is not even
        unpacked), and `done` is told of the outcome before the next one's turn."""
        if self._repacker.waiting_bytes + len(records) > REPACK_WAITING_BYTES_MAX:
            done(Overflow())
            return
        self._repacker.waiting_bytes += len(records)
        if self._places is None:
            self._places = deque()
        self._places.append(_Place(records, codec, done))
        if self._task is None:
            self._task = started(self._serve(), "repacking", self._repacker.on_bug)

    async def _serve(self) -> None:
        try:
            while self._places:
                place = self._places[0]
                codec = place.codec()
                result = place.records if codec is None else await self._repack(place.records, codec)
                place.done(result)
                self._places.popleft()
                self._repacker.waiting_bytes -= len(place.records)
        finally:
            self._task = None
            if self._over is not None and not self._over.done():
                self._over.set_result(None)

    async def _repack(self, records: bytes, codec: Compression) -> Repacked | Unsound:
        level = self._level()
        if level is None:
            return await self._repacker.repack(records, codec)
        return await self._repacker.repack(records, codec, level=level)


def _repack(records: Buffer, codec: Compression, level: int | None) -> Repacked | Unsound:
    try:
        return repack(records, codec, limit=REPACKED_BATCH_BYTES_MAX, level=level)
    except CorruptBatch as error:
        return Unsound(str(error))
