"""An answer that is set later, on the event loop alone, and the deadlines of many such answers under one timer.

Both are made for produce. They cost a fraction of a future and a timer for each request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

from headrace.base.limits import DEADLINE_SIGNIFICANT_BITS, DEADLINES_SETTLED_MIN

_MISSING: Final = object()


class Deferred:
    """A result that is set once. It works as a future, but its callbacks are called at once, where it is set.

    `expected` is the result if all goes well, so that its frame can be made while the disk is at work.
    """

    __slots__ = ("_callbacks", "_cancelled", "_error", "_result", "expected")

    def __init__(self, expected: object) -> None:
        self.expected: Final = expected
        self._result: Any = _MISSING
        self._error: BaseException | None = None
        self._cancelled = False
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._cancelled or self._error is not None or self._result is not _MISSING

    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> bool:
        """Drop any result that is set later: nobody waits for it."""
        if self.done():
            return False
        self._cancelled = True
        self._tell()
        return True

    def result(self) -> Any:
        assert self._result is not _MISSING, "asked once it is done"
        return self._result

    def exception(self) -> BaseException | None:
        return self._error

    def set_exception(self, error: BaseException) -> None:
        if not self.done():
            self._error = error
            self._tell()

    def set_result(self, result: Any) -> None:
        if not self.done():
            self._result = result
            self._tell()

    def settle(self, work: Callable[[], Any]) -> None:
        """Set the result of `work`, or the error that it raises. Does nothing where this is done already."""
        if self.done():
            return
        try:
            result = work()
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def hand_on(self, future: asyncio.Future[Any]) -> None:
        """Settle the future as this is: it is done."""
        if future.done():
            return
        if self._error is not None:
            future.set_exception(self._error)
        elif self._cancelled:
            future.cancel()
        else:
            future.set_result(self.result())

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def _tell(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


async def settled(result: Any) -> Any:
    """Return the result, where it is a `Deferred` once that is set. It is cancelled where nobody waits any more."""
    if not isinstance(result, Deferred):
        return result
    future = asyncio.get_running_loop().create_future()
    result.add_done_callback(lambda done: done.hand_on(future))
    try:
        return await future
    finally:
        result.cancel()


class Waiting(Protocol):
    """Something with a deadline."""

    @property
    def is_settled(self) -> bool:
        """Whether it waits no more, so that its deadline means nothing."""

    def time_out(self) -> None:
        """Called when the deadline has come. Not called where it is settled."""


@lru_cache(maxsize=64)
def _rounded_up(number: int) -> int:
    """Round up to DEADLINE_SIGNIFICANT_BITS significant bits, or one more."""
    shift = max(0, number.bit_length() - DEADLINE_SIGNIFICANT_BITS)
    return -(-number >> shift) << shift


class _Queue(deque[tuple[float, Waiting]]):
    """Waiters of one timeout, in the order of their deadlines."""

    __slots__ = ("cleared_at",)

    def __init__(self) -> None:
        super().__init__()
        self.cleared_at = DEADLINES_SETTLED_MIN
        """The length at which settled waiters are removed: twice what was left, so that each is looked at twice."""

    def clear_settled(self) -> None:
        left = [each for each in self if not each[1].is_settled]
        self.clear()
        self.extend(left)
        self.cleared_at = max(2 * len(left), DEADLINES_SETTLED_MIN)


class Deadlines:
    """Waiters in the order of their deadlines, a queue for each timeout. Timeouts are rounded up to
    DEADLINE_SIGNIFICANT_BITS, so that there are few queues whatever clients ask for.

    Settled waiters at the head of a queue are removed when the next is added. Those behind one that still waits are
    removed once the queue is twice as long as after its last clearing.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues: dict[int, _Queue] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def add(self, waiting: Waiting, timeout_ms: int) -> None:
        """Time `waiting` out after `timeout_ms` milliseconds, or at most a thirtieth of that later."""
        timeout_ms = _rounded_up(timeout_ms)
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = _Queue()
            self._timers[timeout_ms] = self._loop.call_later(timeout_ms / 1000, self._look, timeout_ms)
        while queue and queue[0][1].is_settled:
            queue.popleft()
        if len(queue) >= queue.cleared_at:
            queue.clear_settled()
        queue.append((self._loop.time() + timeout_ms / 1000, waiting))

    def _look(self, timeout_ms: int) -> None:
        """Time out the waiters that are due, and set the timer for the next, if any."""
        queue, now = self._queues[timeout_ms], self._loop.time()
        while queue and (queue[0][1].is_settled or queue[0][0] <= now):
            _, waiting = queue.popleft()
            if not waiting.is_settled:
                waiting.time_out()
        if queue:
            self._timers[timeout_ms] = self._loop.call_at(queue[0][0], self._look, timeout_ms)
        else:
            del self._queues[timeout_ms], self._timers[timeout_ms]

    def __len__(self) -> int:
        """The number of waiters that are kept, settled ones among them."""
        return sum(map(len, self._queues.values()))

    def close(self) -> None:
        """Forget all waiters."""
        for timer in self._timers.values():
            timer.cancel()
        self._queues.clear()
        self._timers.clear()
