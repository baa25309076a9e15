"""The local engine: one directory of partition directories on a `Disk`. See `headrace.storage.engine.engines`.

Promises: an unknown directory is moved aside, never deleted. A name that a call gives or removes is durable before the
call returns. The exception is the name of a new log, which its first flush makes durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

from headrace.base.errors import OUT_OF_DESCRIPTORS, CorruptData, FullDisk, NoRoom, StorageFailure
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import NEWEST_BYTES_MAX, OPEN_SEGMENT_FILES_MAX, READ_AGAIN_BYTES_MAX
from headrace.base.ports import Disk, Space
from headrace.storage.engine.faults import DamagedLog, StampMismatch
from headrace.storage.engine.files import LogDirectories, Upkeep
from headrace.storage.engine.flushing import FlushTicket, Outcomes
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.medium import DISK
from headrace.storage.log.checkpoints import (
    Stamp,
    decode_stamp,
    encode_stamp,
    read_file,
    read_seal,
    write_file,
)
from headrace.storage.log.compaction.runners import CleaningRunner, thread_runner
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.flush import Ticket
from headrace.storage.log.journal.journal import Journal, JournalRound, Recoverable
from headrace.storage.log.journal.rounds import LogKey
from headrace.storage.log.names import CHECKPOINT, DELETED, STAMP, STRAY, key_of, out_of_use, partition_name
from headrace.storage.log.partition import LocalLog
from headrace.storage.log.reading.cache_budget import ReadCacheBudget
from headrace.storage.log.reading.repeat_reads import Question
from headrace.storage.log.recovery.opening import Recovered, Recovery, recover
from headrace.storage.log.recovery.replaced import BEGUN_ANEW, finish_begun_anew
from headrace.storage.log.recovery.salvage import salvage
from headrace.storage.log.removal import Removal
from headrace.wire.ailments import State


class LocalLogEngine:
    """`start` makes `root` where it is missing; its parent must exist. Without a `journal`, each flush syncs the log's
    own files.
    """

    medium: Final = DISK
    copies: Final = 1

    def __init__(
        self,
        disk: Disk,
        root: Path,
        *,
        journal: Journal | None = None,
        cleaning: CleaningRunner | None = None,
        open_files_max: int = OPEN_SEGMENT_FILES_MAX,
    ) -> None:
        self._disk = disk
        self._root = root
        self._journal = journal
        self._cleaning = cleaning or thread_runner(disk)
        self._files = SegmentFiles(disk, open_files_max)
        self._newest = ReadCacheBudget[int](NEWEST_BYTES_MAX)
        self._again = ReadCacheBudget[Question](READ_AGAIN_BYTES_MAX)

    @property
    def root(self) -> Path:
        return self._root

    @property
    def place(self) -> str:
        return str(self._root)

    @property
    def files(self) -> LogDirectories:
        return self

    @property
    def upkeep(self) -> Upkeep | None:
        return self._journal

    def states(self) -> Iterator[State]:
        if self._journal is not None and self._journal.is_given_up:
            text = "it writes no journal any more, for a disk failed, and its flushes are slower for it"
            yield State(kind="journal given up", text=text, todo="see to its disk, then restart it")

    def space(self) -> Space:
        return self._disk.space(self.root)

    def start(self) -> list[Removal]:
        try:
            self._disk.make_directory(self.root)
            self._disk.sync_directory(self.root.parent)
            self._disk.sync_directory(self.root)  # for all logs that are recovered
            left = [self.root / name for name in self._disk.list_directory(self.root) if name.endswith(DELETED)]
            if self._journal is not None:
                self._start_journal(self._journal)
        except OSError as error:
            raise StorageFailure(f"The directory {self.root} cannot be used: {error}.") from error
        return [Removal(self._disk, directory) for directory in left]

    def _start_journal(self, journal: Journal) -> None:
        """Start the journal, and settle the logs in it that are gone."""
        journal.start()
        for key in journal.earlier_keys:
            directory = self.root / key.directory
            stamp = self._stamp(directory)
            if key_of(stamp.identity) != key if stamp is not None else not self._disk.is_directory(directory):
                journal.settle(key)

    def identities(self) -> list[LogIdentity]:
        stamps = (self._stamp(self.root / name) for name in self._disk.list_directory(self.root) if _in_use(name))
        return [stamp.identity for stamp in stamps if stamp is not None]

    def open(self, identity: LogIdentity, config: LogConfig, *, start: Offset = FIRST_OFFSET) -> LocalLog:
        return self.begin_open(identity, config, start=start).finish()

    def begin_open(
        self,
        identity: LogIdentity,
        config: LogConfig,
        *,
        start: Offset = FIRST_OFFSET,
        leader_epoch: LeaderEpoch = NO_EPOCH,
    ) -> Opening:
        directory, key = self.root / partition_name(identity), key_of(identity)
        journaled: Sequence[Recoverable] = ()
        self._refuse_lost(key)
        try:
            stamp, moved = self._claim(directory, identity)
            lineage = 0 if self._journal is None else self._journal.lineage_above(key)
            found: Recovery | Recovered = Recovered(start=start, end=start, lineage=lineage)
            if stamp is not None:
                if self._journal is not None:
                    journaled = self._journal.recoverable(key)
                found = self._recover(directory, stamp, config.index_interval_bytes, journaled)
        except OSError as error:
            raise _unopened(directory, error) from error
        returns = stamp is None and lineage > 0
        """The journal still holds records of a deleted log with this key."""

        def finish(recovered: Recovered) -> LocalLog:
            if self._journal is not None and recovered.read_only is None:
                self._journal.settle(key)
            if returns:
                self._begin_whole(directory, Stamp(identity=identity, birth=start, lineage=lineage))
            return LocalLog(
                disk=self._disk,
                files=self._files,
                directory=directory,
                identity=identity,
                config=config,
                recovered=recovered,
                exists=stamp is not None or returns,
                set_aside=moved,
                newest=self._newest,
                again=self._again,
                journal=self._journal,
                is_journaled=stamp is not None,  # by an earlier life: the settling may not be durable
                sealed_in=None if stamp is None else read_seal(self._disk, directory),
                cleaning=self._cleaning,
            )

        return Opening(directory, found, finish, must_sync=returns)

    def _begin_whole(self, directory: Path, stamp: Stamp) -> None:
        """Make the directory appear together with its stamp. If it had no stamp while the journal holds records of its
        key, it would look like a flushed log that lost its stamp. Raises OSError.
        """
        beside = self._free_name(directory.name, stamp.identity.topic_id.hex, DELETED)
        self._disk.make_directory(beside)
        write_file(self._disk, beside / STAMP, encode_stamp(stamp))
        self._disk.sync_directory(beside)
        self._rename(beside, directory)

    def _recover(
        self, directory: Path, stamp: Stamp, index_interval: int, journaled: Sequence[Recoverable]
    ) -> Recovery | Recovered:
        """Recover the log, or salvage what can be read where recovery is refused. Raises StorageFailure, OSError."""
        try:
            finish_begun_anew(self._disk, directory)
        except CorruptData as error:
            raise StorageFailure(f"{directory / BEGUN_ANEW}: {error} Remove the directory.") from error
        recovery = Recovery(self._disk, directory, stamp, index_interval, journaled)
        try:
            recovery.read()
        except DamagedLog as error:
            return salvage(self._disk, directory, stamp, index_interval, str(error), journaled)
        return recovery

    def _claim(self, directory: Path, identity: LogIdentity) -> tuple[Stamp | None, Path | None]:
        """The stamp of this very log, or None where the directory is free, and the path to which its old contents were
        moved.
        """
        if not self._disk.is_directory(directory):
            return None, None
        stamp = self._stamp(directory)
        if stamp is None and self._was_flushed(directory, identity):
            raise StorageFailure(f"{directory / STAMP} cannot be read: restore it, or move the directory away.")
        if stamp is None or stamp.identity.topic_id != identity.topic_id:
            return None, self.set_aside(identity)
        if stamp.identity != identity:
            raise StampMismatch(
                f"{directory} is stamped {stamp.identity}, which is not {identity}: move it away, or restore its disk."
            )
        return stamp, None

    def _was_flushed(self, directory: Path, identity: LogIdentity) -> bool:
        """Whether an unreadable stamp was once durable: both a checkpoint and the journal's records are written after
        it.
        """
        journal = self._journal
        return self._disk.exists(directory / CHECKPOINT) or bool(journal and journal.recoverable(key_of(identity)))

    def stamped(self, identity: LogIdentity) -> LogIdentity | None:
        directory = self.root / partition_name(identity)
        stamp = self._stamp(directory) if self._disk.is_directory(directory) else None
        return None if stamp is None or stamp.identity.topic_id != identity.topic_id else stamp.identity

    def set_aside(self, identity: LogIdentity) -> Path | None:
        directory = self.root / partition_name(identity)
        if not self._disk.is_directory(directory):
            return None
        stamp = self._stamp(directory)
        if self._journal is not None and stamp is not None:
            self._complete(directory, stamp, self._journal)
        elif self._journal is not None:
            for key in self._journal.earlier_keys:
                if key.directory == directory.name:
                    self._journal.settle(key)
        return self._move_aside(directory, stamp)

    def _complete(self, directory: Path, stamp: Stamp, journal: Journal) -> None:
        """Give a log that is set aside the records that only the journal holds. Raises StorageFailure, OSError."""
        key = key_of(stamp.identity)
        self._refuse_lost(key)
        if journaled := journal.recoverable(key):
            with suppress(CorruptData):  # then the log is set aside as it is
                recover(self._disk, directory, stamp, LogConfig().index_interval_bytes, journaled)
        journal.settle(key)

    def _refuse_lost(self, key: LogKey) -> None:
        """Raises StorageFailure where this life's journal holds records that the log's own files failed to take: only
        the next start recovers them.
        """
        if self._journal is not None and self._journal.has_lost(key):
            raise StorageFailure(f"The disk of {key.directory} has failed: restart the broker on a good one.")

    def delete(self, identity: LogIdentity) -> None:
        if (left := self.begin_delete(identity)) is not None:
            self._disk.remove_tree(left.directory)

    def begin_delete(self, identity: LogIdentity) -> Removal | None:
        directory = self.root / partition_name(identity)
        stamp = self._stamp(directory)
        if stamp is None or stamp.identity.topic_id != identity.topic_id:
            return None
        left = self._move(directory, stamp.identity.topic_id.hex, DELETED)
        if self._journal is not None:
            self._journal.settle(key_of(stamp.identity))
        return Removal(self._disk, left)

    def begin_round(self, tickets: Sequence[FlushTicket]) -> LocalRound:
        return LocalRound(self._disk, cast("Sequence[Ticket]", tickets), self._journal)  # its own logs made them

    def begin_stop(self) -> None:
        """Nothing: a disk answers."""

    def close(self, *, clean: bool = True) -> None:
        if self._journal is not None:
            self._journal.close(clean=clean)

    def _stamp(self, directory: Path) -> Stamp | None:
        """The directory's stamp. None where there is no readable one: then nothing there was ever flushed."""
        try:
            return decode_stamp(read_file(self._disk, directory / STAMP))
        except (FileNotFoundError, NotADirectoryError, CorruptData):
            return None

    def _move_aside(self, directory: Path, stamp: Stamp | None) -> Path:
        return self._move(directory, stamp.identity.topic_id.hex if stamp else "unstamped", STRAY)

    def _move(self, directory: Path, mark: str, suffix: str) -> Path:
        """Durably rename the directory to a free name."""
        target = self._free_name(directory.name, mark, suffix)
        self._rename(directory, target)
        return target

    def _free_name(self, name: str, mark: str, suffix: str) -> Path:
        """A free name for a directory that is out of use."""
        target, copies = self.root / out_of_use(name, mark, suffix), 0
        while self._disk.exists(target):
            copies += 1
            target = self.root / out_of_use(name, f"{mark}.{copies}", suffix)
        return target

    def _rename(self, directory: Path, target: Path) -> None:
        """Rename durably."""
        self._disk.rename(directory, target)
        self._disk.sync_directory(self.root)


class Opening:
    """A `LogOpening`."""

    def __init__(
        self,
        directory: Path,
        found: Recovery | Recovered,
        finish: Callable[[Recovered], LocalLog],
        *,
        must_sync: bool = False,
    ) -> None:
        self._directory = directory
        self._found = found
        self._finish = finish
        self.must_sync = must_sync or (isinstance(found, Recovery) and found.must_sync)

    def finish(self) -> LocalLog:
        try:
            return self._finish(self._found.finish() if isinstance(self._found, Recovery) else self._found)
        except OSError as error:
            raise _unopened(self._directory, error) from error


Done = Callable[[Outcomes], object]


class LocalRound:
    """A `FlushRound`. Tickets that only append share one round of the journal; each of the others syncs its log's own
    files.
    """

    def __init__(self, disk: Disk, tickets: Sequence[Ticket], journal: Journal | None) -> None:
        self._disk = disk
        self._tickets = tickets
        self._journal = journal
        self.journaled: JournalRound | None = None
        if journal is not None:
            self.journaled = journal.begin_round([ticket.entry for ticket in tickets if ticket.entry is not None])

    def begin(self, done: Done) -> None:
        failure = None
        if self.journaled is not None:
            try:
                self.journaled.write()
                self._disk.begin_sync(self.journaled.file, partial(self._on_journaled, done))
            except OSError as error:
                failure = error
        if self.journaled is None:
            self._sync_each(done, journaled=False)
        elif failure is not None:
            self._on_journaled(done, failure)

    def end(self) -> None:
        if self._journal is not None:
            self._journal.end_round(self.journaled)

    def _on_journaled(self, done: Done, failure: OSError | None) -> None:
        """The journal's records are durable, or its sync failed. Sync the own files of the other logs, or of all logs
        after a failure.
        """
        assert self.journaled is not None
        self.journaled.failure = failure
        journaled = failure is None and self.journaled.holds_entries
        if journaled and all(ticket.entry is not None for ticket in self._tickets):
            failures = [ticket.journaled() for ticket in self._tickets]
            done(lambda: failures)
        else:
            self._sync_each(done, journaled=journaled)

    def _sync_each(self, done: Done, *, journaled: bool) -> None:
        """Sync each log's files in a worker thread. One failure does not stop the others."""
        for ticket in self._tickets:
            if not journaled or ticket.entry is None:
                ticket.write_out()
        if self._journal is not None:
            self._journal.note_syncing(ticket.key for ticket in self._tickets if not journaled or ticket.entry is None)
        work = asyncio.get_running_loop().run_in_executor(
            None, lambda: [self._sync(ticket, journaled=journaled) for ticket in self._tickets]
        )
        work.add_done_callback(lambda work: None if work.cancelled() else done(work.result))

    def _sync(self, ticket: Ticket, *, journaled: bool) -> OSError | None:
        if journaled and ticket.entry is not None:
            return ticket.journaled()
        try:
            ticket.sync()
        except OSError as error:
            if self._journal is not None and not ticket.lacks_room:
                self._journal.note_failure(ticket.key)
            return error
        return None


def _unopened(directory: Path, error: OSError) -> StorageFailure:
    """The error to raise. NoRoom, so that the opening is tried again, where recovery found no room to write, or no
    descriptor for a file."""
    may_pass = isinstance(error, FullDisk) or error.errno in OUT_OF_DESCRIPTORS
    kind = NoRoom if may_pass else StorageFailure
    return kind(f"The log of {directory.name} cannot be opened: {error}.")


def _in_use(name: str) -> bool:
    return not name.endswith((STRAY, DELETED))
