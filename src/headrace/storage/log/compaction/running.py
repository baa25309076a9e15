"""Carries a cleaning out: the slow half runs elsewhere, and the quick half swaps its files in, one by one.

Promises: readers go on, and never see a mixture of before and after. A child process ends with this one, however that
ends, and before a stop is answered.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.ports import Disk
from headrace.logs import get_logger
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.log.compaction.child import decode_cleaned, encode_job
from headrace.storage.log.compaction.cleaning import Cleaned, CleaningJob, clean
from headrace.storage.log.compaction.planning import Compaction, Round

log = get_logger(__name__)

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class CleaningRunner(Protocol):
    """Runs the slow work, at most at `bytes_per_second`."""

    async def __call__(self, job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        """Clean one job's files. Raises OSError, CorruptData, or Stopped soon after `stopping` is set; then the job's
        files are written to no more."""


def thread_runner(disk: Disk) -> CleaningRunner:
    """Return a runner in a worker thread of this process, unthrottled: for a disk that no other process can see."""

    async def run(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        return await _in_thread(partial(clean, disk, job, stopping=stopping.is_set))

    return run


async def run_in_child(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
    """Run a job for logs on this machine's filesystem in a child process: a `CleaningRunner`. It takes neither the
    loop's time nor its interpreter lock.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.storage.log.compaction.child", stdin=PIPE, stdout=PIPE, limit=ANSWER_BYTES_MAX
    )
    assert child.stdin is not None
    assert child.stdout is not None
    stop = asyncio.ensure_future(stopping.wait())
    try:
        with suppress(ConnectionError):
            child.stdin.write(encode_job(job, bytes_per_second))
            await child.stdin.drain()
        answer = asyncio.ensure_future(child.stdout.readline())
        await asyncio.wait((answer, stop), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise Stopped
        return decode_cleaned(answer.result())
    finally:
        stop.cancel()
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


class LocalCleaning:
    """A `Cleaning`. `ended` is told, when it ends, whether the disk holds a swap that only recovery can finish."""

    def __init__(self, compaction: Compaction, work: Round, run: CleaningRunner, ended: Callable[[bool], None]) -> None:
        self.work: Final = work
        self._compaction = compaction
        self._run = run
        self._ended = ended

    @property
    def is_committed(self) -> bool:
        return self.work.is_committed

    async def carry_out(self, stopping: asyncio.Event, bytes_per_second: float) -> Offset:
        try:
            cleaned = await self._run(self.work.job, stopping, bytes_per_second)
            await self._swap(cleaned, stopping)
        except (Stopped, OSError, CorruptData):
            await self._tidy()
            raise
        return Offset(cleaned.clean_to)

    async def _swap(self, cleaned: Cleaned, stopping: asyncio.Event) -> None:
        """Swap file by file, the oldest first: a record that a tombstone replaced goes no later than the tombstone."""
        work = self.work
        await _in_thread(partial(work.note, cleaned))
        for file in cleaned.files:
            if stopping.is_set():
                raise Stopped
            if file.name is None:
                continue
            await _in_thread(partial(work.commit, file))
            self._compaction.install(work)
            await _in_thread(work.settle)
            self._compaction.settled(work)
        await _in_thread(partial(work.conclude, cleaned))

    async def _tidy(self) -> None:
        """Remove what is left of the job; where even that fails, the next start does."""
        try:
            await _in_thread(self.work.discard)
        except OSError as error:
            log.warning("files of a cleaning are left", directory=str(self.work.job.directory), reason=str(error))

    def end(self) -> None:
        self._compaction.end(self.work)
        self._ended(self.work.is_committed)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
