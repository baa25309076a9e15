"""What this broker keeps of one partition, whoever leads it: its log and the producers that wrote to it.

`Partition` is one that is led here, `FollowerPartition` one that is copied here. They follow each other over the same
log, one at a time: `end` ends the one for good before the other is made. Promises: a failed disk ends it at once, and
nothing unflushed counts, now or later. Loop-only, but for the sync of a FlushTicket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypedDict, Unpack

import structlog

from headrace.base.errors import CorruptData, NoRoom, StorageFailure
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import PRODUCER_SNAPSHOT_INTERVAL_BYTES
from headrace.base.ports import Buffer, Clock
from headrace.broker.kit.parking import ParkedFetch
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.settings import PartitionSettings
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.replica.producers import ProducerStates
from headrace.storage.engine import DamagedRange, FlushTicket, PartitionLog
from headrace.wire.errors import ErrorCode
from headrace.wire.validation import RecordFault

log = structlog.get_logger(__name__)


class WriteRefusal(NamedTuple):
    """Why nothing was appended, for the client."""

    error: ErrorCode
    message: str
    faults: tuple[RecordFault, ...] = ()
    """The records that are to blame, where it is not the whole batch (KIP-467)."""


FULL: Final = "The broker's disk has no room; nothing was appended. Retry: it is taken once there is some."

Suspect = Callable[["Replica", Offset | None], bool]
"""Told where a log could not be read (None: somewhere): whether it will be looked at."""


Failed = Callable[[TopicPartition], None]
"""Told of a partition whose disk has failed."""


class Common(TypedDict):
    """What either role is made of."""

    topic: str
    topic_partition: TopicPartition
    partition_log: PartitionLog
    producers: ProducerStates
    settings: PartitionSettings
    flusher: Flusher
    clock: Clock
    room: DiskRoom
    is_internal: bool
    suspect: Suspect
    failed: Failed
    has_store: bool


class Replica(ABC):
    """See the module."""

    def __init__(self, **common: Unpack[Common]) -> None:
        self.topic = common["topic"]
        self.topic_partition = common["topic_partition"]
        self.log = partition_log = common["partition_log"]
        self.settings = common["settings"]
        self.producers = common["producers"]
        self.has_store = common["has_store"]
        """Whether there is a durable store."""
        self._flusher = common["flusher"]
        self._clock = clock = common["clock"]
        self._room = common["room"]
        self._share = self._room.share(internal=common["is_internal"])
        self._suspect = common["suspect"]
        self._tell_failed = common["failed"]
        self._appended_bytes = 0
        self._snapshot_at_bytes = PRODUCER_SNAPSHOT_INTERVAL_BYTES
        self._ended = ErrorCode.NONE
        self.has_stepped_down = False
        """The role is over."""
        self.damaged = damaged_range(partition_log)
        """All that is known to be damaged of its log lies in this range of offsets; None: nothing is."""
        self.history: PartitionCatalog | None = None
        """Durable segments that can be read here; None: there are none, or there is no store."""
        self._compared: tuple[tuple[str, Sequence[tuple[LeaderEpoch, Offset]], Offset, Offset], Offset | None] | None
        self._compared = None
        """Which catalog and epochs `differs_from` has compared, up to which segment's end, where the log had gaps, and
        what it found."""
        self._watchers: dict[ParkedFetch, None] = {}
        partition_log.on_failed = self._on_log_failed
        self._first_end = partition_log.log_end_offset
        has_records = partition_log.log_end_offset > partition_log.log_start_offset
        self.open_since_ms: int | None = clock.now_ms() if has_records else None
        """When the oldest record that `roll` has not yet closed off was appended, by the wall clock; None: there is
        none. May be earlier than that where the log rolled by itself."""

    # what is known

    @property
    @abstractmethod
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    @abstractmethod
    def high_watermark(self) -> Offset: ...

    @property
    def appended_records(self) -> int:
        """Offsets that were given since this role began, where it gives any."""
        return self.log.log_end_offset - self._first_end

    @property
    def appended_bytes(self) -> int:
        """Of these."""
        return self._appended_bytes

    @property
    def watchers(self) -> Collection[ParkedFetch]:
        """Fetches that wait for more of it."""
        return self._watchers.keys()

    @property
    def offset_lag(self) -> int:
        """How far the log's end is behind what is known to be committed (KIP-113)."""
        return 0

    @property
    def last_stable_offset(self) -> Offset:
        """Where read_committed readers stop. There are no open transactions yet, so where all do."""
        return self.visible_end

    @property
    def is_exported(self) -> bool:
        """Durable history has no gaps: a log that has some above the end of its history is not exported. Where history
        is there first, compaction goes no further than it (`cleanable_end`)."""
        exported = 0 if self.history is None else self.history.next_offset
        return self.settings.durable and self.log.gaps_below <= exported

    @property
    def has_history(self) -> bool:
        """It is exported, or was; though this broker may not know yet how far, and has a copy with gaps behind that."""
        return self.is_exported or (self.settings.durable and self.history is not None)

    @property
    def keeps_all(self) -> bool:
        """Nothing of its log goes because history has it: of a compacted one history has other records (decision
        0042)."""
        return self.settings.compact or self.log.is_compacted

    @property
    def cleanable_end(self) -> Offset:
        """What lies below may be compacted: of what is exported that which history has, as it was written, wherever one
        looks: the last segment may be in the catalog and not in its mirror yet, of which the exporter goes on only
        then. Nothing of a log that is read behind history: nobody is to be given values of that, and not the
        tombstones behind them."""
        if self.start_offset < self.log.log_start_offset:
            return Offset(0)
        if not (self.has_store and self.has_history):
            return self.last_stable_offset
        if self.history is None:
            return Offset(0)
        end = self.history.mirrored_end
        if self.history.entries:  # no further than the two can be compared: a copy is perhaps to be cut there
            held = self._last_held(self.history)
            end = min(end, Offset(0) if held is None else held.descriptor.next_offset)
        differs_from = self.differs_from
        end = end if differs_from is None else min(differs_from, end)
        return min(end, self.last_stable_offset)

    @property
    def tombstones_kept_from(self) -> Offset:
        """Compaction takes none of these, for history may have their keys' values: whoever reads that goes on in the
        log behind it. So may the mirror still, where all of history is deleted."""
        history = self.history if self.has_store else None
        return LAST_OFFSET if history is None or not history.next_offset else history.mirrored_end

    @property
    def start_offset(self) -> Offset:
        """Where it begins for whoever reads: with its durable history, where that joins the log without a gap. A log
        that was compacted from its start on is read by itself: what history has below it may be deleted by a tombstone
        that is gone from the log."""
        local, history = self.log.log_start_offset, self.history
        return local if history is None or self.is_read_alone else history.joined_start(local)

    @property
    def is_read_alone(self) -> bool:
        """Its log was compacted from its start on: what lay below is replaced, or deleted and its tombstone is gone.
        Where what says so was damaged, a compacted topic's was, and another's was not."""
        may_be = 0 < self.log.gaps_below >= self.log.log_start_offset
        return may_be and (self.log.knows_gaps or self.settings.compact)

    @property
    def begins_at(self) -> Offset:
        """The first offset that is read from the log: above the log's start where the cluster has deleted more than
        this broker has yet."""
        local, history = self.log.log_start_offset, self.history
        return local if history is None else max(local, min(history.log_start_offset, self.high_watermark))

    def is_in_history(self, offset: Offset) -> bool:
        """Whether it is to be read from the durable store, for the log begins above it."""
        return self.start_offset <= offset < self.log.log_start_offset

    @property
    def deletable_end(self) -> Offset:
        """Records below it may be deleted here: where the partition is exported, those alone that the catalog has, so
        that readers find them there."""
        if not (self.has_store and self.has_history):
            return self.high_watermark
        if self.history is None:
            return Offset(0)
        differs_from = self.differs_from
        end = self.history.next_offset if differs_from is None else differs_from
        return min(end, self.high_watermark)

    @property
    def differs_from(self) -> Offset | None:
        """Where the log holds records of a later epoch than that in which those offsets were exported, so that it is
        not what the catalog has there: after an unclean election, or a loss of what was not flushed; its start, where
        only its record at the end of history, or of the last segment of which it has all, is seen to be of another
        epoch. None: nowhere, as far as the epochs say."""
        history = self.history
        if history is None:
            return None
        held = self.log
        last = self._last_held(history)
        end = NO_OFFSET if last is None else last.descriptor.end_offset
        looked_at = (history.head, held.epochs, end, held.gaps_below)
        if self._compared is None or self._compared[0] != looked_at:
            self._compared = (looked_at, self._compare(history, last))
        return self._compared[1]

    def _last_held(self, history: PartitionCatalog) -> CatalogEntry | None:
        """The last durable segment above the end of which the log does not end."""
        end = self.log.log_end_offset
        if end > history.end_offset:
            return history.last
        beyond = history.entries.holding(end)
        return None if beyond is None else history.entries.holding(beyond.descriptor.start_offset - 1)

    def _compare(self, history: PartitionCatalog, last: CatalogEntry | None) -> Offset | None:
        """A copy of a compacted log knows of an epoch that begins in a gap only that it begins there or later."""
        held = self.log
        differs_from = history.differs_from([each for each in held.epochs if each[1] >= held.gaps_below])
        if differs_from is not None or last is None or last.descriptor.last_epoch == NO_EPOCH:
            return differs_from
        end = last.descriptor.end_offset
        is_held = max(held.log_start_offset, held.gaps_below) <= end
        here = held.epoch_at(end) if is_held else NO_EPOCH
        return None if here in (NO_EPOCH, last.descriptor.last_epoch) else held.log_start_offset

    def on_history(self, history: PartitionCatalog | None) -> None:
        """As committed. What was deleted of it is deleted here too."""
        self.history = history
        if history is None or self.availability is not ErrorCode.NONE or self.log.read_only is not None:
            return
        before = min(history.log_start_offset, self.high_watermark)
        if before <= self.log.log_start_offset:
            return
        try:
            self.snapshot_producers()  # with their batches, recovery would lose what these say of them
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
    def has_failed(self) -> bool:
        """Its disk has: it serves nothing, until the broker is started again."""
        return self._ended is ErrorCode.KAFKA_STORAGE_ERROR

    @property
    def lacks_room(self) -> bool:
        """Nothing is appended to it before the disk has more room. It is read as ever."""
        return self._share.left < 0 or self.log.lacks_room

    # reading

    @property
    def visible_end(self) -> Offset:
        """Consumers see nothing at it or above."""
        return self.high_watermark

    def read(self, offset: Offset, bytes_max: int, *, committed_only: bool, at_least_one: bool) -> Buffer:
        """Whole batches from the one that holds `offset`, below what the reader may see. Raises StorageFailure,
        CorruptData or OSError where the disk does not give them."""
        end = self.last_stable_offset if committed_only else self.visible_end
        if offset >= end:
            return b""
        return self.log.read(offset, bytes_max, end, at_least_one=at_least_one)

    @abstractmethod
    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        """Whether a reader with this idea of the leader epoch (-1: none) may stand at `offset`."""

    def awaits(self, offset: Offset) -> bool:
        """Whether a position that is refused will be available before long: a reader may wait for that."""
        return False

    def watch(self, waiter: ParkedFetch) -> None:
        """Tell `waiter` of bytes that become visible, and of the end of this epoch."""
        self._watchers[waiter] = None
        if self._ended is not ErrorCode.NONE:
            waiter.wake()

    def unwatch(self, waiter: ParkedFetch) -> None:
        self._watchers.pop(waiter, None)

    def _tell_watchers(self, visible_bytes: int) -> None:
        """So many more bytes can be read."""
        for watcher in list(self._watchers):
            watcher.on_visible(visible_bytes)

    def wake_readers(self) -> None:
        """Answer the parked fetches with what there is."""
        for watcher in list(self._watchers):
            watcher.wake()

    def on_damage(self) -> None:
        """Some was found in its log."""
        self.damaged = damaged_range(self.log)

    @property
    def is_damaged(self) -> bool:
        """Whether it lacks anything from its log's start on, as far as is known."""
        return self.damaged is not None and self.damaged[1] > self.log.log_start_offset

    # keeping house

    def keep_house(self, now_ms: int, *, producers_since_ms: int) -> None:
        """Drop segments past their retention, none that reaches above `deletable_end` or the high watermark, and forget
        producers that have not written since `producers_since_ms`."""
        if self.availability is not ErrorCode.NONE or self.log.read_only is not None:
            return
        self.producers.expire(producers_since_ms)
        has_history_below = self.has_store and self.history is not None and bool(self.history.entries)
        try:
            self.on_history(self.history)  # it may be that it could not go on before
            self.log.apply_retention(
                now_ms,
                self.deletable_end,
                local=self.has_store and self.is_exported and not self.keeps_all,
                by_start_alone=has_history_below and self.keeps_all,  # or its readers would go on in history
                before_drop=self.snapshot_producers,  # with their batches, recovery would lose what these say of them
            )
        except CorruptData as error:
            self.on_unreadable(error, None)
        except (OSError, StorageFailure) as error:
            self._fail(error)
            return
        if self.log.needs_flush:
            self._flusher.request(self)

    def roll(self) -> None:
        """Close the active segment, so that it can be exported. Not once the role is over: the log may be a worker
        thread's then, which cuts it."""
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
        """See `PartitionLog`: for the flusher, for an acknowledgement that waits for no flush, and for who looks into
        the log's files from another thread."""
        try:
            self.log.write_out()
        except StorageFailure as error:
            return self._failed(error)
        return None

    # flushing

    def begin_flush(self) -> FlushTicket | None:
        """Flusher: what is to be synced now."""
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

    def finish_flush(self, ticket: FlushTicket, failure: OSError | None) -> None:
        """Flusher: the sync ended."""
        if failure is not None:
            self.log.fail_flush(ticket)
            self._fail(failure if self.log.failed else NoRoom(str(failure)))
            return
        flushed_end = self.log.finish_flush(ticket)  # also where the epoch is over: the log is still to be closed
        if self._ended is ErrorCode.NONE:
            self._on_flush_done(flushed_end)

    def _before_flush(self) -> None:  # noqa: B027 - not every role has to do something
        """A flush will take up what is unsynced now, if anything is."""

    def _on_flush_begun(self) -> None:  # noqa: B027
        """A flush has."""

    @abstractmethod
    def _on_flush_done(self, flushed_end: Offset) -> None: ...

    # failing and ending

    def on_unreadable(self, error: Exception, offset: Offset | None) -> ErrorCode:
        """What a reader is told, who met `error` at `offset` (None: somewhere). CORRUPT_MESSAGE is for what is known to
        be damaged, and final; until that is known the reader may come again, for it may be an index."""
        if isinstance(error, StorageFailure) and self.log.failed and self.log.read_only is None:
            self._fail(error)  # what it was to be read from could not be written; the journal has what is acknowledged
        if isinstance(error, DamagedRange):
            return ErrorCode.CORRUPT_MESSAGE
        if isinstance(error, CorruptData) and not self._suspect(self, offset):
            return ErrorCode.CORRUPT_MESSAGE
        return ErrorCode.KAFKA_STORAGE_ERROR

    def fail_cleaning(self, cause: Exception) -> None:
        """Cleaner: it got stuck half-way, and only a recovery of the log can finish it."""
        self._fail(cause)

    def _on_log_failed(self) -> None:
        """Its file could not be synced behind the journal, though everything asked for so far is durable: an idle copy
        would be counted on for as long as nothing comes."""
        self._fail(StorageFailure("its file could not be synced behind the journal"))

    def _failed(self, error: Exception) -> WriteRefusal:
        self._fail(error)
        if isinstance(error, NoRoom):
            return WriteRefusal(ErrorCode.KAFKA_STORAGE_ERROR, FULL)
        return WriteRefusal(ErrorCode.KAFKA_STORAGE_ERROR, "The log's disk failed; the partition is offline.")

    def _fail(self, cause: Exception) -> None:
        """The disk failed: nothing unflushed is acknowledged, now or later, and nothing more is taken. Where it is full
        nothing has failed: what could not be written waits for room, and who waits for it goes on waiting."""
        if isinstance(cause, NoRoom):
            self._room.lack(self, is_full=True)
        elif self._ended is ErrorCode.NONE:
            log.error(
                "partition offline: its disk failed; replace the disk, then restart the broker",
                topic=self.topic,
                partition=self.topic_partition.partition,
                exc_info=cause,
            )
            self.fail_again()

    def go_on(self) -> bool:
        """See `Waiting`. Nothing is written while a worker thread cuts the log: the copy goes on by itself then."""
        if self.has_stepped_down or self.availability is not ErrorCode.NONE:
            return True
        if self._share.left < 0 or self.write_out() is not None:
            return False
        if self.log.needs_flush:
            self._flusher.request(self)
        return True

    def fail_again(self) -> None:
        """Its disk failed before it got this role."""
        self.end(ErrorCode.KAFKA_STORAGE_ERROR)
        self._tell_failed(self.topic_partition)

    def end(self, error: ErrorCode) -> None:
        """All that waits is answered with `error`, and so is all that comes."""
        self._ended = error
        self.wake_readers()

    def step_down(self, error: ErrorCode) -> None:
        """The role is over: as `end`, and the log is for another one now, or for none."""
        self.has_stepped_down = True
        if not self.has_failed:
            self.end(error)

    async def settled(self) -> None:  # noqa: B027
        """Nothing of this role's own is under way on return. It has stepped down."""


def damaged_range(partition_log: PartitionLog) -> tuple[Offset, Offset] | None:
    """From the first damaged offset to the last, the second exclusive. Without end where the log is for reading only,
    for nobody knows how much it lacks."""
    if partition_log.read_only is not None:
        return partition_log.log_start_offset, LAST_OFFSET
    damages = partition_log.damages
    if not damages:
        return None
    return Offset(min(each.start for each in damages)), Offset(max(each.end for each in damages))
