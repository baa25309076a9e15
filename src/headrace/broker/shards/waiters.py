"""The waiters for answers of one shard, by number. A wait for the disk has a timeout.

Promises:
- Each waiter is answered once. A wait for the disk ends at the latest when its time is up.
- A wait for other clients has no timeout here, for what they wait for has one.
- Clients that waited for each other are answered a few in each turn of the loop. The first of hundreds have their
  answers while those of the last are put together. No other client waits for all of them.

Bounded by the requests in flight of all connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from headrace.base.limits import GROUP_ANSWERS_PER_TURN_MAX
from headrace.wire.errors import ErrorCode


class Waiter(Protocol):
    """The receiver of an answer: a future, or the like."""

    def done(self) -> bool: ...

    def set_result(self, reply: Any, /) -> object: ...


class Waiters:
    """See the module. Loop-only."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, Waiter] = {}
        self._parked: set[int] = set()
        """Waiters that wait for other clients rather than for the disk."""
        self._writing: deque[tuple[float, int]] = deque()
        """Waiters that wait for the disk, each with the time at which it is told to ask again, in the order of these
        times."""
        self._released: deque[tuple[int, object]] = deque()
        """Parked waiters whose answer is known, to be answered in the turns to come."""
        self._told = 0
        """The number of parked waiters that were answered in this turn of the loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self._closed: object | None = None
        """The answer that all get from now on."""

    def __len__(self) -> int:
        """The number of waiters."""
        return len(self._waiters)

    def number(self) -> int:
        """Return a number that no waiter had."""
        number, self._next = self._next, self._next + 1
        return number

    def add(self, number: int, waiting: Waiter, *, parked: bool) -> None:
        """Add a waiter; `parked`: it waits for other clients."""
        if self._closed is not None:
            waiting.set_result(self._closed)
            return
        self._waiters[number] = waiting
        if parked:
            self._parked.add(number)

    def forget(self, number: int) -> None:
        self._parked.discard(number)
        self._waiters.pop(number, None)

    def await_disk(self, number: int, waiting: Waiter) -> None:
        """Add a waiter for the disk, with the timeout."""
        if self._closed is not None:
            waiting.set_result(self._closed)
            return
        self._waiters[number] = waiting
        self._writing.append((self._loop.time() + self._timeout_s, number))
        self._watch()

    def is_parked(self, number: int) -> bool:
        return number in self._parked

    def answer(self, number: int, reply: object) -> None:
        """Answer now or, where many waited for each other, in one of the next turns. A client that left meanwhile has
        cancelled its future."""
        if number not in self._parked:
            self._tell(number, reply)
            return
        self._released.append((number, reply))
        if len(self._released) == 1:
            self._tell_released()

    def _tell(self, number: int, reply: object) -> None:
        self._parked.discard(number)
        waiting = self._waiters.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def _tell_released(self) -> None:
        """Answer as many as may be in this turn."""
        while self._released and self._told < GROUP_ANSWERS_PER_TURN_MAX:
            if not self._told:
                self._loop.call_soon(self._next_turn)
            self._told += 1
            self._tell(*self._released.popleft())

    def _next_turn(self) -> None:
        self._told = 0
        self._tell_released()

    def answer_parked(self, reply: object) -> None:
        """Answer all parked waiters at once; those whose answer is known get that."""
        while self._released:
            self._tell(*self._released.popleft())
        for number in list(self._parked):
            self._tell(number, reply)

    def close(self, reply: object) -> None:
        """Answer all waiters, and all that come later."""
        self._closed = reply
        if self._timer is not None:
            self._timer.cancel()
        self._released.clear()
        for number in list(self._waiters):
            self._tell(number, reply)

    def _watch(self) -> None:
        """Look at the oldest waiter for the disk when its time is up."""
        while self._writing and self._writing[0][1] not in self._waiters:
            self._writing.popleft()
        if self._writing and self._timer is None and self._closed is None:
            self._timer = self._loop.call_at(self._writing[0][0], self._give_up)

    def _give_up(self) -> None:
        """Tell those that have waited too long to ask again. Their append stands, and counts once it is committed."""
        self._timer = None
        while self._writing and self._writing[0][0] <= self._loop.time():
            self._tell(self._writing.popleft()[1], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._watch()
