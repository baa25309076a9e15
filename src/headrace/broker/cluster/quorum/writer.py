"""Carries the consensus core's writes to the disk, in order, one at a time.

Promises: a write counts as done only once it and all before it are synced. Writes that wait while the disk is at work
go in one write, synced once. After a failure nothing more is written, and that is reported once. The event loop never
waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.base.errors import StorageFailure
from headrace.base.limits import RAFT_WRITTEN_ON_LOOP_BYTES_MAX
from headrace.base.values import Value
from headrace.metadata.image import MetadataImage
from headrace.raft.events import ChunkToWrite, Ready
from headrace.raft.messages import Entry, HardState
from headrace.storage.raftlog.metadata_log import image_of_snapshot
from headrace.storage.raftlog.raft_log import RaftLog


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Action(Value):
    """Work on the log in its turn, blocking; `after` is called on the loop after it."""

    run: Callable[[], None]
    after: Callable[[], None] | None = None


OnWritten: TypeAlias = Callable[[int, MetadataImage | None], None]


class LogWriter:
    """Used on the event loop. `on_written` is called with the number of the last durable write, and with the image of a
    snapshot that replaced everything by it. `on_failure` is called once, with the error."""

    def __init__(self, log: RaftLog, on_written: OnWritten, on_failure: Callable[[Exception], None]) -> None:
        self._log = log
        self._on_written = on_written
        self._on_failure = on_failure
        self._waiting: deque[Ready | Action] = deque()
        self._working = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = False
        self._image: MetadataImage | None = None

    def put(self, ready: Ready) -> None:
        """Persist the writes of a step."""
        assert ready.write is not None
        self._enqueue(ready)

    def do(self, run: Callable[[], None], after: Callable[[], None] | None = None) -> None:
        """Run work on the log, in its turn. Blocking; may raise the log's errors."""
        self._enqueue(Action(run, after))

    async def drained(self) -> None:
        """Wait until nothing is under way or waits."""
        await self._idle.wait()

    def _enqueue(self, work: Ready | Action) -> None:
        if not self._failed:
            self._waiting.append(work)
            self._idle.clear()
            self._go_on()

    def _go_on(self) -> None:
        if self._working or self._failed:
            return
        if not self._waiting:
            self._idle.set()
            return
        self._working = True
        batch = self._take_batch()
        if isinstance(batch[0], Ready) and batch[0].chunk is None:
            state, entries = _merged([each for each in batch if isinstance(each, Ready)])
            if sum(len(entry.data) for entry in entries) <= RAFT_WRITTEN_ON_LOOP_BYTES_MAX:
                self._begin(state, entries, batch[-1])
                return
        work = asyncio.get_running_loop().run_in_executor(None, self._carry_out, batch)
        work.add_done_callback(lambda work: self._on_worked(work, batch[-1]))

    def _begin(self, state: HardState | None, entries: Sequence[Entry], last: Ready | Action) -> None:
        """Write a little at once; it is synced without a thread of ours."""
        try:
            self._log.begin_append(state, entries, lambda failure: self._done(failure, last))
        except StorageFailure as failure:
            self._done(failure, last)

    def _on_worked(self, work: asyncio.Future[None], last: Ready | Action) -> None:
        if not work.cancelled():
            self._done(work.exception(), last)

    def _take_batch(self) -> list[Ready | Action]:
        """Return one action, one piece of a snapshot, or as many plain writes as there are."""
        batch = [self._waiting.popleft()]
        while self._waiting and _is_plain(batch[-1]) and _is_plain(self._waiting[0]):
            batch.append(self._waiting.popleft())
        return batch

    def _done(self, error: BaseException | None, last: Ready | Action) -> None:
        self._working = False
        if error is not None:
            self._failed = True
            self._waiting.clear()
            self._idle.set()
            assert isinstance(error, Exception)
            self._on_failure(error)
            return
        image, self._image = self._image, None
        if isinstance(last, Ready):
            assert last.write is not None
            self._on_written(last.write, image)
        elif last.after is not None:
            last.after()
        self._go_on()

    # in a worker thread

    def _carry_out(self, batch: Sequence[Ready | Action]) -> None:
        first = batch[0]
        if not isinstance(first, Ready):
            first.run()
        elif first.chunk is not None:
            self._receive(first, first.chunk)
        else:
            self._log.append(*_merged([each for each in batch if isinstance(each, Ready)]))

    def _receive(self, ready: Ready, chunk: ChunkToWrite) -> None:
        """Write a piece of a snapshot. The hard state goes first: a snapshot of an unknown term would be damage."""
        if ready.hard_state is not None:
            self._log.append(ready.hard_state, ())
        self._log.receive_chunk(chunk.offset, chunk.data)
        if chunk.last:
            self._image = image_of_snapshot(self._log.install_received(chunk.mark))
        if ready.entries:
            self._log.append(None, ready.entries)


def _is_plain(work: Ready | Action) -> bool:
    return isinstance(work, Ready) and work.chunk is None


def _merged(batch: Sequence[Ready]) -> tuple[HardState | None, Sequence[Entry]]:
    """Return the contents of the log after all of them, as one write."""
    if len(batch) == 1:
        return batch[0].hard_state, batch[0].entries
    state: HardState | None = None
    entries: list[Entry] = []
    for ready in batch:
        state = ready.hard_state or state
        if ready.entries:
            if entries:
                del entries[max(0, ready.entries[0].index - entries[0].index) :]
            entries += ready.entries
    return state, entries
