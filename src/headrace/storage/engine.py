"""The one port to partition logs: what the broker asks of an engine, whatever it keeps the batches in.

A `PartitionLog` belongs to the event loop: no call blocks on a sync, and no two calls run at once, except where a
method says that a worker thread may make it. Everything slow goes through a `FlushTicket`, whose `sync` runs in a
worker thread. What counts as durable is below `flushed_end`, and nothing else is.
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
"""Compaction never ran: below no offset are there any."""


class StampMismatch(StorageFailure):
    """The directory holds this topic's data, but of another disk or another assignment: whether it counts is not for
    the engine to say. `LogEngine.set_aside` moves it out of the way."""


class DamagedLog(CorruptData):
    """What was flushed is gone, and nobody knows how much of it: the log is for reading only."""


class DamagedRange(CorruptData):
    """The offset that is asked for lies in a range that is known to be damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A range of offsets below the flushed end whose records cannot be read any more."""

    segment: int
    """Base offset of the segment that holds it."""
    start: int
    end: int
    """The offset of the next sound batch, or the end of the segment."""
    position: int
    """Where in the segment's file sound batches end."""
    resume: int
    """Where they begin again."""
    reason: str
    """A sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Whose log it is. Stamped on the directory at its first append and compared when it is opened again."""

    topic_name: str
    topic_id: TopicId
    partition: PartitionIndex
    directory_id: DirectoryId
    assignment_epoch: int = 0
    """Rises when the partition is assigned here anew; one assignment keeps its number over restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Kafka's topic configs, as far as a log heeds them. -1 is 'without bound' for the retentions."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment is closed when its records would span more time than this (by the wall clock where they have none)."""
    segment_jitter_ms: int = 0
    """Most by which a segment is closed before `segment_ms`; how much it is depends on the segment alone."""
    segment_index_bytes: int = 10 * 1024 * 1024
    """A segment is closed when one of its indexes has no room for another entry in so many bytes."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    local_retention_ms: int = -2
    """The retentions of what is kept elsewhere too; -2: the same."""
    local_retention_bytes: int = -2
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1048588
    """For the one who takes batches from clients: the log itself takes any size."""
    fsync: bool = True
    """False: `flush.policy=os`, an append counts as flushed at once, and only housekeeping is synced."""
    compact: bool = False
    """`cleanup.policy` names compact: of each key only the last record is kept, in closed segments."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """Time that a tombstone stays after its first cleaning, so that readers on their way see it."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    log_append_time: bool = False
    """`message.timestamp.type=LogAppendTime`: the leader stamps batches with the time of their append."""


def held_locally(config: LogConfig) -> LogConfig:
    """With the local retentions for its own: none keeps anything longer than the whole is kept."""
    return replace(
        config,
        retention_ms=_narrower(config.local_retention_ms, config.retention_ms),
        retention_bytes=_narrower(config.local_retention_bytes, config.retention_bytes),
    )


def _narrower(local: int, whole: int) -> int:
    """-2: as the whole; -1: without bound."""
    bounds = [bound for bound in (local, whole) if bound >= 0]
    return whole if local == -2 or not bounds else min(bounds)


class Appended(NamedTuple):
    """Where an append stands."""

    base_offset: Offset
    end: Offset
    """Offset after its last record: what the high watermark must reach before it is committed."""
    log_append_time_ms: int = -1
    """-1 where the records keep their own times."""


class FoundOffset(NamedTuple):
    """Answer of a look-up by time."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class EpochEnd(NamedTuple):
    """Where an epoch ended (KIP-101); (-1, -1) where it is not known."""

    epoch: LeaderEpoch
    end: Offset


class SegmentInfo(NamedTuple):
    """One closed segment: nothing is added to it any more."""

    base_offset: Offset
    next_offset: Offset
    path: Path
    size: int
    """Bytes."""
    max_timestamp: int
    """Highest of its records' times, milliseconds; -1 where they have none."""


class FlushTicket(Protocol):
    """One flush under way."""

    def sync(self) -> None:
        """Blocking: in a worker thread, once. Raises OSError, after which only `fail_flush` may follow."""


Outcomes: TypeAlias = Callable[[], Sequence[OSError | None]]
"""Asks what became of each ticket of a round, in their order; None: it is durable. Raises a mistake of ours."""


class FlushRound(Protocol):
    """Flushes of many logs, carried out together."""

    def begin(self, done: Callable[[Outcomes], object]) -> None:
        """On the loop, once. `done` is called on the loop, later."""


class UpkeepWork(Protocol):
    """Work of an engine for itself, which nobody waits for."""

    def run(self) -> None:
        """Blocking: in a worker thread, once. Raises nothing."""


class PartitionLog(Protocol):
    """One partition's batches. See the module for who may call what."""

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def config(self) -> LogConfig: ...

    @property
    def directory(self) -> Path: ...

    @property
    def was_closed(self) -> bool:
        """Whether all that was appended in its last life is here: it was closed, or nothing has come since a flush that
        vouches for all. For one line in the log, where appends count without a flush."""

    @property
    def set_aside(self) -> Path | None:
        """Where `open` moved what it found under this name and did not belong to it. For one line in the log."""

    @property
    def log_start_offset(self) -> Offset:
        """First offset that may be read. May lie inside a batch."""

    @property
    def log_end_offset(self) -> Offset:
        """The next append's base offset."""

    @property
    def flushed_end(self) -> Offset:
        """Everything below is durable (with `flush.policy=os`: in the page cache)."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def failed(self) -> bool:
        """A disk failed: no append is taken any more; what was flushed may still be read."""

    @property
    def lacks_room(self) -> bool:
        """The last write found a full disk. What was appended before stays in the log, is read as ever, and is written
        by the next `write_out` or flush that finds room."""

    on_failed: Callable[[], object] | None
    """Told, on the loop, where that comes of work that nobody waits for."""

    @property
    def needs_flush(self) -> bool:
        """`begin_flush` would give a ticket, now or once the present one is finished."""

    @property
    def epochs(self) -> Sequence[tuple[LeaderEpoch, Offset]]:
        """Leader epochs with their start offsets, rising."""

    def append(
        self, batches: Buffer, headers: Sequence[tuple[int, BatchHeader]], *, leader_epoch: LeaderEpoch, now_ms: int
    ) -> Appended:
        """Append checked batches (`check_batches`: position and header of each), giving them offsets and epoch.

        `batches` is neither copied nor changed; it may be kept, and written by `write_out`, a read or the next flush.
        Raises StorageFailure: nothing of it is in the log then. That it is NoRoom is not final, as everywhere here.
        """

    def append_verbatim(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        now_ms: int,
        gaps_below: Offset = NO_GAPS,
    ) -> Appended:
        """Append a leader's batches as they are. Raises CorruptBatch where they do not go on at the log's end. Below
        `gaps_below` the leader's log was compacted, and they need not; once flushed, this log has gaps there too."""

    def skip_to(self, offset: Offset, *, now_ms: int) -> None:
        """Go on at `offset`, above the log's end: compaction has left nothing of what was before it. Raises
        StorageFailure. It is to be flushed, as if there had been an append."""

    def write_out(self) -> None:
        """Give all that was appended to the log's files. What is flushed may be in the engine's journal alone until
        then, and is to be written before the next flush begins; what is not flushed outlives this process from then on.
        Raises StorageFailure: the log has failed, and what was neither written nor flushed is no longer in it; NoRoom:
        all of it still is."""

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        """Whole batches below `end`, from the one that holds `start` (at or above `log_start_offset`).

        At most `max_bytes`; with `at_least_one` the first batch is given whatever its size. Ends at a segment's end,
        so that fewer bytes do not mean the end of the log; empty only where there is none below `end`, or none fits.
        Raises StorageFailure, or CorruptData where the bytes are no batches.
        """

    def begin_flush(self) -> FlushTicket | None:
        """Take up what is to be synced now; None where nothing is, or while a ticket is out. Raises StorageFailure:
        the log has failed."""

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        """The ticket's sync succeeded: the new `flushed_end`."""

    def fail_flush(self, ticket: FlushTicket) -> None:
        """The ticket's sync raised: the log has failed for good, and its unflushed tail is dropped. Where that was for
        want of room, before anything failed to sync, the log has not: the next flush has all of it to do."""

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Epoch of the batch at `offset` (or of the next to come, at the end); -1 where none is known."""

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """A leadership begins at the log's end: its entry is known before its first append (KIP-101)."""

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        """The largest epoch not above `epoch`, and where it ended: the log's end for the newest (KIP-101, KIP-279)."""

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        """The first record at or after `timestamp` of what is written out. Any thread; reads the disk and may unpack a
        batch."""

    def max_timestamp(self) -> FoundOffset | None:
        """The first record with the highest timestamp (KIP-734). Any thread, as above."""

    def batches_from(self, start: Offset, end: Offset = LAST_OFFSET) -> Iterator[BatchHeader]:
        """Headers from the batch that holds `start`, of batches that begin below `end`. Any thread, before the log is
        appended to."""

    def roll(self) -> None:
        """Close the active segment, where it holds anything; the next append opens another."""

    def closed_segments(self) -> list[SegmentInfo]:
        """Closed segments that are flushed, in offset order. The first touch of each may read 12 bytes."""

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> list[SegmentInfo]:
        """Drop the oldest segments that are too old or too many, none that reaches above `up_to`. `local`: by the local
        retentions, for all below `up_to` is kept elsewhere too. `by_start_alone`: no others than those that lie below
        the log's start, or that compaction has emptied. `before_drop` is called where any go.

        The log's start moves now; files go with the next flush, after the new start is durable. Closes the active
        segment where it is all too old. Records without times never grow old.
        """

    def delete_records_before(self, offset: Offset) -> Offset:
        """Move the log's start up to `offset` (KIP-107), durable with the next flush; returns the new start. Files go
        as with `apply_retention`, which also sees to those that a cleaning holds now."""

    def truncate_to(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        """Cut all batches that reach above `offset`, durably, and forget epochs that begin at the end. `producers` is
        told where the log will end, once and while all of it is there, and gives the snapshot that is durable before
        newer ones go (empty: none). Blocking: in a worker thread, with no other call to this log under way, but for
        reads by `producers`, and no ticket out. Raises StorageFailure, also where the log has failed before, and what
        `producers` raises, with nothing cut."""

    def restart_at(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> None:
        """Drop everything, durably; the next append is at `offset`, behind a record of `epoch`, with `producers` as the
        latest snapshot. A crash in between leaves a beginning of what the log was, or one that is begun at `offset`
        with its producers. As `truncate_to`."""

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> Path | None:
        """As `restart_at`, but what it had is set aside, durably and for good: where; None: it had nothing. A crash in
        between leaves the log as it was, or one that is begun at `offset`, all of it kept."""

    def begin_anew(self) -> None:
        """Drop everything, damage too, durably; the next append is at 0, also where it was for reading only. What it
        had is kept beside it, unless something is already. As `truncate_to`."""

    @property
    def has_replaced(self) -> bool:
        """Whether what it had before it was begun anew is kept beside it."""

    def drop_replaced(self) -> None:
        """That goes. Blocking: any thread, one at a time, and no `begin_anew` meanwhile. Raises StorageFailure."""

    @property
    def gaps_below(self) -> Offset:
        """Batches or records may be missing below it, where compaction ran; 0: it never did."""

    @property
    def knows_gaps(self) -> bool:
        """False: what says so was damaged, and `gaps_below` is the worst that it may have said: nothing is to be
        deleted for it."""

    @property
    def is_compacted(self) -> bool:
        """Whether batches or records may be missing from its closed segments, or soon be."""

    def dirtiness(self, now_ms: int, up_to: Offset) -> float:
        """The part of its closed segments below `up_to` that compaction has not been over yet; 0 where none is due
        (too little, too young, not wanted, or one is out). May read a header. Raises OSError."""

    def begin_cleaning(
        self,
        now_ms: int,
        up_to: Offset,
        remembered: frozenset[int],
        token: str,
        *,
        tombstones_from: Offset = LAST_OFFSET,
    ) -> Cleaning | None:
        """Take up what lies below `up_to` (the last stable offset), for worker threads; None where there is nothing.
        Batches that end at a `remembered` offset stay, if need be without records, and so do tombstones from
        `tombstones_from` on that nothing replaces. Until `end_cleaning` no segment is
        dropped, and the log may not be cut or closed. Raises OSError."""

    def install_cleaned(self, cleaning: Cleaning) -> None:
        """After `Cleaning.commit`: read what it has made."""

    def settled_cleaned(self, cleaning: Cleaning) -> None:
        """After `Cleaning.settle`."""

    def end_cleaning(self, cleaning: Cleaning) -> None:
        """It is over. Where that came between a commit and its settling, the log has failed: recovery finishes it."""

    @property
    def read_only(self) -> str | None:
        """A sentence, where what was flushed last is gone: then nothing may be appended, and the log's true end is not
        known; `log_end_offset` is that of what is left. It counts as `failed`."""

    @property
    def damages(self) -> Sequence[Damage]:
        """Ranges of offsets that cannot be read any more, in order. A read of one raises DamagedRange; a read below it
        ends before it."""

    @property
    def segments(self) -> Sequence[Offset]:
        """Base offsets of those that hold anything."""

    def segment_of(self, offset: Offset) -> Offset:
        """Base offset of the one that holds it."""

    def begin_examination(self, base: Offset) -> Examination | None:
        """Take up a segment, for a worker thread that reads all of it; None where there is none, something is to be
        written out, or an examination or a cleaning is out."""

    def end_examination(self, examination: Examination, *, done: bool) -> Sequence[Damage]:
        """It is over. Done, and concluded: from now on reads heed what it found. Gives the damage that is new."""

    def reconfigure(self, config: LogConfig) -> None:
        """Holds from the next append on."""

    def write_producer_snapshot(self, data: bytes, offset: Offset) -> None:
        """Keep the producers' state as of `offset` (the log's end); durable with the next flush."""

    @property
    def sealed_in(self) -> LeaderEpoch | None:
        """The leader epoch in which it was about to be handed over, as `mark_sealed` has left it; None: in none."""

    def mark_sealed(self, epoch: LeaderEpoch) -> None:
        """Keep durably that nothing is appended in that leader epoch any more. Blocking: any thread. Raises OSError."""

    def forget_seal(self) -> None:
        """What became of it is known. The mark goes with the next flush."""

    def settle_empty(self, producers: bytes | None) -> None:
        """Make it durable where it begins, though nothing was ever appended: whose log it is, from where on, and what
        its producers wrote before that. Blocking: before anybody else has the log. Raises StorageFailure."""

    def latest_producer_snapshot(self, end: Offset = LAST_OFFSET) -> tuple[Offset, bytes] | None:
        """The newest one as of `end` or before. Blocking (reads a file); in a worker thread, before the log is appended
        to."""

    def close(self, *, clean: bool = True) -> None:
        """Blocking, in a worker thread. Clean: all is flushed and the next open has nothing to check."""


class LogOpening(Protocol):
    """A log that is read, and still to be made durable as it was found."""

    @property
    def must_sync(self) -> bool:
        """Whether that takes any time."""

    def finish(self) -> PartitionLog:
        """Blocking, once. Raises StorageFailure."""


class LogRemoval(Protocol):
    """What is left of a log that is gone."""

    @property
    def directory(self) -> Path: ...

    def some(self) -> bool:
        """Remove so little of it that no sync of anybody's waits long for it; whether that was all. Raises OSError
        where nothing of what is left can be removed; it may be tried again. In a worker thread, one call at a time."""


class LogEngine(Protocol):
    """Keeps the logs of one data directory. Calls are blocking, in a worker thread, but for rounds and upkeep."""

    @property
    def root(self) -> Path:
        """The directory of them all."""

    def space(self) -> Space:
        """Of the volume that it is on. Raises OSError."""

    def start(self) -> Sequence[Path]:
        """Once, before any `open`: what deletions have left that a stop or a crash cut short, for `removal`. Raises
        StorageFailure."""

    def identities(self) -> list[LogIdentity]:
        """What is stamped on the directories that are there."""

    def open(self, identity: LogIdentity, config: LogConfig, *, start: Offset = ...) -> PartitionLog:
        """Recover the partition's log, or begin an empty one at `start` (no file is made before the first append,
        unless a journal may have something of a log that was here before: then it is durable whose it is).

        A directory of another topic's id, or without a stamp (nothing in it was ever flushed), is set aside. Ends
        by flushing what it accepted. Where something that was flushed is gone, it changes nothing, and the log is
        `read_only`. Raises StampMismatch, StorageFailure.
        """

    def begin_open(self, identity: LogIdentity, config: LogConfig, *, start: Offset = ...) -> LogOpening:
        """The same in two steps: this one takes the processor, the other waits for the disk, and many logs may wait at
        once. Raises StampMismatch, StorageFailure."""

    def stamped(self, identity: LogIdentity) -> LogIdentity | None:
        """What is stamped on the partition's directory, where that is of this topic. Raises OSError."""

    def set_aside(self, identity: LogIdentity) -> Path | None:
        """Rename the partition's directory, durably, so that `open` finds nothing. None where there is none."""

    def delete(self, identity: LogIdentity) -> None:
        """Delete the partition's directory, where it is of this topic id. The log must be closed."""

    def begin_delete(self, identity: LogIdentity) -> Path | None:
        """The same, but for the time that it takes: durably it is not there any more; what is left goes by
        `removal`, in this life or the next. None: nothing is."""

    def removal(self, left: Path) -> LogRemoval:
        """Of what `start` or `begin_delete` has left. Nothing is done yet: any thread."""

    def begin_round(self, tickets: Sequence[FlushTicket]) -> FlushRound:
        """Flush these together, however that is done best. On the loop; one round at a time."""

    def end_round(self, ended: FlushRound) -> None:
        """Its sync is over. On the loop, before the tickets are ended."""

    @property
    def has_given_up_journal(self) -> bool:
        """Each flush syncs the logs' own files until the next start, for the disk of the journal, or of a log that it
        holds something of, has failed."""

    def begin_upkeep(self) -> UpkeepWork | None:
        """What the engine has to do for itself, where there is anything and none is under way. On the loop, now and
        then: after each round at least."""

    def end_upkeep(self, ended: UpkeepWork) -> None:
        """It was run. On the loop."""

    def close(self, *, clean: bool = True) -> None:
        """The last call, after every log was closed, as cleanly as they were. Raises OSError."""
