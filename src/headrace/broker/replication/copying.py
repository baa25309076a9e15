"""The follower's side of copying: a connection to one broker that leads partitions which this broker copies.

Promises:
- A copy gets only what its leader sent for this generation, in order.
- A log is cut where the leader's log differs from there on, while no flush of it is under way.
- Every end that is reported as flushed is durable.
- An unreachable leader is tried again for as long as the image says that it leads.
- Where a connection's session has an end (KIP-368), another is opened before that, and the first one serves until then.

Loop-only; logs are cut and emptied in worker threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, TypeVar

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData, HeadraceError, NoRoom, StorageFailure
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, BrokerEpoch, BrokerId, Offset, TopicPartition
from headrace.base.limits import (
    PEER_CONNECT_MS_MAX,
    REPLICA_ANSWER_BYTES_MAX,
    REPLICA_BACKOFF_MS_MAX,
    REPLICA_BACKOFF_MS_MIN,
    REPLICA_BULK_BYTES_MIN,
    REPLICA_DAMAGED_BACKOFF_MS_MAX,
    REPLICA_FRAME_ROWS_MAX,
    REPLICA_UNFLUSHED_BYTES_MAX,
)
from headrace.broker.kit.tasks import started
from headrace.broker.partitions.following import SOUND, FollowerPartition, LeaderReport
from headrace.broker.partitions.hot import UnchangedError, give_up, leave
from headrace.broker.replication.sources import Me
from headrace.logs import get_logger
from headrace.native import ROAD
from headrace.net.peer.copylink import CopyLink, open_link
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.reading import EpochEnd
from headrace.storage.tier.beginnings import Beginning
from headrace.wire.errors import ErrorCode
from headrace.wire.replica_fetch import (
    Copied,
    Flushed,
    Placed,
    ReplicaFetch,
    Who,
    decode_answer,
    encode_request,
    encode_who,
)

T = TypeVar("T")
log = get_logger(__name__)


class Source:
    """One leader, and all partitions that are copied from it."""

    def __init__(self, me: Me, leader: BrokerId) -> None:
        self._me = me
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        self._copies: dict[TopicPartition, FollowerPartition] = {}
        self._generations: dict[TopicPartition, int] = {}
        """The generations of copies that the leader has heard of, or is about to."""
        self._placed_as: dict[int, FollowerPartition] = {}
        """Copies by generation, which is the leader's name for them."""
        self._generation = 0
        self._who: tuple[BrokerEpoch, bytes] = (BrokerEpoch(-1), b"")
        self._to_place: dict[TopicPartition, None] = {}
        self._to_forget: dict[int, None] = {}
        self._flushed: dict[TopicPartition, None] = {}
        """Copies whose flushed end is to be reported."""
        self._refused: dict[TopicPartition, int] = {}
        """How often in a row each was refused."""
        self._unflushed: dict[TopicPartition, deque[tuple[Offset, int]]] = {}
        """Appends that are not yet flushed: the end of each, and its bytes."""
        self._unflushed_bytes = 0
        self._answer_bytes = 0
        """Bytes of the last answer."""
        self._link: CopyLink | None = None
        self._linked_to: Address | None = None
        """The address of the last connection."""
        self._opening: asyncio.Task[None] | None = None
        self._renewal: asyncio.TimerHandle | None = None
        """Until another connection is to take the place of this one."""
        self._cutting: set[asyncio.Task[None]] = set()
        self._attempts: dict[TopicPartition, object] = {}
        """The last attempt of each copy that is about to begin elsewhere."""
        self._reading: set[asyncio.Task[Beginning | None]] = set()
        """Reads of where copies may begin."""
        self._works: dict[TopicPartition, asyncio.Task[None]] = {}
        """The last task of each copy whose log is changed, or waits for that."""
        self._timers: dict[TopicPartition | None, asyncio.TimerHandle] = {}
        """Pauses: of partitions, and (None) before the next connection."""
        self._due = False
        self._failures = 0
        self._stopped = False

    # the copies

    def add(self, copy: FollowerPartition) -> None:
        """Copy it from this leader, from its log's end on."""
        key = copy.topic_partition
        self._copies[key] = copy
        copy.on_flushed = self._on_flushed
        copy.on_no_room = self._on_no_room
        self._refused.pop(key, None)
        if copy.is_changing:
            self._work(copy, self._once_settled(copy))
        else:
            self._begin(copy)

    def _begin(self, copy: FollowerPartition) -> None:
        """Begin or resume a copy of which nothing was said to this leader yet, or not any more."""
        if copy.waits_for_room():
            self._pause(copy.topic_partition)
        elif copy.events.is_to_begin_again(copy):
            self._work(copy, self._begin_anew(copy))
        elif copy.is_blocked:
            self._withdraw(copy.topic_partition)  # until it begins again
        elif self._me.beginning is not None and copy.may_begin_behind_history:
            self._begin_elsewhere(copy, None)
        else:
            self._place(copy.topic_partition)

    async def _once_settled(self, copy: FollowerPartition) -> None:
        """Begin once the change for the earlier leader is done."""
        await copy.settled()
        if self._copies.get(copy.topic_partition) is copy:
            self._begin(copy)

    def drop(self, key: TopicPartition) -> None:
        """Stop copying it."""
        copy = self._copies.pop(key, None)
        if copy is not None:
            copy.on_flushed = copy.on_no_room = None
            copy.lose_sight()
        self._withdraw(key)
        if (generation := self._forget(key)) is not None:
            self._to_forget[generation] = None
            self._send_soon()

    def _withdraw(self, key: TopicPartition) -> None:
        """Cancel everything that is planned for the copy."""
        self._to_place.pop(key, None)
        self._flushed.pop(key, None)
        self._attempts.pop(key, None)
        if (copy := self._copies.get(key)) is not None:
            copy.lose_sight()
        self._unflushed_bytes -= sum(size for _, size in self._unflushed.pop(key, ()))
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _forget(self, key: TopicPartition) -> int | None:
        """Forget the copy's generation, if it has one: later data for it is of no use."""
        generation = self._generations.pop(key, None)
        if generation is not None:
            del self._placed_as[generation]
        return generation

    def _place(self, key: TopicPartition) -> None:
        self._withdraw(key)
        self._forget(key)
        self._generation += 1
        self._generations[key] = self._generation
        self._placed_as[self._generation] = self._copies[key]
        self._to_place[key] = None
        self._send_soon()

    # requests to the leader

    def _send_soon(self) -> None:
        if self._link is None:
            self._open_soon()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Send everything that is to be reported, and whether more data is wanted."""
        self._due = False
        link = self._link
        if link is None or self._stopped:
            return
        wants = not link.awaited and self._has_room and bool(self._generations)
        if not (wants or self._to_place or self._flushed or self._to_forget):
            return
        if ROAD.native is not None and not (self._to_place or self._to_forget):
            reports = ROAD.native.write_reports(
                self, self._me_here(), wants, REPLICA_ANSWER_BYTES_MAX, REPLICA_FRAME_ROWS_MAX
            )
            if reports is not None:
                link.send(reports, answered=wants)
                return
        placed = [self._placed(key) for key in _some(self._to_place)]
        flushed = [self._told_flushed(key) for key in _some(self._flushed)]
        forgotten = _some(self._to_forget)
        frame = ReplicaFetch(wants, REPLICA_ANSWER_BYTES_MAX, placed, flushed, forgotten)
        link.send(encode_request(self._me_here(), frame), answered=wants)
        if self._to_place or self._flushed or self._to_forget:
            self._send_soon()

    def _me_here(self) -> bytes:
        epoch = self._me.broker_epoch()
        if self._who[0] != epoch:
            self._who = (epoch, encode_who(Who(self._me.cluster_id, self._me.node, epoch, self._leader)))
        return self._who[1]

    @property
    def _has_room(self) -> bool:
        """Whether to ask for more. Small answers are asked for one flush at a time: the records that come meanwhile
        share one answer, and one frame each way. Large ones follow each other while the disk is at work, up to a bound.
        """
        if not self._unflushed_bytes:
            return True
        return self._answer_bytes >= REPLICA_BULK_BYTES_MIN and self._unflushed_bytes < REPLICA_UNFLUSHED_BYTES_MAX

    def _placed(self, key: TopicPartition) -> Placed:
        copy = self._copies[key]
        copy.said_in = copy.leader_epoch
        return Placed(key, self._generations[key], *copy.position)

    def _told_flushed(self, key: TopicPartition) -> Flushed:
        copy = self._copies[key]
        return Flushed(self._generations[key], copy.log.flushed_end, copy.readable_from)

    def _on_flushed(self, copy: FollowerPartition) -> None:
        key = copy.topic_partition
        unflushed = self._unflushed.get(key)
        while unflushed and unflushed[0][0] <= copy.log.flushed_end:
            self._unflushed_bytes -= unflushed.popleft()[1]
        if copy.has_ended:
            self.drop(key)
        elif key in self._generations and key not in self._to_place:
            self._flushed[key] = None
            self._send_soon()

    # answers of the leader

    def _on_frame(self, frame: memoryview) -> None:
        """Take an answer. Raises CorruptData, for which the link is given up."""
        self._failures = 0
        self._answer_bytes = len(frame)
        self._due = True  # everything that the rows want sent leaves below
        try:
            taken = 0 if ROAD.native is None else ROAD.native.copy_rows(self, frame)
            for row in decode_answer(frame)[taken:] if taken >= 0 else ():
                copy = self._placed_as.get(row.generation)
                if copy is not None:
                    self._on_row(copy, row)
        finally:
            self._due = False
        self._send()  # at once: the leader waits for it, and everything in this answer is taken

    def _on_row(self, copy: FollowerPartition, row: Copied) -> None:
        if row.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_over(copy, row)
        elif row.error:
            self._on_refused(copy, row.error)
        elif row.diverging_epoch != -1:
            self._on_diverging(copy, EpochEnd(row.diverging_epoch, row.diverging_end))
        else:
            copy.leader_report = SOUND if row.damaged is None else LeaderReport(row.damaged)
            if not self._append(copy, row):
                return
            self._refused.pop(copy.topic_partition, None)
            if row.records:
                copy.stuck_at = None
            copy.on_marks(row.high_watermark, row.log_start)
            if row.records and copy.is_throttled:
                self._take_of_throttle(copy.topic_partition, len(row.records))

    def _take_of_throttle(self, key: TopicPartition, size: int) -> None:
        """Count the bytes against the throttle. Where there was less room, the leader is to send no more of it for a
        while."""
        self._me.throttle.take(size)
        if wait_s := self._me.throttle.wait_s():
            self._withdraw(key)
            if (generation := self._forget(key)) is not None:
                self._to_forget[generation] = None
                self._timers[key] = self._loop.call_later(wait_s, self._after_pause, key)

    def _append(self, copy: FollowerPartition, row: Copied) -> bool:
        key = copy.topic_partition
        try:
            if row.records and copy.waits_for_room():
                raise NoRoom(f"There is none for {copy.topic}-{key.partition}.")
            if row.records:
                copy.append(row.records, gaps_below=row.gaps_below)
            if copy.log.log_end_offset < row.skip_to <= row.gaps_below:
                copy.skip_to(row.skip_to)
        except StorageFailure as error:
            self._on_unwritten(key, error)
            return False
        except CorruptData as error:
            self._on_stuck(copy, f"what it sent cannot be appended: {error}")
            return False
        if not row.records:
            return True
        self.unflushed_of(key).append((copy.log.log_end_offset, len(row.records)))
        self._unflushed_bytes += len(row.records)
        if copy.is_flushed:
            self._on_flushed(copy)
        return True

    def unflushed_of(self, key: TopicPartition) -> deque[tuple[Offset, int]]:
        """The appends of a copy that are not yet flushed."""
        return self._unflushed.setdefault(key, deque())

    def _on_unwritten(self, key: TopicPartition, error: StorageFailure) -> None:
        """A row could not be written, as the copy was told. Unless the disk was full, it has ended, and was dropped."""
        if isinstance(error, NoRoom) and key in self._generations:
            self._stop_for_now(key)

    def on_native_failure(self, copy: FollowerPartition, error: BaseException) -> bool:
        """Note that the native road has failed in a row. Returns whether it had changed nothing, so that the twin is to
        take the row. Otherwise it may be half appended, and the copy ends. Raises the error where it is none of the
        disk."""
        if isinstance(error, UnchangedError):
            leave(copy, error)
            return True
        if isinstance(error, OSError | StorageFailure):
            copy.on_unwritten(error)
            self._on_unwritten(copy.topic_partition, error if isinstance(error, StorageFailure) else StorageFailure())
            return False
        give_up(copy)
        copy.on_unwritten(error if isinstance(error, Exception) else StorageFailure(str(error)))
        raise error

    def _on_refused(self, copy: FollowerPartition, error: int) -> None:
        """Pause after a refusal. The leader's image may be behind ours, or ours behind its own: it is asked again,
        unless ours changes."""
        if error == ErrorCode.CORRUPT_MESSAGE:
            self._on_stuck(copy, "its own log is damaged there")
            return
        log.debug(
            "a leader refuses a copy",
            topic=copy.topic,
            partition=copy.topic_partition.partition,
            leader=self._leader,
            error=error,
        )
        self._pause(copy.topic_partition)

    def _on_stuck(self, copy: FollowerPartition, reason: str) -> None:
        """Log that the leader cannot give the next records, and pause. It is asked again at intervals: others may lead,
        or it may be mended."""
        offset = copy.log.log_end_offset
        if copy.stuck_at != offset:
            copy.stuck_at = offset
            log.error(
                "a copy cannot go on: its leader cannot send what comes next; put back a sound copy of the leader's "
                "file, or have another replica lead",
                topic=copy.topic,
                partition=copy.topic_partition.partition,
                leader=self._leader,
                offset=offset,
                reason=reason,
            )
        self._pause(copy.topic_partition, longest_ms=REPLICA_DAMAGED_BACKOFF_MS_MAX)

    def _stop_for_now(self, key: TopicPartition) -> None:
        """Have the leader send no more of it, until it is placed again."""
        generation = self._generations.get(key)
        self._pause(key)
        if generation is not None:
            self._to_forget[generation] = None

    def _on_no_room(self, copy: FollowerPartition) -> None:
        """Have the leader send no more of it for now. Else bytes that cannot be flushed would keep all other copies
        waiting. None of these would find that it lacks room, and leave the ISR."""
        if copy.topic_partition in self._generations:
            self._stop_for_now(copy.topic_partition)
            self._send_soon()

    def _pause(self, key: TopicPartition, *, longest_ms: int = REPLICA_BACKOFF_MS_MAX) -> None:
        self._withdraw(key)
        self._forget(key)
        count = self._refused[key] = self._refused.get(key, 0) + 1
        seconds = backoff_s(count, longest_ms)
        self._timers[key] = self._loop.call_later(seconds, self._after_pause, key)

    def _after_pause(self, key: TopicPartition) -> None:
        del self._timers[key]
        if (copy := self._copies.get(key)) is not None:
            self._begin(copy)

    # where the logs differ

    def _work(self, copy: FollowerPartition, work: Coroutine[Any, Any, None]) -> None:
        key = copy.topic_partition
        self._withdraw(key)
        self._forget(key)
        task = self._works[key] = started(work, "cutting of a copy", self._me.on_bug)
        self._cutting.add(task)
        task.add_done_callback(lambda task: self._on_worked(key, task))

    def _on_worked(self, key: TopicPartition, task: asyncio.Task[None]) -> None:
        self._cutting.discard(task)
        if self._works.get(key) is task:
            del self._works[key]

    def _on_diverging(self, copy: FollowerPartition, diverging: EpochEnd) -> None:
        if _leaves_nothing(copy, copy.where_to_cut(diverging)):
            self._begin_whole(copy)
        else:
            self._work(copy, self._cut(copy, diverging))

    def _cut(self, copy: FollowerPartition, diverging: EpochEnd) -> Coroutine[Any, Any, None]:
        offset = copy.where_to_cut(diverging)
        log.info(
            "a copy is cut: the leader's log goes on otherwise",
            topic=copy.topic,
            partition=copy.topic_partition.partition,
            offset=offset,
            log_end=copy.log.log_end_offset,
            leader=self._leader,
        )
        return self._change(copy, self._still(copy), lambda: copy.cut(offset))

    def _start_over(self, copy: FollowerPartition, row: Copied) -> None:
        """Begin the copy where the leader's log begins, with the producers from before, as the leader told."""
        offered = row._replace(records=bytes(row.records))  # it outlives the frame
        log.warning(
            "a copy is begun anew: the leader does not have what comes next any more",
            topic=copy.topic,
            partition=copy.topic_partition.partition,
            log_end=copy.log.log_end_offset,
            offset=offered.log_start,
            leader=self._leader,
        )
        if copy.has_begun:  # where it was begun is not in the leader's log
            copy.shun_history()
        self._begin_elsewhere(copy, offered)

    def _begin_whole(self, copy: FollowerPartition) -> None:
        """Copy everything that the leader has: it lacks what history has before this copy's log."""
        log.error(
            "a copy is taken whole from its leader, whose log is not what was exported, as after an unclean election",
            topic=copy.topic,
            partition=copy.topic_partition.partition,
            offset=copy.log.log_end_offset,
            leader=self._leader,
        )
        self._work(copy, self._change(copy, self._still(copy), lambda: copy.start_over(_whole())))

    def _begin_elsewhere(self, copy: FollowerPartition, offered: Copied | None) -> None:
        """Begin behind durable history. Where that cannot be read or ends before the leader's log, begin where the
        leader says. `offered`: the leader's answer; None: the copy stays where it is."""
        attempt = object()
        self._work(copy, self._attempt(copy, offered, attempt))
        self._attempts[copy.topic_partition] = attempt

    async def _attempt(self, copy: FollowerPartition, offered: Copied | None, attempt: object) -> None:
        still = self._still(copy)
        found = await self._behind_history(copy)
        takes_told = offered is not None and (found is None or found.offset < offered.log_start)
        if offered is not None and takes_told:
            try:
                found = await self._loop.run_in_executor(None, _beginning_of, offered)
            except CorruptData as error:
                found = None
                if self._attempts.get(copy.topic_partition) is attempt:
                    self._on_stuck(copy, f"the producers that it told of cannot be read: {error}")
        if self._attempts.get(copy.topic_partition) is not attempt:
            return  # something else has been begun with it meanwhile
        if takes_told or found is None:
            copy.shun_history()
        if found is None:
            self._begin(copy)
            return
        beginning = found
        is_wanted = lambda: still() and self._attempts.get(copy.topic_partition) is attempt  # noqa: E731
        await self._change(copy, is_wanted, lambda: copy.start_over(beginning))

    async def _behind_history(self, copy: FollowerPartition) -> Beginning | None:
        if self._me.beginning is None or not copy.is_behind_history:
            return None
        reading = asyncio.ensure_future(self._me.beginning(copy))
        self._reading.add(reading)
        try:
            return await reading
        finally:
            self._reading.discard(reading)

    def _still(self, copy: FollowerPartition) -> Callable[[], bool]:
        """Return a test of whether the epoch of the leader's answer goes on. In a later epoch, the copy is placed
        already, as it is."""
        epoch = copy.leader_epoch
        return lambda: copy.leader_epoch == epoch

    def _begin_anew(self, copy: FollowerPartition) -> Coroutine[Any, Any, None]:
        log.warning(
            "a damaged copy is begun anew: its leader has what it lacks, and nobody counts on it meanwhile",
            topic=copy.topic,
            partition=copy.topic_partition.partition,
            log_end=copy.log.log_end_offset,
            leader=self._leader,
        )
        return self._change(copy, lambda: copy.events.is_to_begin_again(copy), copy.begin_anew)

    async def _change(self, copy: FollowerPartition, is_wanted: Callable[[], bool], change: Callable[[], None]) -> None:
        """Change the log while nothing is appended to it or flushed."""
        async with copy.changing:
            if copy.availability is ErrorCode.NONE and not copy.has_stepped_down and is_wanted():
                await self._change_still(copy, is_wanted, change)
            elif copy.has_ended or not self._is_left_alone(copy.topic_partition):
                return
        if self._copies.get(copy.topic_partition) is copy:
            self._begin(copy)

    def _is_left_alone(self, key: TopicPartition) -> bool:
        """Whether nothing about the copy was said, or is about to be, to its leader, except by the calling task."""
        others = self._works.get(key) not in (None, asyncio.current_task())
        return not (others or key in self._generations or key in self._timers)

    async def _change_still(
        self, copy: FollowerPartition, is_wanted: Callable[[], bool], change: Callable[[], None]
    ) -> None:
        copy.is_changing = True
        await copy.quiet()
        try:
            if not (copy.has_failed or copy.has_stepped_down) and is_wanted():  # this may have come meanwhile
                await self._loop.run_in_executor(None, change)
        except CorruptData as error:
            copy.in_doubt = str(error)
            log.error(
                "a copy cannot be cut where its leader's log goes on otherwise, for it is damaged there; it waits "
                "to be begun anew",
                topic=copy.topic,
                partition=copy.topic_partition.partition,
                reason=str(error),
            )
            copy.events.on_damaged(copy.topic_partition)
        except HeadraceError as error:
            copy.fail(error)
            if copy.has_failed and isinstance(error, NoRoom):
                copy.open_again()
        finally:
            copy.is_changing = False
            copy.flush_soon()

    # the connection

    def _open_soon(self) -> None:
        if self._opening is None and None not in self._timers and not self._stopped and self._copies:
            self._opening = started(self._open(), f"connection to leader {self._leader}", self._me.on_bug)

    async def _open(self) -> None:
        address = self._me.address_of(self._leader)
        try:
            if address is None:
                raise OSError(f"nobody has said where broker {self._leader} listens")
            link = await open_link(
                address,
                self._on_frame,
                self._on_lost,
                timeout_ms=PEER_CONNECT_MS_MAX,
                security=self._me.security,
            )
        except (OSError, TimeoutError, HeadraceError) as error:
            self._opening = None
            self._try_later(str(error))
            if isinstance(error, ConnectionRefusedError) and address == self._linked_to and self._link is None:
                self._linked_to = None
                self._me.on_dead(self._leader)
            return
        self._opening = None
        if self._stopped:
            link.close()
        elif link.is_over:
            self._try_later("it closed the connection at once")
        else:
            self._go_over_to(link, address)

    def _go_over_to(self, link: CopyLink, address: Address) -> None:
        """Copy by this connection from now on. Copies are placed again, for an answer may have been under way."""
        if self._link is not None:
            self._link.close()
        if (pause := self._timers.pop(None, None)) is not None:
            pause.cancel()
        self._link, self._linked_to = link, address
        if link.lasts_s:
            self._renewal = self._loop.call_later(link.lasts_s, self._open_soon)
        self._to_forget.clear()
        for key in self._copies:
            if key in self._generations:
                self._place(key)
        self._send_soon()

    def _on_lost(self, reason: str) -> None:
        if self._link is not None and not self._link.is_over:
            return  # another was lost, which had not taken its place yet
        self._link = None
        self._end_renewal()
        for copy in self._copies.values():
            copy.lose_sight()
        self._try_later(reason)

    def _end_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def _try_later(self, reason: str) -> None:
        if self._stopped or None in self._timers:
            return
        self._failures += 1
        level = log.info if self._failures == 1 else log.debug
        level("a leader cannot be copied from; tried again", leader=self._leader, reason=reason)
        self._timers[None] = self._loop.call_later(backoff_s(self._failures), self._try_again)

    def _try_again(self) -> None:
        del self._timers[None]
        self._open_soon()

    async def stop(self) -> None:
        """Copy nothing more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for key in list(self._copies):
            self.drop(key)
        if self._link is not None:
            self._link.close()
            self._link = None
        self._end_renewal()
        if self._opening is not None:
            self._opening.cancel()
        for reading in self._reading:
            reading.cancel()
        waiting = [task for task in (self._opening, *self._cutting) if task is not None]
        await asyncio.gather(*waiting, return_exceptions=True)


def backoff_s(count: int, longest_ms: int = REPLICA_BACKOFF_MS_MAX) -> float:
    """Return the pause after `count` failures in a row."""
    return min(REPLICA_BACKOFF_MS_MIN << min(count - 1, 20), longest_ms) / 1000


def _whole() -> Beginning:
    """Return the beginning of a copy that takes everything from its leader. Each copy gets its own: the producers
    become the copy's."""
    return Beginning(FIRST_OFFSET, NO_EPOCH, ProducerStates())


def _beginning_of(offered: Copied) -> Beginning:
    """Return the beginning that the leader told. Runs in a worker thread, for the producers may be many. Raises
    CorruptData."""
    producers = ProducerStates.restore(bytes(offered.records)) if offered.records else ProducerStates()
    return Beginning(offered.log_start, offered.diverging_epoch, producers)


def _leaves_nothing(copy: FollowerPartition, offset: Offset) -> bool:
    """Whether, if cut there, its earlier records would all come from durable history, which is not the leader's."""
    start = copy.log.log_start_offset
    kept = start if copy.log.epoch_at(Offset(start - 1)) != NO_EPOCH else start + 1  # else nobody could compare it
    return copy.is_empty or (offset < kept and copy.start_offset < start)


def _some(keys: dict[T, None]) -> list[T]:
    """Take as many keys as one frame may name."""
    if len(keys) <= REPLICA_FRAME_ROWS_MAX:
        taken = list(keys)
        keys.clear()
        return taken
    taken = list(islice(keys, REPLICA_FRAME_ROWS_MAX))
    for key in taken:
        del keys[key]
    return taken
