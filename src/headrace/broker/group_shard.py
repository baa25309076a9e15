"""One partition of the offsets topic and the groups that it keeps: the driver of the group machine.

Promises: the machine's effects are carried out in its order; a record counts only once it is committed by the acks=all
rule; nothing is answered before the log was read to its end. Where the fate of an append is in doubt (the leadership
ended, the disk failed) the whole shard is given up: who waits is told to look again, and the log says what happened.
Loop-only, save that records are decoded in worker threads.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias, assert_never

import structlog

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset, TopicId
from headrace.base.limits import (
    GROUP_GATHERED_BYTES_MAX,
    GROUP_LOAD_BYTES,
    GROUP_REASON_CHARS_MAX,
    GROUP_TICK_PUT_OFF_MS,
    GROUPS_PER_SHARD_MAX,
)
from headrace.base.ports import Buffer, Clock
from headrace.broker.lease import Lease
from headrace.broker.partition import Partition
from headrace.broker.replica import Refusal
from headrace.broker.tasks import OnBug
from headrace.coordinators.groups import records
from headrace.coordinators.groups.commits import CommitWriter
from headrace.coordinators.groups.consumer.model import Topics
from headrace.coordinators.groups.events import (
    AnyReply,
    Append,
    CommitOffsets,
    Commits,
    Effect,
    Event,
    Expire,
    ForgetTopics,
    Join,
    OffsetCommitted,
    PutOff,
    Rebalancing,
    Reply,
    Sync,
    Tick,
    Wake,
    WriteRefused,
    Written,
)
from headrace.coordinators.groups.machine import step
from headrace.coordinators.groups.model import Group, GroupConfig, Moment
from headrace.coordinators.groups.replay import Replay
from headrace.wire.apis import EncodeError
from headrace.wire.batches import check_batch, decode_pairs, encode_pairs, iterate_headers
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Walked

log = structlog.get_logger(__name__)

Told: TypeAlias = AnyReply | ErrorCode
"""A group's own answer, or why it cannot be asked."""

IN_DOUBT = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Refusals of an append that say that this partition is lost to us, not that the append was at fault."""
COMMIT_BYTES = 64
"""Of a committed offset's record, beside its names and metadata: nearly."""
GROUPS_PER_SLICE = 100
"""Groups that a sweep looks at before others get their turn."""


class Waiter(Protocol):
    """Who is told the answer: a future, or the like."""

    def done(self) -> bool: ...

    def set_result(self, told: Any, /) -> object: ...


class GroupShard:
    """See the module. `partition` is led here as long as the shard lives; `on_lost` is told when it no longer is."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: GroupConfig,
        clock: Clock,
        topics: Callable[[], Topics],
        lease: Lease,
        on_lost: Callable[[GroupShard], None],
        on_bug: OnBug,
    ) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.loaded = False
        self.lost = False
        self._config = config
        self._clock = clock
        self._topics = topics
        self._lease = lease
        self._sweeps_to_put_off = 0
        self._on_lost = on_lost
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, Waiter] = {}
        self._parked: set[int] = set()
        """Of the waiters, those that wait for other members rather than for the disk."""
        self._writing: deque[tuple[float, int]] = deque()
        """Of the waiters, those that wait for the disk, with the time when they are told to ask again; by that."""
        self._writing_timer: asyncio.TimerHandle | None = None
        self._next_waiter = 0
        self._events: deque[tuple[str, Event]] = deque()
        self._working = False
        self._gathering = False
        self._entries: list[_Entry] = []
        """To be written next, together: of several groups while they decide about what was gathered."""
        self._gathered: dict[str, list[CommitOffsets]] = {}
        """Commits of this turn of the loop, by group, in the order in which they came."""
        self._gathered_bytes = 0
        self._commit_writer = CommitWriter()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._end = Offset(0)
        """All that is to be loaded lies below."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether another may coordinate these groups by now, as far as is known here."""
        return self.partition.has_followers and not self._lease.is_held

    # asking

    def ask(self, group_id: str, build: Callable[[int], Event]) -> asyncio.Future[Told]:
        """Put a request to a group. `build` is given the waiter's number and makes the event."""
        future: asyncio.Future[Told] = self._loop.create_future()
        waiter, self._next_waiter = self._next_waiter, self._next_waiter + 1
        event = build(waiter)
        if isinstance(event, CommitOffsets):
            self._await(waiter, future)
            self.commit(group_id, event)
            return future
        self._commit_gathered()  # what came before goes before
        if self._is_one_too_many(group_id, event):
            future.set_result(ErrorCode.POLICY_VIOLATION)
            return future
        self._waiters[waiter] = future
        if isinstance(event, Join | Sync):
            self._parked.add(waiter)
        try:
            self.send(group_id, event)
        except Exception:
            self._parked.discard(waiter)
            self._waiters.pop(waiter, None)
            raise
        if not future.done() and waiter not in self._parked:
            self._await(waiter, future)
        return future

    def registered(self, waiting: Waiter) -> int:
        """A number for one who will wait for the disk, for `commit`."""
        waiter, self._next_waiter = self._next_waiter, self._next_waiter + 1
        self._await(waiter, waiting)
        return waiter

    def _await(self, waiter: int, waiting: Waiter) -> None:
        """It waits for the disk, up to a time."""
        self._waiters[waiter] = waiting
        self._writing.append((self._loop.time() + self._config.offsets_commit_timeout_ms / 1000, waiter))
        self._watch_writing()

    def _is_one_too_many(self, group_id: str, event: Event) -> bool:
        """Whether there is no room for the group that this would make. What makes none is answered as ever."""
        if group_id in self.groups or len(self.groups) < GROUPS_PER_SHARD_MAX:
            return False
        made, _ = step(group_id, None, event, self._now(), self._config, self._topics())
        return made is not None

    def _watch_writing(self) -> None:
        """Have the oldest that waits for the disk looked at when its time is up."""
        while self._writing and self._writing[0][1] not in self._waiters:
            self._writing.popleft()
        if self._writing and self._writing_timer is None and not self.lost:
            self._writing_timer = self._loop.call_at(self._writing[0][0], self._give_up_writing)

    def _give_up_writing(self) -> None:
        """Tell who has waited too long to ask again. What was appended stands, and counts once it is committed."""
        self._writing_timer = None
        while self._writing and self._writing[0][0] <= self._loop.time():
            self._answer(self._writing.popleft()[1], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._watch_writing()

    def send(self, group_id: str, event: Event) -> None:
        """One event for one group; those that it leads to follow before this returns."""
        self._events.append((group_id, event))
        if self._working:
            return
        self._working = True
        try:
            while self._events:
                self._step(*self._events.popleft())
        finally:
            self._working = False

    def _step(self, group_id: str, event: Event) -> None:
        after, effects = step(group_id, self.groups.get(group_id), event, self._now(), self._config, self._topics())
        if after is None:
            self.groups.pop(group_id, None)
            self._disarm(group_id)
        else:
            self.groups[group_id] = after
        for effect in effects:
            self._carry_out(group_id, effect)

    def _now(self) -> Moment:
        return Moment(monotonic_ms=elapsed_ms(self._loop.time()), wall_ms=self._clock.now_ms())

    # carrying out

    def _carry_out(self, group_id: str, effect: Effect) -> None:
        match effect:
            case Reply(waiter=waiter, reply=reply):
                self._answer(waiter, reply)
            case Append():
                self._append(group_id, effect)
            case Wake(at_ms=at_ms):
                self._arm(group_id, at_ms)
            case Rebalancing(reason=reason):
                told = reason[:GROUP_REASON_CHARS_MAX].rstrip(": ")
                log.info("a group rebalances", group=group_id, reason=told)
            case _:
                assert_never(effect)

    def _answer(self, waiter: int, told: Told) -> None:
        """A client that is gone meanwhile has cancelled its future."""
        self._parked.discard(waiter)
        future = self._waiters.pop(waiter, None)
        if future is not None and not future.done():
            future.set_result(told)

    def _append(self, group_id: str, append: Append) -> None:
        """At once, but for commits that came with others, which are appended with those, in one batch."""
        if self.lost:
            return
        write, encode = self._commit_writer.write, records.encode
        try:
            pairs = [
                write(record) if isinstance(record, OffsetCommitted) else encode(record) for record in append.records
            ]
        except EncodeError as error:
            log.warning("a group's record cannot be written", group=group_id, reason=str(error))
            self.send(group_id, WriteRefused(write=append.write, error=ErrorCode.INVALID_REQUEST))
            return
        self._entries.append(_Entry(group_id, append.write, pairs))
        if not (self._gathering and isinstance(append.records[0], OffsetCommitted)):
            self._write_entries()

    def commit(self, group_id: str, commit: CommitOffsets) -> None:
        """Take it with those that come in the same turn of the loop: it changes nothing before it is durable, and may
        wait for them."""
        size = _size(group_id, commit)
        if self._gathered_bytes + size > GROUP_GATHERED_BYTES_MAX:
            self._commit_gathered()
        if not self._gathered:
            self._loop.call_soon(self._end_turn)
        self._gathered_bytes += size
        self._gathered.setdefault(group_id, []).append(commit)

    def _end_turn(self) -> None:
        try:
            self._commit_gathered()
        except Exception as error:
            self._on_bug(error)

    def _commit_gathered(self) -> None:
        """Have the groups decide, and write what they take as one batch. What comes while they do, from who was just
        answered, is for the next turn."""
        if not self._gathered:
            return
        if self._working:
            self._loop.call_soon(self._end_turn)
            return
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        self._gathering = True
        try:
            for group_id, commits in gathered.items():
                self._send_commits(group_id, commits)
        finally:
            self._gathering = False
        self._write_entries()

    def _send_commits(self, group_id: str, commits: list[CommitOffsets]) -> None:
        taken = []
        for commit in commits:
            if self._is_one_too_many(group_id, commit):
                self._answer(commit.waiter, ErrorCode.POLICY_VIOLATION)
            else:
                taken.append(commit)
        if taken:
            self.send(group_id, Commits(tuple(taken)))

    def _write_entries(self) -> None:
        entries, self._entries = self._entries, []
        if entries:
            self._write(entries)

    def _write(self, entries: list[_Entry]) -> None:
        """In one batch."""
        if self.lost:
            return
        now_ms = self._clock.now_ms()
        walked = Walked(now_ms, now_ms, all_keyed=True)
        outcome = self.partition.append(_batch(entries, now_ms), needs_isr=True, walked=walked)
        if not isinstance(outcome, Refusal):
            self.partition.park_commit(outcome.end, _Settled(self, entries))
        elif outcome.error in IN_DOUBT:
            self.lose()
        elif outcome.error is ErrorCode.MESSAGE_TOO_LARGE and len(entries) > 1:
            for entry in entries:  # it may be but one of them
                self._write([entry])
        else:
            for entry in entries:
                log.warning("a group's record was refused", group=entry.group_id, reason=outcome.message)
                self.send(entry.group_id, WriteRefused(write=entry.write, error=told_as(outcome.error)))

    def _arm(self, group_id: str, at_ms: int) -> None:
        """Have the group woken by then; an earlier alarm that is set already will do."""
        at, timer = at_ms / 1000, self._timers.get(group_id)
        if self.lost or (timer is not None and timer.when() <= at):
            return
        if timer is not None:
            timer.cancel()
        self._timers[group_id] = self._loop.call_at(at, self._wake, group_id)

    def _disarm(self, group_id: str) -> None:
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer.cancel()

    def _wake(self, group_id: str) -> None:
        del self._timers[group_id]
        group = self.groups.get(group_id)
        if self.partition.availability is not ErrorCode.NONE:
            self.lose()
        elif group is not None and group.consumer is not None and self._prolongs_nothing:
            self._arm(group_id, elapsed_ms(self._loop.time()) + GROUP_TICK_PUT_OFF_MS)
        else:
            self.send(group_id, Tick())

    @property
    def _prolongs_nothing(self) -> bool:
        """Heartbeats of consumer groups are not taken, or were not and that is not yet made up for: nobody's session
        ends for it."""
        return self.is_in_doubt or self._sweeps_to_put_off > 0

    def put_off(self, lapse_s: float) -> Coroutine[Any, Any, None]:
        """The lease is held again after so long, which no member is to pay for. No session ends from now on until what
        this gives back is done."""
        self._sweeps_to_put_off += 1
        return self._put_off(PutOff(by_ms=math.ceil(lapse_s * 1000)))

    async def _put_off(self, event: PutOff) -> None:
        try:
            await self._sweep(lambda group: event if group.consumer is not None else None)
        finally:
            self._sweeps_to_put_off -= 1

    # the end

    def lose(self) -> None:
        """Nothing here counts any more. Idempotent."""
        if self.lost:
            return
        self.lost = True
        self._events.clear()
        self._gathered.clear()
        self._entries.clear()
        self.groups.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._writing_timer is not None:
            self._writing_timer.cancel()
        for waiter in list(self._waiters):
            self._answer(waiter, ErrorCode.NOT_COORDINATOR)
        self._on_lost(self)

    def refuse_parked(self) -> None:
        """The broker stops: whoever waits for other members is sent elsewhere; what is being written is awaited."""
        for waiter in list(self._parked):
            self._answer(waiter, ErrorCode.NOT_COORDINATOR)

    # loading

    async def ready(self) -> None:
        """Until all that the log held when this was asked is committed, for which others may be missing: what is not
        could yet be lost. Or the shard is."""
        self._end = self.partition.log.log_end_offset
        outcome = _Outcome(self._loop.create_future())
        self.partition.park_commit(self._end, outcome)
        if await outcome.future is not ErrorCode.NONE:
            self.lose()

    async def load(self) -> None:
        """Read what is `ready`. Raises CorruptData or OSError where it cannot be read."""
        replay, end = Replay(self._config.consumer), self._end
        at = self.partition.log.log_start_offset
        while at < end and not self.lost:
            data = self.partition.read(at, GROUP_LOAD_BYTES, committed_only=False, at_least_one=True)
            if not data and self.partition.log.is_compacted:
                break  # nothing is left up to the end
            at = await self._loop.run_in_executor(None, _replay, replay, data, at)
        if replay.is_empty:  # of 50 partitions most may be: no thread has to say so
            groups = {}
        else:
            grace_ms = math.ceil(self._lease.seconds * 1000) if self.partition.has_followers else 0
            groups = await self._loop.run_in_executor(None, replay.groups, self._now(), grace_ms)
        if replay.passed_over:
            log.warning("records of the offsets topic were passed over", records=replay.passed_over, **self._name)
        if not self.lost:
            self._take_up(groups)

    def _take_up(self, groups: dict[str, Group]) -> None:
        self.groups = groups
        self.loaded = True
        for group in self.groups.values():
            due = group.earliest_deadline_ms()
            if due is not None:
                self._arm(group.id, due)
        if self.groups:
            log.info("groups loaded", groups=len(self.groups), **self._name)

    @property
    def _name(self) -> dict[str, object]:
        return {"topic": self.partition.topic, "partition": self.partition.topic_partition.partition}

    # sweeps

    async def expire(self) -> None:
        """Look at every group for what has outlived its retention."""
        await self._sweep(lambda _: Expire())

    async def keep_topics(self, exist: Callable[[TopicId], bool]) -> None:
        """Forget what was committed for topics that are no more."""

        def forget(group: Group) -> Event | None:
            ids = {commit.topic_id for commit in group.offsets.values()}
            gone = frozenset(topic_id for topic_id in ids if topic_id.int and not exist(topic_id))
            return ForgetTopics(topic_ids=gone) if gone else None

        await self._sweep(forget)

    async def _sweep(self, build: Callable[[Group], Event | None]) -> None:
        """Give every group its event, a slice of them at a time."""
        for at, group_id in enumerate(list(self.groups), 1):
            group = self.groups.get(group_id)
            event = None if group is None else build(group)
            if event is not None:
                self.send(group_id, event)
            if at % GROUPS_PER_SLICE == 0:
                await asyncio.sleep(0)


class _Entry(NamedTuple):
    """What one group has to write at once."""

    group_id: str
    write: int
    pairs: list[tuple[bytes, bytes | None]]
    """Keys and values."""


def _batch(entries: Iterable[_Entry], now_ms: int) -> bytes:
    return encode_pairs(list(itertools.chain.from_iterable(entry.pairs for entry in entries)), now_ms)


def _size(group_id: str, commit: CommitOffsets) -> int:
    """Of its records, nearly."""
    names = sum(len(new.partition.topic) + len(new.metadata) for new in commit.offsets)
    return names + (len(group_id) + COMMIT_BYTES) * len(commit.offsets)


class _Settled:
    """`Commit`: one append, of one group or more."""

    __slots__ = ("_entries", "_shard")

    def __init__(self, shard: GroupShard, entries: list[_Entry]) -> None:
        self._shard = shard
        self._entries = entries

    def on_outcome(self, error: ErrorCode) -> None:
        if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._shard.lose()
        told = told_as(error)
        for group_id, write, _ in self._entries:
            if self._shard.lost:
                return
            self._shard.send(group_id, Written(write=write, error=told))


class _Outcome:
    """`Commit`, for one that awaits it."""

    def __init__(self, future: asyncio.Future[ErrorCode]) -> None:
        self.future = future

    def on_outcome(self, error: ErrorCode) -> None:
        if not self.future.done():
            self.future.set_result(error)


def elapsed_ms(seconds: float) -> int:
    """Whole milliseconds: of a time that was made of milliseconds, these (8.11 * 1000 is a little less than 8110)."""
    return int(round(seconds * 1000, 3))


def told_as(error: ErrorCode) -> ErrorCode:
    """What a group's client is told of what became of an append, in the words that it knows how to take."""
    if error is ErrorCode.NONE:
        return error
    if error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _replay(replay: Replay, data: Buffer, at: Offset) -> Offset:
    """In a worker thread: whole batches of the log into `replay`. The offset that follows them."""
    if not data:
        raise CorruptData(f"The offsets topic cannot be read at offset {at}.")
    view = memoryview(data)
    for position, header in iterate_headers(data):
        check_batch(data, position, compacted=True)
        at = Offset(header.last_offset + 1)
        for key, value in () if header.is_control else decode_pairs(view[position : position + header.size]):
            replay.apply(key or b"", value)
    return at
