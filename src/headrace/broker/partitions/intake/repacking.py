"""Checks and recompresses batches off the event loop, where one is too long to be checked there.

Promises:
- The batches of one partition keep their order, whether they are unpacked or only wait behind one that is.
- Other partitions are not held up.
- The batches that are unpacked, wait and run at a time are bounded.

Packing, and unpacking of long batches, never run on the event loop. Loop-only otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from headrace.base.limits import REPACK_WAITING_BYTES_MAX, REPACKED_BATCH_BYTES_MAX, REPACKS_AT_ONCE_MAX
from headrace.base.ports import Buffer
from headrace.broker.kit.tasks import OnBug, started
from headrace.wire.batches import CorruptBatch, Repacked, repack
from headrace.wire.compression import Compression
from headrace.wire.validation import Broken, Rules, broken_rules


class Overflow(NamedTuple):
    """Too much waits already: the batch was not accepted."""


class Unsound(NamedTuple):
    """Why a batch cannot be unpacked, as a sentence. Not the exception: its frames hold the data unpacked so far."""

    reason: str


class Wanted(NamedTuple):
    """The task for a batch."""

    codec: Compression
    """The codec to pack it in."""
    rules: Rules
    level: int | None = None
    """The codec's level, where that is not its usual one (KIP-390)."""


Outcome: TypeAlias = Repacked | Unsound | Broken
Result: TypeAlias = Buffer | Outcome | Overflow


class Repacker:
    """One per broker: the worker threads and the bytes that wait for them, shared by all partitions."""

    def __init__(self, on_bug: OnBug) -> None:
        self.on_bug: Final = on_bug
        self.waiting_bytes = 0
        self._slots: Final = asyncio.Semaphore(REPACKS_AT_ONCE_MAX)

    async def repack(self, records: Buffer, wanted: Wanted) -> Outcome:
        """Repack a batch in a worker thread, once one is free."""
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(None, _repack, records, wanted)


class _Place(NamedTuple):
    records: bytes
    wanted: Callable[[], Wanted | None]
    done: Callable[[Result], None]


class RepackLine:
    """The batches of one partition that wait for their turn, in the order in which they came."""

    def __init__(self, repacker: Repacker) -> None:
        self._repacker = repacker
        self._places: deque[_Place] | None = None
        """None until the first one joins: most partitions never recompress."""
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None

    def over(self) -> asyncio.Future[None] | None:
        """Return a future that is done once nothing waits; None where nothing does."""
        if self.is_empty:
            return None
        if self._over is None or self._over.done():
            self._over = asyncio.get_running_loop().create_future()
        return self._over

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, so that a new batch need not wait either."""
        return not self._places

    def join(self, records: bytes, wanted: Callable[[], Wanted | None], done: Callable[[Result], None]) -> None:
        """Add a batch at the end. When its turn comes, `wanted` returns its task (None: nothing). `done` is called with
        the outcome before the next one's turn."""
        if self._repacker.waiting_bytes + len(records) > REPACK_WAITING_BYTES_MAX:
            done(Overflow())
            return
        self._repacker.waiting_bytes += len(records)
        if self._places is None:
            self._places = deque()
        self._places.append(_Place(records, wanted, done))
        if self._task is None:
            self._task = started(self._serve(), "repacking", self._repacker.on_bug)

    async def _serve(self) -> None:
        try:
            while self._places:
                place = self._places[0]
                wanted = place.wanted()
                result = place.records if wanted is None else await self._repacker.repack(place.records, wanted)
                place.done(result)
                self._places.popleft()
                self._repacker.waiting_bytes -= len(place.records)
        finally:
            self._task = None
            if self._over is not None and not self._over.done():
                self._over.set_result(None)


def _repack(records: Buffer, wanted: Wanted) -> Outcome:
    try:
        repacked = repack(records, wanted.codec, limit=REPACKED_BATCH_BYTES_MAX, level=wanted.level)
        return broken_rules(records, repacked.records, wanted.rules, limit=REPACKED_BATCH_BYTES_MAX) or repacked
    except CorruptBatch as error:
        return Unsound(str(error))
