"""An asyncio event loop on virtual time: no clock, no selector, no socket; time jumps to the next timer.

Promises:
- One seed gives exactly one order of events.
- A killed process never runs again.
- Work given to an executor runs at a random later moment, with random pauses between its disk operations, and never in
  parallel with the loop.
- It never waits in real time. Anything that would need the real world raises.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from headrace.base.ports import Random
from headrace.sim.network import Network
from headrace.sim.process import Process, ProcessDied, owner
from headrace.sim.workers import Pool, Workers

T = TypeVar("T")

TURNS_WITHOUT_TIME_MAX: Final = 100_000
"""Turns of the loop at one virtual time after which the run counts as a busy loop."""
RESOLUTION_SECONDS: Final = 1e-6
"""Timers so much later than the next one are run with it."""
CANCELLED_KEPT: Final = 100
"""Of timers that were cancelled, so many may wait in the heap for their time; then they go where they are half."""


class Stuck(Exception):  # noqa: N818 - a state of the run
    """Nothing can happen any more, or nothing except work that takes no time."""


class _Due(float):
    """The moment of a timer, and the timer. The heap compares numbers, which is quicker than to compare timers."""

    __slots__ = ("timer",)
    timer: asyncio.TimerHandle


def _due(timer: asyncio.TimerHandle) -> _Due:
    due = _Due(timer.when())
    due.timer = timer
    timer._scheduled = True  # type: ignore[attr-defined]  # its cancelling is counted
    return due


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop, as the module says. `failures` holds uncaught exceptions, each with the process it came from."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[_Due]  # asyncio's own has the timers themselves
    _timer_cancelled_count: int
    _closed: bool
    _stopping: bool

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._thread = threading.get_ident()
        self.network = Network(self, random)
        self.workers = Workers(self, random)
        self.failures: list[str] = []
        self.no_process: Final = contextvars.Context()
        """The context for the simulation's own machinery, whoever triggers it."""
        self.set_task_factory(_make_task)
        self.set_exception_handler(_note_failure)

    # time

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """A turn, in the order that asyncio's own loop keeps: timers that are due come behind what is ready."""
        self._forget_cancelled()
        self._move_on()
        ready, scheduled, until = self._ready, self._scheduled, self._now + RESOLUTION_SECONDS
        while scheduled and scheduled[0] < until:
            timer = heapq.heappop(scheduled).timer
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _forget_cancelled(self) -> None:
        """Timers at the front; where they are many, all of them."""
        scheduled = self._scheduled
        if len(scheduled) > CANCELLED_KEPT and self._timer_cancelled_count > len(scheduled) / 2:
            scheduled[:] = [due for due in scheduled if not due.timer._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
            return
        while scheduled and scheduled[0].timer._cancelled:
            heapq.heappop(scheduled)
            self._timer_cancelled_count -= 1

    def _move_on(self) -> None:
        """Instead of waiting, move the clock to the next timer, where nothing is ready. Raises Stuck."""
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise Stuck("nothing is ready and no timer is set: every task waits for ever")
            if (when := self._scheduled[0].timer.when()) > self._now:
                self._now = when
                self._turns = 0
                return
        self._turns += 1
        if self._turns > TURNS_WITHOUT_TIME_MAX:
            self._turns = 0
            raise Stuck(f"{TURNS_WITHOUT_TIME_MAX} turns of the loop at one moment: something spins")

    def _write_to_self(self) -> None:
        """Not needed: nothing else is awake while the loop runs."""

    # processes

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        process = owner(context)
        if process is None:
            self._ready.append(handle)
        elif process.held is not None:
            process.held.append((self._now, handle))
        else:
            self._ready.append(handle)
            if not process.alive:
                handle.cancel()
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process = owner(context)
        if process is not None and process.held is not None:
            process.held.append((when, timer))
            return timer
        heapq.heappush(self._scheduled, _due(timer))
        if process is not None and not process.alive:
            timer.cancel()
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread and not self.workers.running:
            raise RuntimeError("a real thread called into the simulated loop")
        return self.call_soon(callback, *args, context=context)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that belongs to `process`, as do all tasks that it starts."""
        return self.create_task(coroutine, context=process.context())

    def kill(self, process: Process) -> None:
        """End it at once, as by SIGKILL: no `finally`, no callback, no exception handler of its own takes effect."""
        if not process.alive:
            return
        self.resume(process)
        process.alive = False
        for handle in [*self._ready, *(due.timer for due in self._scheduled)]:
            if owner(handle._context) is process:  # type: ignore[attr-defined]  # asyncio keeps it there
                handle.cancel()
        for callback in process.at_death:
            callback()
        contextvars.Context().run(self.call_soon, self._bury, process)

    def pause(self, process: Process) -> None:
        """Pause it, as by SIGSTOP: nothing of it runs until it is resumed, and data sent to it waits."""
        if not process.alive or process.held is not None:
            return
        process.held = []
        mine = [handle for handle in self._ready if owner(handle._context) is process]  # type: ignore[attr-defined]
        dues = [due for due in self._scheduled if owner(due.timer._context) is process]  # type: ignore[attr-defined]
        process.held += [(self._now, handle) for handle in mine]
        process.held += [(due.timer.when(), due.timer) for due in dues]
        for due in dues:
            due.timer._scheduled = False  # type: ignore[attr-defined]  # or its cancelling would be counted
        gone = set(map(id, (*mine, *dues)))
        stand_in = asyncio.Handle(_nothing, (), self, self.no_process)
        stand_in.cancel()  # the loop has counted those that are ready
        kept = [stand_in if id(handle) in gone else handle for handle in self._ready]
        self._ready.clear()
        self._ready.extend(kept)
        self._scheduled[:] = [due for due in self._scheduled if id(due) not in gone]
        heapq.heapify(self._scheduled)

    def resume(self, process: Process) -> None:
        """Resume it, as by SIGCONT: overdue work runs now, in the order in which it was due."""
        if process.held is None:
            return
        held, process.held = process.held, None
        for when, handle in sorted(held, key=lambda pair: pair[0]):
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle) and when > self._now:
                heapq.heappush(self._scheduled, _due(handle))
            else:
                self._ready.append(handle)

    def _bury(self, process: Process) -> None:
        """Close the rest of its coroutines and threads, so that no later garbage collection can run any of it."""
        self.workers.bury(process)
        for task in list(process.tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # no warning for a task that was killed
            coroutine = task.get_coro()
            try:
                process.context().run(coroutine.close)
            except BaseException as error:  # its `finally` acted on a dead process, so nothing of it counts
                del error

    # the rest of the world

    def run_in_executor(  # type: ignore[override]
        self, executor: Pool | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if executor is not None and not isinstance(executor, Pool):
            raise RuntimeError("an executor of its own: only the loop's default one and simulated ones are known")
        return self.workers.submit(func, *args, pool=executor)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.create_server(protocol_factory, host, port, options)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.create_connection(protocol_factory, host, port, options)

    def _refuse(self, *args: object, **options: object) -> NoReturn:
        raise RuntimeError("the simulated loop has no such door to the real world")

    add_signal_handler = _refuse
    add_reader = _refuse
    add_writer = _refuse
    getaddrinfo = _refuse
    subprocess_exec = _refuse


def _nothing() -> None:
    """A callback that is never called."""


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    process = owner(options.get("context"))
    if process is not None:
        process.tasks.add(task)
        if not process.alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # as in _bury
            coroutine.close()  # it is never to begin
    return task


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note an uncaught exception as a failure of the run, unless it is a death."""
    assert isinstance(loop, VirtualLoop)
    error = context.get("exception")
    if isinstance(error, ProcessDied):
        return
    frames = traceback.format_exception(error) if isinstance(error, BaseException) else []
    loop.failures.append(f"{context.get('message')}: {error!r}\n{''.join(frames)}".rstrip())
