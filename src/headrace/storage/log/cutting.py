"""Cuts a log, or begins it again: durably, in an order that a crash cannot trick. The log's own files hold everything
before anything goes. All of it blocks, in a worker thread, with no ticket out.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace.base.errors import OUT_OF_ROOM, FullDisk, NoRoom, StorageFailure
from headrace.base.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from headrace.storage.engine.epochs import LeaderEpochs
from headrace.storage.log.checkpoints import (
    Checkpoint,
    encode_checkpoint,
    sync_file,
    write_beside,
    write_file,
)
from headrace.storage.log.flush import Unsynced
from headrace.storage.log.names import CHECKPOINT, EPOCHS, SNAPSHOT, STAMP, numbered, segment_files
from headrace.storage.log.reading import lookups
from headrace.storage.log.recovery.damage import write_damages
from headrace.storage.log.recovery.replaced import (
    REPLACED,
    Mark,
    drop_replaced,
    finish_begun_anew,
    free_place,
    keeps_replaced,
    mark_begun_anew,
)
from headrace.storage.log.snapshots import ProducerSnapshots
from headrace.storage.log.state import Collected, LocalState


class LogCuts:
    """The cuts of one log."""

    __slots__ = ("_log",)

    def __init__(self, log: LocalState) -> None:
        self._log: Final = log

    @property
    def has_replaced(self) -> bool:
        return self._log.has_replaced

    def truncate_to(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        log = self._log
        assert log.ticket is None, "no flush is under way"
        log.refuse_failed()
        if offset >= log.log_end_offset:
            log.epochs_changed = log.leader_epochs.cut_from(log.log_end_offset) or log.epochs_changed
            return
        self._cutting(lambda: self._truncate(offset, producers))

    def restart_at(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> None:
        log = self._log
        assert log.ticket is None, "no flush is under way"
        log.refuse_failed()
        self._cutting(lambda: self._restart(offset, epoch, producers))

    def begin_anew(self) -> None:
        log = self._log
        assert log.ticket is None, "no flush is under way"
        if log.read_only is None:
            log.refuse_failed()
        keeps = log.exists and not keeps_replaced(log.disk, log.directory)
        self._cutting(lambda: self._begin_anew(Mark(self._next_lineage(), REPLACED if keeps else "")))
        log.has_replaced = log.has_replaced or log.exists
        log.read_only, log.failed = None, False

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> str | None:
        log = self._log
        assert log.ticket is None, "no flush is under way"
        log.refuse_failed()
        if not log.contents.segments:
            self.restart_at(offset, epoch=epoch, producers=producers)
            return None
        place = free_place(log.disk, log.directory)
        self._cutting(lambda: self._give_way(Mark(self._next_lineage(), place, offset, epoch), producers))
        return str(log.directory / place)

    def _give_way(self, mark: Mark, producers: bytes) -> None:
        log = self._log
        if producers:  # above the log's end it means nothing without the mark
            write_file(log.disk, numbered(log.directory, mark.at, SNAPSHOT), producers)
            log.disk.sync_directory(log.directory)
        self._begin_anew(mark)
        log.snapshots = ProducerSnapshots(log.directory, [mark.at] if producers else [])

    def _begin_anew(self, mark: Mark) -> None:
        """See `replaced`. `_cutting` has written what only the journal may have held to the files, which are kept."""
        log = self._log
        log.drop_collected()
        if log.exists:
            self._sync_unsynced()
            self._make_birth_durable()
            self._check_syncs()
            mark_begun_anew(log.disk, log.directory, mark)
            log.lineage = mark.lineage
        log.aborted.drop(segment.base for segment in log.contents.cut(-1, 0, 0))
        if log.exists:
            finish_begun_anew(log.disk, log.directory)
        log.compaction.forget()
        log.leader_epochs = LeaderEpochs([(mark.epoch, Offset(mark.at - 1))] if mark.epoch >= 0 else ())
        log.epochs_changed = True
        log.snapshots = ProducerSnapshots(log.directory, [])
        log.checkpoint = Checkpoint.at_segment(mark.at, mark.at, log.lineage) if log.exists else None
        log.unsynced, log.collected = Unsynced(), Collected(mark.at)
        log.log_start_offset = log.log_end_offset = log.flushed_end = log.owed = mark.at
        log.flushed_position = 0
        log.is_journaled = False
        if log.journal is not None:
            log.journal.settle(log.key)

    def drop_replaced(self) -> None:
        log = self._log
        try:
            drop_replaced(log.disk, log.directory)
        except OSError as error:
            raise StorageFailure(f"What {log.directory.name} had before cannot be removed: {error}.") from error
        log.has_replaced = False

    def _check_syncs(self) -> None:
        """Raises OSError where the sync just made proves nothing: a sync behind the journal has failed, and the log may
        not know of it yet.
        """
        log = self._log
        if log.journal is not None and log.journal.has_failed(log.key):
            raise OSError(errno.EIO, "another sync of it failed, so that this one proves nothing", str(log.directory))

    def _cutting(self, work: Callable[[], None]) -> None:
        log = self._log
        with log.syncing_alone():
            try:
                self._write_out_first()
                work()
            except FullDisk as error:  # no sync failed: the files are as a crash could have left them
                log.failed = True
                raise NoRoom(f"The log of {log.directory.name} cannot be cut: {error}.") from error
            except OSError as error:
                log.note_failure()
                raise StorageFailure(f"The log of {log.directory.name} cannot be cut: {error}.") from error

    def _write_out_first(self) -> None:
        """Before a cut, write to the log's files what only the journal may hold. Raises NoRoom where the disk is full,
        OSError.
        """
        log = self._log
        try:
            log.contents.write_out(log.config.index_interval_bytes)
        except OSError as error:
            if error.errno in OUT_OF_ROOM and not log.failed:
                raise log.refused(error, log.contents.held_count) from error
            raise

    def _restart(self, offset: Offset, epoch: LeaderEpoch, producers: bytes) -> None:
        """Empty the log where it is, then move it by the checkpoint: a crash in between leaves an empty log."""
        log = self._log
        self._truncate(log.log_start_offset)
        for path in log.snapshots.cut_above(NO_OFFSET):
            if log.disk.exists(path):
                log.disk.remove(path)
        log.unsynced.snapshots = []
        if not log.exists:
            log.make_directory()
        self._make_birth_durable()
        log.compaction.lower(offset)
        log.snapshots = ProducerSnapshots(log.directory, [offset] if producers else [])
        if producers:
            write_file(log.disk, numbered(log.directory, offset, SNAPSHOT), producers)
        log.leader_epochs, log.epochs_changed = LeaderEpochs([(epoch, Offset(offset - 1))] if epoch >= 0 else ()), False
        write_file(log.disk, log.directory / EPOCHS, log.leader_epochs.encode())
        log.log_start_offset = log.log_end_offset = log.flushed_end = log.owed = offset
        log.flushed_position = 0
        log.collected = Collected(offset)
        log.disk.sync_directory(log.directory)
        self._lower_checkpoint(offset, all_gone=True)

    def _truncate(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        """Durably lower the recovery point, then cut. Batches appended below the old recovery point must be checked
        again, and cut batches must not return behind it.
        """
        log = self._log
        contents = log.contents
        if log.is_journaled:
            self._leave_journal()
        log.drop_collected()
        base, position, end = lookups.place_of(
            log.disk, contents.segments, offset, log.log_start_offset, contents.gaps_below
        )
        snapshot = b"" if producers is None else producers(end)
        if snapshot and log.exists:
            self._write_aborted()
            write_file(log.disk, path := numbered(log.directory, end, SNAPSHOT), snapshot)
            log.disk.sync_directory(log.directory)
            log.keep_file(path)
        log.log_start_offset = min(log.log_start_offset, end)
        if log.exists:
            self._lower_checkpoint(Offset(base) if base >= 0 else end, all_gone=base < 0)
            log.compaction.lower(end)
        self._forget_damages(end)  # once nothing vouches for it: after a crash it is found again
        dropped = contents.cut(base, position, end)
        contents.reopen_last(base, log.config.index_interval_bytes)
        log.aborted.drop(segment.base for segment in dropped)
        log.aborted.cut_at(end)
        gone = [path for segment in dropped for path in segment_files(log.directory, segment.base)]
        gone += log.snapshots.cut_above(end)
        if snapshot:
            gone += log.snapshots.add(end)
        if base < 0:  # a new segment may get the name of a file that is still to be removed
            gone, log.unsynced.removals = gone + log.unsynced.removals, []
        for path in reversed(gone):
            if log.disk.exists(path):
                log.disk.remove(path)
        if log.exists:
            log.disk.sync_directory(log.directory)
        self._forget_above(end, position)

    def _forget_damages(self, end: Offset) -> None:
        """Durably forget damage above `end`, before the cut: batches appended there later are not the damaged ones."""
        log = self._log
        damages = log.damages
        kept = [damage for damage in damages if damage.end <= end]
        if len(kept) < len(damages):
            write_damages(log.disk, log.directory, [damage for damage in kept if damage.start >= damage.segment])

    def _leave_journal(self) -> None:
        """Void the journal's records of the log, once the log's own files hold them. The check of their syncs comes as
        late as possible: a sync behind the journal may be failing right now.
        """
        log = self._log
        self._sync_unsynced()
        self._write_snapshots()
        log.lineage = self._next_lineage()
        known = log.checkpoint
        first = log.contents.segments[0].base if log.contents.segments else log.log_end_offset
        lowest = Checkpoint.at_segment(Offset(first), log.log_start_offset) if known is None else known
        log.checkpoint = replace(lowest, log_start=log.log_start_offset, lineage=log.lineage)
        path = log.directory / CHECKPOINT
        beside = write_beside(log.disk, path, encode_checkpoint(log.checkpoint), sync=True)
        self._check_syncs()
        log.disk.rename(beside, path)
        log.disk.sync_directory(log.directory)
        log.is_journaled = False
        if log.journal is not None:
            log.journal.settle(log.key, log.log_end_offset)

    def _write_snapshots(self) -> None:
        """Write the snapshots that the next flush would write. The log's start may have risen with them, and becomes
        durable first.
        """
        log = self._log
        waiting = [each for each in log.unsynced.snapshots if each[0] in log.snapshots.offsets]
        if waiting:
            self._write_aborted()
        for offset, data in waiting:
            write_file(log.disk, numbered(log.directory, offset, SNAPSHOT), data)
        if waiting:
            log.disk.sync_directory(log.directory)

    def _write_aborted(self) -> None:
        """Durably write the aborted transactions that a snapshot says are there."""
        log = self._log
        taken = log.aborted.take_changed()
        if log.aborted.write(taken):
            log.disk.sync_directory(log.directory)
        log.aborted.on_written(taken)

    def _next_lineage(self) -> int:
        """A lineage for which the journal holds no records, neither of this log nor of an earlier one with its key."""
        log = self._log
        return log.lineage + 1 if log.journal is None else log.journal.lineage_above(log.key, log.lineage)

    def _sync_unsynced(self) -> None:
        log = self._log
        active = log.contents.active
        for segment in [*log.unsynced.closed, *([] if active is None else [active])]:
            sync_file(log.disk, segment.path)

    def _make_birth_durable(self) -> None:
        """Make the directory and its stamp durable, as a checkpoint implies."""
        log = self._log
        if log.unsynced.birth:
            sync_file(log.disk, log.directory / STAMP)
            log.disk.sync_directory(log.directory)
            log.disk.sync_directory(log.directory.parent)
            log.unsynced.birth = False

    def _lower_checkpoint(self, base: Offset, *, all_gone: bool) -> None:
        """Trust nothing from the segment at `base` on. Never raises the recovery point: earlier segments may still be
        unsynced.
        """
        log = self._log
        known = log.checkpoint
        if all_gone or (known is not None and known.segment >= base):
            self._make_birth_durable()
            log.checkpoint = Checkpoint.at_segment(base, log.log_start_offset, log.lineage)
            write_file(log.disk, log.directory / CHECKPOINT, encode_checkpoint(log.checkpoint))
            log.disk.sync_directory(log.directory)

    def _forget_above(self, end: Offset, position: int) -> None:
        """Drop references to what was cut above `end`."""
        log = self._log
        unsynced, kept = log.unsynced, log.contents.segments
        unsynced.closed = [segment for segment in unsynced.closed if segment in kept]
        unsynced.snapshots = [(at, data) for at, data in unsynced.snapshots if at <= end]
        unsynced.active = unsynced.active and log.contents.active is not None
        unsynced.gaps_below = min(unsynced.gaps_below, end)
        log.log_end_offset = end
        log.owed = min(log.owed, end)
        if log.flushed_end > end:
            log.flushed_end, log.flushed_position = end, position
        log.epochs_changed = log.leader_epochs.cut_from(end) or log.epochs_changed
