"""Connects consumer groups to the machine of all groups: writes their changes to the log and delays answers until then.

Promises:
- A request is answered once everything that its group has written by then is durable.
- A refused change leaves no trace.
- A classic group becomes a consumer group with the first heartbeat that joins it.
- A consumer group becomes a classic one when its last member of the consumer protocol has gone, or with a JoinGroup
  while it is empty.
- A converted group keeps its offsets, and its members where the policy allows it (`migration`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final, TypeAlias

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.values import replaced
from headrace.coordinators.groups import rebalance
from headrace.coordinators.groups.consumer import heartbeats, migration
from headrace.coordinators.groups.consumer.changes import ConsumerRecord, changes
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import JOINING_EPOCH, ConsumerGroup, ConsumerHeartbeatReply
from headrace.coordinators.groups.events import (
    AnyReply,
    CommitOffsets,
    GroupForgotten,
    GroupRecord,
    HeartbeatReply,
    JoinReply,
    LeaveReply,
    PutOff,
    SplitHeartbeats,
    SyncReply,
)
from headrace.coordinators.groups.model import ConsumerWrite, Group, GroupState
from headrace.coordinators.groups.subscriptions import CONSUMER
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode

RETRY_MS: Final = 1_000
"""Delay before a change that the log refused, and that no request waits for, is tried again."""
UNWRITABLE_RETRY_MS: Final = 60_000
"""The delay for a classic group that the log has no room for, because writing all of it is expensive."""
PASSING: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS)
"""Errors of the log that may pass in a moment."""
UNWRITABLE: Final = (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.INVALID_REQUEST)
"""Errors of the log that will not pass: a record, or all of them together, are too large."""

Replies: TypeAlias = tuple[tuple[int, AnyReply], ...]


def state_of(group: ConsumerGroup) -> GroupState:
    if not group.members:
        return GroupState.EMPTY
    if group.epoch > group.target_epoch:
        return GroupState.ASSIGNING
    return GroupState.STABLE if group.is_reconciled else GroupState.RECONCILING


def on_heartbeats(turn: Turn, events: Sequence[ConsumerHeartbeat]) -> None:
    """Apply heartbeats of different members as one change of the group. A refused member is answered together with the
    accepted ones, because the refusal may rest on a change that is not in the log yet."""
    before, taken = turn.group.consumer, []
    upgraded = cache(partial(migration.upgraded, turn.group, turn.topics, turn.now, turn.config))
    for event in events:
        refused = heartbeats.refusal(event, turn.topics, turn.config.consumer)
        found = _joined(turn, event, upgraded) if before is None or turn.group.state is GroupState.DEAD else before
        if refused is not None:
            turn.reply(event.waiter, refused)
        elif isinstance(found, ErrorCode):
            turn.reply(event.waiter, ConsumerHeartbeatReply(error=found))
        else:
            before = found
            taken.append(event)
    if before is None or not taken:
        return
    now_ms = turn.now.monotonic_ms
    after, told = heartbeats.on_heartbeats(before, taken, turn.topics, now_ms, turn.config.consumer)
    replies = tuple((event.waiter, reply) for event, reply in zip(taken, told, strict=True))
    if all(reply.error is not ErrorCode.NONE for reply in told):
        for waiter, reply in replies:
            turn.reply(waiter, reply)
        return
    change(turn, after, replies, tuple(taken))
    for event in taken:
        wake_for(turn, after, event.member_id)


def wake_for(turn: Turn, group: ConsumerGroup, member_id: str) -> None:
    """Ask for a tick at each of a member's deadlines."""
    for deadlines in group.deadlines:
        turn.wake(deadlines.get(member_id))


def _joined(
    turn: Turn, event: ConsumerHeartbeat, upgraded: Callable[[], ConsumerGroup | None]
) -> ConsumerGroup | ErrorCode:
    """The group of a heartbeat. A joining member creates it, or has a classic one `upgraded` to it."""
    group = turn.group
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        return group.consumer
    if event.epoch != JOINING_EPOCH:
        held = None if event.instance_id is None else group.static_member(event.instance_id)
        if held is not None and held.id != event.member_id:
            # as in a consumer group; after another error the client would retry, and win
            return ErrorCode.FENCED_INSTANCE_ID
        # Kafka's code for both is fatal to its client; a member removed before the group changed is to retry
        changed = group.protocol_type == CONSUMER and (turn.config.migration.upgrades or not group.members)
        return ErrorCode.UNKNOWN_MEMBER_ID if changed else ErrorCode.GROUP_ID_NOT_FOUND
    if not group.members:
        # no generation number is used twice
        return ConsumerGroup(epoch=group.generation, target_epoch=group.generation)
    return upgraded() or ErrorCode.GROUP_ID_NOT_FOUND


def on_tick(turn: Turn) -> None:
    """Remove members whose deadlines have passed."""
    group = turn.group
    assert group.consumer is not None
    if group.state is not GroupState.DEAD:
        after = heartbeats.on_due(group.consumer, turn.now.monotonic_ms)
        change(turn, after, ())
        turn.wake(after.earliest_deadline_ms())


def on_put_off(turn: Turn, event: PutOff) -> None:
    consumer = turn.group.consumer
    if consumer is not None:
        after = heartbeats.put_off(consumer, turn.now.monotonic_ms, event.by_ms, turn.config.consumer)
        turn.update(consumer=after)
        turn.wake(after.earliest_deadline_ms())


def change(turn: Turn, after: ConsumerGroup, replies: Replies, heard: tuple[ConsumerHeartbeat, ...] = ()) -> None:
    """Replace the group, and answer once that is durable. `heard` has the heartbeats that caused the change."""
    group = turn.group
    records: tuple[GroupRecord, ...] = changes(group.id, group.consumer, after)
    turn.update(consumer=after)
    if not records:
        _answer_when_durable(turn, replies)
        _become_classic_if_due(turn)
        return
    converts = group.consumer is None
    if converts:
        turn.wake(after.earliest_deadline_ms())
    if converts and (group.protocol_type or group.recorded):
        records = (GroupForgotten(group=group.id), *records)
    _write(turn, group, records, replies, recorded=False if converts else None, heard=heard)
    turn.update(
        state=state_of(after),
        generation=0,
        protocol_type=CONSUMER,
        protocol=None,
        leader=None,
        members={},
        pending={},
        rebalance_deadline_ms=None,
        initial_delay_left_ms=None,
        newcomer=False,
        sync_deadline_ms=None,
        since_ms=-1 if after.members else turn.now.wall_ms,
    )


def _become_classic_if_due(turn: Turn) -> None:
    """Convert the group in a change of its own, once everything before it is durable. If the log refuses it as a
    classic group, it stays a consumer group without the members that left."""
    consumer, now_ms = turn.group.consumer, turn.now.monotonic_ms
    writing = any(isinstance(write, ConsumerWrite) for write in turn.group.writes.values())
    if consumer is not None and not writing and migration.is_due(consumer, now_ms, turn.config):
        become_classic(turn, consumer)


def become_classic(turn: Turn, consumer: ConsumerGroup) -> None:
    """Convert a consumer group to a classic one with its remaining members, which are all asked to join again."""
    group = turn.group
    classic = migration.downgraded(group, consumer, turn.topics, turn.now)
    record = rebalance.formed(classic, {member.id: member.assignment for member in classic.members.values()})
    # having no leader tells a reader after a failover that the members have yet to join again
    records = (*tombstones(group), replaced(record, leader=None))
    _write(turn, group, records, (), recorded=True)
    turn.group = replaced(classic, writes=turn.group.writes, next_write=turn.group.next_write)
    if classic.members:
        rebalance.prepare(turn, "nobody speaks the consumer protocol any more")
    turn.wake(turn.group.earliest_deadline_ms())


def _write(
    turn: Turn,
    before: Group,
    records: tuple[GroupRecord, ...],
    replies: Replies,
    *,
    recorded: bool | None,
    heard: tuple[ConsumerHeartbeat, ...] = (),
) -> None:
    write = ConsumerWrite(
        before=replaced(before, writes={}),
        replies=replies,
        released=_released(before),
        recorded=recorded,
        heartbeats=heard if len(heard) > 1 else (),
    )
    turn.append(records, write)


def _released(group: Group) -> Replies:
    """Answers that tell members waiting in a classic group to join the consumer group that it becomes."""
    again = ErrorCode.REBALANCE_IN_PROGRESS
    told: list[tuple[int, AnyReply]] = []
    for member in group.members.values():
        if member.join_waiter is not None:
            told.append((member.join_waiter, JoinReply(error=again, member_id=member.id)))
        if member.sync_waiter is not None:
            told.append((member.sync_waiter, SyncReply(error=again)))
    return tuple(told)


def _answer_when_durable(turn: Turn, replies: Replies) -> None:
    """Nothing changed. Still, the answer may depend on a write that is not durable yet."""
    writes = turn.group.writes
    last = max((number for number, write in writes.items() if isinstance(write, ConsumerWrite)), default=None)
    if last is None:
        for waiter, reply in replies:
            turn.reply(waiter, reply)
        return
    write = writes[last]
    assert isinstance(write, ConsumerWrite)
    turn.update(writes={**writes, last: replaced(write, replies=(*write.replies, *replies))})


def on_written(turn: Turn, write: ConsumerWrite, error: ErrorCode) -> None:
    if write.recorded is not None:
        turn.update(recorded=write.recorded)
    for waiter, reply in write.released:
        turn.reply(waiter, reply)
    _answer(turn, write, error)
    _become_classic_if_due(turn)


def on_refused(turn: Turn, write: ConsumerWrite, error: ErrorCode) -> None:
    """Return to the previous state: a refusal comes at once, so nothing was built on the refused change. Members whose
    time was up get a little more, so that a failing log is not asked endlessly. Heartbeats that are together too large
    for the log are decided again, in halves."""
    group, before = turn.group, write.before
    if before.consumer is not None:
        now_ms = turn.now.monotonic_ms
        consumer = heartbeats.postponed(before.consumer, now_ms, RETRY_MS)
        if group.consumer is None:
            wait_ms = RETRY_MS if error in PASSING else UNWRITABLE_RETRY_MS
            consumer = replaced(consumer, converts_from_ms=now_ms + wait_ms)
        before = replaced(before, consumer=consumer)
    turn.group = replaced(before, writes=group.writes, next_write=group.next_write)
    turn.wake(turn.group.earliest_deadline_ms())
    if write.heartbeats and error in UNWRITABLE:
        turn.effects.append(SplitHeartbeats(write.heartbeats))
    else:  # no commit is too large here, and there is no error code for the cause
        told = ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.INVALID_COMMIT_OFFSET_SIZE else error
        _answer(turn, write, told)


def _answer(turn: Turn, write: ConsumerWrite, error: ErrorCode) -> None:
    for waiter, reply in write.replies:
        turn.reply(waiter, reply if error is ErrorCode.NONE else _refused(reply, error))


def _refused(reply: AnyReply, error: ErrorCode) -> AnyReply:
    match reply:
        case JoinReply(member_id=member_id):
            return JoinReply(error=error, member_id=member_id)
        case SyncReply():
            return SyncReply(error=error)
        case HeartbeatReply():
            return HeartbeatReply(error=error)
        case LeaveReply():
            return LeaveReply(error=error)
        case _:
            return ConsumerHeartbeatReply(error=error)


# offsets


def commit_error(group: Group, event: CommitOffsets) -> ErrorCode:
    """The error for a commit. A member may commit, and anybody while the group is empty and no epoch is claimed."""
    assert group.consumer is not None
    if event.generation < 0 and not group.consumer.members:
        return ErrorCode.NONE
    partitions = (TopicPartition(new.topic_id, PartitionIndex(new.partition.partition)) for new in event.offsets)
    return group.consumer.check_commit(event.member_id, event.generation, event.instance_id, partitions)


def tombstones(group: Group) -> tuple[ConsumerRecord, ...]:
    return changes(group.id, group.consumer, None)
