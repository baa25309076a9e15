"""Takes up what a log has to sync, and settles the outcome. `flush.Ticket` does the work in between, in a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.base.errors import OUT_OF_ROOM, StorageFailure
from headrace.base.ids import Offset
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.log.checkpoints import Checkpoint, checkpoint_of
from headrace.storage.log.flush import Ticket, Unsynced
from headrace.storage.log.journal.journal import JournalEntry
from headrace.storage.log.names import SNAPSHOT, numbered
from headrace.storage.log.state import Collected, LocalState


class LogFlushing:
    """The flushes of one log."""

    __slots__ = ("_log",)

    def __init__(self, log: LocalState) -> None:
        self._log: Final = log

    def begin_flush(self) -> Ticket | None:
        log = self._log
        if log.ticket is not None or not log.needs_flush:
            return None
        try:
            return self._make_ticket(closing=False)
        except OSError as error:  # no sync has failed: written batches stay
            raise log.refused(error, log.contents.held_count) from error

    def _make_ticket(self, *, closing: bool) -> Ticket:
        """Take over all unsynced work. The active segment's indexes are written on closing only."""
        log = self._log
        work, active = log.unsynced, log.contents.active
        must_sync = closing or work.gaps_below > 0 or (work.active and log.syncs_active)
        sync_active = active is not None and must_sync
        entry = None if closing else self._journal_entry()
        if entry is None:
            log.contents.write_out(log.config.index_interval_bytes)
        checkpoint = epochs = None
        if closing:
            checkpoint = checkpoint_of(active, log.log_end_offset, log.log_start_offset, log.lineage)
        elif work.checkpoint:
            checkpoint = self._trusted_so_far()
        if checkpoint is not None and log.epochs_changed:
            epochs, log.epochs_changed = log.leader_epochs.encode(), False
        writes_small = closing or work.closed or work.snapshots or log.aborted.needs_writing
        log.ticket = Ticket(
            log.disk,
            log.directory,
            work,
            end=log.log_end_offset,
            position=0 if active is None else active.size + log.contents.held_size,
            active=active if sync_active else None,
            files=log.segment_files,
            closing=closing,
            checkpoint=checkpoint,
            epochs=epochs,
            file_end=log.log_end_offset if sync_active or active is None else Offset(active.base),
            entry=entry,
            write_out=log.write_out,
            note=log.compaction.note,
            index=log.aborted,
            aborted=log.aborted.take_changed() if writes_small else {},
            key=log.key,
            journal=log.journal,
        )
        left = work.active and active is not None and not sync_active
        log.unsynced = Unsynced(active=left)
        if not left:  # else the journal has a gap: the page cache holds what came first
            log.collected = Collected(log.log_end_offset)
        return log.ticket

    def _journal_entry(self) -> JournalEntry | None:
        """The journal's entry, where this flush consists of appended batches alone and all of them are collected. None
        otherwise.
        """
        log = self._log
        work, active, collected = log.unsynced, log.contents.active, log.collected
        entry, only_appends = None, not (work.besides_active or work.names or log.aborted.needs_writing)
        if active is not None and only_appends and collected.covers(log.flushed_end, log.log_end_offset):
            entry = JournalEntry(
                log=log,
                segment=active,
                lineage=log.lineage,
                base=collected.base,
                end=log.log_end_offset,
                size=collected.size,
                buffers=collected.buffers,
            )
            log.is_journaled = True
        log.drop_collected()
        return entry

    def _trusted_so_far(self) -> Checkpoint:
        """The checkpoint that trusts all closed segments, and as much of the active one as was trusted when it was
        opened.
        """
        log = self._log
        active, known = log.contents.active, log.checkpoint
        if active is not None and known is not None and known.segment == active.base:
            return replace(known, log_start=log.log_start_offset)
        base = log.log_end_offset if active is None else Offset(active.base)
        return Checkpoint.at_segment(base, log.log_start_offset, log.lineage)

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        log = self._log
        done = self._take(ticket)
        for segment in done.work.closed:
            segment.index = segment.times = None
            segment.synced = True
        log.aborted.on_written(done.aborted)
        if done.checkpoint is not None:
            log.checkpoint = done.checkpoint
        if log.journal is not None and not done.is_journaled:
            log.journal.settle(log.key, done.file_end)
        if done.end > log.flushed_end:
            log.flushed_end, log.flushed_position = done.end, done.position
        if log.flushed_end < log.log_end_offset and not log.syncs_active:  # appended meanwhile, with no sync due
            log.flushed_end, log.flushed_position = log.log_end_offset, log.contents.segments[-1].size
        return log.flushed_end

    def fail_flush(self, ticket: FlushTicket) -> None:
        log = self._log
        done = self._take(ticket)
        if done.contents_are_durable and done.end > log.flushed_end:  # the checkpoint may be written, and agrees
            log.flushed_end, log.flushed_position = done.end, done.position
        if done.lacks_room and not log.failed:
            self._take_back(done)
        else:
            self._fail(drop_tail=done.failure is None)

    def _take_back(self, done: Ticket) -> None:
        """No sync has failed, but a write found no room: the next flush repeats the work."""
        log = self._log
        log.lacks_room = True
        log.drop_collected()
        log.epochs_changed = log.epochs_changed or done.has_epochs
        written_since = {numbered(log.directory, at, SNAPSHOT) for at, _ in log.unsynced.snapshots}
        done.work.removals = [path for path in done.work.removals if path not in written_since]
        log.unsynced.take_back(done.work)
        log.aborted.take_back(done.aborted)

    def _take(self, ticket: FlushTicket) -> Ticket:
        log = self._log
        assert log.ticket is not None
        assert ticket is log.ticket, "a flush ends once, and it is the one under way"
        done, log.ticket = log.ticket, None
        for segment in done.pinned:
            segment.pins -= 1
        return done

    def _fail(self, *, drop_tail: bool) -> None:
        """The log has failed. After a failed sync, drop the unflushed tail. After a failed write, keep it: batches
        before the failure are sound, and the leader alone may have acknowledged some.
        """
        log = self._log
        log.failed = True
        log.drop_collected()
        log.keep_in_journal()
        if drop_tail and log.flushed_end < log.log_end_offset:
            log.log_end_offset = log.flushed_end
            log.leader_epochs.cut_from(log.log_end_offset)
            log.contents.drop_tail(log.log_end_offset, log.flushed_position)

    def close_cleanly(self) -> None:
        log = self._log
        assert log.ticket is None, "no flush is under way"
        ticket = None
        with log.syncing_alone():
            try:
                ticket = self._make_ticket(closing=True)
                ticket.sync()
            except OSError as error:
                if ticket is not None:
                    self._take(ticket)
                if not (error.errno in OUT_OF_ROOM if ticket is None else ticket.lacks_room):
                    log.note_failure()
                raise StorageFailure(f"The log of {log.directory.name} cannot be closed cleanly: {error}.") from error
            self.finish_flush(ticket)

    def is_clean(self) -> bool:
        """Whether a clean close would have nothing to do."""
        log = self._log
        known, unsynced = log.checkpoint, log.unsynced
        if unsynced.active or unsynced.besides_active or log.aborted.has_changed:
            return False
        return known is not None and known.recovery_point == log.log_end_offset
