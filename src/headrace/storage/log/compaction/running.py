"""Carries a cleaning out: the slow half runs elsewhere, and the quick half swaps its files in, one by one.

Promises: readers go on, and never see a mixture of before and after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.logs import get_logger
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.log.compaction.cleaning import Cleaned
from headrace.storage.log.compaction.planning import Compaction
from headrace.storage.log.compaction.rounds import Round
from headrace.storage.log.compaction.runners import CleaningRunner

log = get_logger(__name__)

T = TypeVar("T")


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
