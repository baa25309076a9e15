"""One partition that this broker leads: its log, its leader core and its producers, joined.

Promises:
- An append is acknowledged at acks=all only when the high watermark has passed it, with enough replicas in sync.
- Readers see nothing at or above the high watermark.
- Followers get every append, flushed or not, and count by their flushed ends.
- A failed disk takes the partition offline at once, and everything that waits is answered so.

Loop-only, but for the sync of a FlushTicket.
"""

from __future__ import annotations

import asyncio
from typing import Final, Unpack, assert_never, cast

from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerId, LeaderEpoch, Offset
from headrace.base.limits import VERIFICATIONS_PER_PARTITION_MAX
from headrace.base.ports import Buffer
from headrace.broker.kit.parking import Commit, CommitParking, FlushParking
from headrace.broker.partitions.hot import UnchangedError, give_up, hot_road, leave
from headrace.broker.partitions.in_sync import InSyncReplicas
from headrace.broker.partitions.intake.admission import admit, header_of
from headrace.broker.partitions.intake.earlier import EarlierBatches
from headrace.broker.partitions.intake.forwarding import Done
from headrace.broker.partitions.intake.gate import Gate
from headrace.broker.partitions.intake.repacking import Repacker, RepackLine, Wanted
from headrace.broker.partitions.intake.taking import take
from headrace.broker.partitions.intake.validating import walked_at_once, wanted_of_worker
from headrace.broker.partitions.replica import Common, Replica, WriteRefusal
from headrace.broker.partitions.stored import StoredParking
from headrace.broker.partitions.tails import Tails
from headrace.broker.partitions.visible_bytes import VisibleBytes
from headrace.metadata.values import PartitionImage
from headrace.replica.leader import AdvanceHighWatermark, Effect, Effects, Leader, ProposeIsr
from headrace.replica.producers import ACCEPT, Refuse
from headrace.replica.transactions import Guard
from headrace.storage.engine.appending import Appended
from headrace.wire.batches import BatchHeader, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import EndMarker, encode_marker
from headrace.wire.walking import Walked

OVERTAKEN: Final = WriteRefusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "Send again what was sent before this batch, or was refused."
)


class Partition(Replica):
    """See the module. Made by `Partitions` when this broker becomes the leader; `close` ends the epoch."""

    def __init__(
        self,
        *,
        leader: Leader,
        repacker: Repacker,
        takes_over: bool = False,
        is_unclean: bool = False,
        **common: Unpack[Common],
    ) -> None:
        """`takes_over`: it is handed over to this broker, and nothing may be written before the move is finished.
        `is_unclean`: it was elected so in this epoch, and the records that it lacks are lost."""
        super().__init__(**common)
        self.isr = InSyncReplicas(leader, self.log, self._clock, self._carry_out_all)
        """The ISR, and the progress of each follower."""
        self.gate = Gate(takes_over=takes_over)
        self.line = RepackLine(repacker)
        self.earlier = EarlierBatches(self.producers, self._clock)
        self._granted: dict[int, Guard] = {}
        """By producer id: the coordinator has admitted the first batch of a transaction."""
        self._commits = CommitParking()
        self._stored = StoredParking(self.log.storing)
        self._flushes = FlushParking()
        self._visible_bytes = VisibleBytes()
        self._flushing_bytes = 0
        self.tails = Tails()
        self._visible: _Visible | None = None
        """The last end that readers of the log's end wait for."""
        if not is_unclean:
            self.earlier.begin_overtaking()
        self._doubted_at: Offset | None = None
        """The high watermark when it was last doubted; None: it is not (see `doubt`)."""
        self.hot = hot_road(self)
        """The native road of its hot functions; None: they run as pure Python."""
        self._heed_seal()

    # state

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.isr.leader.epoch

    @property
    def high_watermark(self) -> Offset:
        return self.isr.high_watermark

    @property
    def visible_end(self) -> Offset:
        return self.isr.high_watermark

    @property
    def latest_is_known(self) -> bool:
        """Whether the high watermark has reached this epoch's start (KIP-207)."""
        return self.isr.leader.epoch_is_committed

    def check_epoch(self, believed: int) -> ErrorCode:
        """Compare a client's leader epoch (-1: none) with ours (KIP-320)."""
        if self._ended is not ErrorCode.NONE:
            return self._ended
        if believed in (-1, self.isr.leader.epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if believed < self.isr.leader.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # appending

    def append(self, records: Buffer, *, needs_isr: bool, walked: Walked | None = None) -> Appended | WriteRefusal:
        """Append one batch as a client sent it, except for its highest time, which is set to that of its records.
        `needs_isr`: refuse below min.insync.replicas (acks=all). `walked`: the facts of its records, where they were
        checked. Otherwise they are checked here, however long that takes."""
        if self.hot is not None and walked is not None:
            appended = self._natively(records, needs_isr=needs_isr, walked=walked)
            if appended is not None:
                return appended
        return self._append_client(records, needs_isr=needs_isr, walked=walked)

    def _append_client(self, records: Buffer, *, needs_isr: bool, walked: Walked | None) -> Appended | WriteRefusal:
        """`append`, with all rules and all errors."""
        if refusal := self._refusal_for_now(records, needs_isr=needs_isr):
            return refusal
        now_ms = self._clock.now_ms()
        admitted = admit(records, self.settings, now_ms, walked)
        if isinstance(admitted, WriteRefusal):
            return admitted
        records, header = admitted
        guard = self._granted.get(header.producer_id) if header.is_transactional else None
        verdict = self.producers.check(header, guard, verifies=True)
        if verdict is ACCEPT:
            if self.earlier.are_awaited_before(header):
                return OVERTAKEN
            return self._append(records, header, now_ms, needs_flush=needs_isr)
        if isinstance(verdict, Refuse):
            is_gap = verdict.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if is_gap and self.earlier.may_still_come(header, self.isr.leader.start_offset):
                return OVERTAKEN
            return WriteRefusal(verdict.error, verdict.message)
        self.earlier.on_duplicate(header.producer_id)
        if not needs_isr and (refusal := self.write_out()):
            return refusal
        time_ms = verdict.timestamp if self.settings.times is None else -1
        return Appended(verdict.base_offset, Offset(verdict.last_offset + 1), time_ms)

    def append_plain(self, records: Buffer, *, needs_isr: bool) -> Appended | WriteRefusal | None:
        """`examine`, and `append` where that has found the facts; None where it has not."""
        if self.hot is not None and (appended := self._natively(records, needs_isr=needs_isr)) is not None:
            return appended
        walked = self.examine(records)
        return None if walked is None else self._append_client(records, needs_isr=needs_isr, walked=walked)

    def _natively(
        self, records: Buffer, *, needs_isr: bool, walked: Walked | None = None
    ) -> Appended | WriteRefusal | None:
        """Append by the native road. `walked` None: have it look at the records, too. Returns None where it does
        not take the batch, or fails before it has changed anything."""
        hot = self.hot
        assert hot is not None, "the caller has asked"
        try:
            taken = hot.take(records, needs_isr) if walked is None else hot.append(records, needs_isr, walked)
            return cast("Appended | None", taken)
        except BaseException as error:
            return self.on_native_failure(records, error)

    def on_native_failure(self, records: Buffer, error: BaseException) -> WriteRefusal | None:
        """Note that the native road has failed in an append of `records`. Where it had changed nothing, the twin is to
        append them: then it returns None. Otherwise a batch may be half appended, and the partition ends. Raises the
        error where it is none of the disk."""
        if isinstance(error, UnchangedError):
            leave(self, error)
            return None
        if isinstance(error, OSError | StorageFailure):
            return self.earlier.turned_away(records, self._failed(error))
        give_up(self)
        self._fail(error if isinstance(error, Exception) else StorageFailure(str(error)))
        raise error

    def append_in_transaction(self, records: Buffer) -> Appended | WriteRefusal:
        """Append a batch of this partition's own coordinator, as a part of a client's transaction. Its sequence counts
        for nothing, as on Kafka. Needs the ISR."""
        if refusal := self._refusal_for_now(records, needs_isr=True):
            return refusal
        header = parse_header(records)
        verdict = self.producers.check_part(header, self._granted.get(header.producer_id))
        if isinstance(verdict, Refuse):
            return WriteRefusal(verdict.error, verdict.message)
        return self._append(records, header, self._clock.now_ms(), needs_flush=True)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        is_committed: bool,
        bumps_epochs: bool = False,
    ) -> Appended | WriteRefusal:
        """Append the end of the producer's transaction, as its coordinator has decided it. Needs the ISR.
        `bumps_epochs`: as in `ProducerStates.check_marker`."""
        now_ms = self._clock.now_ms()
        marker = EndMarker(is_committed, coordinator_epoch)
        records = encode_marker(producer_id, producer_epoch, marker, timestamp=now_ms)
        if refusal := self._refusal_for_now(records, needs_isr=True):
            return refusal
        verdict = self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, bumps_epochs=bumps_epochs)
        if isinstance(verdict, Refuse):
            return WriteRefusal(verdict.error, verdict.message)
        return self._append(records, parse_header(records), now_ms, needs_flush=True, marker=marker)

    # transactions

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has begun a transaction here in this epoch, so that nobody need be asked."""
        return self.producers.has_open(producer_id, producer_epoch)

    def begin_verification(self, header: BatchHeader, *, bumps_epochs: bool) -> Guard | ErrorCode | None:
        """Return the guard of a batch for which the coordinator is to be asked now, or why it is refused anyway. None:
        nobody need be asked. `bumps_epochs`: as in `ProducerStates`."""
        asked = self.producers.begin_verification(header, self._clock.now_ms(), bumps_epochs=bumps_epochs)
        return asked.error if isinstance(asked, Refuse) else asked

    def ask_for(self, producer_id: int, producer_epoch: int, *, bumps_epochs: bool) -> Guard | None:
        """As `begin_verification`, for a batch of this partition's own coordinator, which has no sequence."""
        return (
            None
            if self.has_open_transaction(producer_id, producer_epoch)
            else self.producers.verifications.ask(
                producer_id, producer_epoch, 0, self._clock.now_ms(), bumps_epochs=bumps_epochs
            )
        )

    def grant(self, producer_id: int, guard: Guard) -> None:
        """Let the first batch of the producer's transaction be appended, as long as the guard holds. The coordinator
        has said that the partition is a part of it."""
        while len(self._granted) >= VERIFICATIONS_PER_PARTITION_MAX:
            del self._granted[next(iter(self._granted))]
        self._granted[producer_id] = guard

    def _refusal_for_now(self, records: Buffer, *, needs_isr: bool) -> WriteRefusal | None:
        """Return why nothing can be appended here now, whatever is in the batch, except for its size."""
        if self._ended is not ErrorCode.NONE:
            return WriteRefusal(self._ended, "The partition is not served here; refresh metadata and retry.")
        if not self.gate.is_open:
            return WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition is handed over; retry.")
        if self._share.left < 0:
            self._room.lack(self)
            return self.earlier.turned_away(
                records, WriteRefusal(ErrorCode.KAFKA_STORAGE_ERROR, self._room.medium.full)
            )
        if self.log.read_only is not None:
            return WriteRefusal(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The partition is for reading only: {self.log.read_only}"
            )
        in_sync, enough = self.isr.leader.in_sync, self.settings.min_insync_replicas
        if needs_isr and in_sync < enough and self.log.copies < enough:
            if self._doubted_at is not None:
                return WriteRefusal(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, "Others may lead it now; refresh metadata and retry."
                )
            text = f"{max(in_sync, self.log.copies)} in-sync replicas are fewer than min.insync.replicas={enough}."
            return self.earlier.turned_away(records, WriteRefusal(ErrorCode.NOT_ENOUGH_REPLICAS, text))
        return None

    def examine(self, records: Buffer) -> Walked | None:
        """Return the facts of a batch's records where `append` may append it at once, and then does what `take` does.
        None where the partition is not served, the batch has to wait for others or for a worker, or its records are
        refused."""
        if self.hot is not None:
            try:
                if (walked := self.hot.examine(records)) is not None:
                    return cast("Walked", walked)
            except UnchangedError as unchanged:
                leave(self, unchanged)
        if self.line.is_empty and self._ended is ErrorCode.NONE and self.gate.is_open:
            return walked_at_once(records, self.settings, self._clock.now_ms())
        return None

    def take(self, records: Buffer, *, needs_isr: bool, done: Done) -> None:
        """Append one batch of a client, in the topic's codec, behind those that came before it. `done` is called with
        the outcome, now or later. It is later where this or an earlier batch has to be unpacked, or the partition is
        handed over."""
        take(self, records, needs_isr=needs_isr, done=done)

    def unpacking_of(self, records: Buffer) -> Wanted | None:
        """Return a worker's task for the batch whose turn it is; None where it is to be refused, or to wait."""
        if not self.is_open or isinstance(header_of(records, self.settings), WriteRefusal):
            return None
        return wanted_of_worker(records, self.settings, self._clock.now_ms())

    # handing over

    @property
    def is_open(self) -> bool:
        """Whether it accepts records."""
        return self.gate.is_open and self._ended is ErrorCode.NONE

    def _heed_seal(self) -> None:
        """Stop, or forget the seal, where the log has one. One that was proposed in this epoch before a crash may be
        committed yet; one of an earlier epoch was refused."""
        if self.log.sealed_in == self.isr.leader.epoch:
            self.gate.is_stopped = self.gate.is_proposed = True
        elif self.log.sealed_in is not None:
            self._forget_seal()

    def _forget_seal(self) -> None:
        self.log.forget_seal()
        if self.log.needs_flush:
            self._flusher.request(self)

    def go_on_writing(self) -> None:
        """Go on writing, as the seal was not proposed."""
        self.gate.resume()
        self._forget_seal()

    def _append(
        self,
        records: Buffer,
        header: BatchHeader,
        now_ms: int,
        *,
        needs_flush: bool,
        marker: EndMarker | None = None,
    ) -> Appended | WriteRefusal:
        try:
            appended = self.log.append(
                records, [(0, header)], leader_epoch=self.isr.leader.epoch, now_ms=now_ms, at_once=not needs_flush
            )
        except (OSError, StorageFailure) as error:
            return self.earlier.turned_away(records, self._failed(error))
        if self.open_since_ms is None:
            self.open_since_ms = now_ms
        if marker is None:
            self.producers.on_appended(header, appended.base_offset, now_ms)
        elif (failed := self._end_transaction(header, marker, appended.base_offset, now_ms)) is not None:
            return failed
        if header.is_transactional:
            self._granted.pop(header.producer_id, None)
        self._appended_bytes += len(records)
        self._share.left -= len(records)
        if self._appended_bytes >= self._snapshot_at_bytes:
            self.snapshot_producers()
        for tail in self.tails.feeds:  # first: the way to another broker and back takes longer than our own sync
            tail.on_appended(self)
        self._after_write()
        return appended

    def _end_transaction(
        self, header: BatchHeader, marker: EndMarker, base_offset: Offset, now_ms: int
    ) -> WriteRefusal | None:
        """Note a marker that is in the log. Returns why the partition has failed, if it has."""
        try:
            self._on_marker(header, marker, base_offset, now_ms)
        except (OSError, StorageFailure) as error:
            return self._failed(error)
        return None

    def _after_write(self) -> None:
        """Under `flush.policy=os` the log counts as flushed at once, and the flusher only does upkeep."""
        if self.log.needs_flush:
            self._flusher.request(self)
        if self.log.flushed_end == self.log.log_end_offset:
            self._on_durable(self.log.flushed_end, self._appended_bytes)

    def park_commit(self, end: Offset, waiter: Commit) -> None:
        """Settle `waiter` once everything below `end` is committed; at once where it is. Where too few copies have
        it, that is an error, and they are counted again for the client's next try."""
        if end <= self.isr.high_watermark:
            waiter.on_outcome(outcome := _outcome_of(self))
            if outcome is not ErrorCode.NONE:
                self.log.count_again()
                self._flusher.request(self)
        else:
            self._commits.park(end, waiter)

    def has_committed(self, end: Offset) -> bool:
        """Whether everything below `end` is committed, on enough copies: then `park_commit` would settle its waiter at
        once, without an error."""
        return end <= self.isr.high_watermark and _outcome_of(self) is ErrorCode.NONE

    def park_stored(self, end: Offset, waiter: Commit) -> None:
        """Settle `waiter` once everything below `end` is stored, durable or not (acks=1); at once where it is."""
        self._stored.park(end, waiter)

    def own_appends_visible(self) -> asyncio.Future[None] | None:
        """Return a future that is done once everything appended by now is committed, or never will be. Callers that
        come meanwhile share it. None where others in the ISR have to flush, too, or where nothing is appended above the
        high watermark."""
        if self._ended is not ErrorCode.NONE or self.log.read_only is not None or len(self.isr.leader.isr_ends) > 1:
            return None
        end = self.log.log_end_offset
        if end <= self.isr.high_watermark:
            return None
        if self._visible is None or self._visible.end < end or self._visible.done.done():
            self._visible = _Visible(end)
            self._commits.park(end, self._visible)
        return self._visible.done

    @property
    def parked_commits(self) -> int:
        """The number of appends that wait to be committed."""
        return len(self._commits)

    def lead(self, partition: PartitionImage) -> None:
        """Go on leading, under a new epoch or with other replicas. Appends that wait to be committed belong to the old
        epoch and fail; waiting batches are written in the new one."""
        if partition.leader_epoch == self.isr.leader.epoch:
            if self.gate.takes_over and not partition.is_sealed:
                self.earlier.on_taken_over()
            isr, epoch, replicas = partition.isr, partition.partition_epoch, partition.replicas
            self.isr.leader, effects = self.isr.leader.on_isr(isr, epoch, replicas)
            self._carry_out_all(effects)
            if self.gate.takes_over and not partition.is_sealed and not partition.is_unclean:
                self.earlier.begin_overtaking()  # before waiting batches are written
            self.gate.on_image(takes_over=partition.is_sealed)
            return
        self._commits.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._stored.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.log.assign_epoch(partition.leader_epoch)
        self.isr.leader = Leader.elected(
            node=self.isr.leader.node,
            epoch=partition.leader_epoch,
            isr=partition.isr,
            flushed_end=self.log.flushed_end,
            high_watermark=self.isr.leader.high_watermark,
            log_end=self.log.log_end_offset,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            now=self._clock.monotonic(),
        )
        self.fetches.wake()
        self.tails.tell_end(self)
        if partition.is_unclean:
            self.earlier.end_overtaking()
        elif not self.gate.is_open:
            self.earlier.begin_overtaking()
        if self.gate.takes_over and not partition.is_sealed:
            self.earlier.on_taken_over()
        self.gate.on_epoch(takes_over=partition.is_sealed)
        self._heed_seal()

    # followers

    def read_tail(self, offset: Offset, bytes_max: int, *, at_least_one: bool) -> Buffer:
        """Read whole batches from `offset` to the log's end, for a follower. Raises as `read`."""
        return self.log.read(offset, bytes_max, self.log.log_end_offset, at_least_one=at_least_one)

    def on_damage(self) -> None:
        """Tell followers too, at once: no broker leaves the ISR for a leader with the same damage."""
        super().on_damage()
        self.tails.tell_news(self)

    def throttles(self, replica: BrokerId) -> bool:
        """Whether that follower's copying from here is limited (KIP-73): never while it is in sync."""
        throttled = self.settings.throttled_leaders
        if not (throttled.all or throttled.some) or replica in self.isr.leader.isr:
            return False
        return throttled.holds(self.topic_partition.partition, self.isr.leader.node)

    @property
    def has_followers(self) -> bool:
        """Whether other brokers are to hold it."""
        return len(self.isr.leader.replicas) > 1

    def doubt(self) -> None:
        """Doubt the leadership: the controller has not heard this broker for a session, so others may lead by now.
        Records on the whole ISR are still acknowledged. A client that waits in vain, or is refused for want of
        replicas, is told to look for another leader. Called again and again, until `trust`."""
        if self._doubted_at == self.high_watermark:
            self._commits.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._doubted_at = self.high_watermark

    def trust(self) -> None:
        """End the doubt: the controller hears this broker."""
        self._doubted_at = None

    @property
    def is_doubted(self) -> bool:
        """Whether others may lead by now: see `doubt`."""
        return self._doubted_at is not None

    # upkeep

    def delete_records(self, before: Offset, waiter: Commit) -> None:
        """Move the log's start up to `before`, which is at most the high watermark. `waiter` is settled once that is
        durable. Where the start is there already, only durability is awaited."""
        assert before <= self.high_watermark, "the caller answers OFFSET_OUT_OF_RANGE"
        if self.log.read_only is not None:
            waiter.on_outcome(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        try:
            if before > self.log.log_start_offset:
                # without a snapshot, recovery would lose the producers' state with these batches
                self.snapshot_producers()
            self.log.delete_records_before(before)
            self.tails.tell_news(self)
        except (OSError, StorageFailure) as error:
            self._fail(error)
        if self._ended is not ErrorCode.NONE:
            waiter.on_outcome(self._ended)
            return
        needs_flush = self.log.needs_flush
        self._flushes.park(waiter, needs_flush=needs_flush)
        if needs_flush:
            self._flusher.request(self)

    # flushing

    def _before_flush(self) -> None:
        self._flushing_bytes = self._appended_bytes

    def _on_flush_begun(self) -> None:
        self._flushes.begin()

    def _on_flush_done(self, flushed_end: Offset) -> None:
        self._flushes.finish()
        self._stored.wake()
        self._on_durable(flushed_end, self._flushing_bytes)

    def _on_durable(self, end: Offset, appended_bytes: int) -> None:
        if self.hot is not None:
            self.hot.durable(end, appended_bytes)
            return
        self._visible_bytes.on_flushed(end, appended_bytes, at_once=len(self.isr.leader.isr_ends) <= 1)
        self.isr.leader, effects = self.isr.leader.on_flushed(end)
        for effect in effects:
            self._carry_out(effect, appended_bytes)

    def _carry_out_all(self, effects: Effects) -> None:
        for effect in effects:
            self._carry_out(effect, self._visible_bytes.known)

    def _carry_out(self, effect: Effect, appended_bytes: int) -> None:
        match effect:
            case AdvanceHighWatermark(offset=offset):
                self._commits.wake_below(offset, _outcome_of(self))
                more = self._visible_bytes.on_visible(offset, appended_bytes)
                self.fetches.on_visible(max(more, 1), self.last_stable_offset)
                self.tails.tell_news(self)
            case ProposeIsr():
                self.events.propose(self, effect)
            case _:
                assert_never(effect)

    # reading

    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        """As `Replica`, the log's end included. Where that end is not the true one, no reader hears that there is
        nothing at or above it."""
        if (believed != -1 or self._ended is not ErrorCode.NONE) and (error := self.check_epoch(believed)):
            return error
        log = self.log
        if log.read_only is not None and offset >= log.log_end_offset:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.begins_at <= offset <= log.log_end_offset:
            return ErrorCode.NONE
        return ErrorCode.NONE if self.is_in_history(offset) else ErrorCode.OFFSET_OUT_OF_RANGE

    # ending

    def end(self, error: ErrorCode) -> None:
        super().end(error)
        self._commits.refuse_all(error)
        self._stored.refuse_all(error)
        self._flushes.refuse_all(error)
        self.tails.tell_end(self)
        self.gate.release()


class _Visible:
    """`Commit`, for readers of the end: whatever the outcome, their wait is over."""

    __slots__ = ("done", "end")

    def __init__(self, end: Offset) -> None:
        self.end = end
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_outcome(self, error: ErrorCode) -> None:
        if not self.done.done():
            self.done.set_result(None)


def _outcome_of(partition: Partition) -> ErrorCode:
    """The outcome of an append with acks=all that is committed: whether enough copies have it."""
    needed = partition.settings.min_insync_replicas
    enough = partition.isr.leader.in_sync >= needed or partition.log.flushed_copies >= needed
    return ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
