"""Consumer groups in the machine of all groups: how their changes come into the log, and what waits for that.

Promises: a request is answered once all that its group has written by then is durable, and a change that is refused
leaves no trace. A classic group becomes a consumer group with the first heartbeat that joins it, and a consumer group a
classic one when the last member that spoke the consumer protocol has gone, or with a JoinGroup while it is empty; it
keeps its offsets, and its members where the policy has it so (`migration`).
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
"""Until what was refused by the log, and nobody waits for, is tried again."""
UNWRITABLE_RETRY_MS: Final = 60_000
"""The same for a classic group that the log has no room for: to write it all is dear."""
PASSING: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS)
"""What the log refuses that it may take a moment later."""
UNWRITABLE: Final = (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.INVALID_REQUEST)
"""What it will never take: a record, or all of them together, is too large."""

Replies: TypeAlias = tuple[tuple[int, AnyReply], ...]


def state_of(group: ConsumerGroup) -> GroupState:
    if not group.members:
        return GroupState.EMPTY
    if group.epoch > group.target_epoch:
        return GroupState.ASSIGNING
    return GroupState.STABLE if group.is_reconciled else GroupState.RECONCILING


def on_heartbeats(turn: Turn, events: Sequence[ConsumerHeartbeat]) -> None:
    """All of them are one change of the group: of members that are all different. Who is refused beside others that are
    taken is told with them: it may be for what the log has not taken yet."""
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
    """In time for what is due of a member."""
    for deadlines in group.deadlines:
        turn.wake(deadlines.get(member_id))


def _joined(
    turn: Turn, event: ConsumerHeartbeat, upgraded: Callable[[], ConsumerGroup | None]
) -> ConsumerGroup | ErrorCode:
    """The group that it is for; whoever joins has it made, also of a classic one, which is `upgraded`."""
    group = turn.group
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        return group.consumer
    if event.epoch != JOINING_EPOCH:
        held = None if event.instance_id is None else group.static_member(event.instance_id)
        if held is not None and held.id != event.member_id:
            return ErrorCode.FENCED_INSTANCE_ID  # as in a consumer group; any other would have it come again, and win
        # Kafka's code for both is fatal to its client; one that was put out before the group changed is to come again
        changed = group.protocol_type == CONSUMER and (turn.config.migration.upgrades or not group.members)
        return ErrorCode.UNKNOWN_MEMBER_ID if changed else ErrorCode.GROUP_ID_NOT_FOUND
    if not group.members:
        return ConsumerGroup(epoch=group.generation, target_epoch=group.generation)  # a number is used once
    return upgraded() or ErrorCode.GROUP_ID_NOT_FOUND


def on_tick(turn: Turn) -> None:
    """Whose time is up is out."""
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
    """Make it the group, and tell once that is durable. `heard`: the heartbeats that it is for."""
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
    """A change of its own, once all that led to it is durable: what the log will not take as a classic group is a
    consumer group all the same without who has gone."""
    consumer, now_ms = turn.group.consumer, turn.now.monotonic_ms
    writing = any(isinstance(write, ConsumerWrite) for write in turn.group.writes.values())
    if consumer is not None and not writing and migration.is_due(consumer, now_ms, turn.config):
        become_classic(turn, consumer)


def become_classic(turn: Turn, consumer: ConsumerGroup) -> None:
    """Have those who are left in a consumer group go on as a classic one: whoever is there is asked to join again."""
    group = turn.group
    classic = migration.downgraded(group, consumer, turn.topics, turn.now)
    record = rebalance.formed(classic, {member.id: member.assignment for member in classic.members.values()})
    # that nobody leads yet says, to who reads it after a failover, that the members are still to join again
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
    """Who waits in a classic group for its next generation is to join the group that it becomes."""
    again = ErrorCode.REBALANCE_IN_PROGRESS
    told: list[tuple[int, AnyReply]] = []
    for member in group.members.values():
        if member.join_waiter is not None:
            told.append((member.join_waiter, JoinReply(error=again, member_id=member.id)))
        if member.sync_waiter is not None:
            told.append((member.sync_waiter, SyncReply(error=again)))
    return tuple(told)


def _answer_when_durable(turn: Turn, replies: Replies) -> None:
    """Nothing was changed; but what the answer says may yet have to become durable."""
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
    """Back to what stood before: a refusal is told at once, so nothing was built on what it refuses. Whose time was up
    has a little more, so that a log that takes nothing is not asked without end. Heartbeats that
    the log does not take together are decided again, in halves."""
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
    else:  # no commit is too large, and there is no word for what is
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


# what offsets ask


def commit_error(group: Group, event: CommitOffsets) -> ErrorCode:
    """Who may commit: a member; anybody while the group has no members and no epoch is claimed."""
    assert group.consumer is not None
    if event.generation < 0 and not group.consumer.members:
        return ErrorCode.NONE
    partitions = (TopicPartition(new.topic_id, PartitionIndex(new.partition.partition)) for new in event.offsets)
    return group.consumer.check_commit(event.member_id, event.generation, event.instance_id, partitions)


def tombstones(group: Group) -> tuple[ConsumerRecord, ...]:
    return changes(group.id, group.consumer, None)
