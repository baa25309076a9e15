"""The slow work of a compaction in a child process, so that it takes neither the loop's time nor its interpreter lock.

Promises: the child ends with the broker, however that ends, and before `stopping` is answered.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress

from headrace.storage.log.compaction.child import decode_cleaned, encode_job
from headrace.storage.log.compaction.cleaning import Cleaned, CleaningJob, Stopped

ANSWER_BYTES_MAX = 64 * 1024 * 1024


async def run_in_child(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
    """Run a job for logs on this machine's filesystem: a `CleaningRunner`."""
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
