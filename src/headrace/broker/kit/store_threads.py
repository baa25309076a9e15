"""Threads that wait for the durable store, so that nothing else does.

Promises:
- A silent store holds only its own few threads, never those in which the loop flushes and opens logs.
- Where all of them are held, only the callers of this store wait.
- Neither `stop` nor the end of the process waits for them. Their work is cut off as by a crash, which leaves at worst
  objects that nothing refers to.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from headrace.base.errors import StorageFailure

T = TypeVar("T")
Job: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """An executor as `ThreadPoolExecutor`, but the interpreter's end does not wait for its threads.

    Invariant: there are as many threads as unfinished jobs, or as many as there may be.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
        self._max_workers = max_workers
        self._name = thread_name_prefix
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        """The number of threads."""
        self._unfinished = 0
        """Jobs that wait or run."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._jobs.put((future, partial(fn, *args, **kwargs)))
            self._unfinished += 1
            try:
                self._match()
            except RuntimeError:
                future.cancel()
                raise
        return future

    def _match(self) -> None:
        """Start threads where there are more jobs. Raises RuntimeError where none can be started and there is none at
        all. Otherwise the jobs wait for the threads that there are."""
        while self._count < min(self._unfinished, self._max_workers):
            name = f"{self._name}_{self._count + 1}"
            try:
                threading.Thread(target=self._serve, daemon=True, name=name).start()
            except RuntimeError:
                if self._count == 0:
                    raise
                return
            self._count += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once their jobs are done. Nothing is submitted any more."""
        assert not wait, "nobody waits for the store's threads"
        with suppress(Empty):
            while cancel_futures:
                if (job := self._jobs.get_nowait()) is not None:
                    job[0].cancel()
        for _ in range(self._count):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                self._finished()
                continue
            try:
                result = work()
            except BaseException as error:  # all of them cross over to the future
                self._finished()
                future.set_exception(error)
            else:
                self._finished()
                future.set_result(result)
                del result
            del job, future, work

    def _finished(self) -> None:
        """Count one job less, before its future is set: a caller that submits another at once finds this thread
        free."""
        with self._lock:
            self._unfinished -= 1


class StoreThreads:
    """The only way to a store: every request to it goes through `run`. Loop-only."""

    def __init__(self, count_max: int, name: str) -> None:
        self._threads = DaemonThreads(count_max, name)
        self._is_over = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread, or once one is free. Raises StorageFailure where this is stopped."""
        if self._is_over:
            raise StorageFailure("the broker stops, and asks the durable store for nothing more")
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def stop(self) -> None:
        """Start nothing more. Work under way is not waited for."""
        self._is_over = True
        self._threads.shutdown(wait=False, cancel_futures=True)
