"""Group commit: one sync at a time over every log with unsynced data; appends that come meanwhile share the next.

Promises:
- Data that was written after its sync was asked for does not count as durable.
- The event loop never syncs.
- A failed sync is reported to its partition once and never tried again.
- Work that nobody waits for comes after the answers. Between the last append and its sync, and between that and its
  answer, the loop does nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.base.limits import LOGS_FLUSHED_AT_ONCE_MAX
from headrace.broker.kit.gathering import GroupCommitTimer
from headrace.storage.engine.files import Upkeep, UpkeepWork
from headrace.storage.engine.flushing import FlushRound, FlushTicket, Outcome, Outcomes


class Flushable(Protocol):
    """A partition, as the flusher sees it. Loop-only."""

    def begin_flush(self) -> FlushTicket | None:
        """Return the data to sync now, or None where there is none."""

    def finish_flush(self, ticket: FlushTicket, failure: Outcome) -> None:
        """Note the end of the sync; with `failure`, the data that it covered is in doubt for ever."""

    def write_out(self) -> object:
        """Write data to the log's own file that only the engine's journal may have yet. Called before the next flush
        begins."""


class Rounds(Protocol):
    """The engine, as the flusher sees it (`storage.engine.engines.LogEngine`)."""

    def begin_round(self, tickets: Sequence[FlushTicket]) -> FlushRound: ...

    @property
    def upkeep(self) -> Upkeep | None: ...


class Flusher:
    """One per broker, for all its partitions. `on_bug` is called where beginning or ending a sync raises. That is a bug
    of ours: everybody would wait for ever."""

    def __init__(self, engine: Rounds, on_bug: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._on_bug = on_bug
        self._dirty: dict[Flushable, None] = {}
        self._running = False
        self._broken = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._rounds: list[asyncio.Future[None]] = []
        self._answered: Sequence[tuple[Flushable, FlushTicket]] | None = None
        """The last round, which is over, except for its work that nobody waits for."""
        self._upkeep: asyncio.Future[None] | None = None
        self._gathering = GroupCommitTimer(self._loop)
        self.rounds = 0
        """The number of finished syncs."""
        self.seconds = 0.0
        """Their time, all together."""
        self._began = 0.0

    def request(self, partition: Flushable) -> None:
        """Note that the partition has data to sync. It hears of the outcome through `finish_flush`."""
        if self._broken:
            return
        self._dirty[partition] = None
        self._gathering.arrived()
        if not self._running:
            self._running = True
            self._idle.clear()
            self._gather()

    async def idle(self) -> None:
        """Wait until nothing is left to sync, and the engine's upkeep is done."""
        await self._idle.wait()
        self._work(self._tidy_up)
        if self._upkeep is not None:
            await asyncio.wait([self._upkeep])

    async def round_over(self) -> None:
        """Wait until the sync under way, if any, is over, and nothing of it is left to be written. The caller may then
        cut or close a log in a worker thread."""
        if self._running:
            over = self._loop.create_future()
            self._rounds.append(over)
            await over
        self._work(self._tidy_up)

    def _work(self, step: Callable[[], None]) -> None:
        """Run a step of ours. After a bug nothing more is synced, and so nothing more acknowledged. Callers that wait
        for quiet go on, so that the broker can stop."""
        if self._broken:
            return
        try:
            step()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, mistake: Exception) -> None:
        self._broken = True
        self._rest()
        self._on_bug(mistake)

    def _gather(self) -> None:
        self._gathering.begin(self._begin)

    def _begin(self) -> None:
        self._work(self._start)

    def _start(self) -> None:
        self._tidy_up()
        self._gathering.begun()
        dirty, self._dirty = self._dirty, {}
        if len(dirty) > LOGS_FLUSHED_AT_ONCE_MAX:
            all_dirty = list(dirty)
            dirty = dict.fromkeys(all_dirty[:LOGS_FLUSHED_AT_ONCE_MAX])
            self._dirty = dict.fromkeys(all_dirty[LOGS_FLUSHED_AT_ONCE_MAX:])
        work = [(partition, ticket) for partition in dirty if (ticket := partition.begin_flush()) is not None]
        if not work:
            self._gather() if self._dirty else self._rest()
            return
        together = self._engine.begin_round([ticket for _, ticket in work])
        self._began = self._loop.time()
        together.begin(lambda outcomes: self._work(lambda: self._finish(work, together, outcomes)))

    def _finish(
        self,
        work: Sequence[tuple[Flushable, FlushTicket]],
        together: FlushRound,
        outcomes: Outcomes,
    ) -> None:
        found = outcomes()
        self.rounds += 1
        self.seconds += self._loop.time() - self._began
        together.end()
        for (partition, ticket), failure in zip(work, found, strict=True):
            partition.finish_flush(ticket, failure)
        self._answered = work
        self._loop.call_soon(self._loop.call_soon, self._work, self._tidy_up)  # once the answers have left
        self._end_round()
        self._gathering.answered()
        if self._dirty:
            self._gather()
        else:
            self._rest()

    def _tidy_up(self) -> None:
        """Do the work for which the answers of the last round did not wait."""
        if self._answered is None:
            return
        answered, self._answered = self._answered, None
        for partition, _ in answered:
            partition.write_out()
        self._keep_up()

    def _keep_up(self) -> None:
        """Let the engine do its own work, beside the rounds."""
        if (keeper := self._engine.upkeep) is not None and (work := keeper.begin_upkeep()) is not None:
            self._upkeep = self._loop.run_in_executor(None, work.run)
            self._upkeep.add_done_callback(lambda done: None if done.cancelled() else self._kept_up(work, done))

    def _kept_up(self, work: UpkeepWork, done: asyncio.Future[None]) -> None:
        try:
            done.result()
            work.end()
        except Exception as error:
            self._give_up(error)

    def _rest(self) -> None:
        self._running = False
        self._idle.set()
        self._end_round()

    def _end_round(self) -> None:
        over, self._rounds = self._rounds, []
        for waiter in over:
            if not waiter.done():
                waiter.set_result(None)
