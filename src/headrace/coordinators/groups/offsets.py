"""What a group has committed, and how that is forgotten.

Promises: an offset counts only once its record is durable; of two commits for a partition the one that is later in
the log stands, so that what a restart reads is what was last answered; a tombstone takes no later commit with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.base.ids import NO_TOPIC_ID, Offset
from headrace.coordinators.groups import membership
from headrace.coordinators.groups.events import (
    CommitOffsets,
    CommitReply,
    Delete,
    DeleteReply,
    ForgetTopics,
    GroupForgotten,
    GroupRecord,
    NewOffset,
    OffsetCommitted,
    OffsetForgotten,
)
from headrace.coordinators.groups.model import (
    AssignmentWrite,
    Commit,
    CommitWrite,
    DeleteWrite,
    EmptyWrite,
    ForgetWrite,
    Group,
    GroupState,
    NamedPartition,
    ReplacementWrite,
)
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode


def on_commit(turn: Turn, event: CommitOffsets) -> None:
    """Take the offsets to the log. A commit is a sign of life too."""
    error = _commit_error(turn.group, event)
    if error is not ErrorCode.NONE:
        turn.reply(event.waiter, CommitReply(errors=(error,) * len(event.offsets)))
        return
    member = turn.group.members.get(event.member_id)
    if member is not None:
        membership.renew(turn, member)
    room = turn.config.offset_metadata_max_bytes
    fits = [len(new.metadata) <= room for new in event.offsets]
    errors = tuple(ErrorCode.NONE if fit else ErrorCode.OFFSET_METADATA_TOO_LARGE for fit in fits)
    commits = tuple((new.partition, _commit(new, turn)) for new, fit in zip(event.offsets, fits, strict=True) if fit)
    if not commits:
        turn.reply(event.waiter, CommitReply(errors=errors))
        return
    records = tuple(
        OffsetCommitted(group=turn.group.id, partition=partition, commit=commit) for partition, commit in commits
    )
    turn.append(records, CommitWrite(waiter=event.waiter, commits=commits, errors=errors))


def _commit(new: NewOffset, turn: Turn) -> Commit:
    return Commit(
        offset=new.offset,
        leader_epoch=new.leader_epoch,
        metadata=new.metadata,
        timestamp_ms=turn.now.wall_ms,
        topic_id=new.topic_id,
    )


def _commit_error(group: Group, event: CommitOffsets) -> ErrorCode:
    """Who may commit: anybody while the group has no members and no generation is claimed; else a member of the
    current generation, until the next one is formed."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if group.is_nothing:
        return ErrorCode.GROUP_ID_NOT_FOUND
    error = group.check_member(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def on_commit_written(turn: Turn, write: CommitWrite) -> None:
    turn.update(offsets=turn.group.offsets.update(write.commits))
    turn.reply(write.waiter, CommitReply(errors=write.errors))


def on_commit_refused(turn: Turn, write: CommitWrite, error: ErrorCode) -> None:
    errors = tuple(error if code is ErrorCode.NONE else code for code in write.errors)
    turn.reply(write.waiter, CommitReply(errors=errors))


def on_forget_topics(turn: Turn, event: ForgetTopics) -> None:
    """Their names may come back as other topics, which owe nothing to these offsets."""
    _forget(turn, (partition for partition, commit in _known(turn.group) if commit.topic_id in event.topic_ids))


def on_expire(turn: Turn) -> None:
    """An empty group loses what is older than the retention time, and itself once nothing is left of it."""
    group, now = turn.group, turn.now.wall_ms
    if group.state is not GroupState.EMPTY or group.pending or group.writes:
        return
    oldest = now - turn.config.offsets_retention_ms
    expired = [
        partition
        for partition, commit in group.offsets.items()
        if max(commit.timestamp_ms, group.since_ms if group.protocol_type else 0) <= oldest
    ]
    if len(expired) == len(group.offsets):
        _delete(turn, None)
    else:
        _forget(turn, expired)


def _forget(turn: Turn, partitions: Iterable[NamedPartition]) -> None:
    chosen = tuple(sorted(set(partitions)))
    if chosen and turn.group.state is not GroupState.DEAD:
        records = tuple(OffsetForgotten(group=turn.group.id, partition=partition) for partition in chosen)
        turn.append(records, ForgetWrite(partitions=chosen))


def on_forgotten(turn: Turn, write: ForgetWrite) -> None:
    with turn.group.offsets.mutate() as offsets:
        for partition in write.partitions:
            offsets.pop(partition, None)
        turn.update(offsets=offsets.finish())


def on_delete(turn: Turn, event: Delete) -> None:
    """Only a group without members can be deleted."""
    group = turn.group
    if group.state is GroupState.DEAD or group.is_nothing:
        turn.reply(event.waiter, DeleteReply(error=ErrorCode.GROUP_ID_NOT_FOUND))
    elif group.state is not GroupState.EMPTY:
        turn.reply(event.waiter, DeleteReply(error=ErrorCode.NON_EMPTY_GROUP))
    else:
        _delete(turn, event.waiter)


def _delete(turn: Turn, waiter: int | None) -> None:
    """Write tombstones over all that the log holds of it, what is still being written included."""
    group = turn.group
    partitions = sorted({partition for partition, _ in _known(group)})
    records: list[GroupRecord] = [OffsetForgotten(group=group.id, partition=partition) for partition in partitions]
    memberships = AssignmentWrite | ReplacementWrite | EmptyWrite
    if group.recorded or any(isinstance(write, memberships) for write in group.writes.values()):
        records.append(GroupForgotten(group=group.id))
    turn.update(state=GroupState.DEAD, pending={})
    if records:
        turn.append(tuple(records), DeleteWrite(waiter=waiter))
    elif waiter is not None:
        turn.reply(waiter, DeleteReply(error=ErrorCode.NONE))


def on_delete_settled(turn: Turn, write: DeleteWrite, error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        turn.update(state=GroupState.EMPTY)
    if write.waiter is not None:
        turn.reply(write.waiter, DeleteReply(error=error))


def _known(group: Group) -> Iterable[tuple[NamedPartition, Commit]]:
    """All commits that the log holds or may soon hold."""
    yield from group.offsets.items()
    for write in group.writes.values():
        if isinstance(write, CommitWrite):
            yield from write.commits


def lookup(group: Group | None, partition: NamedPartition) -> Commit:
    """OffsetFetch for one partition: offset -1 where nothing is committed."""
    commit = None if group is None else group.offsets.get(partition)
    return commit or Commit(offset=Offset(-1), timestamp_ms=-1, topic_id=NO_TOPIC_ID)
