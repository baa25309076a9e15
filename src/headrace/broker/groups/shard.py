"""One partition of the offsets topic and the groups that it keeps: the driver of the group machine.

Promises:
- The machine's effects are carried out in their order.
- Nothing is answered before the log was read to its end.
- Requests that come together are decided together, where that saves writes.

`shards.shard` has the rest: events, writes, the end. Loop-only, save that records are decoded in worker threads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, assert_never

from headrace.base.ids import TopicId
from headrace.base.limits import GROUP_REASON_CHARS_MAX, GROUP_TICK_PUT_OFF_MS, GROUPS_PER_SHARD_MAX
from headrace.base.ports import Clock
from headrace.broker.groups.answers import Told
from headrace.broker.groups.gathering import GroupRequests, as_one, halves, rounds
from headrace.broker.groups.subscriptions import LargeSubscriptions, SubscriptionRoom
from headrace.broker.groups.sweeps import forgetting
from headrace.broker.groups.writes import entry, told_as
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.partition import Partition
from headrace.broker.shards.loading import read
from headrace.broker.shards.shard import Shard
from headrace.broker.shards.timers import elapsed_ms
from headrace.broker.shards.waiters import Waiter
from headrace.coordinators.groups.commits import CommitWriter
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import Topics
from headrace.coordinators.groups.events import (
    Append,
    CommitOffsets,
    Commits,
    Effect,
    Event,
    Expire,
    Heard,
    Heartbeat,
    Join,
    OffsetCommitted,
    PutOff,
    Rebalancing,
    Reply,
    SplitHeartbeats,
    Sync,
    Tick,
    Together,
    TransactionEnded,
    Wake,
    WriteRefused,
    Written,
)
from headrace.coordinators.groups.machine import step
from headrace.coordinators.groups.membership import KEEPS_SESSION, answered
from headrace.coordinators.groups.model import Group, GroupState
from headrace.coordinators.groups.replay import Replay
from headrace.logs import get_logger
from headrace.wire.apis import EncodeError
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

_Gathered = TypeVar("_Gathered", CommitOffsets, ConsumerHeartbeat)
_GATHERED = (CommitOffsets, ConsumerHeartbeat)
_PARKED = (Join, Sync)
"""Requests whose sender waits for other members."""


class GroupShard(Shard[Group, Event]):
    """See the module. `config_of` gives the configs of a group by its name; `config` holds for groups that have none of
    their own."""

    NOUN = "group"

    def __init__(
        self,
        partition: Partition,
        *,
        config: GroupConfig,
        config_of: Callable[[str], GroupConfig],
        clock: Clock,
        topics: Callable[[], Topics],
        lease: Lease,
        room: SubscriptionRoom,
        on_lost: Callable[[GroupShard], None],
        on_bug: OnBug,
    ) -> None:
        super().__init__(
            partition,
            clock=clock,
            lease=lease,
            timeout_ms=config.offsets_commit_timeout_ms,
            on_lost=lambda: on_lost(self),
        )
        self._config_of = config_of
        self._topics = topics
        self._room = room
        self._large = LargeSubscriptions(room)
        self._sweeps_to_put_off = 0
        self._on_bug = on_bug
        self._gathering = False
        """Whether groups decide about gathered events. Entries of several of them are then written together."""
        self._gathered = GroupRequests()
        """The events of this turn of the loop."""
        self._heard: dict[str, dict[str, int]] = {}
        """Members whose heartbeats were answered since the last event of their group, each with the time."""
        self._commit_writer = CommitWriter()
        self._in_transactions: dict[int, set[str]] = {}
        """Groups that may have open offsets, by producer id."""

    @property
    def groups(self) -> dict[str, Group]:
        """All groups, by name."""
        return self.kept

    # asking

    def ask(self, group_id: str, build: Callable[[int], Event]) -> asyncio.Future[Told]:
        """Put a request to a group. `build` gets the waiter's number and returns the event."""
        future: asyncio.Future[Told] = self._loop.create_future()
        self.put(group_id, build, future)
        return future

    def put(self, group_id: str, build: Callable[[int], Event], waiting: Waiter) -> None:
        """As `ask`, for a caller that brings its own waiter."""
        waiter = self._waiters.number()
        event = build(waiter)
        if not self._room.has_room(event, self.groups.get(group_id)):
            waiting.set_result(ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        if isinstance(event, _GATHERED):
            self._waiters.await_disk(waiter, waiting)
            self.gather(group_id, event)
            return
        if isinstance(event, _PARKED) and self._has_others_to_wait_for(group_id, event):
            self._waiters.add(waiter, waiting, parked=True)
            self.gather(group_id, event)
            return
        # Requests that came before are decided before. A group that is missing in a lost shard may exist.
        self._decide_gathered()
        if self.lost:
            waiting.set_result(ErrorCode.NOT_COORDINATOR)
            return
        if self._is_one_too_many(group_id, event):
            waiting.set_result(ErrorCode.POLICY_VIOLATION)
            return
        self._waiters.add(waiter, waiting, parked=isinstance(event, _PARKED))
        try:
            self.send(group_id, event)
        except Exception:
            self._waiters.forget(waiter)
            raise
        if not waiting.done() and not self._waiters.is_parked(waiter):
            self._waiters.await_disk(waiter, waiting)

    def _has_others_to_wait_for(self, group_id: str, event: Join | Sync) -> bool:
        """Whether this is one of many requests that a classic group waits for, so that the end of the turn is soon
        enough. The leader's SyncGroup is none of them: all wait for it."""
        group = self.groups.get(group_id)
        if group is None or event.member_id not in group.members:
            return False
        if isinstance(event, Join):
            return group.state is GroupState.PREPARING
        return group.state is GroupState.COMPLETING and event.member_id != group.leader

    def beat(self, group_id: str, heartbeat: Heartbeat) -> ErrorCode | None:
        """Return the answer to a heartbeat of a classic group at once. The group hears of it with its next event. None:
        nothing was done, and the heartbeat is to be `put`."""
        group = self.groups.get(group_id)
        if group is None or group.consumer is not None or self._working:
            return None
        error = answered(group, heartbeat)
        if error in KEEPS_SESSION:
            heard = self._heard.get(group_id)
            if heard is None:
                heard = self._heard[group_id] = {}
            heard[heartbeat.member_id] = elapsed_ms(self._loop.time())
        return error

    def _is_one_too_many(self, group_id: str, event: Event) -> bool:
        """Whether the event would create a group for which there is no room. An event that creates none is answered as
        usual."""
        if group_id in self.groups or len(self.groups) < GROUPS_PER_SHARD_MAX:
            return False
        made, _ = step(group_id, None, event, self._now(), self._config_of(group_id), self._topics())
        return made is not None

    def _step(self, group_id: str, event: Event) -> None:
        heard = self._heard.pop(group_id, None)
        if heard is not None:
            event = Together((Heard(heard), event))
        before, config = self.groups.get(group_id), self._config_of(group_id)
        after, effects = step(group_id, before, event, self._now(), config, self._topics())
        self._large.on_step(group_id, event, before, after)
        if after is None:
            self.groups.pop(group_id, None)
            self._timers.disarm(group_id)
        else:
            self.groups[group_id] = after
            if after.open:
                self._note_open(after)
        for effect in effects:
            self._carry_out(group_id, effect)

    # carrying out

    def _carry_out(self, group_id: str, effect: Effect) -> None:
        match effect:
            case Reply(waiter=waiter, reply=reply):
                self._waiters.answer(waiter, reply)
            case Append():
                self._append(group_id, effect)
            case Wake(at_ms=at_ms):
                self._timers.arm(group_id, at_ms)
            case SplitHeartbeats(heartbeats=heartbeats):
                self._events.extendleft((group_id, half) for half in reversed(halves(heartbeats)))
            case Rebalancing(reason=reason):
                shown = reason[:GROUP_REASON_CHARS_MAX].rstrip(": ")
                log.info("a group rebalances", group=group_id, reason=shown)
            case _:
                assert_never(effect)

    def _append(self, group_id: str, append: Append) -> None:
        """Append at once. Commits that were gathered with others are appended with those, in one batch."""
        if self.lost:
            return
        try:
            self._entries.append(entry(group_id, append, self._commit_writer))
        except EncodeError as error:
            log.warning("a group's record cannot be written", group=group_id, reason=str(error))
            self._refuse(group_id, append.write, ErrorCode.INVALID_REQUEST)
            return
        if not (self._gathering and isinstance(append.records[0], OffsetCommitted)):
            self._write_entries()

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """Note that a marker in the partition is durable."""
        for group_id in sorted(self._in_transactions.pop(producer_id, ())):
            if group_id in self.groups:
                self.send(group_id, TransactionEnded(producer_id, is_committed))

    def _note_open(self, group: Group) -> None:
        for producer_id in group.open:
            self._in_transactions.setdefault(producer_id, set()).add(group.id)

    def gather(self, group_id: str, event: CommitOffsets | Join | Sync | ConsumerHeartbeat) -> None:
        """Have the event decided with those that come in the same turn of the loop."""
        if not self._gathered.has_room(group_id, event):
            self._decide_gathered()
        if self.lost:
            return  # with the gathered requests, all of which were answered
        if self._gathered.is_empty:
            self._loop.call_soon(self._end_turn)
        self._gathered.add(group_id, event)

    def _end_turn(self) -> None:
        try:
            self._decide_gathered()
        except Exception as error:
            self._on_bug(error)

    def _decide_gathered(self) -> None:
        """Have the groups decide, commits first; all accepted commits form one batch. Requests that come meanwhile,
        from clients that were just answered, are for the next turn."""
        if self._gathered.is_empty or self._working:
            return
        gathered = self._gathered.take()
        self._gathering = True
        try:
            for group_id, commits in gathered.commits.items():
                taken = self._with_room(group_id, commits)
                if taken:
                    self.send(group_id, Commits(tuple(taken)))
        finally:
            self._gathering = False
        self._write_entries()
        for group_id, requests in gathered.requests.items():
            self.send(group_id, requests[0] if len(requests) == 1 else Together(tuple(requests)))
        for group_id, heartbeats in gathered.heartbeats.items():
            for together in rounds(heartbeats):
                self._hear(group_id, together)

    def _hear(self, group_id: str, heartbeats: Sequence[ConsumerHeartbeat]) -> None:
        """Decide heartbeats of different members of one group. Refused where another coordinator may end the sessions
        that they would extend."""
        if self.is_in_doubt:
            for heartbeat in heartbeats:
                self._waiters.answer(heartbeat.waiter, ErrorCode.NOT_COORDINATOR)
            return
        taken = self._with_room(group_id, heartbeats)
        if taken:
            self.send(group_id, as_one(taken))

    def _with_room(self, group_id: str, events: Sequence[_Gathered]) -> list[_Gathered]:
        """Return the events for whose group there is room; answer the others that there is none."""
        taken = []
        for event in events:
            if self._is_one_too_many(group_id, event):
                self._waiters.answer(event.waiter, ErrorCode.POLICY_VIOLATION)
            else:
                taken.append(event)
        return taken

    def _wake(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if self.partition.availability is not ErrorCode.NONE:
            self.lose()
        elif group is not None and group.consumer is not None and self._prolongs_nothing:
            self._timers.arm(group_id, elapsed_ms(self._loop.time()) + GROUP_TICK_PUT_OFF_MS)
        else:
            self._decide_gathered()  # a member that was heard in this turn is not silent
            self.send(group_id, Tick())

    @property
    def _prolongs_nothing(self) -> bool:
        """Whether heartbeats of consumer groups are refused now, or the time without them is not made up for yet. No
        session ends meanwhile."""
        return self.is_in_doubt or self._sweeps_to_put_off > 0

    def put_off(self, lapse_s: float) -> Coroutine[Any, Any, None]:
        """Extend sessions by the time without the lease, which members must not pay for. No session ends until the
        returned coroutine is done."""
        self._sweeps_to_put_off += 1
        return self._put_off(PutOff(by_ms=math.ceil(lapse_s * 1000)))

    async def _put_off(self, event: PutOff) -> None:
        try:
            await self.sweep(lambda group: event if group.consumer is not None else None)
        finally:
            self._sweeps_to_put_off -= 1

    # as a shard

    def _written(self, write: int, error: ErrorCode) -> Event:
        return Written(write=write, error=error)

    def _refused(self, write: int, error: ErrorCode) -> Event:
        return WriteRefused(write=write, error=error)

    def told_as(self, error: ErrorCode) -> ErrorCode:
        return told_as(error)

    def _let_go(self) -> None:
        self._gathered.take()
        self._heard.clear()
        self._large.clear()
        self._in_transactions.clear()

    async def load(self) -> None:
        """Read the log up to the end that `ready` noted. Raises CorruptData or OSError where it cannot be read."""
        replay = Replay(lambda group_id: self._config_of(group_id).consumer)
        await read(self.partition, self._end, replay, lambda: self.lost)
        if replay.is_empty:  # most of 50 partitions may be empty: these need no thread
            groups = {}
        else:
            grace_ms = math.ceil(self._lease.seconds * 1000) if self.partition.has_followers else 0
            groups = await self._loop.run_in_executor(None, replay.groups, self._now(), grace_ms)
        if replay.passed_over:
            log.warning("records of the offsets topic were passed over", records=replay.passed_over, **self._place)
        if not self.lost:
            self._take_up(groups)

    def _take_up(self, groups: dict[str, Group]) -> None:
        self.kept = groups
        self.loaded = True
        for group in self.groups.values():
            self._large.note(group.id, group)
            self._note_open(group)
            due = group.earliest_deadline_ms()
            if due is not None:
                self._timers.arm(group.id, due)
        if self.groups:
            log.info("groups loaded", groups=len(self.groups), **self._place)

    # sweeps

    async def expire(self) -> None:
        """Look at every group for offsets and members that have outlived their retention."""
        await self.sweep(lambda _: Expire())

    async def keep_topics(self, exist: Callable[[TopicId], bool]) -> None:
        """Forget the offsets committed for topics that no longer exist."""
        await self.sweep(partial(forgetting, exist=exist))
