"""Offsets that a group commits in transactions (TxnOffsetCommit): they are open until their transaction ends.

Promises: an open offset is shown to nobody. Once the transaction is committed it counts, unless a later record of its
partition is in the log. An abort leaves no trace. A restart reads the same. Sources: KIP-98, KIP-447, and Kafka's
OffsetMetadataManager for the order of the checks.
"""

from __future__ import annotations

from typing import Final

from headrace.coordinators.groups.events import CommitInTransaction, CommitReply, OffsetCommitted
from headrace.coordinators.groups.model import (
    Group,
    GroupState,
    NamedPartition,
    OpenCommit,
    OpenCommits,
    OpenCommitWrite,
)
from headrace.coordinators.groups.offsets import commit_part, instead, outdated
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode

NO_GENERATION: Final = -1


def on_commit(turn: Turn, event: CommitInTransaction) -> None:
    """Append the offsets as a part of the producer's transaction. Unlike OffsetCommit, it renews no session."""
    error = _error(turn.group, event)
    if error is not ErrorCode.NONE:
        turn.reply(event.waiter, CommitReply((error,) * len(event.offsets)))
        return
    part = commit_part(turn, event.waiter, event.offsets)
    if not part.commits:
        turn.reply(event.waiter, CommitReply(part.errors))
        return
    group_id = turn.group.id
    records = tuple(OffsetCommitted(group_id, partition, commit) for partition, commit in part.commits)
    turn.append(records, OpenCommitWrite(producer=event.producer, part=part), producer=event.producer)


def _error(group: Group, event: CommitInTransaction) -> ErrorCode:
    """The error for a commit. Older clients name no member, and are believed; others are checked as members."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.is_nothing:
        return ErrorCode.NONE if event.generation < 0 else ErrorCode.ILLEGAL_GENERATION
    is_nameless = event.generation == NO_GENERATION and not event.member_id and event.instance_id is None
    has_members = group.members if group.consumer is None else group.consumer.members
    if is_nameless or (event.generation < 0 and not has_members):
        return ErrorCode.NONE
    if group.consumer is not None:
        error = group.consumer.check_commit(event.member_id, event.generation, event.instance_id, ())
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error
    error = group.check_member(event.member_id, event.instance_id)
    if error is ErrorCode.NONE and event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def on_written(turn: Turn, number: int, write: OpenCommitWrite, error: ErrorCode) -> None:
    """Note that the offsets are durable, as a part of a transaction that is open. `number` is their place in the order
    of the log."""
    open_now = turn.group.open
    with open_now.get(write.producer.id, OpenCommits()).mutate() as own:
        for partition, commit in write.part.commits:
            own[partition] = OpenCommit(number, commit)
        turn.update(open=open_now.set(write.producer.id, own.finish()))
    on_settled(turn, write, error)


def on_settled(turn: Turn, write: OpenCommitWrite, error: ErrorCode) -> None:
    turn.reply(write.part.waiter, CommitReply(instead(write.part.errors, error)))


def on_ended(turn: Turn, producer_id: int, *, is_committed: bool) -> None:
    """Let the transaction's offsets count, or forget them. Its marker is durable, and so is everything before it."""
    group = turn.group
    own = group.open.get(producer_id)
    if own is None:
        return
    turn.update(open=group.open.delete(producer_id))
    if is_committed:
        commits = {partition: each.commit for partition, each in own.items()}
        turn.update(offsets=group.offsets.update(commits))
        outdated(turn, ((partition, each.place) for partition, each in own.items()))


def is_unstable(group: Group | None, partition: NamedPartition) -> bool:
    """Return whether an open transaction, or one that is being written, may change the committed offset."""
    if group is None:
        return False
    if any(partition in commits for commits in group.open.values()):
        return True
    return any(
        partition == each
        for write in group.writes.values()
        if isinstance(write, OpenCommitWrite)
        for each, _ in write.part.commits
    )
