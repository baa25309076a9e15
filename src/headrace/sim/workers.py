"""Worker threads that take turns with the loop: the default executor of the virtual loop.

A function runs in a real thread. So it may pause in the middle (at a disk operation) while the loop and other workers
go on. But only one of all these runs at a time: each passes the turn on and waits for it. So a race between the loop
and a worker is found, and the same seed finds it again.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.base.ports import Random
from headrace.sim.process import CURRENT, Process

if TYPE_CHECKING:
    from headrace.sim.loop import VirtualLoop

T = TypeVar("T")

START_SECONDS_MAX: Final = 0.002
"""Longest that a function waits for a thread."""
FINISH_SECONDS_MAX: Final = 0.001
"""Longest time from a function's end until the loop learns of it."""
LOCK_SECONDS: Final = 0.000_1
"""Pause after which a thread that waits for a lock tries again."""


class Mutex:
    """A lock of a simulated process. A waiting thread passes the turn on. With a real lock it would keep the turn. Then
    the thread that holds the lock, paused at its disk, would never get it."""

    def __init__(self) -> None:
        self._is_held = False

    def acquire(self, *, blocking: bool = True) -> bool:
        while self._is_held:
            if not blocking:
                return False
            if _in_turn is None:
                raise RuntimeError("waiting for a lock on the event loop would block the broker")
            _in_turn.pause(LOCK_SECONDS)
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class Pool:
    """Like `ThreadPoolExecutor`: a limited number of functions at a time, and the others queue behind them in order."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self._free = max_workers
        self._waiting: deque[_Job] = deque()

    def take(self, job: _Job) -> bool:
        """Whether the job may start; otherwise it waits."""
        if self._free == 0:
            self._waiting.append(job)
            return False
        self._free -= 1
        return True

    def give_back(self) -> _Job | None:
        """A job has ended. Returns the next one, which may start now."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.future.cancelled():
                return job
        self._free += 1
        return None

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        """Cancel jobs that have not begun, if requested. Nothing waits for the others, because the loop would stand
        still."""
        assert not wait, "waiting for threads on the event loop would block the broker"
        if cancel_futures:
            for job in self._waiting:
                job.future.cancel()


_in_turn: Workers | None = None
"""The workers of which one has its turn now."""


class _Job:
    """One function given to the executor."""

    def __init__(self, future: asyncio.Future[Any], call: Callable[[], Any], pool: Pool | None) -> None:
        self.future = future
        self.call = call
        self.pool = pool
        self.context = contextvars.copy_context()
        self.process = CURRENT.get()
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False


class _Thread:
    """A pooled thread and the two locks with which it and the loop pass each other the turn."""

    def __init__(self) -> None:
        self.job: _Job | None = None
        self._mine = threading.Lock()
        self._loops = threading.Lock()
        self._mine.acquire()
        self._loops.acquire()
        thread = threading.Thread(target=self._serve, daemon=True, name="headrace-sim-worker")
        contextvars.Context().run(thread.start)

    def give_turn(self) -> None:
        """Called on the loop: returns when the thread pauses or has finished its job."""
        self._mine.release()
        self._loops.acquire()

    def take_pause(self) -> None:
        """Called in the thread: returns when the loop gives it the next turn."""
        self._loops.release()
        self._mine.acquire()

    def _serve(self) -> None:
        while True:
            self._mine.acquire()
            job = self.job
            if job is None:
                self._loops.release()
                return
            try:
                job.result = job.context.run(job.call)
            except BaseException as error:  # all of them cross over to the future
                job.error = error
            job.done = True
            self._loops.release()


class Workers:
    """The threads of one loop. `running` is the job whose turn it is, if any."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._idle: list[_Thread] = []
        self._busy: dict[_Thread, _Job] = {}
        self.running: _Thread | None = None

    def submit(self, func: Callable[..., T], *args: Any, pool: Pool | None = None) -> asyncio.Future[T]:
        """Run the function at a random moment from now, and deliver its result at a random moment after it ended."""
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(future, lambda: func(*args), pool)
        if pool is None or pool.take(job):
            self._start_soon(job)
        return future

    def _start_soon(self, job: _Job) -> None:
        self._loop.call_later(self._random.random() * START_SECONDS_MAX, self._start, job, context=job.context.copy())

    def _end(self, job: _Job) -> None:
        """Let another job of its pool start."""
        following = None if job.pool is None else job.pool.give_back()
        if following is not None:
            self._start_soon(following)

    def pause(self, seconds: float) -> None:
        """Let virtual time pass inside a worker. On the loop itself it returns at once, because nothing may wait
        there."""
        thread = self.running
        if thread is None:
            return
        self._loop.call_later(seconds, self._turn, thread)
        self._rest(thread)

    def wait(self, begin: Callable[[Callable[[], None]], object]) -> None:
        """Let virtual time pass inside a worker until the function that `begin` is given is called, on the loop."""
        thread = self.running
        assert thread is not None, "nothing may wait on the loop"
        context, is_woken = contextvars.copy_context(), False

        def wake() -> None:
            nonlocal is_woken
            if not is_woken:
                is_woken = True
                self._loop.call_soon(self._turn, thread, context=context)

        begin(wake)
        self._rest(thread)

    def _rest(self, thread: _Thread) -> None:
        """Give the turn back until the loop gives the next one. Raises ProcessDied."""
        self.running = None
        thread.take_pause()
        self.running = thread
        process = self._busy[thread].process
        if process is not None:
            process.check_alive()

    def bury(self, process: Process) -> None:
        """Unwind every paused function of a dead process."""
        for thread, job in list(self._busy.items()):
            if job.process is process:
                self._turn(thread)

    def close(self) -> None:
        """End the idle threads. Every process must be dead or done."""
        for thread in self._idle:
            thread.job = None
            thread.give_turn()
        self._idle.clear()

    def _start(self, job: _Job) -> None:
        if job.future.cancelled():
            self._end(job)
            return
        thread = self._idle.pop() if self._idle else _Thread()
        thread.job = job
        self._busy[thread] = job
        self._turn(thread)

    def _turn(self, thread: _Thread) -> None:
        global _in_turn
        job = self._busy[thread]
        self.running, _in_turn = thread, self
        thread.give_turn()
        self.running = _in_turn = None
        if job.done:
            del self._busy[thread]
            self._idle.append(thread)
            self._end(job)
            if job.process is None or job.process.alive:
                delay = self._random.random() * FINISH_SECONDS_MAX
                self._loop.call_later(delay, _deliver, job, context=job.context)


def _deliver(job: _Job) -> None:
    if job.future.cancelled():
        return
    if job.error is not None:
        job.future.set_exception(job.error)
    else:
        job.future.set_result(job.result)
