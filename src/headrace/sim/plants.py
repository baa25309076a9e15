"""Bugs to plant in the shipped broker, one at a time, to show that the simulator finds them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

from headrace.base.errors import NoRoom
from headrace.base.ids import Offset
from headrace.base.ports import Buffer, Disk
from headrace.broker.kit.parking import Commit
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Replica
from headrace.storage.log import scan
from headrace.storage.log.contents import Contents
from headrace.storage.log.engine import Done, LocalRound
from headrace.storage.log.flush import Ticket
from headrace.storage.log.journal import rounds
from headrace.storage.log.journal.journal import Journal, Recoverable
from headrace.storage.log.journal.rounds import LogKey
from headrace.wire.batches import BatchHeader, parse_header
from headrace.wire.errors import ErrorCode


@contextmanager
def acknowledge_before_fsync() -> Iterator[None]:
    """acks=all is answered once the batch is in the page cache; the flush comes later."""

    def park_commit(self: Partition, end: Offset, waiter: Commit) -> None:
        waiter.on_outcome(ErrorCode.NONE)

    with patch.object(Partition, "park_commit", park_commit):
        yield


class _Forgetful:
    """A disk that lacks one operation."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_directory(self, path: Path) -> None:
        """Does nothing."""


@contextmanager
def no_directory_fsync() -> Iterator[None]:
    """A flush syncs the contents of new files, but not their names."""
    sync = Ticket.sync

    def forgetful_sync(self: Ticket) -> None:
        self._disk = cast("Disk", _Forgetful(self._disk))
        sync(self)

    with patch.object(Ticket, "sync", forgetful_sync):
        yield


@contextmanager
def recovery_accepts_a_bad_batch() -> Iterator[None]:
    """Recovery believes a batch's header and does not check its CRC."""

    def believe(buffer: Buffer, at: int = 0, end: int | None = None, *, compacted: bool = False) -> BatchHeader:
        return parse_header(buffer, at)

    with patch.object(scan, "check_batch", believe):
        yield


@contextmanager
def journal_reused_unsynced() -> Iterator[None]:
    """A file of the journal is reused although the logs' own files behind it were not synced."""

    def sync_behind(self: Journal, path: Path) -> None:
        """Does nothing."""

    with patch.object(Journal, "sync_behind", sync_behind):
        yield


@contextmanager
def recovery_ignores_the_journal() -> Iterator[None]:
    """Recovery reads a log's own files only."""

    def recoverable(self: Journal, key: LogKey) -> Sequence[Recoverable]:
        return ()

    with patch.object(Journal, "recoverable", recoverable):
        yield


@contextmanager
def acknowledge_before_the_journals_sync() -> Iterator[None]:
    """A round is over once it is in the page cache; its sync ends later."""
    begin = LocalRound.begin

    def hasty_begin(self: LocalRound, done: Done) -> None:
        if self.journaled is None:
            begin(self, done)
            return
        self.journaled.write()
        self._disk.begin_sync(self.journaled.file, lambda failure: None)
        asyncio.get_running_loop().call_soon(self._on_journaled, done, None)

    with patch.object(LocalRound, "begin", hasty_begin):
        yield


@contextmanager
def torn_rounds_are_taken() -> Iterator[None]:
    """A round of the journal is believed for its head; its CRC is not checked."""

    def crc32c(data: Buffer, value: int = 0) -> int:
        return 0

    with patch.object(rounds, "crc32c", crc32c):
        yield


@contextmanager
def a_torn_write_stays() -> Iterator[None]:
    """The leftover of a failed write on a full disk is not cut off before more is written."""

    def undo_write(self: Contents, kept: int) -> None:
        del self._held[kept:]
        self.held_size = sum(placed.size for placed, _ in self._held)

    with patch.object(Contents, "undo_write", undo_write):
        yield


@contextmanager
def acknowledge_what_found_no_room() -> Iterator[None]:
    """A flush that finds a full disk counts like any other: it is repeated as soon as there is room."""
    failed = Replica._fail

    def forgive(self: Replica, cause: Exception) -> None:
        failed(self, cause)
        if isinstance(cause, NoRoom):
            self._on_flush_done(self.log.log_end_offset)

    with patch.object(Replica, "_fail", forgive):
        yield


PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "acknowledge-before-fsync": acknowledge_before_fsync,
    "no-directory-fsync": no_directory_fsync,
    "recovery-accepts-a-bad-batch": recovery_accepts_a_bad_batch,
    "journal-reused-unsynced": journal_reused_unsynced,
    "recovery-ignores-the-journal": recovery_ignores_the_journal,
    "acknowledge-before-the-journals-sync": acknowledge_before_the_journals_sync,
    "torn-rounds-are-taken": torn_rounds_are_taken,
    "a-torn-write-stays": a_torn_write_stays,
    "acknowledge-what-found-no-room": acknowledge_what_found_no_room,
}
