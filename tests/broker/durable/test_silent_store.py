"""A store that does not answer holds what waits for it, and nothing else: not a log, nor the end of the broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ports import Buffer, ObjectMeta
from headrace.broker.durable import exporter, history_keeper, sweeper
from headrace.broker.kit.store_threads import DaemonThreads, StoreThreads
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from tests.broker.durable.test_merging import filled
from tests.broker.group_broker import until
from tests.broker.tiered import tiered

WORKERS = 2
"""Threads of the loop: as few as the store holds at least."""
ENDS = """
from threading import Event
from headrace.broker.kit.store_threads import DaemonThreads
threads, begun = DaemonThreads(2, "store"), Event()
threads.submit(lambda: (begun.set(), Event().wait()))
begun.wait()
threads.shutdown(wait=False, cancel_futures=True)
"""


class Silent(DirectoryObjects):
    """Answers what was asked before it fell silent."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.speaks = threading.Event()
        self.speaks.set()
        self.held = 0
        """Calls that have waited."""

    def _wait(self) -> None:
        if not self.speaks.is_set():
            self.held += 1
            self.speaks.wait()

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        self._wait()
        return super().put(key, data, if_absent=if_absent)

    def get(self, key: str) -> bytes:
        self._wait()
        return super().get(key)

    def size(self, key: str) -> int:
        self._wait()
        return super().size(key)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        self._wait()
        yield from super().list(prefix)


async def test_who_waits_for_a_silent_store_holds_no_log_and_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((exporter, "EXPORT"), (history_keeper, "HISTORY"), (sweeper, "SWEEP")):
        monkeypatch.setattr(module, f"{name}_STOP_MS_MAX", 10)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKERS))
    store = Silent(tmp_path)
    try:
        async with asyncio.timeout(150), tiered(tmp_path, objects=store) as here:
            await filled(here)
            exports = here.broker.parts.durable.exports
            assert exports is not None
            store.speaks.clear()
            merge = exports.merger.merge(here.partition.topic_partition.topic_id, None, execute=True)
            works = [asyncio.ensure_future(merge), asyncio.ensure_future(exports.sweeper.sweep(execute=True))]
            await until(lambda: store.held >= WORKERS)
            await here.produce(40, 10)  # in some five log segments: each is synced in a thread of the loop
            await until(lambda: store.held > WORKERS)  # an export of these too
            await here.produce(50, 10)
            for work in works:
                work.cancel()
    finally:
        store.speaks.set()


def test_the_end_of_the_process_waits_for_no_store() -> None:
    subprocess.run([sys.executable, "-c", ENDS], check=True, timeout=150)


async def test_more_calls_than_threads_wait_in_their_order() -> None:
    threads, may_end, done = StoreThreads(2, "test"), threading.Event(), list[int]()

    def work(number: int) -> int:
        may_end.wait()
        done.append(number)
        return number

    async with asyncio.timeout(150):
        calls = [threads.run(lambda number=number: work(number)) for number in range(9)]  # type: ignore[misc]
        calls[8].cancel()
        await asyncio.sleep(0)
        may_end.set()
        assert await asyncio.gather(*calls[:8]) == list(range(8))
        assert sorted(done) == list(range(8))
        for _ in range(20):  # a thread that is idle is taken again
            assert await threads.run(lambda: threading.current_thread().name) in ("test_1", "test_2")
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
    threads.stop()


async def test_what_has_not_begun_when_it_is_stopped_never_does() -> None:
    threads, has_begun, may_end = StoreThreads(1, "test"), threading.Event(), threading.Event()

    def work() -> bool:
        has_begun.set()
        return may_end.wait()

    async with asyncio.timeout(150):
        first = threads.run(work)
        second = threads.run(may_end.wait)
        has_begun.wait()
        threads.stop()
        await asyncio.wait([second])
        assert second.cancelled()
        assert not first.done()
        with pytest.raises(StorageFailure):
            threads.run(may_end.wait)
        may_end.set()
        assert await first


class Hesitant:
    """A queue at which who finds nothing notices it only once there is something, and who is new looks late."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._news = threading.Event()
        self._seen = set[threading.Thread]()
        self.waiting = list[threading.Thread]()

    def put(self, job: Any) -> None:
        self._queue.put(job)
        self._news.set()

    def get(self) -> Any:
        self.waiting.append(threading.current_thread())
        job = self._queue.get()
        self.waiting.remove(threading.current_thread())
        return job

    def get_nowait(self) -> Any:
        if threading.current_thread() not in self._seen:
            self._seen.add(threading.current_thread())
            threading.Event().wait(0.02)
        self._news.clear()
        try:
            return self._queue.get_nowait()
        except Empty:
            self._news.wait(0.02)
            raise


async def test_no_job_waits_while_there_may_be_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that takes what came while it was about to wait does not count as one that waits."""
    monkeypatch.setattr("headrace.broker.kit.store_threads.SimpleQueue", Hesitant)
    threads, together = DaemonThreads(3, "busy"), threading.Barrier(3, timeout=150)
    for _ in range(2):
        threads.submit(int).result()
    jobs = threads._jobs
    assert isinstance(jobs, Hesitant)
    async with asyncio.timeout(150):
        await until(lambda: len(jobs.waiting) == threads._count)
    for held in [threads.submit(together.wait) for _ in range(3)]:
        held.result()
    threads.shutdown(wait=False)


def test_where_no_thread_can_be_had_those_there_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, may_end = DaemonThreads(2, "few"), threading.Event()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError):
            threads.submit(int)
    held = threads.submit(may_end.wait)
    monkeypatch.setattr(threading.Thread, "start", none)
    behind = threads.submit(int)
    may_end.set()
    assert (held.result(60), behind.result(60)) == (True, 0)
    threads.shutdown(wait=False)


def test_threads_that_are_stopped_end() -> None:
    threads, names = DaemonThreads(2, "ending"), list[Future[str]]()
    together = threading.Barrier(3)
    for _ in range(2):
        names.append(threads.submit(lambda: (together.wait(), threading.current_thread().name)[1]))
    mine = [each for each in threading.enumerate() if each.name.startswith("ending")]
    together.wait()
    threads.shutdown(wait=False)
    for thread in mine:
        thread.join(60)
    assert {each.result() for each in names} == {"ending_1", "ending_2"}
    assert not any(each.is_alive() for each in mine)
