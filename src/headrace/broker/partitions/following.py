"""One partition that this broker copies: its log goes on as the leader's does, batch by batch.

Promises: what is appended here is what the leader has, verbatim and checked; where the two logs differ, ours is cut,
by leader epochs, before anything more is appended; what is told to the leader as flushed is durable here. Consumers
that read here (KIP-392) see what the leader of this epoch has told to be committed, while the copy is heard to go on,
and nothing else; how far that is never falls within an epoch. Loop-only, but for `cut` and the sync of a FlushTicket.
Sources: KIP-101, KIP-279, KIP-595 (the diverging epoch in a fetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Unpack

import structlog

from headrace.base.errors import HeadraceError, NoRoom, StorageFailure
from headrace.base.ids import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch, Offset
from headrace.base.limits import FRONTIER_RETRY_MS
from headrace.base.ports import Buffer
from headrace.broker.partitions.opening import recover_producers
from headrace.broker.partitions.replica import Common, Replica, damaged_range
from headrace.replica.follower import Position, cut_at
from headrace.replica.producers import ProducerStates
from headrace.storage.engine import NO_GAPS, EpochEnd, FlushTicket, PartitionLog
from headrace.storage.tier.frontier import Beginning
from headrace.wire.batches import check_batches
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

NOWHERE: Final = Offset(-1)


class FollowerPartition(Replica):
    """See the module. Made by `Partitions`; `broker.replication.copying` feeds it."""

    def __init__(
        self,
        *,
        node: BrokerId,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        is_in_sync: bool,
        high_watermark: Offset,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self._node = node
        self.leader = leader
        self.is_in_sync = is_in_sync
        """As committed."""
        self._epoch = leader_epoch
        self._high_watermark = high_watermark
        self._told: Offset | None = None
        """The high watermark, as the leader has told it of the place where this copy goes on now; None: not yet, or
        that place is lost."""
        self._is_level = False
        """All below what was told then has been flushed here since this place was given: whatever this broker has shown
        in this epoch, also from a disk that it has lost, was no more."""
        self._shown = NOWHERE
        """Who waits knows of what is below."""
        self._sound_from = _sound_from(self.log)
        """Nothing is damaged above."""
        self._visible_bytes = 0
        """Appended when more became visible last."""
        self.on_flushed: Callable[[FollowerPartition], None] | None = None
        """Told when more of what was appended is durable, or nothing more ever will be."""
        self.said_in: LeaderEpoch = NO_EPOCH
        """The newest epoch in which a leader may have been told how far this copy is."""
        self.leader_damage: tuple[Offset, Offset] | None = None
        """As the leader of this epoch tells it (`Replica.damaged`)."""
        self.is_told = False
        """The leader of this epoch has told of this copy's place, and so of its damage."""
        self.in_doubt: str | None = None
        """A sentence, where it cannot be cut as its leader wants it: nothing is appended to it any more."""
        self.stuck_at: Offset | None = None
        """Where what the leader has cannot be had from it, for it is damaged there."""
        self._began_at: Offset | None = None
        """Where it was begun last, in this role."""
        self._shuns_history_until = 0.0
        self.changing = asyncio.Lock()
        """Held while the log is cut: nothing is appended, and no other role begins, meanwhile."""
        self.is_changing = False

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._epoch

    @property
    def high_watermark(self) -> Offset:
        """As far as the leader has told, and the log goes."""
        return min(self._high_watermark, self.log.log_end_offset)

    @property
    def offset_lag(self) -> int:
        return max(0, self._high_watermark - self.log.log_end_offset)

    @property
    def position(self) -> Position:
        """What the next fetch says of it."""
        end = self.log.log_end_offset
        return Position(self._epoch, end, self.log.epoch_at(Offset(end - 1)), self.log.flushed_end, self.readable_from)

    @property
    def availability(self) -> ErrorCode:
        """NONE while it is copied, and others may work on its log."""
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if self.is_changing else self._ended

    def begin(self) -> None:
        """The log is a follower's from now on: epochs that it led, and wrote nothing in, are none of it."""
        if not self.log.failed:
            self.log.truncate_to(self.log.log_end_offset)

    @property
    def is_throttled(self) -> bool:
        """Whether what is copied here is limited (KIP-73): never while this copy is in sync."""
        throttled = self.settings.throttled_followers
        if not (throttled.all or throttled.some) or self.is_in_sync:
            return False
        return throttled.holds(self.topic_partition.partition, self._node)

    def follow(self, leader: BrokerId, epoch: LeaderEpoch) -> None:
        """Another leader, or the same in another epoch."""
        self.leader, self._epoch = leader, epoch
        self.leader_damage = self.stuck_at = None
        self.is_told = False
        self.lose_sight()

    # reading

    @property
    def visible_end(self) -> Offset:
        """Whoever reads below it has been allowed to by `check_position`."""
        return self.log.log_start_offset if self._told is None else min(self._told, self.log.flushed_end)

    @property
    def readable_from(self) -> Offset:
        """Nothing that this copy lacks, or has damaged, is at it or above; what durable history has it does not lack.
        At most the log's end."""
        if self._sound_from > self.log.log_start_offset:
            return self._sound_from
        return min(self.start_offset, self.log.log_end_offset)

    def on_damage(self) -> None:
        """Some was found: consumers are to read elsewhere."""
        super().on_damage()
        self._sound_from = _sound_from(self.log)
        self._tell_flushed()

    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        """As `Replica`. Only the leader can say that there is no such offset: where this copy does not have it, or does
        not know it to be committed, it is OFFSET_NOT_AVAILABLE, and the consumer goes back to the leader."""
        if self._ended is not ErrorCode.NONE:
            return self._ended
        if believed not in (-1, self._epoch):
            return ErrorCode.FENCED_LEADER_EPOCH if believed < self._epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        if not self._is_level:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        is_here = self.readable_from <= offset <= self.visible_end or self.is_in_history(offset)
        return ErrorCode.NONE if is_here else ErrorCode.OFFSET_NOT_AVAILABLE

    def awaits(self, offset: Offset) -> bool:
        return self._is_level and offset > self.visible_end

    def lose_sight(self) -> None:
        """The leader is not heard of any more, or of another place: what it commits meanwhile is not known here."""
        self._told = None
        if self._is_level:
            self._is_level, self._shown = False, NOWHERE
            self.wake_readers()

    def _show(self) -> None:
        """More may be visible, for the leader has told of more, or more is flushed."""
        if self._told is None:
            return
        self._is_level = self._is_level or self.log.flushed_end >= self._told
        if self._is_level and self.visible_end > self._shown:
            self._shown = self.visible_end
            size, self._visible_bytes = self._appended_bytes - self._visible_bytes, self._appended_bytes
            self._tell_watchers(max(size, 1))

    # what the leader gives

    def append(self, records: Buffer, *, gaps_below: Offset = NO_GAPS) -> None:
        """Append what the leader gave for our log's end; below `gaps_below` its log was compacted. Raises CorruptBatch:
        nothing of it is taken; StorageFailure: the disk failed, and the partition with it; NoRoom: it is full."""
        now_ms = self._clock.now_ms()
        headers = check_batches(records, gaps_below=gaps_below)
        try:
            self.log.append_verbatim(records, headers, now_ms=now_ms, gaps_below=gaps_below)
        except NoRoom as error:
            self._fail(error)
            raise
        except (OSError, StorageFailure) as error:
            self._fail(error)
            raise StorageFailure(str(error)) from error
        for _, header in headers:
            self.producers.on_appended(header, Offset(header.base_offset), now_ms)
        self._appended_bytes += len(records)
        self._share.left -= len(records)
        if self._appended_bytes >= self._snapshot_at_bytes:
            self.snapshot_producers()
        if self.open_since_ms is None:
            self.open_since_ms = now_ms
        if self.log.needs_flush:
            self._flusher.request(self)

    def skip_to(self, offset: Offset) -> None:
        """The leader's log goes on there, and compaction has left nothing before it. Raises as `append`."""
        try:
            self.log.skip_to(offset, now_ms=self._clock.now_ms())
        except NoRoom as error:
            self._fail(error)
            raise
        except (OSError, StorageFailure) as error:
            self._fail(error)
            raise StorageFailure(str(error)) from error
        self._flusher.request(self)

    def on_marks(self, high_watermark: Offset, log_start: Offset) -> None:
        """The leader's high watermark, and where its log starts: what it has deleted goes here too."""
        if high_watermark >= 0:
            self._high_watermark = max(self._high_watermark, high_watermark)
            self._told = high_watermark if self._told is None else max(self._told, high_watermark)
            self._show()
        before = min(log_start, self.high_watermark)
        if self._ended is not ErrorCode.NONE or before <= self.log.log_start_offset:
            return
        try:
            self.snapshot_producers()
            self.log.delete_records_before(before)
        except (OSError, StorageFailure) as error:
            self._fail(error)
        if self.log.needs_flush:
            self._flusher.request(self)

    @property
    def is_flushed(self) -> bool:
        """Whether all that was appended is durable."""
        return self.log.flushed_end == self.log.log_end_offset

    def where_to_cut(self, diverging: EpochEnd) -> Offset:
        """See `cut_at`: the leader's log goes on otherwise from there."""
        return cut_at(self.log.end_offset_for_epoch(diverging.epoch), diverging, self.log.log_end_offset)

    def leaves_nothing(self, offset: Offset) -> bool:
        """Whether, cut there, it goes by durable history for all that comes before, which is not the leader's then."""
        start = self.log.log_start_offset
        kept = start if self.log.epoch_at(Offset(start - 1)) != NO_EPOCH else start + 1  # else nobody could compare it
        return self.is_empty or (offset < kept and self.start_offset < start)

    def cut(self, offset: Offset) -> None:
        """Drop all at and above `offset`, or, where that is below our start, everything. Blocking: in a worker thread,
        with no flush under way. Raises StorageFailure; CorruptData where that is in the middle of damage, and then
        nothing is cut."""
        self._tell_of_loss(offset)
        if offset < self.high_watermark:
            self._high_watermark = offset
        self.log.truncate_to(offset, self._forget_producers_above)
        self._sound_from = min(self._sound_from, self.log.log_end_offset)
        self.damaged = damaged_range(self.log)

    def _forget_producers_above(self, end: Offset) -> bytes:
        """Of producers all is known that was known when the log ended there: the batches of some may have left the log
        since, and newer snapshots go with the cut."""
        before = self.producers.as_of(end)
        try:
            self.producers = recover_producers(self.log, self._clock.now_ms(), end)
        except OSError as error:
            raise StorageFailure(f"The producers of {self.log.directory.name} cannot be read: {error}.") from error
        self.producers.remember(before)
        return self.producers.snapshot() if len(self.producers) else b""

    def waits_for_room(self) -> bool:
        """Whether the disk has none for what comes next; who brings it comes again later."""
        if self.lacks_room:
            self._room.lack(self)
        return self.lacks_room

    @property
    def is_blocked(self) -> bool:
        """Nothing can be appended to it before it is begun anew."""
        return self.in_doubt is not None or self.log.read_only is not None

    @property
    def waits_for_others(self) -> bool:
        """Nothing can be copied to it before something else changes."""
        return self.stuck_at is not None or self.leader == NO_LEADER

    @property
    def may_be_dropped(self) -> bool:
        """Nobody counts on it, or ever will on what it has now: it is not in sync, and who leads in this epoch has been
        told nothing of it, so that it cannot have been proposed either. Decision 0023."""
        return not self.is_in_sync and self._epoch > self.said_in

    def begin_anew(self) -> None:
        """Drop everything, but for what is kept beside the log until this copy is in sync again; what comes next is at
        the leader's log start. As `cut`; only where it `may_be_dropped`."""
        self.log.begin_anew()
        self._begun(Offset(0))
        self.in_doubt = None

    def start_over(self, beginning: Beginning) -> None:
        """Drop everything; what comes next is there. As `cut`."""
        offset, epoch, producers = beginning
        self._tell_of_loss(offset)
        self.log.restart_at(offset, epoch=epoch, producers=producers.snapshot() if len(producers) else b"")
        self._begun(offset)
        self.producers = producers
        self._began_at = offset

    @property
    def may_begin_behind_history(self) -> bool:
        """It has nothing, and durable history has what it lacks first."""
        return self.is_empty and self.log.log_end_offset != self._began_at and self.is_behind_history

    @property
    def is_behind_history(self) -> bool:
        """What it lacks first is in durable history, which it has not found unreadable lately."""
        history = self.history
        return (
            history is not None
            and history.last is not None
            and self.is_exported
            and not self.keeps_all
            and history.next_offset > self.log.log_end_offset
            and self._clock.monotonic() >= self._shuns_history_until
        )

    def shun_history(self) -> None:
        """It could not be read: for a while this copy is taken from its leader alone."""
        self._shuns_history_until = self._clock.monotonic() + FRONTIER_RETRY_MS / 1000

    @property
    def is_empty(self) -> bool:
        """It has nothing. What is said to come before may be not what the leader has there."""
        return self.log.log_start_offset == self.log.log_end_offset

    @property
    def has_begun(self) -> bool:
        """It was begun where its log ends, and nothing has come since."""
        return self._began_at == self.log.log_end_offset

    def _tell_of_loss(self, offset: Offset) -> None:
        """What was committed goes, as after an unclean election."""
        if offset < self.high_watermark:
            log.error(
                "records below the high watermark are cut: the new leader does not have them",
                topic=self.topic,
                partition=self.topic_partition.partition,
                offset=offset,
                high_watermark=self.high_watermark,
            )

    def _begun(self, offset: Offset) -> None:
        self.damaged = damaged_range(self.log)
        self._sound_from = offset
        self.producers = ProducerStates()
        self._high_watermark = offset

    def fail(self, cause: HeadraceError) -> None:
        """Called by the copying, whose log could not be cut. Where the disk was full half-way, the copy serves nothing
        until its log is opened again."""
        self._fail(cause)
        if isinstance(cause, NoRoom) and self.log.failed:
            self.end(ErrorCode.KAFKA_STORAGE_ERROR)

    # flushing and ending

    def begin_flush(self) -> FlushTicket | None:
        return None if self.is_changing else super().begin_flush()

    def _on_flush_done(self, flushed_end: Offset) -> None:
        self._show()
        if self.log.needs_flush:
            self._flusher.request(self)
        self._tell_flushed()

    def end(self, error: ErrorCode) -> None:
        super().end(error)
        self._tell_flushed()

    async def settled(self) -> None:
        async with self.changing:
            return

    @property
    def has_ended(self) -> bool:
        """It takes nothing any more."""
        return self._ended is not ErrorCode.NONE

    def flush_soon(self) -> None:
        """What a change of the log has kept from being flushed, or has left to be."""
        if not self.has_ended and self.log.needs_flush:
            self._flusher.request(self)

    def _tell_flushed(self) -> None:
        if self.on_flushed is not None:
            self.on_flushed(self)


def _sound_from(log: PartitionLog) -> Offset:
    """Where the last damage of a log ends; the log's end, where nobody knows what it lacks."""
    if log.read_only is not None:
        return log.log_end_offset
    return Offset(max((damage.end for damage in log.damages), default=0))
