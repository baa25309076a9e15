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
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol, Unpack, assert_never

from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch
from headrace.base.limits import CARRIED_UNTIL_MS_MAX
from headrace.base.ports import Buffer
from headrace.broker.kit.parking import Commit, CommitParking, FlushParking
from headrace.broker.partitions.forwarding import Done
from headrace.broker.partitions.gate import Gate
from headrace.broker.partitions.overtaking import Overtaking
from headrace.broker.partitions.repacking import Outcome, Overflow, Repacker, RepackLine, Result, Unsound, Wanted
from headrace.broker.partitions.replica import FULL, Common, Replica, WriteRefusal
from headrace.broker.partitions.turned_away import TurnedAway
from headrace.broker.partitions.validating import refusal_of, walked_at_once, walked_or_refused, wanted_of_worker
from headrace.metadata.values import PartitionImage
from headrace.replica.leader import AdvanceHighWatermark, Effect, Effects, Leader, ProposeIsr
from headrace.replica.producers import ACCEPT, Refuse
from headrace.storage.engine.appending import Appended
from headrace.wire.batches import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    InvalidBatch,
    Repacked,
    check_batch,
    parse_header,
    with_newest_time,
)
from headrace.wire.errors import ErrorCode
from headrace.wire.validation import Broken
from headrace.wire.walking import UNWALKED, Walked


class FollowerFeed(Protocol):
    """One follower's fetching, as the partition sees it."""

    def on_appended(self, partition: Partition) -> None:
        """There is more to copy."""

    def on_news(self, partition: Partition) -> None:
        """The high watermark, or the log's start, has risen, or damage was found in the log."""

    def on_epoch_end(self, partition: Partition) -> None:
        """The epoch is over; the partition is not watched any more."""


UNUSUAL: Final = CONTROL | TRANSACTIONAL | LOG_APPEND_TIME
"""Attributes of batches that a broker refuses, always or mostly, from clients."""
OVERTAKEN: Final = "Send again what was sent before this batch, or was refused."


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
        self._leader = leader
        self._gate = Gate(takes_over=takes_over)
        self._commits = CommitParking()
        self._stored = CommitParking()
        if self._storing is not None:
            self._storing.on_stored = self._wake_stored
        self._flushes = FlushParking()
        self._line = RepackLine(repacker)
        self._visible_bytes = 0
        self._flushing_bytes = 0
        self._flushed: deque[tuple[Offset, int]] = deque()
        """Flushed ends that the high watermark has not reached, and the bytes appended below each."""
        self._tails: dict[FollowerFeed, None] = {}
        self._visible: _Visible | None = None
        """The last end that readers of the log's end wait for."""
        self._overtaking = Overtaking()
        self._turned_away = TurnedAway()
        if not is_unclean:
            self._overtaking.begin(self._clock.monotonic())
        self._taken_over_at: float | None = None
        """When the last hand-over to this broker was finished, as long as batches may be carried to it."""
        self._doubted_at: Offset | None = None
        """The high watermark when it was last doubted; None: it is not (see `doubt`)."""
        self._heed_seal()

    # state

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._leader.epoch

    @property
    def high_watermark(self) -> Offset:
        return self._leader.high_watermark

    @property
    def visible_end(self) -> Offset:
        return self._leader.high_watermark

    @property
    def latest_is_known(self) -> bool:
        """Whether the high watermark has reached this epoch's start (KIP-207)."""
        return self._leader.epoch_is_committed

    def check_epoch(self, believed: int) -> ErrorCode:
        """Compare a client's leader epoch (-1: none) with ours (KIP-320)."""
        if self._ended is not ErrorCode.NONE:
            return self._ended
        if believed in (-1, self._leader.epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if believed < self._leader.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # appending

    def append(self, records: Buffer, *, needs_isr: bool, walked: Walked | None = None) -> Appended | WriteRefusal:
        """Append one batch as a client sent it, except for its highest time, which is set to that of its records.
        `needs_isr`: refuse below min.insync.replicas (acks=all). `walked`: the facts of its records, where they were
        checked. Otherwise they are checked here, however long that takes."""
        if self._ended is not ErrorCode.NONE:
            return WriteRefusal(self._ended, "The partition is not served here; refresh metadata and retry.")
        if not self._gate.is_open:
            return WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition is handed over; retry.")
        if self._share.left < 0:
            self._room.lack(self)
            return self._turn_away(records, WriteRefusal(ErrorCode.KAFKA_STORAGE_ERROR, FULL))
        if self.log.read_only is not None:
            return WriteRefusal(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The partition is for reading only: {self.log.read_only}"
            )
        if needs_isr and self._leader.in_sync < self.settings.min_insync_replicas and self._lacks(self.log.copies):
            if self._doubted_at is not None:
                return WriteRefusal(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, "Others may lead it now; refresh metadata and retry."
                )
            in_sync = max(self._leader.in_sync, self.log.copies)
            text = f"{in_sync} in-sync replicas are fewer than min.insync.replicas="
            text += f"{self.settings.min_insync_replicas}."
            return self._turn_away(records, WriteRefusal(ErrorCode.NOT_ENOUGH_REPLICAS, text))
        if len(records) > self.settings.max_message_bytes:
            return WriteRefusal(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The batch of {len(records)} bytes is over max.message.bytes={self.settings.max_message_bytes}.",
            )
        now_ms = self._clock.now_ms()
        header = self._sound(records)
        if isinstance(header, WriteRefusal):
            return header
        if walked is None:
            checked = walked_or_refused(records, self.settings, now_ms)
            if isinstance(checked, WriteRefusal):
                return checked
            walked = checked
        if walked is UNWALKED:
            if problem := self._time_problem(header, now_ms):
                return WriteRefusal(ErrorCode.INVALID_TIMESTAMP, problem)
        elif header.max_timestamp != walked.newest_timestamp and self.settings.times is not None:
            records, header = with_newest_time(records, header, walked.newest_timestamp)
        verdict = self.producers.check(header)
        if verdict is ACCEPT:
            if self._taken_over_at is not None and self._may_lack_others(header):
                return WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, OVERTAKEN)
            if self._turned_away and self._turned_away.awaits_another(header, self._clock.monotonic()):
                return WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, OVERTAKEN)
            return self._append(records, header, now_ms, needs_flush=needs_isr)
        if isinstance(verdict, Refuse):
            if verdict.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._has_overtaken(header):
                return WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, OVERTAKEN)
            return WriteRefusal(verdict.error, verdict.message)
        self._overtaking.on_duplicate(header.producer_id, self._clock.monotonic())
        if not needs_isr and (refusal := self.write_out()):
            return refusal
        time_ms = verdict.timestamp if self.settings.times is None else -1
        return Appended(verdict.base_offset, Offset(verdict.last_offset + 1), time_ms)

    def _lacks(self, copies: int) -> bool:
        """Whether so many copies that the store has made are fewer than acks=all asks for."""
        return copies < self.settings.min_insync_replicas

    def _turn_away(self, records: Buffer, refusal: WriteRefusal) -> WriteRefusal:
        """Return the refusal, and note it: later batches of an unknown producer must not be appended before this
        one."""
        if len(records) >= HEADER_BYTES:
            header = parse_header(records)
            if self.producers.last_offset(header.producer_id) is None:
                self._turned_away.note(header, self._clock.monotonic())
        return refusal

    def _has_overtaken(self, header: BatchHeader) -> bool:
        """Whether batches that the producer sent before this one, its first here, may have come too early, or are still
        carried here."""
        if not self.producers.skips(header):
            return False
        if self._awaits_carried:
            return True
        producer_id = header.producer_id
        last = self.producers.last_offset(producer_id)
        is_first = last is not None and last < self._leader.start_offset
        return is_first and self._overtaking.may_be(producer_id, self._clock.monotonic())

    def _may_lack_others(self, header: BatchHeader) -> bool:
        """Whether the batch may follow others that are still carried here: it is not its producer's first, and that
        producer is unknown. The batch of a producer that was forgotten long ago is accepted once nothing is carried."""
        is_first = header.producer_id < 0 or header.base_sequence == 0
        return not is_first and self.producers.last_offset(header.producer_id) is None and self._awaits_carried

    @property
    def _awaits_carried(self) -> bool:
        """Whether the previous owner may still carry batches here that came before the present ones."""
        if self._taken_over_at is None:
            return False
        if self._clock.monotonic() >= self._taken_over_at + CARRIED_UNTIL_MS_MAX / 1000:
            self._taken_over_at = None
        return self._taken_over_at is not None

    def examine(self, records: Buffer) -> Walked | None:
        """Return the facts of a batch's records where `append` may append it at once, and then does what `take` does.
        None where the partition is not served, the batch has to wait for others or for a worker, or its records are
        refused."""
        if self._line.is_empty and self._ended is ErrorCode.NONE and self._gate.is_open:
            return walked_at_once(records, self.settings, self._clock.now_ms())
        return None

    def take(self, records: Buffer, *, needs_isr: bool, done: Done) -> None:
        """Append one batch of a client, in the topic's codec, behind those that came before it. `done` is called with
        the outcome, now or later. It is later where this or an earlier batch has to be unpacked, or the partition is
        handed over."""
        if self._is_taken_on(records, needs_isr, done):
            return
        if self._line.is_empty:
            if self._is_held_up:
                kept = bytes(records)
                self._wait(kept, needs_isr, done)
                return
            walked = self.examine(records)
            if walked is not None or self._turn(records) is None:
                done(self.append(records, needs_isr=needs_isr, walked=walked))
                return
        kept = bytes(records)
        self._line.join(kept, lambda: self._turn(kept), partial(self._on_turn, kept, needs_isr, done))

    def _is_taken_on(self, records: Buffer, needs_isr: bool, done: Done) -> bool:
        """Whether another broker accepts the batch, as this leadership is over."""
        is_over = self._ended is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return is_over and self.events.forward(self.topic_partition, records, needs_isr, done)

    @property
    def _is_held_up(self) -> bool:
        """Whether writes have to wait for the end of a hand-over."""
        return not self._gate.is_open and self._ended is ErrorCode.NONE

    def _wait(self, kept: bytes, needs_isr: bool, done: Done) -> None:
        if not self._gate.park(partial(self.take, kept, needs_isr=needs_isr, done=done), len(kept)):
            done(self._put_off(kept, "Too much waits until the partition is handed over; retry."))

    def _put_off(self, records: Buffer, text: str) -> WriteRefusal:
        return self._turn_away(records, WriteRefusal(ErrorCode.REQUEST_TIMED_OUT, text))

    def _on_turn(self, kept: bytes, needs_isr: bool, done: Done, result: Result) -> None:
        if isinstance(result, Overflow):  # it had no turn, and must not wait at the gate before those that wait for one
            done(self._put_off(kept, "Too many batches wait to be unpacked; retry."))
        elif self._is_held_up:
            self._wait(kept, needs_isr, done)
        else:
            done(self._append_turn(result, needs_isr))

    def _turn(self, records: Buffer) -> Wanted | None:
        """Return a worker's task for the batch whose turn it is; None where it is to be refused, or to wait."""
        if not self.is_open or isinstance(self._sound(records), WriteRefusal):
            return None
        return wanted_of_worker(records, self.settings, self._clock.now_ms())

    # handing over

    @property
    def is_open(self) -> bool:
        """Whether it accepts records."""
        return self._gate.is_open and self._ended is ErrorCode.NONE

    @property
    def takes_over(self) -> bool:
        """Whether it is handed over to this broker, and may not be written to yet."""
        return self._gate.takes_over

    def _heed_seal(self) -> None:
        """Stop, or forget the seal, where the log has one. One that was proposed in this epoch before a crash may be
        committed yet; one of an earlier epoch was refused."""
        if self.log.sealed_in == self._leader.epoch:
            self._gate.is_stopped = self._gate.is_proposed = True
        elif self.log.sealed_in is not None:
            self._forget_seal()

    def _forget_seal(self) -> None:
        self.log.forget_seal()
        if self.log.needs_flush:
            self._flusher.request(self)

    def unpacked(self) -> asyncio.Future[None] | None:
        """Return a future that is done once the batch under unpacking is; None: there is no such batch. In a stopped
        partition, all batches then wait at the gate, in the order in which they came."""
        return self._line.over()

    def stop_writing(self) -> None:
        """Accept no records any more, to seal the partition. Later batches wait: until `go_on_writing`, or until this
        epoch ends."""
        self._gate.is_stopped = True

    def go_on_writing(self) -> None:
        """Go on writing, as the seal was not proposed."""
        self._gate.resume()
        self._forget_seal()

    def propose_seal(self) -> None:
        """Note that the seal is about to be proposed: nothing is written in this leader epoch from now on."""
        assert self._gate.is_stopped, "what is sealed is all there is"
        self._gate.is_proposed = True

    def _append_turn(self, result: Buffer | Outcome, needs_isr: bool) -> Appended | WriteRefusal:
        if isinstance(result, Unsound):
            return WriteRefusal(ErrorCode.INVALID_RECORD, result.reason)
        if isinstance(result, Broken):
            return refusal_of(result)
        if not isinstance(result, Repacked):
            return self.append(result, needs_isr=needs_isr)
        return self.append(result.batch, needs_isr=needs_isr, walked=result.records)

    def _append(
        self, records: Buffer, header: BatchHeader, now_ms: int, *, needs_flush: bool
    ) -> Appended | WriteRefusal:
        try:
            appended = self.log.append(
                records, [(0, header)], leader_epoch=self._leader.epoch, now_ms=now_ms, at_once=not needs_flush
            )
        except (OSError, StorageFailure) as error:
            return self._turn_away(records, self._failed(error))
        if self.open_since_ms is None:
            self.open_since_ms = now_ms
        self.producers.on_appended(header, appended.base_offset, now_ms)
        self._appended_bytes += len(records)
        self._share.left -= len(records)
        if self._appended_bytes >= self._snapshot_at_bytes:
            self.snapshot_producers()
        for tail in self._tails:  # first: the way to another broker and back takes longer than our own sync
            tail.on_appended(self)
        self._after_write()
        return appended

    def _after_write(self) -> None:
        """Under `flush.policy=os` the log counts as flushed at once, and the flusher only does upkeep."""
        if self.log.needs_flush:
            self._flusher.request(self)
        if self.log.flushed_end == self.log.log_end_offset:
            self._on_durable(self.log.flushed_end, self._appended_bytes)

    def _sound(self, records: Buffer) -> BatchHeader | WriteRefusal:
        """Return the header of exactly one batch, of any size, which is sound and a client's; or the refusal."""
        try:
            header = check_batch(records, 0, len(records))
        except InvalidBatch as error:
            return WriteRefusal(ErrorCode.INVALID_RECORD, str(error))
        except CorruptBatch as error:
            return WriteRefusal(ErrorCode.CORRUPT_MESSAGE, str(error))
        if LENGTH_END + header.batch_length != len(records):
            return WriteRefusal(ErrorCode.INVALID_RECORD, "A produce request carries exactly one batch per partition.")
        if header.base_offset != 0:
            return WriteRefusal(
                ErrorCode.INVALID_RECORD, f"A client's batch begins at offset 0, not {header.base_offset}."
            )
        if header.producer_id >= 0 and header.base_sequence < 0:
            return WriteRefusal(ErrorCode.INVALID_RECORD, "A batch of an idempotent producer has a sequence number.")
        if header.attributes & UNUSUAL and (refusal := self._unusual(header)):
            return refusal
        return header

    def _time_problem(self, header: BatchHeader, now_ms: int) -> str | None:
        """Return why the times of a batch are refused whose records are not looked at; None: they are not."""
        bounds = self.settings.times
        return bounds.problem(header.base_timestamp, header.max_timestamp, now_ms) if bounds is not None else None

    def _unusual(self, header: BatchHeader) -> WriteRefusal | None:
        if header.is_control:
            return WriteRefusal(ErrorCode.INVALID_RECORD, "Clients may not write control batches.")
        if header.is_transactional:
            return WriteRefusal(ErrorCode.INVALID_TXN_STATE, "Transactions are not supported yet.")
        if header.is_log_append_time and self.settings.times is not None:
            return WriteRefusal(
                ErrorCode.INVALID_TIMESTAMP, "Only a broker may say that a batch bears log append time."
            )
        return None

    def park_commit(self, end: Offset, waiter: Commit) -> None:
        """Settle `waiter` once everything below `end` is committed; at once where it is."""
        if end <= self._leader.high_watermark:
            waiter.on_outcome(ErrorCode.NONE)
        else:
            self._commits.park(end, waiter)

    def park_stored(self, end: Offset, waiter: Commit) -> None:
        """Settle `waiter` once everything below `end` is stored, durable or not (acks=1); at once where it is."""
        if self._storing is None or end <= self._storing.stored_end:
            waiter.on_outcome(ErrorCode.NONE)
        else:
            self._stored.park(end, waiter)

    def _wake_stored(self) -> None:
        if self._storing is not None:
            self._stored.wake_below(self._storing.stored_end)

    def own_appends_visible(self) -> asyncio.Future[None] | None:
        """Return a future that is done once everything appended by now is committed, or never will be. Callers that
        come meanwhile share it. None where others in the ISR have to flush, too, or where nothing is appended above the
        high watermark."""
        if self._ended is not ErrorCode.NONE or self.log.read_only is not None or len(self._leader.isr_ends) > 1:
            return None
        end = self.log.log_end_offset
        if end <= self._leader.high_watermark:
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
        if partition.leader_epoch == self._leader.epoch:
            self._note_end_of_takeover(partition)
            isr, epoch, replicas = partition.isr, partition.partition_epoch, partition.replicas
            self._leader, effects = self._leader.on_isr(isr, epoch, replicas)
            self._carry_out_all(effects)
            if self._gate.takes_over and not partition.is_sealed and not partition.is_unclean:
                self._overtaking.begin(self._clock.monotonic())  # before waiting batches are written
            self._gate.on_image(takes_over=partition.is_sealed)
            return
        self._commits.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._stored.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.log.assign_epoch(partition.leader_epoch)
        self._leader = Leader.elected(
            node=self._leader.node,
            epoch=partition.leader_epoch,
            isr=partition.isr,
            flushed_end=self.log.flushed_end,
            high_watermark=self._leader.high_watermark,
            log_end=self.log.log_end_offset,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            now=self._clock.monotonic(),
        )
        self.wake_readers()
        self._tell_tails_of_the_end()
        if partition.is_unclean:
            self._overtaking.end()
        elif not self._gate.is_open:
            self._overtaking.begin(self._clock.monotonic())
        self._note_end_of_takeover(partition)
        self._gate.on_epoch(takes_over=partition.is_sealed)
        self._heed_seal()

    def _note_end_of_takeover(self, partition: PartitionImage) -> None:
        if self._gate.takes_over and not partition.is_sealed:
            self._taken_over_at = self._clock.monotonic()

    # followers

    def on_follower(
        self,
        replica: BrokerId,
        broker_epoch: BrokerEpoch,
        flushed_end: Offset,
        readable_from: Offset,
        *,
        may_join: bool,
    ) -> None:
        """Note the flushed end of a follower whose log matches ours up to its end. See `Leader.on_fetch`."""
        leader, effects = self._leader.on_fetch(
            replica,
            broker_epoch,
            flushed_end=flushed_end,
            log_end=self.log.log_end_offset,
            now=self._clock.monotonic(),
            may_join=may_join,
            readable_from=readable_from,
        )
        self._leader = leader
        self._carry_out_all(effects)

    def on_liveness(self, replica: BrokerId, *, may_join: bool) -> None:
        """See `Leader.on_liveness`."""
        self._leader, effects = self._leader.on_liveness(replica, may_join=may_join)
        self._carry_out_all(effects)

    def read_tail(self, offset: Offset, bytes_max: int, *, at_least_one: bool) -> Buffer:
        """Read whole batches from `offset` to the log's end, for a follower. Raises as `read`."""
        return self.log.read(offset, bytes_max, self.log.log_end_offset, at_least_one=at_least_one)

    def watch_tail(self, tail: FollowerFeed) -> None:
        """Tell `tail` of appends, other news, and the end of this epoch."""
        self._tails[tail] = None

    def unwatch_tail(self, tail: FollowerFeed) -> None:
        self._tails.pop(tail, None)

    def on_damage(self) -> None:
        """Tell followers too, at once: no broker leaves the ISR for a leader with the same damage."""
        super().on_damage()
        self._tell_tails()

    def _tell_tails(self) -> None:
        """Tell followers that there is news."""
        for tail in self._tails:
            tail.on_news(self)

    def throttles(self, replica: BrokerId) -> bool:
        """Whether that follower's copying from here is limited (KIP-73): never while it is in sync."""
        throttled = self.settings.throttled_leaders
        if not (throttled.all or throttled.some) or replica in self._leader.isr:
            return False
        return throttled.holds(self.topic_partition.partition, self._leader.node)

    @property
    def standings(self) -> Leader:
        """The ISR, and the progress of each follower."""
        return self._leader

    @property
    def has_followers(self) -> bool:
        """Whether other brokers are to hold it."""
        return len(self._leader.replicas) > 1

    def check_followers(self, lag_max_s: float, heard_at: Mapping[BrokerId, float]) -> None:
        """Propose to remove followers from the ISR that have not caught up for `lag_max_s`."""
        self._leader, effects = self._leader.on_time(
            self._clock.monotonic(), lag_max_s, log_end=self.log.log_end_offset, heard_at=heard_at
        )
        self._carry_out_all(effects)

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

    def propose_again(self) -> None:
        """Propose again, as some time has passed since a proposal was refused."""
        self._leader, effects = self._leader.on_pause_over()
        self._carry_out_all(effects)

    def on_isr_refused(self, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch) -> None:
        """Take back the proposal of this epoch on that partition epoch, which will never be carried out."""
        if leader_epoch == self._leader.epoch:
            self._leader, effects = self._leader.on_refused(partition_epoch)
            self._carry_out_all(effects)

    def on_isr_doubted(self, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch) -> None:
        """See `Leader.on_doubted`."""
        if leader_epoch == self._leader.epoch:
            self._leader, effects = self._leader.on_doubted(partition_epoch)
            self._carry_out_all(effects)

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
            self._tell_tails()
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
        self._wake_stored()
        self._on_durable(flushed_end, self._flushing_bytes)

    def _on_durable(self, end: Offset, appended_bytes: int) -> None:
        if self._flushed or len(self._leader.isr_ends) > 1:
            self._flushed.append((end, appended_bytes))
        self._leader, effects = self._leader.on_flushed(end)
        for effect in effects:
            self._carry_out(effect, appended_bytes)

    def _carry_out_all(self, effects: Effects) -> None:
        for effect in effects:
            self._carry_out(effect, self._visible_bytes)

    def _carry_out(self, effect: Effect, appended_bytes: int) -> None:
        match effect:
            case AdvanceHighWatermark(offset=offset):
                enough = self._leader.in_sync >= self.settings.min_insync_replicas or not self._lacks(
                    self.log.flushed_copies
                )
                self._commits.wake_below(
                    offset, ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                )
                if self._flushed:
                    appended_bytes = self._bytes_below(offset)
                visible, self._visible_bytes = appended_bytes - self._visible_bytes, appended_bytes
                self._tell_watchers(max(visible, 1))
                self._tell_tails()
            case ProposeIsr():
                self.events.propose(self, effect)
            case _:
                assert_never(effect)

    def _bytes_below(self, offset: Offset) -> int:
        """Return the bytes below the last flush that the high watermark has reached. It may be a little above that."""
        found = self._visible_bytes
        while self._flushed and self._flushed[0][0] <= offset:
            found = self._flushed.popleft()[1]
        return found

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
        self._tell_tails_of_the_end()
        self._gate.release()

    def _tell_tails_of_the_end(self) -> None:
        tails, self._tails = self._tails, {}
        for tail in tails:
            tail.on_epoch_end(self)


class _Visible:
    """`Commit`, for readers of the end: whatever the outcome, their wait is over."""

    __slots__ = ("done", "end")

    def __init__(self, end: Offset) -> None:
        self.end = end
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_outcome(self, error: ErrorCode) -> None:
        if not self.done.done():
            self.done.set_result(None)
