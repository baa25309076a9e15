"""Requests that wait: for an offset to be committed (produce), for bytes to become visible (fetch).

Promises: a parked request wakes on the event that it waits for, or at its deadline; there is no polling. It belongs
to one leader epoch of its partition, and fails when that ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from headrace.base.ids import NO_OFFSET, Offset
from headrace.native import ROAD
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


class FetchParking:
    """The fetches that wait for more of one partition's data. `stable` is its last stable offset by now."""

    __slots__ = ("_stable_told", "_waiting", "_withheld_bytes")

    def __init__(self) -> None:
        self._waiting: dict[ParkedFetch, None] = {}
        self._stable_told = NO_OFFSET
        """The last stable offset that readers of committed records were told of."""
        self._withheld_bytes = 0
        """Bytes that became visible since, to other readers."""

    def __iter__(self) -> Iterator[ParkedFetch]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: ParkedFetch, stable: Offset) -> None:
        self._waiting[waiter] = None
        if not 0 <= self._stable_told <= stable:
            self._stable_told = stable

    def remove(self, waiter: ParkedFetch) -> None:
        self._waiting.pop(waiter, None)

    def on_visible(self, visible_bytes: int, stable: Offset) -> None:
        """Tell them that `visible_bytes` more bytes can be read."""
        stable_bytes = self._stable_bytes(visible_bytes, stable)
        for waiter in list(self._waiting):
            waiter.on_visible(visible_bytes, stable_bytes)

    def _stable_bytes(self, visible_bytes: int, stable: Offset) -> int:
        """Return about how many of these can be read under read_committed, and of earlier ones that could not. It is 0
        while the last stable offset stands still, and never less than there are."""
        self._withheld_bytes += visible_bytes
        if stable <= self._stable_told:
            return 0
        self._stable_told = stable
        more, self._withheld_bytes = self._withheld_bytes, 0
        return more

    def wake(self) -> None:
        """Have them answered with what there is."""
        for waiter in list(self._waiting):
            waiter.wake()


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
        if ROAD.native is not None:
            ROAD.native.watch_all(self._partitions, self)
            return
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
        if ROAD.native is not None:
            ROAD.native.unwatch_all(self._partitions, self)
        else:
            for partition in self._partitions:
                partition.unwatch(self)
        self._partitions = ()
