"""The leader's side of copying: the position of a follower in every partition that this broker leads, and the data for
it.

A follower reports its position in a partition once, and from then on is sent every append. Each of its frames that
wants an answer gets one, as soon as there is anything.

Promises:
- A follower's report counts only in its leader epoch, and for its process.
- Nothing waits for anybody's clock.
- The follower bounds the data that it was sent and has not flushed: it asks for no more.

Loop-only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import (
    REPLICA_ANSWER_BYTES_MAX,
    REPLICA_BEGINNINGS_MAX,
    REPLICA_IDLE_MS,
    REPLICA_NEWS_MS_MAX,
    REPLICA_TOLD_MAX,
)
from headrace.base.ports import Buffer
from headrace.broker.kit.deferred import Deferred
from headrace.broker.kit.gathering import GroupCommitTimer
from headrace.broker.kit.tasks import in_thread, started
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.sessions import Followers
from headrace.logs import get_logger
from headrace.metadata.image import MetadataImage
from headrace.native import ROAD
from headrace.net.server.connection import Answer
from headrace.replica.follower import diverges, is_older_than_all
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.faults import DamagedRange
from headrace.storage.engine.reading import EpochEnd
from headrace.wire.batches import end_of, parse_header
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode
from headrace.wire.replica_fetch import (
    Copied,
    Flushed,
    Placed,
    ReplicaFetch,
    Who,
    decode_request,
    encode_answer,
)

log = get_logger(__name__)

NOWHERE: Final = EpochEnd(NO_EPOCH, Offset(-1))
NO_SUCH_EPOCH: Final = LeaderEpoch(-2)
"""In an answer: the leader's log has no epoch so old."""


@dataclass(slots=True)
class Place:
    """The position of a follower in one partition."""

    partition: Partition
    generation: int
    next_offset: Offset
    """The offset to send next."""


class Beginner(NamedTuple):
    """A follower of one partition that is to begin again."""

    placed: Placed
    partition: Partition
    begin: Offset


class FollowerSession:
    """One connection of one process of one follower."""

    def __init__(self, who: Who, begins: bytes, services: Followers) -> None:
        """`begins`: the bytes with which all of its frames begin."""
        self.begins = begins
        self.replica = who.replica
        self.broker_epoch = who.broker_epoch
        self.heard_at = 0.0
        """When the last frame came, in monotonic seconds."""
        self._followers = services
        self._loop = asyncio.get_running_loop()
        self._places: dict[TopicPartition, Place] = {}
        self._placed_as: dict[int, TopicPartition] = {}
        """Partitions by generation, which is the follower's name for them."""
        self._ready: dict[TopicPartition, None] = {}
        """Partitions with more to send; the one served last goes to the back."""
        self._throttled: dict[TopicPartition, None] = {}
        """Partitions with more to send, once the throttle allows it."""
        self._news: dict[TopicPartition, None] = {}
        """Partitions whose high watermark, or start, has risen since the last answer, or in which damage was found."""
        self._told: dict[TopicPartition, Copied] = {}
        """Refusals and divergences, each to be sent once."""
        self._beginning: dict[TopicPartition, Beginner] = {}
        """Partitions that are to begin again; the follower hears it once their producers are put together."""
        self._begun: set[TopicPartition] = set()
        """Partitions of `_told` that are to begin again."""
        self._encoder: asyncio.Task[None] | None = None
        self._gathering = GroupCommitTimer(self._loop)
        self._is_behind = False
        """There was more to send than the last answer had room for."""
        self._waiting: Waiting | None = None
        self._answer_at = 0.0
        """When the waiting frame is answered at the latest, in the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs out at `_answer_at` or before. It runs on where a frame is answered earlier: the next has no cost."""
        self._timer_at = 0.0
        self._pause: asyncio.TimerHandle | None = None
        """Runs until there is room in the throttle."""

    # frames of the follower

    def on_frame(self, frame: memoryview, image: MetadataImage, *, may_join: bool) -> Waiting | None:
        """Take a frame; return the answer that it wants, which may come later, or None. `may_join`: as `_may_join` of
        the image. Raises CorruptData."""
        self.heard_at = self._followers.clock.monotonic()
        reported = None
        if ROAD.native is not None:
            reported = ROAD.native.take_reports(self, frame, len(self.begins), may_join)
        if reported is None or reported[0] >= 0:
            request = decode_request(frame, len(self.begins))
            self._on_request(request, 0 if reported is None else reported[0], image, may_join=may_join)
            wants_answer, bytes_max = request.wants_answer, request.bytes_max
        else:
            _, wants_answer, bytes_max = reported
        if self._throttled:
            self._look_at_throttled()
        return self._wait(bytes_max) if wants_answer else None

    def _on_request(self, request: ReplicaFetch, reported: int, image: MetadataImage, *, may_join: bool) -> None:
        """Take what a frame says, except for the first reports, which are taken already."""
        for generation in request.forgotten:
            if (key := self._placed_as.get(generation)) is not None:
                self._forget(key)
        for placed in request.placed:
            self._place(placed, image)
            if len(self._told) + len(self._beginning) > REPLICA_TOLD_MAX:
                raise CorruptData(f"broker {self.replica} wants no answer, and places more than it can be told of")
        for flushed in request.flushed[reported:]:
            self._on_flushed(flushed, may_join=may_join)

    def _wait(self, bytes_max: int) -> Waiting:
        """Return the answer to a frame that wants one, as soon as there is something to say."""
        self.answer_now()
        self._gathering.answered()
        waiting = self._waiting = Waiting(self, min(bytes_max, REPLICA_ANSWER_BYTES_MAX))
        if self._told or self._is_behind:
            self.answer_now()
        elif self._ready:
            self._answer_soon()
        else:
            waiting.is_hurried = bool(self._news)
            self._answer_within(REPLICA_NEWS_MS_MAX if self._news else REPLICA_IDLE_MS)
        return waiting

    def _may_join(self, image: MetadataImage) -> bool:
        broker = image.brokers.get(self.replica)
        return broker is not None and not broker.fenced and broker.epoch == self.broker_epoch

    def on_liveness(self, image: MetadataImage) -> None:
        """Note that the follower may have been fenced, or unfenced."""
        may_join = self._may_join(image)
        for place in self._places.values():
            place.partition.isr.on_liveness(self.replica, may_join=may_join)

    def _place(self, placed: Placed, image: MetadataImage) -> None:
        key = placed.key
        refused = self._sent_in_vain(placed)
        self._forget(key)
        if placed.generation in self._placed_as:
            raise CorruptData(f"broker {self.replica} places two partitions as {placed.generation}")
        found = self._followers.partitions.find(key, image)
        if not isinstance(found, Partition):
            self._tell(placed, found)
            return
        if error := found.check_epoch(placed.leader_epoch):
            self._tell(placed, error)
            return
        if self.replica not in found.isr.leader.replicas:  # as far as this broker knows: the follower asks again
            self._tell(placed, ErrorCode.UNKNOWN_LEADER_EPOCH)
            return
        if refused:  # once examined, the log is known to be damaged, and a sound replica may lead
            found.on_unreadable(CorruptData("a follower could not take what it was sent"), placed.log_end)
        our_log = found.log
        our_start = our_log.log_start_offset
        older = is_older_than_all(
            placed.last_epoch,
            placed.log_end,
            start=our_start,
            start_epoch=our_log.epoch_at(our_start),
            epoch_before=our_log.epoch_at(Offset(our_start - 1)),
        )
        # Otherwise, all its records below our start are deleted everywhere.
        if older and found.start_offset < our_start:
            self._tell_begin(placed, found)
            return
        ours = our_log.end_offset_for_epoch(placed.last_epoch) if placed.last_epoch >= 0 else NOWHERE
        if diverges(ours, placed.last_epoch, placed.log_end):
            if our_log.read_only is None:
                self._tell(placed, ErrorCode.NONE, found, ours)
            else:  # flushed records of this log are gone: the follower may have them
                self._tell(placed, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        next_offset = placed.log_end
        if not our_log.log_start_offset <= next_offset <= our_log.log_end_offset:
            begin = self._begin_of(found)
            if isinstance(begin, ErrorCode):
                self._tell(placed, begin)
                return
            if next_offset != begin:
                self._tell_begin(placed, found)
                return
            next_offset = our_log.log_start_offset
        self._places[key] = Place(found, placed.generation, next_offset)
        self._placed_as[placed.generation] = key
        found.tails.watch(self)
        self._news[key] = None
        if next_offset < our_log.log_end_offset:
            self._ready[key] = None
        may_join = self._may_join(image)
        end, readable_from = placed.flushed_end, placed.readable_from
        found.isr.on_follower(self.replica, self.broker_epoch, end, readable_from, may_join=may_join)

    def _tell_begin(self, placed: Placed, partition: Partition) -> None:
        """Tell the follower to drop its log, and begin where ours does."""
        begin = self._begin_of(partition)
        if isinstance(begin, ErrorCode):
            self._tell(placed, begin)
        elif partition.log.read_only is not None:  # flushed records of this log are gone: the follower may have them
            self._tell(placed, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._begin_anew(placed, partition, begin)

    def _begin_anew(self, placed: Placed, partition: Partition, begin: Offset) -> None:
        """Tell the follower where to begin, with the producers from before, which are put together in a worker
        thread."""
        index = partition.log.aborted
        if not (len(partition.producers) or (index is not None and index.has_any)):
            self._tell(placed, ErrorCode.OFFSET_OUT_OF_RANGE, partition, begin=begin)
            return
        self._beginning[placed.key] = Beginner(placed, partition, begin)
        self._encode_soon()

    def _encode_soon(self) -> None:
        if self._encoder is None and self._beginning and len(self._begun) < REPLICA_BEGINNINGS_MAX:
            self._encoder = started(self._encode(), "producers for copies", self._followers.on_bug)

    async def _encode(self) -> None:
        """Put producers together one after the other, as long as few results wait to be sent: each may be large."""
        while self._beginning and len(self._begun) < REPLICA_BEGINNINGS_MAX:
            key, beginner = next(iter(self._beginning.items()))
            known = self._producers_of(beginner)
            snapshot = await in_thread(known.snapshot) if known is not None and len(known) else b""
            if self._beginning.get(key) is not beginner:
                continue  # it has another position now
            del self._beginning[key]
            placed, partition, begin = beginner
            # A broker that leads no more must not let others drop anything.
            error = partition.check_epoch(placed.leader_epoch)
            if known is None:
                error = error or ErrorCode.KAFKA_STORAGE_ERROR
            if error:
                self._tell(placed, error)
                self.answer_now()
                continue
            self._begun.add(key)
            self._tell(placed, ErrorCode.OFFSET_OUT_OF_RANGE, partition, begin=begin, records=snapshot)
            self.answer_now()
        self._encoder = None

    def _producers_of(self, beginner: Beginner) -> ProducerStates | None:
        """Return the producers where the copy begins. Transactions that were open there and are aborted since count
        as open: the copy gets the markers, and tells its readers of durable history. None: the log's index cannot be
        read."""
        _, partition, begin = beginner
        try:
            return partition.producers.as_of(begin, partition.aborted.between(begin, Offset(begin + 1)))
        except (CorruptData, StorageFailure, OSError) as error:
            partition.on_unreadable(error, begin)
            return None

    def _sent_in_vain(self, placed: Placed) -> bool:
        """Whether the follower stands below the records that it was sent on this connection, in this epoch, without
        having stopped copying. A follower that finds the bytes damaged does so."""
        known = self._places.get(placed.key)
        return (
            known is not None
            and placed.log_end < known.next_offset
            and placed.log_end < known.partition.log.log_end_offset
        )

    def _begin_of(self, partition: Partition) -> Offset | ErrorCode:
        """Return where a copy begins. It is below the log's start where that is in the middle of a batch, for that
        comes whole."""
        start = partition.log.log_start_offset
        try:
            first = partition.read_tail(start, 1, at_least_one=True)
        except (CorruptData, StorageFailure, OSError) as error:
            return partition.on_unreadable(error, start)
        return min(Offset(parse_header(first).base_offset), start) if first else start

    def _on_flushed(self, flushed: Flushed, *, may_join: bool) -> None:
        key = self._placed_as.get(flushed.generation)
        if key is None:
            return  # it belongs to an epoch, or a log, that is over
        place = self._places[key]
        if flushed.flushed_end > place.next_offset:
            raise CorruptData(f"broker {self.replica} has flushed what it was not sent")
        end, readable_from = flushed.flushed_end, flushed.readable_from
        place.partition.isr.on_follower(self.replica, self.broker_epoch, end, readable_from, may_join=may_join)

    def _forget(self, key: TopicPartition) -> None:
        """Forget the partition, which the follower does not copy any more, or copies from another position."""
        self._beginning.pop(key, None)
        self._begun.discard(key)
        self._told.pop(key, None)
        self._ready.pop(key, None)
        self._throttled.pop(key, None)
        self._news.pop(key, None)
        if (place := self._places.pop(key, None)) is not None:
            del self._placed_as[place.generation]
            place.partition.tails.unwatch(self)
            # The leader does not wait for a follower that copies no more.
            place.partition.isr.on_liveness(self.replica, may_join=False)

    def _tell(
        self,
        placed: Placed,
        error: ErrorCode,
        partition: Partition | None = None,
        diverging: EpochEnd | None = None,
        *,
        begin: Offset | None = None,
        records: bytes = b"",
    ) -> None:
        """Have a row sent once. `begin`: where the follower's log is to begin; the leader's start, where it is None.
        `records`: the producers for it."""
        start = Offset(-1) if partition is None else partition.start_offset
        epoch, end = NOWHERE if diverging is None else diverging
        if diverging is not None and epoch < 0:
            epoch = NO_SUCH_EPOCH
        if begin is not None and partition is not None:
            start, epoch = begin, partition.log.epoch_at(Offset(begin - 1))
        row = Copied(placed.generation, error, NO_OFFSET, start, epoch, end, Offset(0), NO_OFFSET, None, records)
        self._told[placed.key] = row

    # answers

    def answer(self, bytes_max: int) -> Answer:
        """Return a frame with everything to send now, up to `bytes_max`, except that one first batch may have any
        size."""
        self._gathering.begun()
        if ROAD.native is not None and not (self._told or self._beginning):
            frame = ROAD.native.take_ready(self, bytes_max)
            if frame is not None:
                return frame
        return encode_answer(self._take(bytes_max))

    def _take(self, bytes_max: int) -> list[Copied]:
        rows: list[Copied] = []
        size = self._take_told(rows, bytes_max)
        for key in list(self._ready):
            if size >= bytes_max:
                break
            place = self._places[key]
            room = bytes_max - size
            if is_throttled := place.partition.throttles(self.replica):
                room = min(room, self._followers.throttle.room())
                if not room:
                    self._hold_back(key)
                    continue
            records, error = self._read(place, room, at_least_one=size == 0)
            if error:
                rows.append(_row(place, error, b""))
                self._forget(key)  # until it is placed again
                continue
            if not (records or size == 0):
                continue  # there was no room for a whole batch
            log_end = place.partition.log.log_end_offset
            if records:
                rows.append(_row(place, ErrorCode.NONE, records))
                self._went_on(key, end_of(records))
            else:  # though there was room for any: compaction has left none
                rows.append(_row(place, ErrorCode.NONE, b"", skip_to=log_end))
                self._went_on(key, log_end)
            size += len(records)
            if is_throttled:
                self._followers.throttle.take(len(records))
            self._news.pop(key, None)
        self._is_behind = bool(self._ready) or bool(self._told)
        news, self._news = self._news, {}
        rows += [_row(self._places[key], ErrorCode.NONE, b"") for key in news]
        return rows

    def _take_told(self, rows: list[Copied], bytes_max: int) -> int:
        """Add rows that are sent once, and return their bytes."""
        size = 0
        for key in list(self._told):
            if rows and size >= bytes_max:
                break
            row = self._told.pop(key)
            self._begun.discard(key)
            size += len(row.records)
            rows.append(row)
        self._encode_soon()
        return size

    def _went_on(self, key: TopicPartition, next_offset: Offset) -> None:
        place = self._places[key]
        place.next_offset = next_offset
        del self._ready[key]
        if next_offset < place.partition.log.log_end_offset:
            self._ready[key] = None

    def _hold_back(self, key: TopicPartition) -> None:
        del self._ready[key]
        self._throttled[key] = None
        if self._pause is None:
            self._pause = self._loop.call_later(self._followers.throttle.wait_s(), self._let_go)

    def _look_at_throttled(self) -> None:
        """Release partitions that may be sent before the pause is over. The follower may be in sync, where nothing
        holds it back, or the rate may have been raised."""
        has_room = self._followers.throttle.room() > 0
        for key in list(self._throttled):
            if has_room or not self._places[key].partition.throttles(self.replica):
                del self._throttled[key]
                self._ready[key] = None

    def _let_go(self) -> None:
        self._pause = None
        self._ready |= self._throttled
        self._throttled.clear()
        if self._ready:
            self._answer_soon()

    def _read(self, place: Place, room: int, *, at_least_one: bool) -> tuple[Buffer, ErrorCode]:
        partition = place.partition
        # Deleted here since it was placed: the follower reports its position again.
        if place.next_offset < partition.log.log_start_offset:
            return b"", ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            return partition.read_tail(place.next_offset, room, at_least_one=at_least_one), ErrorCode.NONE
        except (CorruptData, StorageFailure, OSError) as error:
            if not isinstance(error, DamagedRange):
                log.warning(
                    "a follower cannot be served: the log could not be read",
                    topic=partition.topic,
                    partition=partition.topic_partition.partition,
                    offset=place.next_offset,
                    reason=str(error),
                )
            return b"", partition.on_unreadable(error, place.next_offset)

    def answer_now(self) -> None:
        """Answer the frame that waits, if any, with what there is."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.settle_now()

    def _answer_within(self, time_ms: int) -> None:
        """Have the waiting frame answered once that time is over, whatever there is."""
        self._answer_at = at = self._loop.time() + time_ms / 1000
        if self._timer is None or at < self._timer_at:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._on_timer), at

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiting is None or self._waiting.is_due:
            return
        if self._answer_at > self._timer_at:
            self._set_timer(self._answer_at)
        else:
            self.answer_now()

    def _answer_soon(self) -> None:
        if self._waiting is not None and not self._waiting.is_due:
            self._waiting.is_due = True
            self._gathering.begin(self.answer_now)

    def _hurry(self) -> None:
        """Answer before long: a follower that copies nothing now still hears how far it may be read."""
        if self._waiting is not None and not (self._waiting.is_hurried or self._waiting.is_due):
            self._waiting.is_hurried = True
            self._answer_within(REPLICA_NEWS_MS_MAX)

    # news of the partitions

    def on_appended(self, partition: Partition) -> None:
        key = partition.topic_partition
        if key in self._throttled:
            if partition.throttles(self.replica):
                return
            del self._throttled[key]
        self._ready[key] = None
        self._gathering.arrived()
        self._answer_soon()

    def on_news(self, partition: Partition) -> None:
        self._news[partition.topic_partition] = None
        self._hurry()

    def on_epoch_end(self, partition: Partition) -> None:
        key = partition.topic_partition
        place = self._places.get(key)
        self._forget(key)
        if place is not None:
            self._told[key] = _row(place, ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
            self._loop.call_soon(self.answer_now)

    def end(self) -> None:
        """End the session: the connection is over, or another has replaced it."""
        for key in list(self._places):
            self._forget(key)
        self._beginning.clear()
        if self._encoder is not None:
            self._encoder.cancel()
        for timer in (self._pause, self._timer):
            if timer is not None:
                timer.cancel()
        self._pause = self._timer = None
        self.answer_now()
        self._followers.forget(self)


class Waiting(Deferred):
    """A frame that waits for its answer; as a `Later` of the connection."""

    __slots__ = ("_bytes_max", "_session", "is_due", "is_hurried", "pipelined")

    def __init__(self, session: FollowerSession, bytes_max: int) -> None:
        super().__init__(None)
        self.pipelined = True
        self._session = session
        self._bytes_max = bytes_max
        self.is_due = self.is_hurried = False

    def settle_now(self) -> None:
        self.settle(lambda: self._session.answer(self._bytes_max))

    def cancel(self) -> bool:
        """End the session, as the connection is gone."""
        cancelled = super().cancel()
        if cancelled:
            self._session.end()
        return cancelled

    def answer(self) -> Answer | None:
        """Return the answer as it was put together."""
        if self.cancelled():
            return None
        error = self.exception()
        if error is not None:
            raise error
        answer: Answer = self.result()
        return answer


def _row(place: Place, error: ErrorCode, records: Buffer, *, skip_to: Offset = NO_OFFSET) -> Copied:
    partition = place.partition
    gaps_below, start = partition.log.gaps_below, partition.start_offset
    marks = (partition.high_watermark, start, NO_EPOCH, Offset(-1), gaps_below, skip_to, partition.damaged)
    return new(Copied, (place.generation, error, *marks, records))
