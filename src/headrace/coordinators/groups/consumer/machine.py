"""Consumer groups in the machine of all groups: how their changes come into the log, and what waits for that.

Promises: a heartbeat is answered once all that its group has written by then is durable, and a change that is refused
leaves no trace. A classic group without members becomes a consumer group with the first heartbeat, and back with the
first JoinGroup, and keeps its offsets; one with members does not (KIP-848's migration is not done here).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.coordinators.groups.consumer import heartbeats
from headrace.coordinators.groups.consumer.changes import ConsumerRecord, changes
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import (
    JOINING_EPOCH,
    Classic,
    ConsumerGroup,
    ConsumerHeartbeatReply,
    ConsumerWrite,
)
from headrace.coordinators.groups.events import GroupForgotten, GroupRecord, Join, JoinReply
from headrace.coordinators.groups.model import Group, GroupState, Write
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode

CONSUMER: Final = "consumer"
RETRY_MS: Final = 1_000
"""Until what was refused by the log, and nobody waits for, is tried again."""


def state_of(group: ConsumerGroup) -> GroupState:
    if not group.members:
        return GroupState.EMPTY
    if group.epoch > group.target_epoch:
        return GroupState.ASSIGNING
    return GroupState.STABLE if group.is_reconciled else GroupState.RECONCILING


def on_heartbeat(turn: Turn, event: ConsumerHeartbeat) -> None:
    group = turn.group
    error = _why_not(group, event)
    if error is not ErrorCode.NONE:
        turn.reply(event.waiter, ConsumerHeartbeatReply(error=error))
        return
    before = group.consumer or ConsumerGroup()
    after, reply = heartbeats.on_heartbeat(before, event, turn.now.monotonic_ms, turn.config.consumer)
    if reply.error is not ErrorCode.NONE:
        turn.reply(event.waiter, reply)
        return
    _change(turn, after, ((event.waiter, reply),))
    turn.wake(after.sessions.get(event.member_id))
    turn.wake(after.revocations.get(event.member_id))


def _why_not(group: Group, event: ConsumerHeartbeat) -> ErrorCode:
    """Whether this is a group that heartbeats are for; it is made by whoever joins."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        return ErrorCode.NONE
    usable = event.epoch == JOINING_EPOCH and not group.members
    return ErrorCode.NONE if usable else ErrorCode.GROUP_ID_NOT_FOUND


def on_tick(turn: Turn) -> None:
    """Whose time is up is out."""
    group = turn.group
    assert group.consumer is not None
    if group.state is not GroupState.DEAD:
        after = heartbeats.on_due(group.consumer, turn.now.monotonic_ms)
        _change(turn, after, ())
        turn.wake(after.earliest_deadline_ms())


def _change(turn: Turn, after: ConsumerGroup, replies: tuple[tuple[int, ConsumerHeartbeatReply], ...]) -> None:
    group = turn.group
    records: tuple[GroupRecord, ...] = changes(group.id, group.consumer, after)
    converts = group.consumer is None and bool(group.protocol_type or group.recorded)
    if converts:
        records = (GroupForgotten(group=group.id), *records)
    turn.update(consumer=after)
    if records:
        classic = Classic(group.generation, group.protocol_type, group.protocol, group.since_ms)
        since_ms = -1 if after.members else turn.now.wall_ms
        turn.update(state=state_of(after), protocol_type=CONSUMER, pending={})
        turn.update(generation=0, protocol=None, since_ms=since_ms)
        turn.append(records, ConsumerWrite(before=group.consumer, classic=classic, replies=replies, converts=converts))
    else:
        _answer_when_durable(turn, replies)


def _answer_when_durable(turn: Turn, replies: tuple[tuple[int, ConsumerHeartbeatReply], ...]) -> None:
    """Nothing was changed; but what the answer says may yet have to become durable."""
    writes = turn.group.writes
    last = max((number for number, write in writes.items() if isinstance(write, ConsumerWrite)), default=None)
    if last is None:
        for waiter, reply in replies:
            turn.reply(waiter, reply)
        return
    write = writes[last]
    assert isinstance(write, ConsumerWrite)
    turn.update(writes={**writes, last: replace(write, replies=(*write.replies, *replies))})


def on_written(turn: Turn, write: ConsumerWrite, error: ErrorCode) -> None:
    if write.converts:
        turn.update(recorded=False)
    consumer = turn.group.consumer
    if write.retires and consumer is not None and not consumer.members:
        turn.update(consumer=None, protocol_type="")
    _answer(turn, write, error)


def on_refused(turn: Turn, write: ConsumerWrite, error: ErrorCode) -> None:
    """Back to what stood before: a refusal is told at once, so nothing was built on what it refuses. Whose time was up
    has a little more, so that a log that takes nothing is not asked without end."""
    before = write.before
    if before is not None:
        before = heartbeats.postponed(before, turn.now.monotonic_ms, RETRY_MS)
        turn.wake(before.earliest_deadline_ms())
    turn.update(consumer=before, state=GroupState.EMPTY if before is None else state_of(before))
    if write.classic is not None:
        turn.update(**write.classic._asdict())
    _answer(turn, write, error)


def _answer(turn: Turn, write: ConsumerWrite, error: ErrorCode) -> None:
    for waiter, reply in write.replies:
        turn.reply(waiter, reply if error is ErrorCode.NONE else ConsumerHeartbeatReply(error=error))


# what offsets and the classic protocol ask


def commit_error(group: Group, member_id: str, epoch: int) -> ErrorCode:
    """Who may commit: a member at its epoch; anybody while the group has no members and no epoch is claimed."""
    assert group.consumer is not None
    if epoch < 0 and not group.consumer.members:
        return ErrorCode.NONE
    return group.consumer.check_member(member_id, epoch)


def tombstones(group: Group) -> tuple[ConsumerRecord, ...]:
    return changes(group.id, group.consumer, None)


def on_join(turn: Turn, event: Join) -> None:
    """A classic member cannot be among these. Once the group is empty it is made a classic one, and the client, which
    takes this error for a passing one, comes again."""
    group = turn.group
    assert group.consumer is not None
    if group.consumer.members:
        turn.reply(event.waiter, JoinReply(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=event.member_id))
        return
    if group.state is not GroupState.DEAD and not any(_retires(write) for write in group.writes.values()):
        turn.append(tombstones(group), ConsumerWrite(before=group.consumer, retires=True))
    turn.reply(event.waiter, JoinReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=event.member_id))


def _retires(write: Write) -> bool:
    return isinstance(write, ConsumerWrite) and write.retires
