"""One partition that this broker leads: its log, its leader core and its producers, joined.

Promises: an append is acknowledged at acks=all only when the high watermark has passed it; readers see nothing at or
above it; a failed disk takes the partition offline at once, and all that waited is told so. Loop-only, but for the
sync of a FlushTicket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

import structlog

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import PRODUCER_SNAPSHOT_INTERVAL_BYTES, REPACKED_BATCH_BYTES_MAX, WALKED_ON_LOOP_BYTES_MAX
from headrace.base.ports import Buffer, Clock
from headrace.broker.flusher import Flusher
from headrace.broker.parking import Commit, CommitParking, FlushParking, ParkedFetch
from headrace.broker.partition_settings import PartitionSettings
from headrace.broker.repacking import Overflow, Repacker, RepackLine
from headrace.replica.leader import AdvanceHighWatermark, Effect, Leader
from headrace.replica.producers import ACCEPT, ProducerStates, Refuse
from headrace.storage.engine import Appended, DamagedRange, FlushTicket, PartitionLog
from headrace.wire.batches import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    Repacked,
    check_batch,
    parse_header,
    walk_batch,
)
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Walked

log = structlog.get_logger(__name__)

UNUSUAL: Final = CONTROL | TRANSACTIONAL | LOG_APPEND_TIME
"""Attributes of batches that a broker refuses, of clients, or most of the time."""


class Refusal(NamedTuple):
    """Why nothing was appended, for the client."""

    error: ErrorCode
    message: str


Suspect = Callable[["Partition", Offset | None], bool]
"""Told where a log could not be read (None: somewhere): whether it will be looked at."""


class Partition:
    """See the module. Made by `Partitions` when this broker becomes the leader; `close` ends the epoch."""

    def __init__(
        self,
        *,
        topic: str,
        topic_partition: TopicPartition,
        partition_log: PartitionLog,
        leader: Leader,
        isr_size: int,
        producers: ProducerStates,
        settings: PartitionSettings,
        flusher: Flusher,
        repacker: Repacker,
        clock: Clock,
        suspect: Suspect,
    ) -> None:
        self.topic = topic
        self.topic_partition = topic_partition
        self.log = partition_log
        self.settings = settings
        self.producers = producers
        self._leader = leader
        self._isr_size = isr_size
        self._flusher = flusher
        self._clock = clock
        self._suspect = suspect
        self._commits = CommitParking()
        self._flushes = FlushParking()
        self._line = RepackLine(repacker)
        self._watchers: dict[ParkedFetch, None] = {}
        self._appended_bytes = 0
        self._visible_bytes = 0
        self._flushing_bytes = 0
        self._snapshot_at_bytes = PRODUCER_SNAPSHOT_INTERVAL_BYTES
        self._ended = ErrorCode.NONE
        has_records = partition_log.log_end_offset > partition_log.log_start_offset
        self.open_since_ms: int | None = clock.now_ms() if has_records else None
        """When the oldest record that `roll` has not yet closed off was appended, by the wall clock; None: there is
        none. May be earlier than that where the log rolled by itself."""

    # what is known

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._leader.epoch

    @property
    def high_watermark(self) -> Offset:
        return self._leader.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Where read_committed readers stop. There are no open transactions yet, so the high watermark."""
        return self._leader.high_watermark

    @property
    def is_exported(self) -> bool:
        """Durable history has no gaps: what is compacted, or ever was, is not exported."""
        return self.settings.durable and not self.log.is_compacted

    @property
    def latest_is_known(self) -> bool:
        """Whether the high watermark has reached this epoch's start (KIP-207)."""
        return self._leader.epoch_is_committed

    @property
    def availability(self) -> ErrorCode:
        """NONE while it serves; else why not."""
        return self._ended

    def check_epoch(self, believed: int) -> ErrorCode:
        """A client's idea of the leader epoch (-1: none) against ours (KIP-320)."""
        if self._ended is not ErrorCode.NONE:
            return self._ended
        if believed in (-1, self._leader.epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if believed < self._leader.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # appending

    def append(self, records: Buffer, *, needs_isr: bool, walked: Walked | None = None) -> Appended | Refusal:
        """Append one batch, as a client sent it. `needs_isr`: refuse below min.insync.replicas (acks=all). `walked`:
        what its records say, where that is known."""
        if self._ended is not ErrorCode.NONE:
            return Refusal(self._ended, "The partition is not served here; refresh metadata and retry.")
        if self.log.read_only is not None:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"The partition is for reading only: {self.log.read_only}")
        if needs_isr and self._isr_size < self.settings.min_insync_replicas:
            return Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self._isr_size} in-sync replicas are fewer than min.insync.replicas="
                f"{self.settings.min_insync_replicas}.",
            )
        if len(records) > self.settings.max_message_bytes:
            return Refusal(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The batch of {len(records)} bytes is over max.message.bytes={self.settings.max_message_bytes}.",
            )
        now_ms = self._clock.now_ms()
        header = self._sound(records, now_ms)
        if isinstance(header, Refusal):
            return header
        if self.settings.compact and (refusal := _unkeyed(walked or records)):
            return refusal
        verdict = self.producers.check(header)
        if verdict is ACCEPT:
            return self._append(records, header, now_ms, needs_flush=needs_isr)
        if isinstance(verdict, Refuse):
            return Refusal(verdict.error, verdict.message)
        if not needs_isr and (refusal := self.write_out()):
            return refusal
        time_ms = verdict.timestamp if self.settings.times is None else -1
        return Appended(verdict.base_offset, Offset(verdict.last_offset + 1), time_ms)

    @property
    def appends_as_is(self) -> bool:
        """Whether it is served, and a batch appended at once and as it came, or refused: `append` then does what `take`
        does."""
        settings = self.settings
        as_is = settings.codec is None and not settings.compact and self._line.is_empty
        return as_is and self._ended is ErrorCode.NONE

    def take(self, records: Buffer, *, needs_isr: bool, done: Callable[[Appended | Refusal], None]) -> None:
        """Append one batch of a client, in the codec that the topic wants, behind those taken before it. `done` is told
        of it: now, or, where this or an earlier batch is to be unpacked, later."""
        if self._line.is_empty and self._wanted(records) is None:
            done(self.append(records, needs_isr=needs_isr))
            return
        kept = bytes(records)
        self._line.join(kept, lambda: self._turn(kept), lambda result: done(self._append_turn(result, needs_isr)))

    def _turn(self, records: Buffer) -> Compression | None:
        """What `_wanted` says of the batch whose turn it is; None where it is to be refused."""
        if self._ended is not ErrorCode.NONE or isinstance(self._sound(records, self._clock.now_ms()), Refusal):
            return None
        return self._wanted(records)

    def _wanted(self, records: Buffer) -> Compression | None:
        """What a batch must be unpacked for, and be packed in; None where it is taken, or refused, as it is. Its own
        codec, where only its keys are looked for and that takes long."""
        settings = self.settings
        if settings.codec is None and not settings.compact:
            return None
        found = _codec_of(records)
        if found is None:
            return None
        if settings.codec not in (None, found):
            return settings.codec
        long = found is not Compression.NONE or len(records) > WALKED_ON_LOOP_BYTES_MAX
        return found if settings.compact and long and len(records) <= settings.max_message_bytes else None

    def _append_turn(self, result: Buffer | Repacked | CorruptBatch | Overflow, needs_isr: bool) -> Appended | Refusal:
        if isinstance(result, Overflow):
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, "Too many batches wait to be unpacked; retry.")
        if isinstance(result, CorruptBatch):
            return Refusal(ErrorCode.INVALID_RECORD, str(result))
        if not isinstance(result, Repacked):
            return self.append(result, needs_isr=needs_isr)
        bounds = self.settings.times
        problem = bounds and bounds.problem(
            result.records.oldest_timestamp, result.records.newest_timestamp, self._clock.now_ms()
        )
        if problem:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, problem)
        return self.append(result.batch, needs_isr=needs_isr, walked=result.records)

    def _append(self, records: Buffer, header: BatchHeader, now_ms: int, *, needs_flush: bool) -> Appended | Refusal:
        try:
            appended = self.log.append(records, [(0, header)], leader_epoch=self._leader.epoch, now_ms=now_ms)
        except (OSError, StorageFailure) as error:
            return self._failed(error)
        if not needs_flush and (refusal := self.write_out()):
            return refusal
        if self.open_since_ms is None:
            self.open_since_ms = now_ms
        self.producers.on_appended(header, appended.base_offset, now_ms)
        self._appended_bytes += len(records)
        if self._appended_bytes >= self._snapshot_at_bytes:
            self.snapshot_producers()
        self._after_write()
        return appended

    def write_out(self) -> Refusal | None:
        """See `PartitionLog`: for the flusher, for an acknowledgement that waits for no flush, and for who looks into
        the log's files from another thread."""
        try:
            self.log.write_out()
        except StorageFailure as error:
            return self._failed(error)
        return None

    def _failed(self, error: Exception) -> Refusal:
        self._fail(error)
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "The log's disk failed; the partition is offline.")

    def snapshot_producers(self) -> None:
        """Keep the producers' state as of the log's end, so that recovery reads no further back than here."""
        self._snapshot_at_bytes = self._appended_bytes + PRODUCER_SNAPSHOT_INTERVAL_BYTES
        if len(self.producers):
            self.log.write_producer_snapshot(self.producers.snapshot(), self.log.log_end_offset)

    def _after_write(self) -> None:
        """Under `flush.policy=os` the log counts as flushed at once, and the flusher only keeps house."""
        if self.log.needs_flush:
            self._flusher.request(self)
        if self.log.flushed_end == self.log.log_end_offset:
            self._on_durable(self.log.flushed_end, self._appended_bytes)

    def _sound(self, records: Buffer, now_ms: int) -> BatchHeader | Refusal:
        """Exactly one sound batch of records, of any size, or why not."""
        try:
            header = check_batch(records, 0, len(records))
        except CorruptBatch as error:
            return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
        if LENGTH_END + header.batch_length != len(records):
            return Refusal(ErrorCode.INVALID_RECORD, "A produce request carries exactly one batch per partition.")
        if header.attributes & UNUSUAL and (refusal := self._unusual(header)):
            return refusal
        bounds = self.settings.times
        if bounds is not None and (problem := bounds.problem(header.base_timestamp, header.max_timestamp, now_ms)):
            return Refusal(ErrorCode.INVALID_TIMESTAMP, problem)
        return header

    def _unusual(self, header: BatchHeader) -> Refusal | None:
        if header.is_control:
            return Refusal(ErrorCode.INVALID_RECORD, "Clients may not write control batches.")
        if header.is_transactional:
            return Refusal(ErrorCode.INVALID_TXN_STATE, "Transactions are not supported yet.")
        if header.is_log_append_time and self.settings.times is not None:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "Only a broker may say that a batch bears log append time.")
        return None

    def park_commit(self, end: Offset, waiter: Commit) -> None:
        """Tell `waiter` once everything below `end` is committed; at once where it is."""
        if end <= self._leader.high_watermark:
            waiter.on_outcome(ErrorCode.NONE)
        else:
            self._commits.park(end, waiter)

    def lead(self, epoch: LeaderEpoch, isr: tuple[BrokerId, ...], isr_size: int) -> None:
        """Go on leading, under a new epoch or with another ISR. What waits belongs to the old epoch and fails.
        `isr_size`: how many of it count for min.insync.replicas."""
        self._isr_size = isr_size
        if epoch == self._leader.epoch:
            return
        self._commits.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.log.assign_epoch(epoch)
        self._leader = Leader.elected(
            node=self._leader.node,
            epoch=epoch,
            isr=isr,
            flushed_end=self.log.flushed_end,
            high_watermark=self._leader.high_watermark,
        )
        self.wake_readers()

    # keeping house

    def keep_house(self, now_ms: int, *, deletable_end: Offset, producers_since_ms: int) -> None:
        """Drop segments past their retention, none that reaches above `deletable_end` or the high watermark, and forget
        producers that have not written since `producers_since_ms`."""
        if self._ended is not ErrorCode.NONE or self.log.read_only is not None:
            return
        self.producers.expire(producers_since_ms)
        try:
            self.log.apply_retention(now_ms, Offset(min(deletable_end, self.high_watermark)))
        except CorruptData as error:
            self.on_unreadable(error, None)
        except (OSError, StorageFailure) as error:
            self._fail(error)
            return
        if self.log.needs_flush:
            self._flusher.request(self)

    def delete_records(self, before: Offset, waiter: Commit) -> None:
        """Move the log's start up to `before`, which is at most the high watermark, and tell `waiter` once that is
        durable. Where the start lies there already, only durability is awaited."""
        assert before <= self.high_watermark, "the caller answers OFFSET_OUT_OF_RANGE"
        if self.log.read_only is not None:
            waiter.on_outcome(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        try:
            if before > self.log.log_start_offset:
                self.snapshot_producers()  # with their batches, recovery would lose what these say of them
            self.log.delete_records_before(before)
        except (OSError, StorageFailure) as error:
            self._fail(error)
        if self._ended is not ErrorCode.NONE:
            waiter.on_outcome(self._ended)
            return
        needs_flush = self.log.needs_flush
        self._flushes.park(waiter, needs_flush=needs_flush)
        if needs_flush:
            self._flusher.request(self)

    def roll(self) -> None:
        """Close the active segment, so that it can be exported."""
        if self.log.read_only is not None:
            return
        try:
            self.log.roll()
        except (OSError, StorageFailure) as error:
            self._fail(error)
            return
        self.open_since_ms = None
        if self.log.needs_flush:
            self._flusher.request(self)

    # flushing

    def begin_flush(self) -> FlushTicket | None:
        """Flusher: what is to be synced now."""
        if self._ended is not ErrorCode.NONE:
            return None
        self._flushing_bytes = self._appended_bytes
        try:
            ticket = self.log.begin_flush()
        except StorageFailure as error:
            self._fail(error)
            return None
        if ticket is not None:
            self._flushes.begin()
        elif self.log.failed and self.log.read_only is None:
            self._fail(StorageFailure("what it held could not be written"))
        return ticket

    def finish_flush(self, ticket: FlushTicket, failure: OSError | None) -> None:
        """Flusher: the sync ended."""
        if failure is not None:
            self.log.fail_flush(ticket)
            self._fail(failure)
            return
        flushed_end = self.log.finish_flush(ticket)  # also where the epoch is over: the log is still to be closed
        if self._ended is ErrorCode.NONE:
            self._flushes.finish()
            self._on_durable(flushed_end, self._flushing_bytes)

    def _on_durable(self, end: Offset, appended_bytes: int) -> None:
        self._leader, effects = self._leader.on_flushed(end)
        for effect in effects:
            self._carry_out(effect, appended_bytes)

    def _carry_out(self, effect: Effect, appended_bytes: int) -> None:
        match effect:
            case AdvanceHighWatermark(offset=offset):
                self._commits.wake_below(offset)
                visible, self._visible_bytes = appended_bytes - self._visible_bytes, appended_bytes
                if self._watchers:
                    for watcher in list(self._watchers):
                        watcher.on_visible(visible)
            case _:
                assert_never(effect)

    # reading

    def read(self, offset: Offset, bytes_max: int, *, committed_only: bool, at_least_one: bool) -> Buffer:
        """Whole batches from the one that holds `offset`, below what the reader may see. Raises StorageFailure,
        CorruptData or OSError where the disk does not give them."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        if offset >= end:
            return b""
        return self.log.read(offset, bytes_max, end, at_least_one=at_least_one)

    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        """Whether a reader with this idea of the leader epoch (see `check_epoch`) may stand at `offset` (the log's end
        included). Where that end is not the true one, nobody is told that there is nothing at it or above it."""
        if (believed != -1 or self._ended is not ErrorCode.NONE) and (error := self.check_epoch(believed)):
            return error
        log = self.log
        if log.read_only is not None and offset >= log.log_end_offset:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if log.log_start_offset <= offset <= log.log_end_offset else ErrorCode.OFFSET_OUT_OF_RANGE

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

    def watch(self, waiter: ParkedFetch) -> None:
        """Tell `waiter` of bytes that become visible, and of the end of this epoch."""
        self._watchers[waiter] = None
        if self._ended is not ErrorCode.NONE:
            waiter.wake()

    def unwatch(self, waiter: ParkedFetch) -> None:
        self._watchers.pop(waiter, None)

    def fail_cleaning(self, cause: Exception) -> None:
        """Cleaner: it got stuck half-way, and only a recovery of the log can finish it."""
        self._fail(cause)

    # ending

    def _fail(self, cause: Exception) -> None:
        """The disk failed: nothing unflushed is acknowledged, now or later, and nothing more is taken."""
        if self._ended is ErrorCode.NONE:
            log.error(
                "partition offline: its disk failed; replace the disk or free space, then restart the broker",
                topic=self.topic,
                partition=self.topic_partition.partition,
                exc_info=cause,
            )
            self.end(ErrorCode.KAFKA_STORAGE_ERROR)

    def end(self, error: ErrorCode) -> None:
        """End this leadership: all that waits is answered with `error`, and so is all that comes."""
        self._ended = error
        self._commits.refuse_all(error)
        self._flushes.refuse_all(error)
        for watcher in list(self._watchers):
            watcher.wake()

    def wake_readers(self) -> None:
        """Answer the parked fetches with what there is (the broker stops)."""
        for watcher in list(self._watchers):
            watcher.wake()


def _unkeyed(batch: Buffer | Walked) -> Refusal | None:
    """A compacted topic takes no record without a key, as on Kafka: unpacks the batch, unless that was done."""
    try:
        walked = batch if isinstance(batch, Walked) else walk_batch(batch, limit=REPACKED_BATCH_BYTES_MAX)
    except CorruptBatch as error:
        return Refusal(ErrorCode.INVALID_RECORD, str(error))
    return None if walked.all_keyed else Refusal(ErrorCode.INVALID_RECORD, "Each record here needs a key (compaction).")


def _codec_of(records: Buffer) -> Compression | None:
    """The first batch's; None where there is none that is known."""
    if len(records) < HEADER_BYTES:
        return None
    number = parse_header(records).attributes & COMPRESSION_MASK
    return Compression(number) if number <= Compression.ZSTD else None
