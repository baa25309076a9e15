"""Group commit: one sync at a time over every log that has something unsynced; what comes meanwhile shares the next.

Promises: nothing is called durable that was written after its sync was asked for; the event loop never syncs.
A failed sync is reported to its partition once and never tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.storage.engine import FlushTicket


class Flushable(Protocol):
    """A partition, as the flusher sees it. Loop-only."""

    def begin_flush(self) -> FlushTicket | None:
        """What is to be synced now, or None where nothing is."""

    def finish_flush(self, ticket: FlushTicket, failure: OSError | None) -> None:
        """The sync ended; with `failure`, what it covered is in doubt for ever."""


class Flusher:
    """One per broker, for all its partitions. `on_bug` is told where taking up or ending a sync raises, which is a
    mistake of ours: everybody would wait for ever."""

    def __init__(self, on_bug: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_bug = on_bug
        self._dirty: dict[Flushable, None] = {}
        self._running = False
        self._broken = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._rounds: list[asyncio.Future[None]] = []

    def request(self, partition: Flushable) -> None:
        """The partition has something to sync. It hears of the outcome through `finish_flush`."""
        if self._broken:
            return
        self._dirty[partition] = None
        if not self._running:
            self._running = True
            self._idle.clear()
            self._loop.call_soon(self._work)

    async def idle(self) -> None:
        """Wait until nothing is left to sync."""
        await self._idle.wait()

    async def round_over(self) -> None:
        """Wait until the sync that is under way now, if any, is over."""
        if self._running:
            over = self._loop.create_future()
            self._rounds.append(over)
            await over

    def _work(self, done: Callable[[], None] | None = None) -> None:
        """End a round, where one is `done`, and begin the next. After a mistake of ours nothing more is synced, and so
        nothing more acknowledged; those who wait for quiet are let go, so that the broker can stop."""
        try:
            if done is not None:
                done()
            self._start()
        except Exception as error:
            self._broken = True
            self._rest()
            self._on_bug(error)

    def _start(self) -> None:
        dirty, self._dirty = self._dirty, {}
        work = [(partition, ticket) for partition in dirty if (ticket := partition.begin_flush()) is not None]
        if not work:
            self._rest()
            return
        syncs = self._loop.run_in_executor(None, _sync_all, [ticket for _, ticket in work])
        syncs.add_done_callback(
            lambda done: None if done.cancelled() else self._work(partial(self._finish, work, done))
        )

    def _finish(
        self, work: Sequence[tuple[Flushable, FlushTicket]], done: asyncio.Future[list[OSError | None]]
    ) -> None:
        for (partition, ticket), failure in zip(work, done.result(), strict=True):
            partition.finish_flush(ticket, failure)
        self._end_round()

    def _rest(self) -> None:
        self._running = False
        self._idle.set()
        self._end_round()

    def _end_round(self) -> None:
        over, self._rounds = self._rounds, []
        for waiter in over:
            if not waiter.done():
                waiter.set_result(None)


def _sync_all(tickets: Sequence[FlushTicket]) -> list[OSError | None]:
    """Runs in a worker thread: sync each; a failure of one does not keep the others from theirs."""
    return [_sync(ticket) for ticket in tickets]


def _sync(ticket: FlushTicket) -> OSError | None:
    try:
        ticket.sync()
    except OSError as error:
        return error
    return None
