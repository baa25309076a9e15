"""A local log as the cleaner sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.base.ids import LAST_OFFSET, Offset
from headrace.storage.log.checkpoints import mark_doubt
from headrace.storage.log.compaction.runners import CleaningRunner
from headrace.storage.log.state import LocalState

if TYPE_CHECKING:
    from headrace.storage.log.compaction.running import LocalCleaning


class LocalCleanable:
    """A `Cleanable`."""

    __slots__ = ("_log", "_run")

    def __init__(self, log: LocalState, run: CleaningRunner) -> None:
        self._log: Final = log
        self._run = run

    def dirtiness(self, now_ms: int, up_to: Offset) -> float:
        log = self._log
        if log.failed or not log.config.compact:
            return 0.0
        return log.compaction.dirtiness(log.config, now_ms, log.log_start_offset, up_to)

    def begin_cleaning(
        self,
        now_ms: int,
        up_to: Offset,
        remembered: frozenset[int],
        token: str,
        *,
        tombstones_from: Offset = LAST_OFFSET,
    ) -> LocalCleaning | None:
        from headrace.storage.log.compaction.running import LocalCleaning

        log = self._log
        start = log.log_start_offset
        remembered |= {log.log_end_offset - 1}  # else a reader or follower would never reach the log's end
        work = log.compaction.begin(log.config, now_ms, start, up_to, remembered, token, tombstones_from)
        if work is None:
            return None
        return LocalCleaning(log.compaction, work, self._run, self._cleaning_ended)

    def _cleaning_ended(self, is_committed: bool) -> None:
        """A swap that was made durable and not settled is finished by recovery alone."""
        log = self._log
        if is_committed:
            log.failed = True
            mark_doubt(log.disk, log.directory)
