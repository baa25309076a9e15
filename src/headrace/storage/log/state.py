"""The state of one local log, and the few operations on it that its appends, flushes and cuts share.

Invariants: `flushed_end <= log_end_offset`, and `log_start_offset <= log_end_offset`; at most one flush is under way.
Files are made at the first append; a log with nothing new costs nothing to flush or to close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypedDict, Unpack

from headrace.base.errors import OUT_OF_ROOM, NoRoom, StorageFailure
from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Buffer, Disk
from headrace.native import LogState
from headrace.storage.engine.cutting import NO_GAPS
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.placing import Placed
from headrace.storage.log.aborted import Aborted
from headrace.storage.log.checkpoints import Stamp, encode_stamp, full_disks_told, mark_doubt, write_file
from headrace.storage.log.compaction.planning import Compaction
from headrace.storage.log.contents import Contents
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.flush import Ticket, Unsynced
from headrace.storage.log.journal.journal import Journal
from headrace.storage.log.names import STAMP, key_of
from headrace.storage.log.reading.cache_budget import ReadCacheBudget
from headrace.storage.log.reading.newest import Newest
from headrace.storage.log.reading.repeat_reads import Question, RepeatReads
from headrace.storage.log.recovery.opening import Recovered
from headrace.storage.log.segment import SegmentDamage
from headrace.storage.log.snapshots import ProducerSnapshots


class Collected:
    """Appended batches that the next flush may give to the journal, all from `base` on. Until then, or until they are
    read, the segment's file lacks them: one write for all costs less than one for each.
    """

    __slots__ = ("_base", "buffers", "end", "size")

    def __init__(self, base: Offset | None) -> None:
        """`base` None: nothing is collected."""
        self._base = self.end = base
        self.buffers: list[Buffer] = []
        self.size = 0
        """Bytes."""

    def add(self, placed: Placed, journal: Journal) -> bool:
        """Add one append. Returns False where the journal has no room for it: that gap ends the collecting."""
        if self.end is None:
            return False
        if not journal.collects(placed.size, self.size):
            self.end = None
            return False
        self.buffers += placed.buffers
        self.size += placed.size
        self.end = placed.end
        return True

    @property
    def base(self) -> Offset:
        assert self._base is not None
        return self._base

    def covers(self, base: Offset, end: Offset) -> bool:
        """Whether the collected batches are exactly those from `base` to `end`, and there are any."""
        return self.size > 0 and self._base == base and self.end == end


class LocalParts(TypedDict):
    """The parts of a log in a directory of its own."""

    disk: Disk
    files: SegmentFiles
    directory: Path
    identity: LogIdentity
    config: LogConfig
    recovered: Recovered
    exists: bool
    """The directory has its stamp."""
    set_aside: Path | None
    newest: ReadCacheBudget[int]
    again: ReadCacheBudget[Question]
    journal: Journal | None
    is_journaled: bool
    """The journal may hold records of this lineage."""
    sealed_in: LeaderEpoch | None


class LocalState(LogState):
    """See the module. `LocalLog` is one. Its parts (`flushing`, `cutting`, `copying`, `retention`) work on the same."""

    def __init__(self, **parts: Unpack[LocalParts]) -> None:
        disk, directory, identity, recovered = parts["disk"], parts["directory"], parts["identity"], parts["recovered"]
        self.identity: Final = identity
        self.directory: Final = directory
        self.set_aside: Final = parts["set_aside"]
        self.sealed_in = parts["sealed_in"]
        self.config = parts["config"]
        self.read_only = recovered.read_only
        self.has_replaced = recovered.has_replaced
        self.was_closed: Final = recovered.was_closed
        self.failed = recovered.read_only is not None
        self.disk = disk
        self.segment_files = files = parts["files"]
        newest, again = Newest(parts["newest"]), RepeatReads(parts["again"])
        self.contents = Contents(disk, files, directory, recovered.segments, newest, again)
        self.aborted: Final = Aborted(disk, self.contents, recovered.aborted)
        self.compaction = Compaction(disk, directory, self.contents, recovered.compacted, self.aborted)
        self.log_start_offset = recovered.start
        self.log_end_offset = self.flushed_end = recovered.end
        self.flushed_position = recovered.segments[-1].size if recovered.segments else 0
        """Bytes below `flushed_end` in the segment that holds it."""
        self.owed = recovered.end
        """End of the appends that must be synced before they count as flushed. They are synced, or still have to be."""
        self.leader_epochs = recovered.epochs
        self.epochs_changed = recovered.epochs_are_new
        self.checkpoint = recovered.checkpoint
        """The checkpoint on the disk."""
        self.snapshots = ProducerSnapshots(directory, recovered.snapshots)
        self.exists = parts["exists"]
        self.unsynced = Unsynced()
        self.ticket: Ticket | None = None
        self.key: Final = key_of(identity)
        self.journal = parts["journal"]
        self.lineage = recovered.lineage
        self.collected = Collected(self.log_end_offset)
        self.is_journaled = parts["is_journaled"]
        """The journal may hold records of this lineage."""
        self.lacks_room = False
        self.on_failed: Callable[[StorageFailure], object] | None = None

    # questions

    @property
    def owes_file(self) -> bool:
        return self.lacks_room and self.contents.held_size > 0

    @property
    def syncs_active(self) -> bool:
        """False: appends are left to the kernel, and everything before them is durable."""
        return self.config.fsync or self.flushed_end < self.owed

    @property
    def damages(self) -> Sequence[SegmentDamage]:
        return [damage for segment in self.contents.segments for damage in segment.damages]

    def note_gaps(self, end: Offset) -> None:
        """Readers accept the gaps from now on; recovery does once they are flushed."""
        self.contents.gaps_below = max(self.contents.gaps_below, end)
        self.unsynced.gaps_below = end

    def write(self, placed: Placed, now_ms: int, *, gaps: Offset = NO_GAPS, at_once: bool = False) -> None:
        if self.failed:
            raise StorageFailure(f"The log of {self.directory.name} has failed; restart the broker on a good disk.")
        contents, config, journal = self.contents, self.config, self.journal
        if self.lacks_room:
            self.write_out()  # earlier batches come first
        kept = contents.held_count
        try:
            if contents.is_full(config, placed, now_ms) or self.aborted.active_bytes > config.segment_index_bytes:
                self.roll()
            if contents.active is None:
                self.open_segment(now_ms)
            kept = contents.held_count
            contents.hold(placed, self.log_end_offset)
            if not config.fsync or gaps:
                contents.write_out(config.index_interval_bytes)
                if self.collected.end is not None:
                    self.drop_collected()  # later batches may not be journaled before this is synced
            elif journal is None or not self.collected.add(placed, journal) or contents.is_empty or at_once:
                contents.write_out(config.index_interval_bytes)
        except OSError as error:
            raise self.refused(error, kept) from error
        self.unsynced.active = True
        if gaps:
            self.note_gaps(gaps)
        if config.fsync:
            self.owed = placed.end
        elif not self.syncs_active:
            assert contents.active is not None
            self.flushed_end, self.flushed_position = placed.end, contents.active.size
        self.log_end_offset = placed.end

    def write_past_held(self, buffers: Sequence[Buffer]) -> None:
        """Write a batch to the active segment's file, and nothing else: the native road's part of `write`. Nothing is
        held, and the file is open. Raises StorageFailure."""
        contents = self.contents
        try:
            contents.active.file.append(buffers)  # type: ignore[union-attr]
        except OSError as error:
            raise self.refused(error, contents.held_count) from error

    def write_out(self) -> None:
        try:
            self.contents.write_out(self.config.index_interval_bytes)
        except OSError as error:
            raise self.refused(error, self.contents.held_count) from error
        self.lacks_room = False

    def refused(self, error: OSError, kept: int) -> StorageFailure:
        """Cut off the remains of a failed write, and return the error to raise.

        On a full disk the first `kept` of the held batches stay. The journal, or a follower, may have them, so nothing
        else may ever stand at their offsets. Any other failure is final.
        """
        self.drop_collected()  # after a power cut the cut remains may return and seem to come first
        contents = self.contents
        try:
            contents.undo_write(kept)
            self.lacks_room = error.errno in OUT_OF_ROOM and not self.failed
        except OSError:
            self.lacks_room = False
        if self.lacks_room:
            return NoRoom(f"The log of {self.directory.name} cannot be written: {error}.")
        self.failed = True
        contents.drop_held()
        if contents.segments and contents.segments[-1].end < self.log_end_offset:
            if contents.segments[-1].end < self.flushed_end:
                self.keep_in_journal()
            self.log_end_offset = max(Offset(contents.segments[-1].end), self.flushed_end)
            self.leader_epochs.cut_from(self.log_end_offset)
            if self.ticket is not None and self.ticket.end > self.log_end_offset:
                self.ticket.failure = error
        return StorageFailure(f"The log of {self.directory.name} cannot be written: {error}.")

    def give_up(self) -> None:
        """An append may have stopped half-way, though no disk has failed. Nothing more is appended, and the log is not
        closed cleanly: recovery finds what its files hold.
        """
        self.failed = True
        self.drop_collected()

    def keep_in_journal(self) -> None:
        """Keep the journal's records of the log: its own file lacks them, and may never hold them, so recovery needs
        them.
        """
        if self.journal is not None:
            self.journal.lose(self.key)
        if self.exists:
            mark_doubt(self.disk, self.directory)

    def make_directory(self) -> None:
        with full_disks_told():
            self.disk.make_directory(self.directory)
        stamp = Stamp(identity=self.identity, birth=self.log_end_offset, lineage=self.lineage)
        write_file(self.disk, self.directory / STAMP, encode_stamp(stamp), sync=False)
        self.exists = self.unsynced.birth = True

    def open_segment(self, now_ms: int) -> None:
        if not self.exists:
            self.make_directory()
        self.contents.open_segment(self.log_end_offset, now_ms)
        self.unsynced.names = True

    def roll(self) -> None:
        if self.contents.active is not None and self.contents.active.size:
            self.close_active()

    def close_active(self) -> None:
        self.write_out()
        if self.contents.active is not None:
            self.unsynced.closed.append(self.contents.close_active())
            self.aborted.active_bytes = 0
            self.unsynced.checkpoint = True

    def begin_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        if self.leader_epochs.assign(epoch, start):
            self.epochs_changed = True

    def drop_collected(self) -> None:
        """Collect nothing more before the next flush, which syncs the log's own files."""
        if self.journal is not None and self.collected.size:
            self.journal.forget(self.collected.size)
        self.collected = Collected(None)

    def fail_behind(self) -> None:
        """Called by the journal when the log's own file could not be synced. Journaled batches stay acknowledged."""
        self.failed = True
        mark_doubt(self.disk, self.directory)
        if self.on_failed is not None:
            self.on_failed(StorageFailure("its file could not be synced behind the journal"))

    def keep_file(self, path: Path) -> None:
        """Do not remove the file: an older one of the same name may have been due for removal."""
        self.unsynced.removals = [each for each in self.unsynced.removals if each != path]

    def move_start(self, offset: Offset) -> None:
        self.log_start_offset = offset
        self.unsynced.checkpoint = self.exists

    def refuse_failed(self) -> None:
        """Raises StorageFailure where the log has failed. Its pages may look clean though they are not, so the cut's
        syncs would prove nothing, while the cut would void the journal's records.
        """
        if self.failed:
            raise StorageFailure(
                f"The disk of {self.directory.name} has failed: it cannot be begun anew there, nor cut."
            )

    @contextmanager
    def syncing_alone(self) -> Iterator[None]:
        """The log syncs its own files outside any round. Meanwhile the journal trusts no other sync of them."""
        if self.journal is None:
            yield
            return
        self.journal.begin_work(self.key)
        try:
            yield
        finally:
            self.journal.end_work(self.key)

    def note_failure(self) -> None:
        """A sync of the log's own files has failed. Any thread."""
        self.failed = True
        if self.exists:
            mark_doubt(self.disk, self.directory)
        if self.journal is not None:
            self.journal.note_failure(self.key)

    @property
    def needs_flush(self) -> bool:
        if self.failed:
            return False
        unsynced = self.unsynced
        return (unsynced.active and self.syncs_active) or unsynced.besides_active or self.aborted.needs_writing
