"""Makes appended batches durable, in an order that survives a power cut.

`Unsynced` collects work on the loop. A `Ticket` takes it over and carries it out in a worker thread, in this order:
1. The contents: closed segments, then the active one.
2. The small files: those of aborted transactions before the producers' snapshots that cover these.
3. The names of all these.
4. The files that trust them: the note that there are gaps, and the checkpoint.
5. The removal of files that are no longer needed.

The usual flush is one fdatasync and nothing else.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.errors import FullDisk, NoRoom, StorageFailure
from headrace.base.ids import Offset
from headrace.base.ports import Disk
from headrace.storage.engine.cutting import NO_GAPS
from headrace.storage.log.aborted import Aborted
from headrace.storage.log.checkpoints import Checkpoint, encode_checkpoint, sync_file, write_file
from headrace.storage.log.compaction.planning import Note
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.journal.journal import Journal, JournalEntry
from headrace.storage.log.journal.rounds import LogKey
from headrace.storage.log.names import CHECKPOINT, EPOCHS, SNAPSHOT, STAMP, numbered, segment_paths
from headrace.storage.log.segment import Segment


@dataclass(slots=True)
class Unsynced:
    """Work for the next flush."""

    active: bool = False
    """The active segment was written to."""
    closed: list[Segment] = field(default_factory=list)
    """Segments closed since the last flush. Their indexes are in memory only."""
    birth: bool = False
    """The directory and its stamp are new."""
    names: bool = False
    """The directory's names have changed."""
    checkpoint: bool = False
    gaps_below: Offset = NO_GAPS
    """Copied batches have gaps below this offset, to be noted once the batches are durable. 0: no gap is left to note.
    """
    snapshots: list[tuple[Offset, bytes]] = field(default_factory=list)
    removals: list[Path] = field(default_factory=list)
    """Files to remove once the checkpoint no longer needs them."""

    def take_back(self, earlier: Unsynced) -> None:
        """Add the work that a ticket took over and did not complete."""
        self.active = self.active or earlier.active
        self.closed = earlier.closed + self.closed
        self.birth = self.birth or earlier.birth
        self.names = self.names or earlier.names
        self.checkpoint = self.checkpoint or earlier.checkpoint
        self.gaps_below = max(self.gaps_below, earlier.gaps_below)
        self.snapshots = earlier.snapshots + self.snapshots
        self.removals = earlier.removals + self.removals

    @property
    def besides_active(self) -> bool:
        """Whether there is work even where the active segment is left to the kernel."""
        return bool(self.birth or self.closed or self.checkpoint or self.gaps_below or self.snapshots or self.removals)


class Ticket:
    """A `FlushTicket`, made on the loop. It is immutable, except for the results of `sync`."""

    __slots__ = (
        "_aborted",
        "_directory",
        "_disk",
        "_epochs",
        "_files",
        "_indexed",
        "_journal",
        "_note",
        "_write_out",
        "aborted",
        "checkpoint",
        "contents_are_durable",
        "end",
        "entry",
        "failure",
        "file_end",
        "is_journaled",
        "key",
        "lacks_room",
        "pinned",
        "position",
        "work",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        work: Unsynced,
        *,
        end: Offset,
        position: int,
        active: Segment | None,
        files: SegmentFiles,
        closing: bool,
        checkpoint: Checkpoint | None,
        epochs: bytes | None,
        key: LogKey,
        file_end: Offset,
        write_out: Callable[[], None],
        note: Note,
        index: Aborted,
        aborted: Mapping[int, bytes],
        entry: JournalEntry | None = None,
        journal: Journal | None = None,
    ) -> None:
        """`end` is the offset that the flush makes durable, at byte `position` of the active segment. `active` is that
        segment, where it has to be synced; `closing` writes its indexes too. Raises OSError.
        """
        self._disk = disk
        self._directory = directory
        self.work = work
        self.end = end
        self.position = position
        self.key = key
        self.file_end = file_end
        """Offset up to which the log's own files are durable after a `sync`."""
        self.entry = entry
        """The journal's entry, where the flush has nothing else to do."""
        self.failure: OSError | None = None
        """The log's own file could not be written."""
        self.lacks_room = False
        """The failure is a write on a full disk; no sync has failed."""
        self.is_journaled = False
        self.checkpoint = checkpoint
        self.contents_are_durable = False
        """Everything below `end` is durable, names included, whatever fails after that."""
        self._epochs = epochs
        self._journal = journal
        self._write_out = write_out
        self._note = note
        self._aborted = index
        self.aborted = aborted
        """Entries of aborted transactions to write, by their segments' bases."""
        self.pinned = work.closed if active is None else [*work.closed, active]
        """Segments whose files must stay open."""
        self._indexed = self.pinned if closing else work.closed
        self._files = [files.get(segment, may_close=not closing) for segment in self.pinned]
        for segment in self.pinned:
            segment.pins += 1

    @property
    def has_epochs(self) -> bool:
        """Whether it writes the leader epochs."""
        return self._epochs is not None

    def write_out(self) -> None:
        """Write the missing batches to the log's own file, on the loop, before a `sync`. With the journal that can wait
        (see `PartitionLog.write_out`).
        """
        try:
            self._write_out()
        except NoRoom as error:
            self.failure, self.lacks_room = FullDisk(errno.ENOSPC, str(error), str(self._directory)), True
        except StorageFailure as error:
            self.failure = OSError(errno.EIO, str(error), str(self._directory))

    def journaled(self) -> OSError | None:
        """Called in place of `sync` where the journal has made the batches durable. Returns the failure where the log's
        own file lacks them.
        """
        if self.failure is None:
            self.is_journaled = self.contents_are_durable = True
        return self.failure

    def sync(self) -> None:
        """Blocks; called once. Raises OSError."""
        if self.failure is not None:
            raise self.failure
        for file in self._files:
            file.sync()
        if self._journal is not None and self._journal.has_failed(self.key):
            raise OSError(errno.EIO, "another sync of it failed, so that this one proves nothing", str(self._directory))
        try:
            self._sync_rest()
        except FullDisk:
            self.lacks_room = True
            raise

    def _sync_rest(self) -> None:
        """Sync everything except the contents, which are durable."""
        disk, directory = self._disk, self._directory
        if self.work.birth:
            sync_file(disk, directory / STAMP)
        if self._write_small_files() or self.work.names:
            disk.sync_directory(directory)
        if self.work.birth:
            disk.sync_directory(directory.parent)
        self.contents_are_durable = True
        if self.work.gaps_below:  # no earlier: recovery assumes that batches below are there
            self._note.raise_gaps(self.work.gaps_below)
        if self.checkpoint is not None:
            write_file(disk, directory / CHECKPOINT, encode_checkpoint(self.checkpoint))
            disk.sync_directory(directory)
        for path in self.work.removals:
            if disk.exists(path):
                disk.remove(path)

    def _write_small_files(self) -> bool:
        """Write indexes, snapshots and epochs. Returns whether there were any."""
        for segment in self._indexed:
            assert segment.index is not None
            assert segment.times is not None
            _, index, times = segment_paths(self._directory, segment.base)
            write_file(self._disk, index, segment.index)
            write_file(self._disk, times, segment.times)
        wrote = self._aborted.write(self.aborted)
        if wrote and self.work.snapshots:  # a snapshot says that they are there
            self._disk.sync_directory(self._directory)
        for offset, data in self.work.snapshots:
            write_file(self._disk, numbered(self._directory, offset, SNAPSHOT), data)
        if self._epochs is not None:
            write_file(self._disk, self._directory / EPOCHS, self._epochs)
        return bool(wrote or self._indexed or self.work.snapshots or self._epochs is not None)
