"""This broker's part in one partition, whoever leads it: its log and the producers that wrote to it.

`Partition` leads, `FollowerPartition` copies. They follow each other over the same log, one at a time: `end` ends the
one for good before the other is made. Promises: a failed disk ends it at once, and nothing unflushed counts, now or
later. Loop-only, but for the sync of a FlushTicket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypedDict, Unpack

from headrace.base.errors import CorruptData, NoRoom, StorageFailure
from headrace.base.ids import LAST_OFFSET, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import PRODUCER_SNAPSHOT_INTERVAL_BYTES
from headrace.base.ports import Buffer, Clock
from headrace.broker.kit.parking import FetchParking, ParkedFetch
from headrace.broker.partitions import bounds
from headrace.broker.partitions.aborted import AbortedReads
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.events import PartitionEvents
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.settings import PartitionSettings
from headrace.logs import get_logger
from headrace.metadata.segments import PartitionCatalog
from headrace.native import RoleState
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.faults import Abandoned, DamagedRange, Diverged, Overloaded
from headrace.storage.engine.flushing import FlushTicket, Outcome
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.batches import BatchHeader
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import EndMarker
from headrace.wire.validation import RecordFault

log = get_logger(__name__)


class WriteRefusal(NamedTuple):
    """Why nothing was appended, for the client."""

    error: ErrorCode
    message: str
    faults: tuple[RecordFault, ...] = ()
    """The records that are to blame, where it is not the whole batch (KIP-467)."""


class Common(TypedDict):
    """The parts of either role."""

    topic: str
    topic_partition: TopicPartition
    partition_log: PartitionLog
    producers: ProducerStates
    settings: PartitionSettings
    flusher: Flusher
    clock: Clock
    room: DiskRoom
    is_internal: bool
    events: PartitionEvents
    has_store: bool


class Replica(RoleState, ABC):
    """See the module."""

    def __init__(self, **common: Unpack[Common]) -> None:
        self.hot: Any = None
        """The native road of this role."""
        self.topic = common["topic"]
        self.topic_partition = common["topic_partition"]
        self.log = partition_log = common["partition_log"]
        self._copying = partition_log.copying
        self.settings = common["settings"]
        self.producers = common["producers"]
        self.has_store = common["has_store"]
        """Whether there is a durable store."""
        self._flusher = common["flusher"]
        self._clock = clock = common["clock"]
        self._room = common["room"]
        self._share = self._room.share(internal=common["is_internal"])
        self.events = common["events"]
        self._appended_bytes = 0
        self._snapshot_at_bytes = PRODUCER_SNAPSHOT_INTERVAL_BYTES
        self._ended = ErrorCode.NONE
        self.has_stepped_down = False
        """The role is over."""
        self.is_fenced = False
        """The log's engine refuses this leader epoch. The log has to be opened again before it gets another role."""
        self.damaged = damaged_range(partition_log)
        """All known damage of the log lies in this range of offsets; None: there is none."""
        self.history: PartitionCatalog | None = None
        """Durable segments that can be read here; None: there are none, or there is no store."""
        self._comparison = bounds.Comparison()
        self.aborted = AbortedReads(partition_log)
        """The aborted transactions that readers are told of."""
        self.fetches = FetchParking()
        """Fetches that wait for more of its data."""
        partition_log.on_failed = self._on_log_failed
        self._first_end = partition_log.log_end_offset
        has_records = partition_log.log_end_offset > partition_log.log_start_offset
        self.open_since_ms: int | None = clock.now_ms() if has_records else None
        """When the oldest record was appended that `roll` has not yet closed off, by the wall clock; None: there is
        none. It may be earlier than that where the log rolled by itself."""

    # state

    @property
    @abstractmethod
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    @abstractmethod
    def high_watermark(self) -> Offset: ...

    @property
    def appended_records(self) -> int:
        """The number of offsets given since this role began, where it gives any."""
        return self.log.log_end_offset - self._first_end

    @property
    def appended_bytes(self) -> int:
        """The bytes of these records."""
        return self._appended_bytes

    @property
    def offset_lag(self) -> int:
        """How far the log's end is behind the known high watermark (KIP-113)."""
        return 0

    @property
    def last_stable_offset(self) -> Offset:
        """The end for read_committed readers: everything below is decided. Deleted offsets count as decided."""
        end = self.visible_end
        stable = self.producers.stable_end(end)
        return stable if stable == end else max(stable, min(self.start_offset, end))

    @property
    def is_exported(self) -> bool:
        """Whether the partition is exported. Durable history has no gaps: a log with gaps above the end of its history
        is not. Where history is there first, compaction goes no further than it (`cleanable_end`)."""
        exported = 0 if self.history is None else self.history.next_offset
        return self.settings.durable and self.log.gaps_below <= exported

    @property
    def cleanable_end(self) -> Offset:
        """See `bounds.cleanable_end`."""
        return bounds.cleanable_end(self)

    @property
    def start_offset(self) -> Offset:
        """Where the partition begins for readers: with its durable history, where that joins the log without a gap. A
        log that was compacted from its start on is read alone. A tombstone that is gone from the log may have deleted
        records that history has below it."""
        local, history = self.log.log_start_offset, self.history
        return local if history is None or self.is_read_alone else history.joined_start(local)

    @property
    def is_read_alone(self) -> bool:
        """Whether its log was compacted from its start on: lower records are replaced, or deleted and their tombstone
        is gone. Where the note of that was damaged, a compacted topic's log counts as compacted, and another's does
        not."""
        may_be = 0 < self.log.gaps_below >= self.log.log_start_offset
        return may_be and (self.log.knows_gaps or self.settings.compact)

    @property
    def begins_at(self) -> Offset:
        """The first offset that is read from the log. It is above the log's start where the cluster has deleted more
        than this broker has yet."""
        local, history = self.log.log_start_offset, self.history
        return local if history is None else max(local, min(history.log_start_offset, self.high_watermark))

    def is_in_history(self, offset: Offset) -> bool:
        """Whether the offset is to be read from the durable store, as the log begins above it."""
        return self.start_offset <= offset < self.log.log_start_offset

    @property
    def differs_from(self) -> Offset | None:
        """See `Comparison.differs_from`."""
        return None if self.history is None else self._comparison.differs_from(self.log, self.history)

    def on_history(self, history: PartitionCatalog | None) -> None:
        """Note the committed history. Records that were deleted from it are deleted here too."""
        self.history = history
        if history is None or self.availability is not ErrorCode.NONE or self.log.read_only is not None:
            return
        before = min(history.log_start_offset, self.high_watermark)
        if before <= self.log.log_start_offset:
            return
        try:
            self.snapshot_producers()  # without a snapshot, recovery would lose the producers' state with these batches
            self.log.delete_records_before(Offset(before))
        except (OSError, StorageFailure) as error:
            self._fail(error)
        if self.log.needs_flush:
            self._flusher.request(self)

    @property
    def availability(self) -> ErrorCode:
        """NONE while it serves; else why not."""
        return self._ended

    @property
    def has_replaced(self) -> bool:
        """Whether its log keeps the contents that a new copy has replaced."""
        return self._copying is not None and self._copying.has_replaced

    @property
    def has_failed(self) -> bool:
        """Whether its disk has failed: it serves nothing, until the broker is started again."""
        return self._ended is ErrorCode.KAFKA_STORAGE_ERROR

    @property
    def lacks_room(self) -> bool:
        """Whether nothing is appended to it before the disk has more room. It is still read."""
        return self._share.left < 0 or self.log.lacks_room

    # reading

    @property
    def visible_end(self) -> Offset:
        """Consumers see nothing at this offset or above."""
        return self.high_watermark

    def read(self, offset: Offset, bytes_max: int, *, committed_only: bool, at_least_one: bool) -> Buffer:
        """Read whole batches from the one that holds `offset`, below the end that the reader may see. Raises
        StorageFailure, CorruptData or OSError where the disk does not give them."""
        end = self.last_stable_offset if committed_only else self.visible_end
        if offset >= end:
            return b""
        return self.log.read(offset, bytes_max, end, at_least_one=at_least_one)

    def _on_marker(self, header: BatchHeader, marker: EndMarker | None, base_offset: Offset, now_ms: int) -> None:
        """Note a control batch that was appended. Raises StorageFailure."""
        ended = self.producers.on_marker(header, marker, base_offset, now_ms)
        if ended is not None and ended.is_aborted and self.log.aborted is not None:
            self.log.aborted.add(ended.aborted)

    @abstractmethod
    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        """Return whether a reader with this leader epoch (-1: none) may read at `offset`, as an error code."""

    def awaits(self, offset: Offset) -> bool:
        """Whether a refused position will be available before long: a reader may wait for that."""
        return False

    def watch(self, waiter: ParkedFetch) -> None:
        """Tell `waiter` of bytes that become visible, and of the end of this epoch."""
        self.fetches.add(waiter, self.last_stable_offset)
        if self._ended is not ErrorCode.NONE:
            waiter.wake()

    def unwatch(self, waiter: ParkedFetch) -> None:
        self.fetches.remove(waiter)

    def on_damage(self) -> None:
        """Note damage that was found in its log."""
        self.damaged = damaged_range(self.log)

    @property
    def is_damaged(self) -> bool:
        """Whether it lacks anything from its log's start on, as far as is known."""
        return self.damaged is not None and self.damaged[1] > self.log.log_start_offset

    # upkeep

    def keep_house(self, now_ms: int, *, producers_since_ms: int) -> None:
        """Drop segments past their retention, none that reaches above `deletable_end` or the high watermark. Forget
        producers that have not written since `producers_since_ms`."""
        if self.availability is not ErrorCode.NONE or self.log.read_only is not None:
            return
        self.producers.expire(producers_since_ms)
        keeps_all = bounds.keeps_all(self)
        has_history_below = self.has_store and self.history is not None and bool(self.history.entries)
        try:
            self.on_history(self.history)  # it may have failed before
            self.log.apply_retention(
                now_ms,
                bounds.deletable_end(self),
                local=self.has_store and self.is_exported and not keeps_all,
                by_start_alone=has_history_below and keeps_all,  # or its readers would go on in history
                # without a snapshot, recovery would lose their state with these batches
                before_drop=self.snapshot_producers,
            )
        except CorruptData as error:
            self.on_unreadable(error, None)
        except (OSError, StorageFailure) as error:
            self._fail(error)
            return
        if self.log.needs_flush:
            self._flusher.request(self)

    def roll(self) -> None:
        """Close the active segment, so that it can be exported. Not once the role is over: the log may belong to a
        worker thread then, which cuts it."""
        if self.availability is not ErrorCode.NONE or self.log.read_only is not None:
            return
        try:
            self.log.roll()
        except (OSError, StorageFailure) as error:
            self._fail(error)
            return
        self.open_since_ms = None
        if self.log.needs_flush:
            self._flusher.request(self)

    def snapshot_producers(self) -> None:
        """Keep the producers' state as of the log's end, so that recovery reads no further back than here."""
        self._snapshot_at_bytes = self._appended_bytes + PRODUCER_SNAPSHOT_INTERVAL_BYTES
        if len(self.producers):
            self.log.write_producer_snapshot(self.producers.snapshot(), self.log.log_end_offset)

    def write_out(self) -> WriteRefusal | None:
        """See `PartitionLog`. For the flusher, for an acknowledgement that waits for no flush, and for a look into the
        log's files from another thread."""
        try:
            self.log.write_out()
        except StorageFailure as error:
            return self._failed(error)
        return None

    # flushing

    def begin_flush(self) -> FlushTicket | None:
        """Return the data to sync now, for the flusher."""
        if self._ended is not ErrorCode.NONE:
            return None
        self._before_flush()
        try:
            ticket = self.log.begin_flush()
        except StorageFailure as error:
            self._fail(error)
            return None
        if ticket is not None:
            self._on_flush_begun()
        elif self.log.failed and self.log.read_only is None:
            self._fail(StorageFailure("what it held could not be written"))
        return ticket

    def finish_flush(self, ticket: FlushTicket, failure: Outcome) -> None:
        """Note the end of the sync, for the flusher."""
        if failure is not None:
            self.log.fail_flush(ticket)
            is_final = self.log.failed or isinstance(failure, Abandoned)
            self._fail(failure if is_final else NoRoom(str(failure)))
            return
        flushed_end = self.log.finish_flush(ticket)  # even where the epoch is over: the log is still to be closed
        if self._ended is ErrorCode.NONE:
            self._on_flush_done(flushed_end)

    def _before_flush(self) -> None:
        """Called before a flush that will cover the unsynced data, if there is any."""

    def _on_flush_begun(self) -> None:
        """Called when a flush has begun."""

    @abstractmethod
    def _on_flush_done(self, flushed_end: Offset) -> None: ...

    # failing and ending

    def on_unreadable(self, error: Exception, offset: Offset | None) -> ErrorCode:
        """Return the error for a reader that met `error` at `offset` (None: somewhere). CORRUPT_MESSAGE stands for
        known damage, and is final. Until damage is known the reader may come again, for it may be an index."""
        if isinstance(error, StorageFailure) and self.log.failed and self.log.read_only is None:
            self._fail(error)  # its records could not be written; the journal has the acknowledged ones
        if isinstance(error, DamagedRange):
            return ErrorCode.CORRUPT_MESSAGE
        if isinstance(error, CorruptData) and not self.events.suspect(self, offset):
            return ErrorCode.CORRUPT_MESSAGE
        return ErrorCode.KAFKA_STORAGE_ERROR

    def fail_cleaning(self, cause: Exception) -> None:
        """Fail, as a cleaning got stuck half-way: only a recovery of the log can finish it."""
        self._fail(cause)

    def _on_log_failed(self, cause: StorageFailure) -> None:
        """Fail, as the log did behind its flushes, though every requested one so far is durable. An idle copy would be
        counted on for as long as nothing comes."""
        self._fail(cause)

    def _failed(self, error: Exception) -> WriteRefusal:
        self._fail(error)
        if isinstance(error, Overloaded):
            return WriteRefusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
        if isinstance(error, NoRoom):
            return WriteRefusal(ErrorCode.KAFKA_STORAGE_ERROR, self._room.medium.full)
        if isinstance(error, Abandoned):
            return WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition is led in a later epoch.")
        return WriteRefusal(ErrorCode.KAFKA_STORAGE_ERROR, self._room.medium.failed)

    def _fail(self, cause: Exception) -> None:
        """Fail with the disk: nothing unflushed is acknowledged, now or later, and nothing more is accepted. A full
        disk is no failure: unwritten data waits for room, and its clients go on waiting. Neither is a busy store."""
        if isinstance(cause, Overloaded):
            return
        if isinstance(cause, NoRoom):
            self._room.lack(self, is_full=True)
        elif isinstance(cause, Abandoned):
            self._on_abandoned(cause)
        elif self._ended is ErrorCode.NONE:
            log.error(
                f"partition offline: {self._room.medium.mend}, then restart the broker",
                topic=self.topic,
                partition=self.topic_partition.partition,
                exc_info=cause,
            )
            self.fail_again()

    def _on_abandoned(self, cause: Abandoned) -> None:
        """End this role, and its log. No disk has failed. A later leader epoch is stored already, which the image will
        show; where the store has other records, the controller is asked for one."""
        if not self.is_fenced and self._ended is ErrorCode.NONE:
            log.warning(
                "nothing more of this leader epoch is stored, or acknowledged: the partition goes on in a later one",
                topic=self.topic,
                partition=self.topic_partition.partition,
                leader_epoch=self.leader_epoch,
                reason=str(cause),
            )
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if isinstance(cause, Diverged):
                self.events.on_failed(self.topic_partition)
        self.is_fenced = True

    def go_on(self) -> bool:
        """See `Waiting`. Nothing is written while a worker thread cuts the log: the copy then goes on by itself."""
        if self.has_stepped_down or self.availability is not ErrorCode.NONE:
            return True
        if self._share.left < 0 or self.write_out() is not None:
            return False
        if self.log.needs_flush:
            self._flusher.request(self)
        return True

    def fail_again(self) -> None:
        """Fail again: the disk failed before the log got this role."""
        self.end(ErrorCode.KAFKA_STORAGE_ERROR)
        self.events.on_failed(self.topic_partition)

    def end(self, error: ErrorCode) -> None:
        """Answer everything that waits, and everything that comes, with `error`."""
        self._ended = error
        self.fetches.wake()

    def step_down(self, error: ErrorCode) -> None:
        """End the role: as `end`, and the log is for another role now, or for none."""
        self.has_stepped_down = True
        if not self.has_failed:
            self.end(error)

    async def settled(self) -> None:
        """Return once no work of this role is under way. It has stepped down."""


def damaged_range(partition_log: PartitionLog) -> tuple[Offset, Offset] | None:
    """Return the range from the first damaged offset to the last, the end exclusive. It has no end where the log is for
    reading only, for nobody knows how much it lacks."""
    if partition_log.read_only is not None:
        return partition_log.log_start_offset, LAST_OFFSET
    damages = partition_log.damages
    if not damages:
        return None
    return Offset(min(each.start for each in damages)), Offset(max(each.end for each in damages))
