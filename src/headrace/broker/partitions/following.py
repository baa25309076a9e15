"""One partition that this broker copies: its log follows the leader's, batch by batch.

Promises:
- Every append is the leader's data, verbatim and checked.
- Where the two logs differ, ours is cut, by leader epochs, before anything more is appended.
- Every end that is reported to the leader as flushed is durable here.
- Consumers that read here (KIP-392) see only what the leader of this epoch reported as committed, while its reports
  come. That end never falls within an epoch.

Loop-only, but for `cut` and the sync of a FlushTicket. Sources: KIP-101, KIP-279, KIP-595 (the diverging epoch in a
fetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Unpack

from headrace.base.errors import HeadraceError, NoRoom, StorageFailure
from headrace.base.ids import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import FRONTIER_RETRY_MS
from headrace.base.ports import Buffer
from headrace.broker.partitions import bounds
from headrace.broker.partitions.hot import hot_copy
from headrace.broker.partitions.logs.opening import recover_producers
from headrace.broker.partitions.replica import Common, Replica, damaged_range
from headrace.broker.partitions.sight import Sight
from headrace.logs import get_logger
from headrace.native import HotCopy
from headrace.replica.follower import Position, cut_at
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.copying import Copying
from headrace.storage.engine.cutting import NO_GAPS
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.engine.reading import EpochEnd
from headrace.storage.tier.beginnings import Beginning
from headrace.wire.batches import CONTROL, BatchHeader, check_batches
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import marker_in

log = get_logger(__name__)


class LeaderReport(NamedTuple):
    """A leader's report on its own log."""

    damaged: tuple[Offset, Offset] | None
    """As `Replica.damaged`."""


SOUND: Final = LeaderReport(None)


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
        open_again: Callable[[TopicPartition], None],
        **common: Unpack[Common],
    ) -> None:
        """`open_again`: see `Roles`."""
        super().__init__(**common)
        self._node, self._open_again = node, open_again
        self.leader = leader
        self.is_in_sync = is_in_sync
        """Whether the committed ISR has this broker."""
        self._epoch = leader_epoch
        self._high_watermark = high_watermark
        self._sight = Sight()
        self._sound_from = _sound_from(self.log)
        """No damage is at this offset or above."""
        self.on_flushed: Callable[[FollowerPartition], None] | None = None
        """Called when more appends are durable, or none ever will be."""
        self.on_no_room: Callable[[FollowerPartition], None] | None = None
        """Called when its appends have to wait for room on the disk."""
        self.said_in: LeaderEpoch = NO_EPOCH
        """The newest epoch in which a leader may have heard how far this copy is."""
        self.leader_report: LeaderReport | None = None
        """The report of this epoch's leader on its own log; None: it has not reported on this copy's position yet."""
        self.in_doubt: str | None = None
        """A sentence, where the log cannot be cut as its leader wants it: nothing is appended to it any more."""
        self.stuck_at: Offset | None = None
        """The offset of records that the leader cannot give, as it is damaged there."""
        self._began_at: Offset | None = None
        """The offset at which it last began, in this role."""
        self._shuns_history_until = 0.0
        self.hot: HotCopy | None = hot_copy(self, SOUND)
        """The native road of its appends; None: they run as pure Python."""
        self.changing = asyncio.Lock()
        """Held while the log is cut: nothing is appended, and no other role begins, meanwhile."""
        self.is_changing = False

    @property
    def _copied(self) -> Copying:
        """The log, as it is copied. One that brokers share is in this role only until its leader knows history."""
        assert self._copying is not None, "only logs of a broker's own are copied"
        return self._copying

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._epoch

    @property
    def high_watermark(self) -> Offset:
        """The reported high watermark, but at most the log's end."""
        return min(self._high_watermark, self.log.log_end_offset)

    @property
    def offset_lag(self) -> int:
        return max(0, self._high_watermark - self.log.log_end_offset)

    @property
    def position(self) -> Position:
        """The position that the next fetch reports."""
        end = self.log.log_end_offset
        return Position(self._epoch, end, self.log.epoch_at(Offset(end - 1)), self.log.flushed_end, self.readable_from)

    @property
    def availability(self) -> ErrorCode:
        """NONE while it is copied, and others may work on its log."""
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if self.is_changing else self._ended

    async def quiet(self) -> None:
        """Return once no flush of the log is under way, and nobody else works on it."""
        await self._flusher.round_over()
        await self.events.release([self.log])

    def open_again(self) -> None:
        """Have the log closed, and opened again once there is room: the disk was full while it was cut."""
        self._open_again(self.topic_partition)

    def begin(self) -> None:
        """Make the log a follower's: epochs that it led without writing anything are removed."""
        if self._copying is not None and not self.log.failed:
            self._copied.truncate_to(self.log.log_end_offset)

    @property
    def is_throttled(self) -> bool:
        """Whether its copying is limited (KIP-73): never while this copy is in sync."""
        throttled = self.settings.throttled_followers
        if not (throttled.all or throttled.some) or self.is_in_sync:
            return False
        return throttled.holds(self.topic_partition.partition, self._node)

    def follow(self, leader: BrokerId, epoch: LeaderEpoch) -> None:
        """Follow another leader, or the same in another epoch."""
        self.leader, self._epoch = leader, epoch
        self.leader_report = self.stuck_at = None
        self.lose_sight()

    # reading

    @property
    def visible_end(self) -> Offset:
        """`check_position` has allowed readers below it."""
        return self._sight.end(self.log.log_start_offset, self.log.flushed_end)

    @property
    def readable_from(self) -> Offset:
        """Neither missing nor damaged records are at this offset or above; records in durable history do not count as
        missing. At most the log's end."""
        if self._sound_from > self.log.log_start_offset:
            return self._sound_from
        return min(self.start_offset, self.log.log_end_offset)

    def on_damage(self) -> None:
        """Note new damage: consumers are to read elsewhere."""
        super().on_damage()
        self._sound_from = _sound_from(self.log)
        self._tell_flushed()

    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        """As `Replica`. Only the leader can say that there is no such offset. Where this copy does not have it, or does
        not know it to be committed, the error is OFFSET_NOT_AVAILABLE. The consumer then goes back to the leader."""
        if self._ended is not ErrorCode.NONE:
            return self._ended
        if believed not in (-1, self._epoch):
            return ErrorCode.FENCED_LEADER_EPOCH if believed < self._epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        if not self._sight.is_level:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        is_here = self.readable_from <= offset <= self.visible_end or self.is_in_history(offset)
        return ErrorCode.NONE if is_here else ErrorCode.OFFSET_NOT_AVAILABLE

    def awaits(self, offset: Offset) -> bool:
        return self._sight.is_level and offset > self.visible_end

    def lose_sight(self) -> None:
        """Note that the leader is not heard of any more, or has another position: its later commits are not known
        here."""
        if self._sight.lose():
            self.fetches.wake()

    def _show(self) -> None:
        """Show more, where the leader has reported more, or more is flushed."""
        if more := self._sight.show(self.log.flushed_end, self._appended_bytes):
            self.fetches.on_visible(more, self.last_stable_offset)

    # data of the leader

    def append(self, records: Buffer, *, gaps_below: Offset = NO_GAPS) -> None:
        """Append the leader's data for our log's end; below `gaps_below` its log was compacted. Raises CorruptBatch
        where nothing of it is taken, StorageFailure where the disk failed, and the partition with it, NoRoom where it
        is full."""
        now_ms = self._clock.now_ms()
        headers = check_batches(records, gaps_below=gaps_below)
        try:
            self._copied.append_verbatim(records, headers, now_ms=now_ms, gaps_below=gaps_below)
        except NoRoom as error:
            self.on_unwritten(error)
            raise
        except (OSError, StorageFailure) as error:
            self.on_unwritten(error)
            raise StorageFailure(str(error)) from error
        self._learn(records, headers, now_ms)
        self._appended_bytes += len(records)
        self._share.left -= len(records)
        if self._appended_bytes >= self._snapshot_at_bytes:
            self.snapshot_producers()
        if self.open_since_ms is None:
            self.open_since_ms = now_ms
        if self.log.needs_flush:
            self._flusher.request(self)

    def on_unwritten(self, cause: Exception) -> None:
        """Note that an append has failed."""
        self._fail(cause)

    def _learn(self, records: Buffer, headers: Sequence[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Note the producers of appended batches. Raises StorageFailure."""
        for at, header in headers:
            base = Offset(header.base_offset)
            if not header.attributes & CONTROL:
                self.producers.on_appended(header, base, now_ms)
                continue
            try:
                self._on_marker(header, marker_in(records, at, header), base, now_ms)
            except StorageFailure as error:
                self._fail(error)
                raise
            self.producers.transactions.on_replicated(self.high_watermark)

    def skip_to(self, offset: Offset) -> None:
        """Move the log's end to `offset`: compaction has left nothing before it in the leader's log. Raises as
        `append`."""
        try:
            self._copied.skip_to(offset, now_ms=self._clock.now_ms())
        except NoRoom as error:
            self._fail(error)
            raise
        except (OSError, StorageFailure) as error:
            self._fail(error)
            raise StorageFailure(str(error)) from error
        self._flusher.request(self)

    def on_marks(self, high_watermark: Offset, log_start: Offset) -> None:
        """Note the leader's high watermark, and its log's start: records that it has deleted go here too."""
        if high_watermark >= 0:
            self._high_watermark = max(self._high_watermark, high_watermark)
            self._sight.on_report(high_watermark)
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
        """Whether every append is durable."""
        return self.log.flushed_end == self.log.log_end_offset

    def where_to_cut(self, diverging: EpochEnd) -> Offset:
        """Return where to cut the log: the leader's log differs from there on. See `cut_at`."""
        return cut_at(self.log.end_offset_for_epoch(diverging.epoch), diverging, self.log.log_end_offset)

    def cut(self, offset: Offset) -> None:
        """Drop everything at and above `offset`, or, where that is below our start, everything. Blocking: in a worker
        thread, with no flush under way. Raises StorageFailure; CorruptData where `offset` is in the middle of damage,
        and then nothing is cut."""
        self._tell_of_loss(offset)
        if offset < self.high_watermark:
            self._high_watermark = offset
        self._copied.truncate_to(offset, self._forget_producers_above)
        self._sound_from = min(self._sound_from, self.log.log_end_offset)
        self.damaged = damaged_range(self.log)

    def _forget_producers_above(self, end: Offset) -> bytes:
        """Restore the producers' state as of `end`. The batches of some may have left the log since, and newer
        snapshots go with the cut."""
        before = self.producers.as_of(end)
        try:
            self.producers = recover_producers(self.log, self._clock.now_ms(), end)
        except OSError as error:
            raise StorageFailure(f"The producers of {self.log.identity.name} cannot be read: {error}.") from error
        self.producers.remember(before)
        return self.producers.snapshot() if len(self.producers) else b""

    def waits_for_room(self) -> bool:
        """Whether the disk has no room for the next append; the data is to be sent again later."""
        if self.lacks_room:
            self._room.lack(self)
        return self.lacks_room

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can be appended to it before it begins again."""
        return self.in_doubt is not None or self.log.read_only is not None

    @property
    def waits_for_others(self) -> bool:
        """Whether nothing can be copied to it before something else changes."""
        return self.stuck_at is not None or self.leader == NO_LEADER

    @property
    def may_be_dropped(self) -> bool:
        """Whether nobody counts on it, or ever will with its present records. It is not in sync, and the leader of this
        epoch has heard nothing of it, so it cannot have been proposed either. Decision 0023."""
        return not self.is_in_sync and self._epoch > self.said_in

    def begin_anew(self) -> None:
        """Drop everything, except the log that is kept in another directory until this copy is in sync again. The next
        data is at the leader's log start. As `cut`; only where it `may_be_dropped`."""
        self._copied.begin_anew()
        self._begun(Offset(0))
        self.in_doubt = None

    def start_over(self, beginning: Beginning) -> None:
        """Drop everything, and begin at the given offset. As `cut`."""
        offset, epoch, producers = beginning
        self._tell_of_loss(offset)
        self._copied.restart_at(offset, epoch=epoch, producers=producers.snapshot() if len(producers) else b"")
        self._begun(offset)
        self.producers = producers
        self._began_at = offset

    @property
    def may_begin_behind_history(self) -> bool:
        """Whether it is empty, and durable history has the first records that it lacks."""
        return self.is_empty and self.log.log_end_offset != self._began_at and self.is_behind_history

    @property
    def is_behind_history(self) -> bool:
        """Whether durable history has the first records that it lacks, and could be read lately."""
        history = self.history
        return (
            history is not None
            and history.last is not None
            and self.is_exported
            and not bounds.keeps_all(self)
            and history.next_offset > self.log.log_end_offset
            and self._clock.monotonic() >= self._shuns_history_until
        )

    def shun_history(self) -> None:
        """Copy from the leader alone for a while, as history could not be read."""
        self._shuns_history_until = self._clock.monotonic() + FRONTIER_RETRY_MS / 1000

    @property
    def is_empty(self) -> bool:
        """Whether it has no records. Its beginning may still differ from the leader's log there."""
        return self.log.log_start_offset == self.log.log_end_offset

    @property
    def has_begun(self) -> bool:
        """Whether it was begun where its log ends, and nothing has come since."""
        return self._began_at == self.log.log_end_offset

    def _tell_of_loss(self, offset: Offset) -> None:
        """Log the loss of committed records, as after an unclean election."""
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

    def _fail(self, cause: Exception) -> None:
        super()._fail(cause)
        if isinstance(cause, NoRoom) and self.on_no_room is not None:
            self.on_no_room(self)

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
        """Whether it accepts nothing any more."""
        return self._ended is not ErrorCode.NONE

    def flush_soon(self) -> None:
        """Flush what a change of the log has left to be flushed, or kept from it."""
        if not self.has_ended and self.log.needs_flush:
            self._flusher.request(self)

    def _tell_flushed(self) -> None:
        if self.on_flushed is not None:
            self.on_flushed(self)


def _sound_from(log: PartitionLog) -> Offset:
    """Return the end of the last damage of a log; the log's end, where nobody knows what it lacks."""
    if log.read_only is not None:
        return log.log_end_offset
    return Offset(max((damage.end for damage in log.damages), default=0))
