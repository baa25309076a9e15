"""One partition's log on a `Disk`: see `headrace.storage.engine.PartitionLog` for every promise it keeps.

Invariants: `flushed_end <= log_end_offset`, and `log_start_offset <= log_end_offset`; at most one flush is under way.
Files are made at the first append; a log with nothing new costs nothing to flush or to close.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.base.errors import OUT_OF_ROOM, CorruptData, FullDisk, NoRoom, StorageFailure
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from headrace.base.ports import Buffer, Disk
from headrace.storage.engine import (
    NO_GAPS,
    Appended,
    Damage,
    EpochEnd,
    FlushTicket,
    FoundOffset,
    LogConfig,
    LogIdentity,
    SegmentInfo,
    held_locally,
)
from headrace.storage.log import retention
from headrace.storage.log.appending import Placed, place, place_in_time, place_verbatim
from headrace.storage.log.checkpoints import (
    Checkpoint,
    Stamp,
    checkpoint_of,
    encode_checkpoint,
    encode_stamp,
    full_disks_told,
    mark_doubt,
    sync_file,
    write_beside,
    write_file,
    write_seal,
)
from headrace.storage.log.compaction.planning import Cleaning, Compaction
from headrace.storage.log.contents import Contents
from headrace.storage.log.epochs import LeaderEpochs
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.flush import Ticket, Unsynced
from headrace.storage.log.journal.journal import Journal, JournalEntry
from headrace.storage.log.names import CHECKPOINT, EPOCHS, SEALED, SNAPSHOT, STAMP, key_of, numbered, segment_paths
from headrace.storage.log.reading import lookups
from headrace.storage.log.reading.cache_budget import ReadCacheBudget
from headrace.storage.log.reading.newest import Newest
from headrace.storage.log.reading.repeat_reads import Question, RepeatReads
from headrace.storage.log.recovery.damage import Examination, write_damages
from headrace.storage.log.recovery.opening import Recovered
from headrace.storage.log.recovery.replaced import (
    REPLACED,
    Mark,
    drop_replaced,
    finish_begun_anew,
    free_place,
    keeps_replaced,
    mark_begun_anew,
)
from headrace.storage.log.segment import Segment
from headrace.storage.log.snapshots import ProducerSnapshots
from headrace.wire.batches import BatchHeader, CorruptBatch, mend_emptied


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


class LocalLog:
    """Made by `LocalLogEngine.open`."""

    def __init__(
        self,
        *,
        disk: Disk,
        files: SegmentFiles,
        directory: Path,
        identity: LogIdentity,
        config: LogConfig,
        recovered: Recovered,
        exists: bool,
        set_aside: Path | None = None,
        newest: ReadCacheBudget[int],
        again: ReadCacheBudget[Question],
        journal: Journal | None = None,
        is_journaled: bool = False,
        sealed_in: LeaderEpoch | None = None,
    ) -> None:
        self.identity: Final = identity
        self.directory: Final = directory
        self.set_aside: Final = set_aside
        self.sealed_in = sealed_in
        self.config = config
        self.read_only = recovered.read_only
        self.has_replaced = recovered.has_replaced
        self.was_closed: Final = recovered.was_closed
        self.failed = recovered.read_only is not None
        self._disk = disk
        self._files = files
        self._contents = Contents(disk, files, directory, recovered.segments, Newest(newest), RepeatReads(again))
        self._compaction = Compaction(disk, directory, self._contents, recovered.compacted)
        self.log_start_offset = recovered.start
        self.log_end_offset = self.flushed_end = recovered.end
        self._flushed_position = recovered.segments[-1].size if recovered.segments else 0
        """Bytes below `flushed_end` in the segment that holds it."""
        self._owed = recovered.end
        """End of the appends that must be synced before they count as flushed. They are synced, or still have to be."""
        self._epochs = recovered.epochs
        self._epochs_changed = recovered.epochs_are_new
        self._checkpoint = recovered.checkpoint
        """The checkpoint on the disk."""
        self._snapshots = ProducerSnapshots(directory, recovered.snapshots)
        self._exists = exists
        self._unsynced = Unsynced()
        self._ticket: Ticket | None = None
        self.key: Final = key_of(identity)
        self._journal = journal
        self._lineage = recovered.lineage
        self._collected = Collected(self.log_end_offset)
        self._is_journaled = is_journaled
        """The journal may hold records of this lineage."""
        self.lacks_room = False
        self.on_failed: Callable[[], object] | None = None

    # state

    @property
    def size_bytes(self) -> int:
        return self._contents.size

    @property
    def epochs(self) -> Sequence[tuple[LeaderEpoch, Offset]]:
        return tuple(self._epochs.entries)

    @property
    def owes_file(self) -> bool:
        return self.lacks_room and self._contents.held_size > 0

    @property
    def needs_flush(self) -> bool:
        if self.failed:
            return False
        unsynced = self._unsynced
        return (unsynced.active and self._syncs_active) or unsynced.besides_active

    @property
    def _syncs_active(self) -> bool:
        """False: appends are left to the kernel, and everything before them is durable."""
        return self.config.fsync or self.flushed_end < self._owed

    # appending

    def append(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        at_once: bool = False,
    ) -> Appended:
        base, stamped = self.log_end_offset, self.config.log_append_time
        if stamped:
            placed = place_in_time(batches, headers, base, leader_epoch, now_ms)
        else:
            placed = place(batches, headers, base, leader_epoch)
        self._write(placed, now_ms, at_once=at_once)
        if leader_epoch != self._epochs.latest:
            self._assign_epoch(leader_epoch, base)
        return Appended(base, placed.end, now_ms if stamped else -1)

    def append_verbatim(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        now_ms: int,
        gaps_below: Offset = NO_GAPS,
    ) -> Appended:
        base = end = self.log_end_offset
        epoch, gaps = self._epochs.latest, NO_GAPS
        begins: list[tuple[LeaderEpoch, Offset]] = []
        for _, header in headers:
            if not end <= header.base_offset <= max(end, gaps_below) or header.leader_epoch < epoch:
                raise CorruptBatch(f"A batch at {header.base_offset} does not go on where the log ends, at {end}.")
            epoch = LeaderEpoch(header.leader_epoch)
            begins.append((epoch, end))  # or inside the gap before it: never later than it truly began
            has_gap = header.base_offset != end or header.count != header.last_offset_delta + 1
            end = Offset(header.next_offset)
            gaps = end if has_gap else gaps
        if gaps:  # a leader of an older version may send them
            batches = mend_emptied(batches)
        self._write(place_verbatim(batches, headers, end), now_ms, gaps=gaps)
        for epoch, start in begins:
            self._assign_epoch(epoch, start)
        return Appended(base, end)

    def skip_to(self, offset: Offset, *, now_ms: int) -> None:
        assert offset > self.log_end_offset, "there is something to skip"
        contents = self._contents
        try:
            if not contents.segments:  # the log's first segment
                self._open_segment(now_ms)
            self._roll()  # the next batch begins a segment, and its name holds the offset
        except OSError as error:
            raise self._refused(error, contents.held_count) from error
        contents.segments[-1].end = offset
        self._drop_collected()
        self._note_gaps(offset)
        self.log_end_offset = offset

    def _note_gaps(self, end: Offset) -> None:
        """Readers accept the gaps from now on; recovery does once they are flushed."""
        self._contents.gaps_below = max(self._contents.gaps_below, end)
        self._unsynced.gaps_below = end

    def _write(self, placed: Placed, now_ms: int, *, gaps: Offset = NO_GAPS, at_once: bool = False) -> None:
        if self.failed:
            raise StorageFailure(f"The log of {self.directory.name} has failed; restart the broker on a good disk.")
        contents, config, journal = self._contents, self.config, self._journal
        if self.lacks_room:
            self.write_out()  # earlier batches come first
        kept = contents.held_count
        try:
            if contents.is_full(config, placed, now_ms):
                self.roll()
            if contents.active is None:
                self._open_segment(now_ms)
            kept = contents.held_count
            contents.hold(placed, self.log_end_offset)
            if not config.fsync or gaps:
                contents.write_out(config.index_interval_bytes)
                if self._collected.end is not None:
                    self._drop_collected()  # later batches may not be journaled before this is synced
            elif journal is None or not self._collected.add(placed, journal) or contents.is_empty or at_once:
                contents.write_out(config.index_interval_bytes)
        except OSError as error:
            raise self._refused(error, kept) from error
        self._unsynced.active = True
        if gaps:
            self._note_gaps(gaps)
        if config.fsync:
            self._owed = placed.end
        elif not self._syncs_active:
            assert contents.active is not None
            self.flushed_end, self._flushed_position = placed.end, contents.active.size
        self.log_end_offset = placed.end

    def write_out(self) -> None:
        try:
            self._contents.write_out(self.config.index_interval_bytes)
        except OSError as error:
            raise self._refused(error, self._contents.held_count) from error
        self.lacks_room = False

    def _refused(self, error: OSError, kept: int) -> StorageFailure:
        """Cut off the remains of a failed write, and return the error to raise.

        On a full disk the first `kept` of the held batches stay. The journal, or a follower, may have them, so nothing
        else may ever stand at their offsets. Any other failure is final.
        """
        self._drop_collected()  # after a power cut the cut remains may return and seem to come first
        contents = self._contents
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
                self._keep_in_journal()
            self.log_end_offset = max(Offset(contents.segments[-1].end), self.flushed_end)
            self._epochs.cut_from(self.log_end_offset)
            if self._ticket is not None and self._ticket.end > self.log_end_offset:
                self._ticket.failure = error
        return StorageFailure(f"The log of {self.directory.name} cannot be written: {error}.")

    def _keep_in_journal(self) -> None:
        """Keep the journal's records of the log: its own file lacks them, and may never hold them, so recovery needs
        them.
        """
        if self._journal is not None:
            self._journal.lose(self.key)
        if self._exists:
            mark_doubt(self._disk, self.directory)

    def _make_directory(self) -> None:
        with full_disks_told():
            self._disk.make_directory(self.directory)
        stamp = Stamp(identity=self.identity, birth=self.log_end_offset, lineage=self._lineage)
        write_file(self._disk, self.directory / STAMP, encode_stamp(stamp), sync=False)
        self._exists = self._unsynced.birth = True

    def _open_segment(self, now_ms: int) -> None:
        if not self._exists:
            self._make_directory()
        self._contents.open_segment(self.log_end_offset, now_ms)
        self._unsynced.names = True

    def roll(self) -> None:
        if self._contents.active is not None and self._contents.active.size:
            self._roll()

    def _roll(self) -> None:
        self.write_out()
        if self._contents.active is not None:
            self._unsynced.closed.append(self._contents.close_active())
            self._unsynced.checkpoint = True

    # reading

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        end = min(end, self.log_end_offset)
        if start >= end:
            return memoryview(b"")
        assert start >= self.log_start_offset, "the caller answers OFFSET_OUT_OF_RANGE"
        if (newest := self._contents.newest.read(start, max_bytes, end, at_least_one=at_least_one)) is not None:
            return newest
        if self._contents.held_size and end > (written := self._contents.segments[-1].end):
            try:
                self.write_out()
            except NoRoom:
                if start >= written:
                    return self._contents.read_held(start, max_bytes, end, at_least_one=at_least_one)
                end = Offset(written)
        try:
            return self._contents.read(start, max_bytes, end, at_least_one=at_least_one)
        except OSError as error:
            raise StorageFailure(f"The log of {self.directory.name} cannot be read: {error}.") from error

    def batches_from(self, start: Offset, end: Offset = LAST_OFFSET) -> Iterator[BatchHeader]:
        return lookups.headers_from(self._disk, list(self._contents.segments), start, end, checked=True)

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        start = self.log_start_offset
        return self._look_up(lambda found: lookups.first_at_or_after(self._disk, found, timestamp, start))

    def max_timestamp(self) -> FoundOffset | None:
        return self._look_up(lambda found: lookups.highest(self._disk, found, self.log_start_offset))

    def _look_up(self, look: Callable[[Sequence[Segment]], FoundOffset | None]) -> FoundOffset | None:
        """Look up, again where segments were replaced by compacted ones meanwhile: their files have changed then."""
        contents = self._contents
        while True:
            swaps, failure, found = contents.swaps, None, None
            try:
                found = look(list(contents.segments))
            except (CorruptData, OSError) as error:
                failure = error
            if swaps == contents.swaps:
                break
        if failure is not None:
            raise failure
        return found

    # damage

    @property
    def damages(self) -> Sequence[Damage]:
        return [damage for segment in self._contents.segments for damage in segment.damages]

    @property
    def segments(self) -> Sequence[Offset]:
        return [Offset(segment.base) for segment in self._contents.segments if segment.end > segment.base]

    def segment_of(self, offset: Offset) -> Offset:
        return Offset(self._contents.holding(offset).base)

    def begin_examination(self, base: Offset) -> Examination | None:
        contents, compaction = self._contents, self._compaction
        if (
            self.read_only is not None
            or contents.held_size
            or not contents.segments
            or compaction.cleaning is not None
            or compaction.is_held
        ):
            return None
        segment = contents.holding(base)
        if segment.base != base:
            return None
        compaction.is_held = True
        return Examination(
            self._disk,
            segment,
            gaps_below=contents.gaps_below,
            interval=self.config.index_interval_bytes,
            known=self.damages,
            flushed=None if segment.end <= self.flushed_end else self._flushed_in(segment),
        )

    def _flushed_in(self, segment: Segment) -> tuple[int, int]:
        """The flushed end of a segment that is only partly flushed, as offset and position."""
        return (self.flushed_end, self._flushed_position) if segment.base < self.flushed_end else (segment.base, 0)

    def end_examination(self, examination: Examination, *, done: bool) -> Sequence[Damage]:
        self._compaction.is_held = False
        segment, contents = examination.segment, self._contents
        if not done or segment not in contents.segments:
            return []
        known = segment.damages
        has_grown = segment.size != examination.size_before or segment is contents.active
        contents.heed(segment, examination.found, segment.size if has_grown else examination.size)
        if segment is contents.active:
            contents.correct_indexes(examination.twin, self.config.index_interval_bytes)
        elif examination.has_rebuilt:
            segment.times_known, segment.max_timestamp = False, -1
        return [damage for damage in examination.found if damage not in known]

    # epochs

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        return self._epochs.at(offset)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        self._assign_epoch(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        return self._epochs.end_of(epoch, self.log_end_offset)

    def _assign_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        if self._epochs.assign(epoch, start):
            self._epochs_changed = True

    # flushing

    def begin_flush(self) -> FlushTicket | None:
        if self._ticket is not None or not self.needs_flush:
            return None
        try:
            return self._make_ticket(closing=False)
        except OSError as error:  # no sync has failed: written batches stay
            raise self._refused(error, self._contents.held_count) from error

    def _make_ticket(self, *, closing: bool) -> Ticket:
        """Take over all unsynced work. The active segment's indexes are written on closing only."""
        work, active = self._unsynced, self._contents.active
        must_sync = closing or work.gaps_below > 0 or (work.active and self._syncs_active)
        sync_active = active is not None and must_sync
        entry = None if closing else self._journal_entry()
        if entry is None:
            self._contents.write_out(self.config.index_interval_bytes)
        checkpoint = epochs = None
        if closing:
            checkpoint = checkpoint_of(active, self.log_end_offset, self.log_start_offset, self._lineage)
        elif work.checkpoint:
            checkpoint = self._trusted_so_far()
        if checkpoint is not None and self._epochs_changed:
            epochs, self._epochs_changed = self._epochs.encode(), False
        self._ticket = Ticket(
            self._disk,
            self.directory,
            work,
            end=self.log_end_offset,
            position=0 if active is None else active.size + self._contents.held_size,
            active=active if sync_active else None,
            files=self._files,
            closing=closing,
            checkpoint=checkpoint,
            epochs=epochs,
            file_end=self.log_end_offset if sync_active or active is None else Offset(active.base),
            entry=entry,
            write_out=self.write_out,
            note=self._compaction.note,
            key=self.key,
            journal=self._journal,
        )
        left = work.active and active is not None and not sync_active
        self._unsynced = Unsynced(active=left)
        if not left:  # else the journal has a gap: the page cache holds what came first
            self._collected = Collected(self.log_end_offset)
        return self._ticket

    def _journal_entry(self) -> JournalEntry | None:
        """The journal's entry, where this flush consists of appended batches alone and all of them are collected. None
        otherwise.
        """
        work, active, collected = self._unsynced, self._contents.active, self._collected
        entry, only_appends = None, not (work.besides_active or work.names)
        if active is not None and only_appends and collected.covers(self.flushed_end, self.log_end_offset):
            entry = JournalEntry(
                log=self,
                segment=active,
                lineage=self._lineage,
                base=collected.base,
                end=self.log_end_offset,
                size=collected.size,
                buffers=collected.buffers,
            )
            self._is_journaled = True
        self._drop_collected()
        return entry

    def _drop_collected(self) -> None:
        """Collect nothing more before the next flush, which syncs the log's own files."""
        if self._journal is not None and self._collected.size:
            self._journal.forget(self._collected.size)
        self._collected = Collected(None)

    def _trusted_so_far(self) -> Checkpoint:
        """The checkpoint that trusts all closed segments, and as much of the active one as was trusted when it was
        opened.
        """
        active, known = self._contents.active, self._checkpoint
        if active is not None and known is not None and known.segment == active.base:
            return replace(known, log_start=self.log_start_offset)
        base = self.log_end_offset if active is None else Offset(active.base)
        return Checkpoint.at_segment(base, self.log_start_offset, self._lineage)

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        done = self._take(ticket)
        for segment in done.work.closed:
            segment.index = segment.times = None
            segment.synced = True
        if done.checkpoint is not None:
            self._checkpoint = done.checkpoint
        if self._journal is not None and not done.is_journaled:
            self._journal.settle(self.key, done.file_end)
        if done.end > self.flushed_end:
            self.flushed_end, self._flushed_position = done.end, done.position
        if self.flushed_end < self.log_end_offset and not self._syncs_active:  # appended meanwhile, with no sync due
            self.flushed_end, self._flushed_position = self.log_end_offset, self._contents.segments[-1].size
        return self.flushed_end

    def fail_flush(self, ticket: FlushTicket) -> None:
        done = self._take(ticket)
        if done.contents_are_durable and done.end > self.flushed_end:  # the checkpoint may be written, and agrees
            self.flushed_end, self._flushed_position = done.end, done.position
        if done.lacks_room and not self.failed:
            self._take_back(done)
        else:
            self._fail(drop_tail=done.failure is None)

    def _take_back(self, done: Ticket) -> None:
        """No sync has failed, but a write found no room: the next flush repeats the work."""
        self.lacks_room = True
        self._drop_collected()
        self._epochs_changed = self._epochs_changed or done.has_epochs
        written_since = {numbered(self.directory, at, SNAPSHOT) for at, _ in self._unsynced.snapshots}
        done.work.removals = [path for path in done.work.removals if path not in written_since]
        self._unsynced.take_back(done.work)

    def _take(self, ticket: FlushTicket) -> Ticket:
        assert self._ticket is not None
        assert ticket is self._ticket, "a flush ends once, and it is the one under way"
        done, self._ticket = self._ticket, None
        for segment in done.pinned:
            segment.pins -= 1
        return done

    def fail_behind(self) -> None:
        """Called by the journal when the log's own file could not be synced. Journaled batches stay acknowledged."""
        self.failed = True
        mark_doubt(self._disk, self.directory)
        if self.on_failed is not None:
            self.on_failed()

    def _fail(self, *, drop_tail: bool) -> None:
        """The log has failed. After a failed sync, drop the unflushed tail. After a failed write, keep it: batches
        before the failure are sound, and the leader alone may have acknowledged some.
        """
        self.failed = True
        self._drop_collected()
        self._keep_in_journal()
        if drop_tail and self.flushed_end < self.log_end_offset:
            self.log_end_offset = self.flushed_end
            self._epochs.cut_from(self.log_end_offset)
            self._contents.drop_tail(self.log_end_offset, self._flushed_position)

    # producers

    def write_producer_snapshot(self, data: bytes, offset: Offset) -> None:
        assert offset <= self.log_end_offset, "a snapshot is of what is in the log"
        if not self._exists:
            return  # nothing was ever appended, and no directory is there
        self._keep_file(numbered(self.directory, offset, SNAPSHOT))
        self._unsynced.snapshots.append((offset, data))
        self._unsynced.removals += self._snapshots.add(offset)

    def _keep_file(self, path: Path) -> None:
        """Do not remove the file: an older one of the same name may have been due for removal."""
        self._unsynced.removals = [each for each in self._unsynced.removals if each != path]

    def mark_sealed(self, epoch: LeaderEpoch) -> None:
        if self._exists:
            write_seal(self._disk, self.directory, epoch)
            self.sealed_in = epoch

    def forget_seal(self) -> None:
        if self.sealed_in is not None:
            self.sealed_in = None
            self._unsynced.removals.append(self.directory / SEALED)

    def settle_empty(self, producers: bytes | None) -> None:
        assert self.log_end_offset == self.log_start_offset, "nothing was appended"
        assert not self._contents.segments, "nothing was appended"
        try:
            self._settle_empty(producers)
        except OSError as error:
            self.failed = True
            kind = NoRoom if isinstance(error, FullDisk) else StorageFailure
            raise kind(f"The log of {self.directory.name} cannot be made: {error}.") from error

    def _settle_empty(self, producers: bytes | None) -> None:
        """Make the empty log's files durable, the stamp first: a checkpoint says that the stamp is durable.

        Producers wait for this, so it waits for the disk only three times: for the files' contents, the first names,
        and the checkpoint's name.
        """
        disk, end = self._disk, self.log_end_offset
        files: dict[Path, bytes | bytearray] = {}
        if not self._exists:
            disk.make_directory(self.directory)
            stamp = Stamp(identity=self.identity, birth=end, lineage=self._lineage)
            files[self.directory / STAMP] = encode_stamp(stamp)
        if producers is not None:
            files[numbered(self.directory, end, SNAPSHOT)] = producers
        self._checkpoint = Checkpoint.at_segment(end, self.log_start_offset, self._lineage)
        files[self.directory / CHECKPOINT] = encode_checkpoint(self._checkpoint)
        temporary = {path: write_beside(disk, path, data) for path, data in files.items()}
        disk.sync_all(list(temporary.values()), [self.directory.parent])
        checkpoint = temporary.pop(self.directory / CHECKPOINT)
        for path, beside in temporary.items():
            disk.rename(beside, path)
        if temporary:
            disk.sync_directory(self.directory)
        disk.rename(checkpoint, self.directory / CHECKPOINT)
        disk.sync_directory(self.directory)
        self._exists = True
        if producers is not None:
            self._snapshots.add(end)

    def latest_producer_snapshot(self, end: Offset = LAST_OFFSET) -> tuple[Offset, bytes] | None:
        newest = self._snapshots.newest(end)
        if newest is None:
            return None
        for offset, data in reversed(self._unsynced.snapshots):
            if offset == newest:  # it still has to be written
                return offset, data
        return newest, self._snapshots.read(self._disk, newest)

    # both ends

    def closed_segments(self) -> list[SegmentInfo]:
        return [self._info(segment) for segment in self._contents.segments if segment.synced]

    def _info(self, segment: Segment) -> SegmentInfo:
        with suppress(CorruptData):  # callers that need the times get the error
            segment.load_times(self._disk)
        return SegmentInfo(Offset(segment.base), Offset(segment.end), segment.path, segment.size, segment.max_timestamp)

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> list[SegmentInfo]:
        contents, config = self._contents, held_locally(self.config) if local else self.config
        if by_start_alone:
            config = replace(config, retention_ms=-1, retention_bytes=-1)
        closed, failure = self._with_times([segment for segment in contents.segments if segment.synced])
        active = contents.active
        if (
            active is not None
            and self.log_end_offset <= up_to
            and retention.is_old(active, config, now_ms, self._written_ms)
        ):
            with suppress(NoRoom):  # removing older segments makes room
                self.roll()
        count = retention.due(
            closed,
            config,
            log_size=contents.size,
            log_start=self.log_start_offset,
            now_ms=now_ms,
            up_to=up_to,
            gaps_below=contents.gaps_below,
            written_ms=self._written_ms,
        )
        if count and before_drop is not None and self._compaction.cleaning is None:
            before_drop()
        dropped = self._drop(count)
        if failure is not None:
            raise failure
        return dropped

    def _written_ms(self, segment: Segment) -> int:
        """When the segment's file was last written, in milliseconds; -1 where that is unknown, or nothing is written
        yet.
        """
        try:
            return self._disk.modified_ms(segment.path)
        except OSError:
            return -1

    def _with_times(self, segments: list[Segment]) -> tuple[list[Segment], CorruptData | None]:
        """The segments before the first with a wrong time index, and the error of that one."""
        for number, segment in enumerate(segments):
            try:
                segment.load_times(self._disk)
            except CorruptData as error:
                return segments[:number], error
        return segments, None

    def _drop(self, count: int) -> list[SegmentInfo]:
        """Drop the oldest segments; none while a cleaning works on them. Their files are removed once the checkpoint
        with the new start is durable. Otherwise a crash could leave a gap: some removals would be durable and others
        not.
        """
        if self._compaction.cleaning is not None:
            return []
        dropped = [self._info(segment) for segment in self._contents.drop_first(count)]
        if dropped:
            self._move_start(max(self.log_start_offset, dropped[-1].next_offset))
            for info in dropped:
                self._unsynced.removals += segment_paths(self.directory, info.base_offset)
        return dropped

    def delete_records_before(self, offset: Offset) -> Offset:
        if self.log_start_offset < offset <= self.log_end_offset:
            self._move_start(offset)
            below = [segment for segment in self._contents.segments if segment.synced and segment.end <= offset]
            self._drop(len(below))
        return self.log_start_offset

    def _move_start(self, offset: Offset) -> None:
        self.log_start_offset = offset
        self._unsynced.checkpoint = self._exists

    def truncate_to(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        assert self._ticket is None, "no flush is under way"
        self._refuse_failed()
        if offset >= self.log_end_offset:
            self._epochs_changed = self._epochs.cut_from(self.log_end_offset) or self._epochs_changed
            return
        self._cutting(lambda: self._truncate(offset, producers))

    def restart_at(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> None:
        assert self._ticket is None, "no flush is under way"
        self._refuse_failed()
        self._cutting(lambda: self._restart(offset, epoch, producers))

    def begin_anew(self) -> None:
        assert self._ticket is None, "no flush is under way"
        if self.read_only is None:
            self._refuse_failed()
        keeps = self._exists and not keeps_replaced(self._disk, self.directory)
        self._cutting(lambda: self._begin_anew(Mark(self._next_lineage(), REPLACED if keeps else "")))
        self.has_replaced = self.has_replaced or self._exists
        self.read_only, self.failed = None, False

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> Path | None:
        assert self._ticket is None, "no flush is under way"
        self._refuse_failed()
        if not self._contents.segments:
            self.restart_at(offset, epoch=epoch, producers=producers)
            return None
        place = free_place(self._disk, self.directory)
        self._cutting(lambda: self._give_way(Mark(self._next_lineage(), place, offset, epoch), producers))
        return self.directory / place

    def _give_way(self, mark: Mark, producers: bytes) -> None:
        if producers:  # above the log's end it means nothing without the mark
            write_file(self._disk, numbered(self.directory, mark.at, SNAPSHOT), producers)
            self._disk.sync_directory(self.directory)
        self._begin_anew(mark)
        self._snapshots = ProducerSnapshots(self.directory, [mark.at] if producers else [])

    def _begin_anew(self, mark: Mark) -> None:
        """See `replaced`. `_cutting` has written what only the journal may have held to the files, which are kept."""
        self._drop_collected()
        if self._exists:
            self._sync_unsynced()
            self._make_birth_durable()
            self._check_syncs()
            mark_begun_anew(self._disk, self.directory, mark)
            self._lineage = mark.lineage
        self._contents.cut(-1, 0, 0)
        if self._exists:
            finish_begun_anew(self._disk, self.directory)
        self._compaction.forget()
        self._epochs = LeaderEpochs([(mark.epoch, Offset(mark.at - 1))] if mark.epoch >= 0 else ())
        self._epochs_changed = True
        self._snapshots = ProducerSnapshots(self.directory, [])
        self._checkpoint = Checkpoint.at_segment(mark.at, mark.at, self._lineage) if self._exists else None
        self._unsynced, self._collected = Unsynced(), Collected(mark.at)
        self.log_start_offset = self.log_end_offset = self.flushed_end = self._owed = mark.at
        self._flushed_position = 0
        self._is_journaled = False
        if self._journal is not None:
            self._journal.settle(self.key)

    def drop_replaced(self) -> None:
        try:
            drop_replaced(self._disk, self.directory)
        except OSError as error:
            raise StorageFailure(f"What {self.directory.name} had before cannot be removed: {error}.") from error
        self.has_replaced = False

    def _refuse_failed(self) -> None:
        """Raises StorageFailure where the log has failed. Its pages may look clean though they are not, so the cut's
        syncs would prove nothing, while the cut would void the journal's records.
        """
        if self.failed:
            raise StorageFailure(
                f"The disk of {self.directory.name} has failed: it cannot be begun anew there, nor cut."
            )

    def _check_syncs(self) -> None:
        """Raises OSError where the sync just made proves nothing: a sync behind the journal has failed, and the log may
        not know of it yet.
        """
        if self._journal is not None and self._journal.has_failed(self.key):
            raise OSError(errno.EIO, "another sync of it failed, so that this one proves nothing", str(self.directory))

    def _cutting(self, work: Callable[[], None]) -> None:
        with self._syncing_alone():
            try:
                self._write_out_first()
                work()
            except FullDisk as error:  # no sync failed: the files are as a crash could have left them
                self.failed = True
                raise NoRoom(f"The log of {self.directory.name} cannot be cut: {error}.") from error
            except OSError as error:
                self._note_failure()
                raise StorageFailure(f"The log of {self.directory.name} cannot be cut: {error}.") from error

    def _write_out_first(self) -> None:
        """Before a cut, write to the log's files what only the journal may hold. Raises NoRoom where the disk is full,
        OSError.
        """
        try:
            self._contents.write_out(self.config.index_interval_bytes)
        except OSError as error:
            if error.errno in OUT_OF_ROOM and not self.failed:
                raise self._refused(error, self._contents.held_count) from error
            raise

    @contextmanager
    def _syncing_alone(self) -> Iterator[None]:
        """The log syncs its own files outside any round. Meanwhile the journal trusts no other sync of them."""
        if self._journal is None:
            yield
            return
        self._journal.begin_work(self.key)
        try:
            yield
        finally:
            self._journal.end_work(self.key)

    def _note_failure(self) -> None:
        """A sync of the log's own files has failed. Any thread."""
        self.failed = True
        if self._exists:
            mark_doubt(self._disk, self.directory)
        if self._journal is not None:
            self._journal.note_failure(self.key)

    def _restart(self, offset: Offset, epoch: LeaderEpoch, producers: bytes) -> None:
        """Empty the log where it is, then move it by the checkpoint: a crash in between leaves an empty log."""
        self._truncate(self.log_start_offset)
        for path in self._snapshots.cut_above(NO_OFFSET):
            if self._disk.exists(path):
                self._disk.remove(path)
        self._unsynced.snapshots = []
        if not self._exists:
            self._make_directory()
        self._make_birth_durable()
        self._compaction.lower(offset)
        self._snapshots = ProducerSnapshots(self.directory, [offset] if producers else [])
        if producers:
            write_file(self._disk, numbered(self.directory, offset, SNAPSHOT), producers)
        self._epochs, self._epochs_changed = LeaderEpochs([(epoch, Offset(offset - 1))] if epoch >= 0 else ()), False
        write_file(self._disk, self.directory / EPOCHS, self._epochs.encode())
        self.log_start_offset = self.log_end_offset = self.flushed_end = self._owed = offset
        self._flushed_position = 0
        self._collected = Collected(offset)
        self._disk.sync_directory(self.directory)
        self._lower_checkpoint(offset, all_gone=True)

    def _truncate(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        """Durably lower the recovery point, then cut. Batches appended below the old recovery point must be checked
        again, and cut batches must not return behind it.
        """
        contents = self._contents
        if self._is_journaled:
            self._leave_journal()
        self._drop_collected()
        base, position, end = lookups.place_of(
            self._disk, contents.segments, offset, self.log_start_offset, contents.gaps_below
        )
        snapshot = b"" if producers is None else producers(end)
        if snapshot and self._exists:
            write_file(self._disk, path := numbered(self.directory, end, SNAPSHOT), snapshot)
            self._disk.sync_directory(self.directory)
            self._keep_file(path)
        self.log_start_offset = min(self.log_start_offset, end)
        if self._exists:
            self._lower_checkpoint(Offset(base) if base >= 0 else end, all_gone=base < 0)
            self._compaction.lower(end)
        self._forget_damages(end)  # once nothing vouches for it: after a crash it is found again
        dropped = contents.cut(base, position, end)
        contents.reopen_last(base, self.config.index_interval_bytes)
        gone = [path for segment in dropped for path in segment_paths(self.directory, segment.base)]
        gone += self._snapshots.cut_above(end)
        if snapshot:
            gone += self._snapshots.add(end)
        if base < 0:  # a new segment may get the name of a file that is still to be removed
            gone, self._unsynced.removals = gone + self._unsynced.removals, []
        for path in reversed(gone):
            if self._disk.exists(path):
                self._disk.remove(path)
        if self._exists:
            self._disk.sync_directory(self.directory)
        self._forget_above(end, position)

    def _forget_damages(self, end: Offset) -> None:
        """Durably forget damage above `end`, before the cut: batches appended there later are not the damaged ones."""
        damages = self.damages
        kept = [damage for damage in damages if damage.end <= end]
        if len(kept) < len(damages):
            write_damages(self._disk, self.directory, [damage for damage in kept if damage.start >= damage.segment])

    def _leave_journal(self) -> None:
        """Void the journal's records of the log, once the log's own files hold them. The check of their syncs comes as
        late as possible: a sync behind the journal may be failing right now.
        """
        self._sync_unsynced()
        self._write_snapshots()
        self._lineage = self._next_lineage()
        known = self._checkpoint
        first = self._contents.segments[0].base if self._contents.segments else self.log_end_offset
        lowest = Checkpoint.at_segment(Offset(first), self.log_start_offset) if known is None else known
        self._checkpoint = replace(lowest, log_start=self.log_start_offset, lineage=self._lineage)
        path = self.directory / CHECKPOINT
        beside = write_beside(self._disk, path, encode_checkpoint(self._checkpoint), sync=True)
        self._check_syncs()
        self._disk.rename(beside, path)
        self._disk.sync_directory(self.directory)
        self._is_journaled = False
        if self._journal is not None:
            self._journal.settle(self.key, self.log_end_offset)

    def _write_snapshots(self) -> None:
        """Write the snapshots that the next flush would write. The log's start may have risen with them, and becomes
        durable first.
        """
        waiting = [each for each in self._unsynced.snapshots if each[0] in self._snapshots.offsets]
        for offset, data in waiting:
            write_file(self._disk, numbered(self.directory, offset, SNAPSHOT), data)
        if waiting:
            self._disk.sync_directory(self.directory)

    def _next_lineage(self) -> int:
        """A lineage for which the journal holds no records, neither of this log nor of an earlier one with its key."""
        return self._lineage + 1 if self._journal is None else self._journal.lineage_above(self.key, self._lineage)

    def _sync_unsynced(self) -> None:
        active = self._contents.active
        for segment in [*self._unsynced.closed, *([] if active is None else [active])]:
            sync_file(self._disk, segment.path)

    def _make_birth_durable(self) -> None:
        """Make the directory and its stamp durable, as a checkpoint implies."""
        if self._unsynced.birth:
            sync_file(self._disk, self.directory / STAMP)
            self._disk.sync_directory(self.directory)
            self._disk.sync_directory(self.directory.parent)
            self._unsynced.birth = False

    def _lower_checkpoint(self, base: Offset, *, all_gone: bool) -> None:
        """Trust nothing from the segment at `base` on. Never raises the recovery point: earlier segments may still be
        unsynced.
        """
        known = self._checkpoint
        if all_gone or (known is not None and known.segment >= base):
            self._make_birth_durable()
            self._checkpoint = Checkpoint.at_segment(base, self.log_start_offset, self._lineage)
            write_file(self._disk, self.directory / CHECKPOINT, encode_checkpoint(self._checkpoint))
            self._disk.sync_directory(self.directory)

    def _forget_above(self, end: Offset, position: int) -> None:
        """Drop references to what was cut above `end`."""
        unsynced, kept = self._unsynced, self._contents.segments
        unsynced.closed = [segment for segment in unsynced.closed if segment in kept]
        unsynced.snapshots = [(at, data) for at, data in unsynced.snapshots if at <= end]
        unsynced.active = unsynced.active and self._contents.active is not None
        unsynced.gaps_below = min(unsynced.gaps_below, end)
        self.log_end_offset = end
        self._owed = min(self._owed, end)
        if self.flushed_end > end:
            self.flushed_end, self._flushed_position = end, position
        self._epochs_changed = self._epochs.cut_from(end) or self._epochs_changed

    # compaction

    @property
    def gaps_below(self) -> Offset:
        return Offset(self._contents.gaps_below)

    @property
    def knows_gaps(self) -> bool:
        return self._compaction.note.state.is_known

    @property
    def is_compacted(self) -> bool:
        return self._contents.gaps_below > 0

    def dirtiness(self, now_ms: int, up_to: Offset) -> float:
        if self.failed or not self.config.compact:
            return 0.0
        return self._compaction.dirtiness(self.config, now_ms, self.log_start_offset, up_to)

    def begin_cleaning(
        self,
        now_ms: int,
        up_to: Offset,
        remembered: frozenset[int],
        token: str,
        *,
        tombstones_from: Offset = LAST_OFFSET,
    ) -> Cleaning | None:
        start = self.log_start_offset
        remembered |= {self.log_end_offset - 1}  # else a reader or follower would never reach the log's end
        return self._compaction.begin(self.config, now_ms, start, up_to, remembered, token, tombstones_from)

    def install_cleaned(self, cleaning: Cleaning) -> None:
        self._compaction.install(cleaning)

    def settled_cleaned(self, cleaning: Cleaning) -> None:
        self._compaction.settled(cleaning)

    def end_cleaning(self, cleaning: Cleaning) -> None:
        self._compaction.end(cleaning)
        if cleaning.is_committed:
            self.failed = True
            mark_doubt(self._disk, self.directory)

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config

    def close(self, *, clean: bool = True) -> None:
        self._drop_collected()
        try:
            if clean and not self.failed and self._exists and not self._is_clean():
                self._close_cleanly()
        finally:
            self._contents.close()

    def _close_cleanly(self) -> None:
        assert self._ticket is None, "no flush is under way"
        ticket = None
        with self._syncing_alone():
            try:
                ticket = self._make_ticket(closing=True)
                ticket.sync()
            except OSError as error:
                if ticket is not None:
                    self._take(ticket)
                if not (error.errno in OUT_OF_ROOM if ticket is None else ticket.lacks_room):
                    self._note_failure()
                raise StorageFailure(f"The log of {self.directory.name} cannot be closed cleanly: {error}.") from error
            self.finish_flush(ticket)

    def _is_clean(self) -> bool:
        known, unsynced = self._checkpoint, self._unsynced
        if unsynced.active or unsynced.besides_active:
            return False
        return known is not None and known.recovery_point == self.log_end_offset
