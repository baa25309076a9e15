"""Requests that wait: for an offset to be committed (produce), for bytes to become visible (fetch).

Promises: a parked request wakes on the event that it waits for, or at its deadline; there is no polling. It belongs
to one leader epoch of its partition, and fails when that ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.base.ids import Offset
from headrace.wire.errors import ErrorCode


class Commit(Protocol):
    """Something that waits for one append to be committed."""

    def on_outcome(self, error: ErrorCode) -> None:
        """Called exactly once: NONE when committed."""


class CommitParking:
    """The appends of one partition that wait for the high watermark, in offset order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Offset, Commit]] = deque()

    def park(self, end: Offset, waiter: Commit) -> None:
        """Wake `waiter` when the high watermark reaches `end`. A duplicate may wait for an older end than the last."""
        if not self._waiting or self._waiting[-1][0] <= end:
            self._waiting.append((end, waiter))
            return
        at = next(index for index, (other, _) in enumerate(self._waiting) if other > end)
        self._waiting.insert(at, (end, waiter))

    def wake_below(self, high_watermark: Offset, outcome: ErrorCode = ErrorCode.NONE) -> None:
        """Settle the appends below `high_watermark` with `outcome`: NONE, or an error where too few replicas have
        them."""
        while self._waiting and self._waiting[0][0] <= high_watermark:
            self._waiting.popleft()[1].on_outcome(outcome)

    def refuse_all(self, error: ErrorCode) -> None:
        """Refuse all waiting appends: the leadership that took them ended, or the disk failed."""
        waiting, self._waiting = self._waiting, deque()
        for _, waiter in waiting:
            waiter.on_outcome(error)

    def __len__(self) -> int:
        return len(self._waiting)


class FlushParking:
    """The waiters of one partition that wait for all that is unsynced now to be durable."""

    def __init__(self) -> None:
        self._next: list[Commit] = []
        self._under_way: list[Commit] | None = None
        """None: no flush is under way."""

    def park(self, waiter: Commit, *, needs_flush: bool) -> None:
        """Add a waiter. `needs_flush`: the log has more to sync than the flush under way, if any, covers."""
        if needs_flush:
            self._next.append(waiter)
        elif self._under_way is not None:
            self._under_way.append(waiter)
        else:
            waiter.on_outcome(ErrorCode.NONE)

    def begin(self) -> None:
        """Note that a flush begins, which covers all that is unsynced."""
        self._under_way, self._next = self._next, []

    def finish(self) -> None:
        """Note that the flush succeeded."""
        done, self._under_way = self._under_way or [], None
        for waiter in done:
            waiter.on_outcome(ErrorCode.NONE)

    def refuse_all(self, error: ErrorCode) -> None:
        """As `CommitParking.refuse_all`."""
        waiting, self._next, self._under_way = [*(self._under_way or ()), *self._next], [], None
        for waiter in waiting:
            waiter.on_outcome(error)


class Watchable(Protocol):
    """A partition, as a parked fetch sees it."""

    def watch(self, waiter: ParkedFetch) -> None: ...

    def unwatch(self, waiter: ParkedFetch) -> None: ...


class ParkedFetch:
    """A fetch that waits until `missing_bytes` more are visible over its partitions, or for `wait_s`. With
    `committed_only`, only bytes below the last stable offset count.

    Then `read_on` is called, once, in the next turn of the loop.
    """

    __slots__ = ("_committed_only", "_loop", "_missing_bytes", "_partitions", "_read_on", "_timer")

    def __init__(
        self,
        partitions: Iterable[Watchable],
        missing_bytes: int,
        wait_s: float,
        read_on: Callable[[], object],
        *,
        committed_only: bool = False,
    ) -> None:
        self._committed_only = committed_only
        self._loop = asyncio.get_running_loop()
        self._partitions = tuple(partitions)
        self._missing_bytes = missing_bytes
        self._read_on: Callable[[], object] | None = read_on
        self._timer = self._loop.call_later(wait_s, self.wake)
        for partition in self._partitions:
            if self._read_on is not None:
                partition.watch(self)

    def on_visible(self, size: int, stable_size: int) -> None:
        """Note that `size` more bytes can be read from one of the partitions; `stable_size` under read_committed."""
        self._missing_bytes -= stable_size if self._committed_only else size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Resume the fetch: its bytes are there, time is up, the partition changed hands, or the broker stops."""
        if self._read_on is not None:
            self._loop.call_soon(self._read_on)
        self.leave()

    def leave(self) -> None:
        """Stop waiting. Idempotent."""
        self._read_on = None
        self._timer.cancel()
        for partition in self._partitions:
            partition.unwatch(self)
        self._partitions = ()
