"""The places where the slow half of a cleaning runs. The code that it runs is loaded with the first one.

Promises: a child process ends with this one, however that ends, and before a stop is answered.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from headrace.base.ports import Disk
from headrace.storage.engine.cleaning import Stopped

if TYPE_CHECKING:
    from headrace.storage.log.compaction.cleaning import Cleaned, CleaningJob

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class CleaningRunner(Protocol):
    """Runs the slow work, at most at `bytes_per_second`."""

    async def __call__(self, job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        """Clean one job's files. Raises OSError, CorruptData, or Stopped soon after `stopping` is set; then the job's
        files are written to no more."""


def thread_runner(disk: Disk) -> CleaningRunner:
    """Return a runner in a worker thread of this process, unthrottled: for a disk that no other process can see."""

    async def run(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        from headrace.storage.log.compaction.cleaning import clean

        work = partial(clean, disk, job, stopping=stopping.is_set)
        return await asyncio.get_running_loop().run_in_executor(None, work)

    return run


async def run_in_child(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
    """Run a job for logs on this machine's filesystem in a child process: a `CleaningRunner`. It takes neither the
    loop's time nor its interpreter lock.
    """
    from headrace.storage.log.compaction.child import decode_cleaned, encode_job

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
