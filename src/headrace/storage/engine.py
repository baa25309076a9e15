"""The port to partition logs: what the broker asks of a storage engine, whatever the engine keeps the batches in.

A `PartitionLog` belongs to the event loop. No call blocks on a sync. No two calls run at once, except where a method
says that a worker thread may make it. Everything slow goes through a `FlushTicket`, whose `sync` runs in a worker
thread. Only records below `flushed_end` count as durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, DirectoryId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.ports import Buffer, Space
from headrace.wire.batches import BatchHeader

if TYPE_CHECKING:
    from headrace.storage.log.compaction.planning import Cleaning
    from headrace.storage.log.recovery.damage import Examination

NO_GAPS: Final = Offset(0)
"""Compaction never ran: no offset has a gap below it."""


class StampMismatch(StorageFailure):
    """The directory holds this topic's data, but of another disk or another assignment. The engine does not decide
    whether that data counts. `LogEngine.set_aside` moves the directory out of the way.
    """


class DamagedLog(CorruptData):
    """Flushed records are gone, and it is unknown how many. The log can only be read."""


class DamagedRange(CorruptData):
    """The requested offset lies in a range that is known to be damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A range of offsets below the flushed end whose records cannot be read any more."""

    segment: int
    """Base offset of the segment that holds the range."""
    start: int
    end: int
    """The offset of the next sound batch, or the end of the segment."""
    position: int
    """Position in the segment's file where the sound batches before the damage end."""
    resume: int
    """Position where sound batches begin again."""
    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """The partition and assignment that a log belongs to. It is stamped on the directory at the first append and
    compared when the log is opened again.
    """

    topic_name: str
    topic_id: TopicId
    partition: PartitionIndex
    directory_id: DirectoryId
    assignment_epoch: int = 0
    """Rises each time the partition is assigned to this broker again. One assignment keeps its number over restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Kafka's topic configs, as far as a log heeds them. A retention of -1 means no limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment is closed when its records would span more milliseconds than this. Records without timestamps count by
    the wall clock.
    """
    segment_jitter_ms: int = 0
    """The most by which a segment is closed before `segment_ms`, in milliseconds. The actual amount depends on the
    segment alone.
    """
    segment_index_bytes: int = 10 * 1024 * 1024
    """A segment is closed when one of its indexes has no room for another entry within this many bytes."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    local_retention_ms: int = -2
    """Local retentions, for a log whose data is kept in another place too. -2: as `retention_ms` and `retention_bytes`.
    """
    local_retention_bytes: int = -2
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1048588
    """Enforced by the caller that takes batches from clients. The log itself accepts any size."""
    fsync: bool = True
    """False means `flush.policy=os`: an append counts as flushed at once, and only housekeeping files are synced."""
    compact: bool = False
    """`cleanup.policy` includes compact: closed segments keep only the last record of each key."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """Milliseconds that a tombstone stays after its first cleaning, so that readers under way see it."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    log_append_time: bool = False
    """`message.timestamp.type=LogAppendTime`: the leader stamps batches with the time of their append."""


def held_locally(config: LogConfig) -> LogConfig:
    """Returns the config with its local retentions in place of the whole ones. A local retention is never longer than
    the whole.
    """
    return replace(
        config,
        retention_ms=_narrower(config.local_retention_ms, config.retention_ms),
        retention_bytes=_narrower(config.local_retention_bytes, config.retention_bytes),
    )


def _narrower(local: int, whole: int) -> int:
    """-2 stands for the whole retention, -1 for no limit."""
    bounds = [bound for bound in (local, whole) if bound >= 0]
    return whole if local == -2 or not bounds else min(bounds)


class Appended(NamedTuple):
    """Offsets and time of one append."""

    base_offset: Offset
    end: Offset
    """Offset after its last record. The append is committed once the high watermark reaches it."""
    log_append_time_ms: int = -1
    """-1 where the records keep their own times."""


class FoundOffset(NamedTuple):
    """Result of a look-up by timestamp."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class EpochEnd(NamedTuple):
    """Where a leader epoch ended (KIP-101); (-1, -1) where that is unknown."""

    epoch: LeaderEpoch
    end: Offset


class SegmentInfo(NamedTuple):
    """One closed segment. Nothing is appended to it any more."""

    base_offset: Offset
    next_offset: Offset
    path: Path
    size: int
    """Bytes."""
    max_timestamp: int
    """Highest timestamp of its records, in milliseconds; -1 where they have none."""


class FlushTicket(Protocol):
    """One flush under way."""

    def sync(self) -> None:
        """Blocks; called once, in a worker thread. Raises OSError, after which only `fail_flush` may follow."""


Outcomes: TypeAlias = Callable[[], Sequence[OSError | None]]
"""Returns the outcome of each ticket of a round, in their order. None means durable. Raises only a programming error.
"""


class FlushRound(Protocol):
    """Flushes of many logs, carried out together."""

    def begin(self, done: Callable[[Outcomes], object]) -> None:
        """Called once, on the loop. `done` is called later, on the loop."""


class UpkeepWork(Protocol):
    """Background work of an engine, which no caller waits for."""

    def run(self) -> None:
        """Blocks; called once, in a worker thread. Raises nothing."""


class PartitionLog(Protocol):
    """One partition's batches. The module says which thread may call what."""

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def config(self) -> LogConfig: ...

    @property
    def directory(self) -> Path: ...

    @property
    def was_closed(self) -> bool:
        """Whether everything appended in the log's last life is here. That is so if the log was closed, or nothing came
        after a flush that vouches for everything. It serves one line in the broker's log, where appends count without a
        flush.
        """

    @property
    def set_aside(self) -> Path | None:
        """Where `open` moved a directory of this name that did not belong to the log. It serves one line in the
        broker's log.
        """

    @property
    def log_start_offset(self) -> Offset:
        """First readable offset. May lie inside a batch."""

    @property
    def log_end_offset(self) -> Offset:
        """Base offset of the next append."""

    @property
    def flushed_end(self) -> Offset:
        """Everything below it is durable (with `flush.policy=os`: in the page cache)."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def failed(self) -> bool:
        """A disk failed. The log accepts no append any more; flushed records can still be read."""

    @property
    def lacks_room(self) -> bool:
        """The last write found a full disk. Earlier appends stay in the log and stay readable. The next `write_out` or
        flush that finds room writes them.
        """

    on_failed: Callable[[], object] | None
    """Called on the loop when background work makes the log fail."""

    @property
    def needs_flush(self) -> bool:
        """Whether `begin_flush` would return a ticket, now or once the present one is finished."""

    @property
    def epochs(self) -> Sequence[tuple[LeaderEpoch, Offset]]:
        """Leader epochs with their start offsets, in rising order."""

    def append(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        at_once: bool = False,
    ) -> Appended:
        """Append checked batches (`check_batches`: position and header of each), giving them offsets and epoch.

        `batches` is neither copied nor changed. The log may keep it; `write_out`, a read or the next flush writes it.
        With `at_once` it is in the log's files on return, and so is all that was appended before it. Raises
        StorageFailure, and then none of the batches is in the log. NoRoom is not final, here and in all other calls.
        """

    def append_verbatim(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        now_ms: int,
        gaps_below: Offset = NO_GAPS,
    ) -> Appended:
        """Append a leader's batches as they are.

        Below `gaps_below` the leader's log was compacted, so batches there need not follow one another. Once flushed,
        this log has gaps there too. Raises CorruptBatch where the batches do not continue at the log's end.
        """

    def skip_to(self, offset: Offset, *, now_ms: int) -> None:
        """Continue at `offset`, above the log's end, because compaction left nothing before it. The log then needs a
        flush, as after an append. Raises StorageFailure.
        """

    def write_out(self) -> None:
        """Write all appended batches to the log's files.

        Until this call, flushed batches may be in the engine's journal alone; they must be written before the next
        flush begins. After it, unflushed batches outlive this process too. Raises StorageFailure where the log has
        failed: batches that were neither written nor flushed are then no longer in it. Raises NoRoom where the disk is
        full: the log then still holds all of them.
        """

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        """Return whole batches below `end`, from the one that holds `start` (at or above `log_start_offset`).

        Returns at most `max_bytes`; with `at_least_one` the first batch is returned whatever its size. A read stops at
        the end of a segment, so fewer bytes do not mean the end of the log. The result is empty only where there is no
        batch below `end`, or none fits. Raises StorageFailure, or CorruptData where the bytes are no batches.
        """

    def begin_flush(self) -> FlushTicket | None:
        """Take up what has to be synced now. Returns None where nothing has, or while another ticket is out. Raises
        StorageFailure where the log has failed.
        """

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        """The ticket's sync succeeded. Returns the new `flushed_end`."""

    def fail_flush(self, ticket: FlushTicket) -> None:
        """The ticket's sync raised. The log has failed for good, and its unflushed tail is dropped. Where the cause was
        a full disk, before any sync failed, the log has not failed: the next flush does all of the work.
        """

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Leader epoch of the batch at `offset`, or of the next batch where `offset` is the log's end. -1 where it is
        unknown.
        """

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """A leader epoch begins at the log's end. Its entry is known before its first append (KIP-101)."""

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        """The largest epoch not above `epoch`, and where it ended. The newest epoch ends at the log's end (KIP-101,
        KIP-279).
        """

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        """The first written-out record at or after `timestamp`. Any thread may call it. It reads the disk and may
        decompress a batch.
        """

    def max_timestamp(self) -> FoundOffset | None:
        """The first record with the highest timestamp (KIP-734). Any thread may call it."""

    def batches_from(self, start: Offset, end: Offset = LAST_OFFSET) -> Iterator[BatchHeader]:
        """Headers of the batches that begin below `end`, from the batch that holds `start`. Any thread may call it,
        before the log is appended to.
        """

    def roll(self) -> None:
        """Close the active segment, unless it is empty. The next append opens another."""

    def closed_segments(self) -> list[SegmentInfo]:
        """Closed segments that are flushed, in offset order. The first call for each may read 12 bytes."""

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> list[SegmentInfo]:
        """Drop the oldest segments that exceed a retention, none that reaches above `up_to`.

        `local` applies the local retentions, since everything below `up_to` is kept in another place too.
        `by_start_alone` drops only segments that lie below the log's start, or that compaction has emptied.
        `before_drop` is called where any are dropped.

        The log's start moves now. Files are removed by the next flush, after the new start is durable. Closes the
        active segment where all of it is too old. Records without timestamps never grow old.
        """

    def delete_records_before(self, offset: Offset) -> Offset:
        """Move the log's start up to `offset` (KIP-107) and return the new start, which is durable with the next flush.
        Files are removed as in `apply_retention`, which also removes those that a cleaning holds now.
        """

    def truncate_to(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        """Durably cut all batches that reach above `offset`, and forget epochs that begin at the end.

        `producers` is called once, with the offset where the log will end, while the whole log is still there. It
        returns the producer snapshot that is made durable before newer ones are removed; empty means none. Blocks;
        called in a worker thread, with no ticket out. No other call to this log may be under way, except reads by
        `producers`. Raises StorageFailure, also where the log has failed before. An exception of `producers` passes
        through, with nothing cut. NoRoom: nothing is done yet, and the call may be repeated. But where the log has
        failed with it, close the log, and open it again as after a crash.
        """

    def restart_at(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> None:
        """Durably drop everything. The next append is at `offset`, behind an entry of `epoch`, with `producers` as the
        latest snapshot. A crash on the way leaves a beginning of the old log, or a log that begins at `offset` with its
        producers. Called as `truncate_to`.
        """

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> Path | None:
        """As `restart_at`, but the old contents are set aside, durably and for good. Returns their directory; None
        where the log was empty. A crash on the way leaves the log as it was, or a log that begins at `offset`, with all
        old contents kept.
        """

    def begin_anew(self) -> None:
        """Durably drop everything, damage too. The next append is at 0, even where the log was read-only. The old
        contents are kept beside the log, unless some are kept already. Called as `truncate_to`.
        """

    @property
    def has_replaced(self) -> bool:
        """Whether contents from before `begin_anew` are kept beside the log."""

    def drop_replaced(self) -> None:
        """Remove the contents that `begin_anew` kept. Blocks; any thread may call it, one at a time and not during
        `begin_anew`. Raises StorageFailure.
        """

    @property
    def gaps_below(self) -> Offset:
        """Batches or records may be missing below this offset, because compaction ran. 0: compaction never ran."""

    @property
    def knows_gaps(self) -> bool:
        """False: the file with the gaps was damaged, and `gaps_below` is the worst that it can have said. Nothing may
        be deleted because of it.
        """

    @property
    def is_compacted(self) -> bool:
        """Whether batches or records may be missing from its closed segments, now or soon."""

    def dirtiness(self, now_ms: int, up_to: Offset) -> float:
        """The fraction of its closed segments below `up_to` that compaction has not covered yet. 0 where none is due:
        too little, too young, not configured, or a cleaning is under way. May read a header. Raises OSError.
        """

    def begin_cleaning(
        self,
        now_ms: int,
        up_to: Offset,
        remembered: frozenset[int],
        token: str,
        *,
        tombstones_from: Offset = LAST_OFFSET,
    ) -> Cleaning | None:
        """Take up the batches below `up_to` (the last stable offset), for worker threads. Returns None where there are
        none.

        Batches that end at a `remembered` offset stay, without records if need be. Tombstones from `tombstones_from` on
        that nothing replaces stay too. Until `end_cleaning` no segment is dropped, and the log may not be cut or
        closed. Raises OSError.
        """

    def install_cleaned(self, cleaning: Cleaning) -> None:
        """After `Cleaning.commit`: read the segments that it made."""

    def settled_cleaned(self, cleaning: Cleaning) -> None:
        """Called after `Cleaning.settle`."""

    def end_cleaning(self, cleaning: Cleaning) -> None:
        """The cleaning is over. If it ended between its commit and its settling, the log has failed, and recovery
        finishes it.
        """

    @property
    def read_only(self) -> str | None:
        """A sentence where the records flushed last are gone; None otherwise. Then nothing may be appended, and the
        log's true end is unknown: `log_end_offset` is the end of the remaining records. The log counts as `failed`.
        """

    @property
    def damages(self) -> Sequence[Damage]:
        """Ranges of offsets that cannot be read any more, in order. A read inside one raises DamagedRange. A read below
        one ends before it.
        """

    @property
    def segments(self) -> Sequence[Offset]:
        """Base offsets of the segments that are not empty."""

    def segment_of(self, offset: Offset) -> Offset:
        """Base offset of the segment that holds the offset."""

    def begin_examination(self, base: Offset) -> Examination | None:
        """Take up a segment, for a worker thread that reads all of it. Returns None where there is no such segment,
        something has to be written out, or an examination or a cleaning is under way.
        """

    def end_examination(self, examination: Examination, *, done: bool) -> Sequence[Damage]:
        """The examination is over. If it is done and concluded, reads heed what it found from now on. Returns the
        damage that is new.
        """

    def reconfigure(self, config: LogConfig) -> None:
        """The config holds from the next append on."""

    def write_producer_snapshot(self, data: bytes, offset: Offset) -> None:
        """Keep the producers' state as of `offset` (the log's end). It is durable with the next flush."""

    @property
    def sealed_in(self) -> LeaderEpoch | None:
        """The leader epoch in which the log was about to be handed over, as `mark_sealed` recorded it. None: no
        epoch.
        """

    def mark_sealed(self, epoch: LeaderEpoch) -> None:
        """Durably record that nothing is appended in that leader epoch any more. Blocks; any thread may call it. Raises
        OSError.
        """

    def forget_seal(self) -> None:
        """The result of the handover is known. The mark is removed with the next flush."""

    def settle_empty(self, producers: bytes | None) -> None:
        """Make an empty log durable: its identity, its start offset, and the state of its producers from before.
        Blocks; called before anything else uses the log. Raises StorageFailure, after which this object is of no use.
        NoRoom: the log may be opened again.
        """

    def latest_producer_snapshot(self, end: Offset = LAST_OFFSET) -> tuple[Offset, bytes] | None:
        """The newest producer snapshot as of `end` or before. Blocks (it reads a file). Called in a worker thread,
        before the log is appended to.
        """

    def close(self, *, clean: bool = True) -> None:
        """Blocks; called in a worker thread. `clean` flushes everything, so that the next open has nothing to check."""


class LogOpening(Protocol):
    """A log that has been read, and still has to be made durable as it was found."""

    @property
    def must_sync(self) -> bool:
        """Whether `finish` has to sync anything."""

    def finish(self) -> PartitionLog:
        """Blocks; called once. Raises StorageFailure."""


class LogRemoval(Protocol):
    """The remaining files of a deleted log."""

    @property
    def directory(self) -> Path: ...

    def some(self) -> bool:
        """Remove so little that no sync waits long for it. Returns whether nothing is left. Called in a worker thread,
        one call at a time. Raises OSError where none of the remaining files can be removed; it may be tried again.
        """


class LogEngine(Protocol):
    """Keeps the logs of one data directory. All calls block and belong in a worker thread, except those for rounds and
    upkeep.
    """

    @property
    def root(self) -> Path:
        """The directory that holds all logs."""

    def space(self) -> Space:
        """Space of the volume that holds the logs. Raises OSError."""

    def start(self) -> Sequence[Path]:
        """Called once, before any `open`. Returns the directories of deletions that a stop or a crash cut short, for
        `removal`. Raises StorageFailure.
        """

    def identities(self) -> list[LogIdentity]:
        """The identities stamped on the directories that exist."""

    def open(self, identity: LogIdentity, config: LogConfig, *, start: Offset = ...) -> PartitionLog:
        """Recover the partition's log, or begin an empty one at `start`.

        An empty log makes no file before its first append. The exception: if a journal may hold something of an earlier
        log here, the new log's identity is made durable at once. A directory of another topic's id is set aside. So is
        one without a stamp: nothing in it was ever flushed. Ends by flushing the records that it accepted. Where
        flushed records are gone, it changes nothing, and the log is `read_only`. Raises StampMismatch, StorageFailure.
        """

    def begin_open(self, identity: LogIdentity, config: LogConfig, *, start: Offset = ...) -> LogOpening:
        """`open` in two steps. This one uses the processor; `LogOpening.finish` waits for the disk, and many logs may
        wait at once. Raises StampMismatch, StorageFailure.
        """

    def stamped(self, identity: LogIdentity) -> LogIdentity | None:
        """The identity stamped on the partition's directory, where it is of this topic. Raises OSError."""

    def set_aside(self, identity: LogIdentity) -> Path | None:
        """Rename the partition's directory, durably, so that `open` finds nothing. None where there is none."""

    def delete(self, identity: LogIdentity) -> None:
        """Delete the partition's directory, where it has this topic id. The log must be closed."""

    def begin_delete(self, identity: LogIdentity) -> Path | None:
        """`delete`, without its waiting time. The log is durably gone when this returns. `removal` removes the
        remaining files, in this life of the broker or the next. Returns None where none remain.
        """

    def removal(self, left: Path) -> LogRemoval:
        """Removes the directory that `start` or `begin_delete` returned. Nothing is removed yet. Any thread may call
        it.
        """

    def begin_round(self, tickets: Sequence[FlushTicket]) -> FlushRound:
        """Flush these tickets together, in the engine's best way. Called on the loop; one round at a time."""

    def end_round(self, ended: FlushRound) -> None:
        """The round's sync is over. Called on the loop, before the tickets are finished."""

    @property
    def has_given_up_journal(self) -> bool:
        """Each flush syncs the logs' own files until the next start. The disk of the journal has failed, or that of a
        log with records in it.
        """

    def begin_upkeep(self) -> UpkeepWork | None:
        """Returns the engine's background work, where there is any and none is under way. Called on the loop, at least
        after each round.
        """

    def end_upkeep(self, ended: UpkeepWork) -> None:
        """The work has run. Called on the loop."""

    def close(self, *, clean: bool = True) -> None:
        """The last call, after every log was closed; `clean` as for the logs. Raises OSError."""
