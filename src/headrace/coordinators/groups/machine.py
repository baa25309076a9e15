"""The entry point: `step` takes a group, an event and a moment, and returns the next group and effects.

Promises: deterministic and total over events. A group that has nothing left becomes None, and None stands for a group
that does not exist yet. Never raises for anything that a client sends.
"""

from __future__ import annotations

from typing import assert_never

from headrace.coordinators.groups import membership, offsets, static, transactional
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer import classic
from headrace.coordinators.groups.consumer import machine as consumer
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import Topics
from headrace.coordinators.groups.events import (
    CommitInTransaction,
    CommitOffsets,
    Commits,
    ConsumerHeartbeats,
    Delete,
    DeleteOffsets,
    Effect,
    Event,
    Expire,
    ForgetTopics,
    Heard,
    Heartbeat,
    Join,
    Leave,
    PutOff,
    Sync,
    Tick,
    Together,
    TransactionEnded,
    WriteRefused,
    Written,
)
from headrace.coordinators.groups.model import (
    AssignmentWrite,
    CommitWrite,
    ConsumerWrite,
    DeleteWrite,
    EmptyWrite,
    ForgetWrite,
    Group,
    Moment,
    OpenCommitWrite,
    ReplacementWrite,
    Write,
)
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode


def step(
    group_id: str, group: Group | None, event: Event, now: Moment, config: GroupConfig, topics: Topics
) -> tuple[Group | None, list[Effect]]:
    """Apply one event to one group; `topics` are the cluster's present ones."""
    turn = Turn(group=group or Group(id=group_id), now=now, config=config, topics=topics)
    _dispatch(turn, event)
    after, effects = turn.finish()
    return (None if after.is_nothing else after), effects


def _dispatch(turn: Turn, event: Event) -> None:
    match event:
        case Heartbeat() if turn.group.consumer is not None:
            classic.on_heartbeat(turn, event)
        case Heartbeat():
            membership.on_heartbeat(turn, event)
        case Join() if turn.group.consumer is not None:
            classic.on_join(turn, event)
        case Join():
            membership.on_join(turn, event)
        case Sync() if turn.group.consumer is not None:
            classic.on_sync(turn, event)
        case Sync():
            membership.on_sync(turn, event)
        case Together(events):
            for each in events:
                _dispatch(turn, each)
        case Heard(at_ms):
            membership.on_heard(turn, at_ms)
        case CommitOffsets():
            offsets.on_commits(turn, (event,))
        case Commits(commits):
            offsets.on_commits(turn, commits)
        case CommitInTransaction():
            transactional.on_commit(turn, event)
        case TransactionEnded(producer_id, is_committed):
            transactional.on_ended(turn, producer_id, is_committed=is_committed)
        case Written():
            _on_written(turn, event)
        case WriteRefused():
            _on_refused(turn, event)
        case ConsumerHeartbeat():
            consumer.on_heartbeats(turn, (event,))
        case ConsumerHeartbeats(heartbeats):
            consumer.on_heartbeats(turn, heartbeats)
        case Leave() if turn.group.consumer is not None:
            classic.on_leave(turn, event)
        case Leave():
            membership.on_leave(turn, event)
        case Tick() if turn.group.consumer is not None:
            consumer.on_tick(turn)
        case Tick():
            membership.on_tick(turn)
        case PutOff():
            consumer.on_put_off(turn, event)
        case Delete():
            offsets.on_delete(turn, event)
        case DeleteOffsets():
            offsets.on_delete_offsets(turn, event)
        case ForgetTopics():
            offsets.on_forget_topics(turn, event)
        case Expire():
            offsets.on_expire(turn)
        case _:
            assert_never(event)


def _on_written(turn: Turn, event: Written) -> None:
    assert event.write == next(iter(turn.group.writes)), "durable in the order of the log"
    write = turn.group.writes[event.write]
    if isinstance(write, CommitWrite):  # commits are by far the most frequent, so they copy the group only once
        offsets.on_commit_written(turn, event.write, write, event.error)
        return
    _take(turn, event.write)
    match write:
        case OpenCommitWrite():
            transactional.on_written(turn, event.write, write, event.error)
        case AssignmentWrite():
            turn.update(recorded=True)
            membership.on_assignment_settled(turn, write, event.error)
        case ReplacementWrite():
            turn.update(recorded=True)
            static.on_replacement_settled(turn, write, event.error)
        case EmptyWrite():
            turn.update(recorded=True)
        case ForgetWrite():
            offsets.on_forgotten(turn, write, event.error)
        case DeleteWrite():
            offsets.on_deleted(turn, write, event.error)
        case ConsumerWrite():
            consumer.on_written(turn, write, event.error)
        case _:
            assert_never(write)


def _on_refused(turn: Turn, event: WriteRefused) -> None:
    write = _take(turn, event.write)
    match write:
        case CommitWrite():
            offsets.on_commit_refused(turn, write, event.error)
        case OpenCommitWrite():
            transactional.on_settled(turn, write, event.error)
        case AssignmentWrite():
            membership.on_assignment_settled(turn, write, _of_membership(event.error))
        case ReplacementWrite():
            static.on_replacement_refused(turn, write, _of_membership(event.error))
        case DeleteWrite():
            offsets.on_delete_refused(turn, write, event.error)
        case ForgetWrite():
            offsets.on_forget_settled(turn, write, event.error)
        case ConsumerWrite():
            consumer.on_refused(turn, write, event.error)
        case EmptyWrite():
            pass
        case _:
            assert_never(write)


def _of_membership(error: ErrorCode) -> ErrorCode:
    """The error for a membership that is too large for a record: it is no commit, and has no error code of its own."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.INVALID_COMMIT_OFFSET_SIZE else error


def _take(turn: Turn, number: int) -> Write:
    """The settled write. Appends become durable in the order of the log; a refusal may overtake them."""
    write = turn.group.writes[number]
    turn.update(writes=turn.writes_but(number))
    return write
