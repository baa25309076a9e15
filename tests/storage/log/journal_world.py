"""A broker's storage in small: several logs and one journal on a disk in memory, driven by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.base.ids import Offset, PartitionIndex, TopicId
from headrace.storage.engine.flushing import FlushTicket, Outcome
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.journal.journal import Journal, JournalSettings, Upkeep
from headrace.storage.log.partition import LocalLog
from tests.storage.log.log_world import IDENTITY, ROOT, SMALL
from tests.storage.log.memory_disk import MemoryDisk

JOURNAL = ROOT.parent / "journal"
KEY = bytes(range(16))
TINY = JournalSettings(file_bytes=16 * 1024, files_max=3, after_rounds=1)


class Inline:
    """A loop whose workers have done their work as soon as they are asked."""

    def run_in_executor(self, _: None, work: Callable[[], Any]) -> Inline:
        self._result = work()
        return self

    def add_done_callback(self, callback: Callable[[Inline], object]) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._result


@contextmanager
def inline_workers() -> Iterator[None]:
    with patch("headrace.storage.log.engine.asyncio.get_running_loop", Inline):
        yield


def identity_of(number: int, generation: int = 0) -> LogIdentity:
    """Partition `number`; each generation is another topic of the same name."""
    return replace(
        IDENTITY,
        topic_id=TopicId(uuid.UUID(int=100 + generation)),
        partition=PartitionIndex(number),
        assignment_epoch=1,
    )


class Store:
    """An engine with its journal: one life of it."""

    def __init__(self, disk: MemoryDisk, settings: JournalSettings = TINY, *, late: float = 0.0) -> None:
        """`late`: how likely it is that the logs' own files are written only before the next round."""
        self.disk = disk
        self.late = late
        self.journal = Journal(disk, JOURNAL, KEY, settings)
        self.engine = LocalLogEngine(disk, ROOT, journal=self.journal)
        self.engine.start()
        self.upkeep: Upkeep | None = None
        self.answered: list[LocalLog] = []
        """Those whose flush is over, but for what nobody waits for."""

    def open(self, identity: LogIdentity, config: LogConfig = SMALL, start: int = 0) -> LocalLog:
        return self.engine.open(identity, config, start=Offset(start))

    def flush(self, *logs: LocalLog, meanwhile: Callable[[], object] = lambda: None) -> Sequence[Outcome]:
        """One round over those that need it; what it makes of each of these."""
        self.tidy_up()
        work = [(log, ticket) for log in logs if (ticket := log.begin_flush()) is not None]
        told: list[Outcome] = []
        if work:
            tickets: list[FlushTicket] = [ticket for _, ticket in work]
            together = self.engine.begin_round(tickets)
            meanwhile()
            with inline_workers():
                together.begin(lambda outcomes: told.extend(outcomes()))
                self.disk.end_syncs()
            together.end()
            for (log, ticket), failure in zip(work, told, strict=True):
                if failure is None:
                    log.finish_flush(ticket)
                else:
                    log.fail_flush(ticket)
            self.answered = [log for log, _ in work]
            if self.late == 0 or self.disk.chance.random() >= self.late:
                self.tidy_up()
        return told

    def tidy_up(self) -> None:
        """As the flusher does, once the answers have left."""
        answered, self.answered = self.answered, []
        for log in answered:
            log.write_out()
        if answered and self.upkeep is None:
            self.begin_upkeep()

    def begin_upkeep(self) -> None:
        if (upkeep := self.journal.begin_upkeep()) is not None:
            assert self.upkeep is None, "one at a time"
            self.upkeep = upkeep

    def keep_up(self) -> None:
        """Carry out the upkeep that was begun."""
        if self.upkeep is not None:
            upkeep, self.upkeep = self.upkeep, None
            upkeep.run()
            upkeep.end()

    def stop(self, *logs: LocalLog) -> None:
        """A clean stop."""
        self.tidy_up()
        self.keep_up()
        for log in logs:
            log.close(clean=not log.failed)
        self.engine.close()

    @property
    def files(self) -> list[Path]:
        """Of the journal."""
        if not self.disk.is_directory(JOURNAL):
            return []
        return [JOURNAL / name for name in self.disk.list_directory(JOURNAL)]
