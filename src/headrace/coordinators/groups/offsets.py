"""The committed offsets of a group, and their removal.

Promises: an offset counts only once its record is durable. Of two commits for a partition, the later in the log wins,
so that a restart reads what was last answered. A tombstone never removes a later commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.base.ids import NO_TOPIC_ID, Offset
from headrace.base.limits import GROUP_TOMBSTONES_BYTES_MAX
from headrace.coordinators.groups import membership
from headrace.coordinators.groups.consumer import machine as consumer
from headrace.coordinators.groups.events import (
    CommitOffsets,
    CommitReply,
    Delete,
    DeleteOffsets,
    DeleteOffsetsReply,
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
    CommitPart,
    CommitWrite,
    ConsumerWrite,
    DeleteWrite,
    EmptyWrite,
    ForgetWrite,
    Group,
    GroupState,
    NamedPartition,
    OpenCommitWrite,
    ReplacementWrite,
    Write,
)
from headrace.coordinators.groups.subscriptions import CONSUMER, subscribed_topics
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode

TOMBSTONE_BYTES: Final = 32
"""Largest size of a tombstone beside its names: its header in the batch, and the fixed part of its key."""


def on_commits(turn: Turn, events: Sequence[CommitOffsets]) -> None:
    """Append the offsets of several commits together. A commit renews the session, too. None of them changes how the
    others are judged, except the first in a group that does not exist yet."""
    group, parts, alive = turn.group, [], []
    if group.is_nothing and len(events) > 1:
        for event in events:
            on_commits(turn, (event,))
        return
    for event in events:
        error = _commit_error(group, event)
        if error is not ErrorCode.NONE:
            turn.reply(event.waiter, CommitReply((error,) * len(event.offsets)))
            continue
        member = group.members.get(event.member_id)
        if member is not None:
            alive.append(member)
        part = commit_part(turn, event.waiter, event.offsets)
        if part.commits:
            parts.append(part)
        else:
            turn.reply(part.waiter, CommitReply(part.errors))
    members = membership.renewed(turn, alive) if alive else {}
    if parts:
        _append(turn, parts, **members)
    else:
        turn.update(**members)


def commit_part(turn: Turn, waiter: int, offsets: Iterable[NewOffset]) -> CommitPart:
    """The part of a request that is accepted: offsets whose metadata is not too large."""
    room, wall_ms = turn.config.offset_metadata_max_bytes, turn.now.wall_ms
    commits, errors = [], []
    for partition, topic_id, offset, leader_epoch, metadata in offsets:
        if len(metadata) > room:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        else:
            errors.append(ErrorCode.NONE)
            commits.append((partition, Commit(offset, wall_ms, leader_epoch, metadata, topic_id)))
    return CommitPart(waiter, tuple(commits), tuple(errors))


def _append(turn: Turn, parts: Iterable[CommitPart], **changes: Any) -> None:
    write = CommitWrite(parts=tuple(parts))
    group_id = turn.group.id
    records = tuple([OffsetCommitted(group_id, partition, commit) for partition, commit in write.commits])
    turn.append(records, write, **changes)


def _commit_error(group: Group, event: CommitOffsets) -> ErrorCode:
    """The error for a commit. Anybody may commit while the group is empty and no generation is claimed. Otherwise only
    a member of the current generation may, until the next one is formed."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        return consumer.commit_error(group, event)
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


def on_commit_written(turn: Turn, number: int, write: CommitWrite, error: ErrorCode) -> None:
    turn.update(writes=turn.writes_but(number), offsets=turn.group.offsets.update(write.commits))
    if turn.group.open:
        outdated(turn, ((partition, number) for partition, _ in write.commits))
    on_commit_settled(turn, write, error)


def on_commit_settled(turn: Turn, write: CommitWrite, error: ErrorCode) -> None:
    for part in write.parts:
        turn.reply(part.waiter, CommitReply(instead(part.errors, error)))


def on_commit_refused(turn: Turn, write: CommitWrite, error: ErrorCode) -> None:
    """Retry each commit by itself where together they are too large for the log."""
    if error is ErrorCode.INVALID_COMMIT_OFFSET_SIZE and len(write.parts) > 1:
        for part in write.parts:
            _append(turn, (part,))
    else:
        on_commit_settled(turn, write, error)


def instead(errors: tuple[ErrorCode, ...], error: ErrorCode) -> tuple[ErrorCode, ...]:
    """The answer with this error for every partition that had none."""
    return errors if error is ErrorCode.NONE else tuple(code or error for code in errors)


def on_forget_topics(turn: Turn, event: ForgetTopics) -> None:
    """Forget the offsets: new topics may get these names, and the offsets do not apply to them."""
    latest = dict(_known(turn.group))  # a later commit, of a topic that has the name by now, may not be durable yet
    _forget(turn, (partition for partition, commit in latest.items() if commit.topic_id in event.topic_ids))


def on_expire(turn: Turn) -> None:
    """KIP-211. An empty group loses offsets older than the retention time, and then itself if none is left. A stable
    group of consumers loses such offsets of topics that no member subscribes to."""
    group, oldest = turn.group, turn.now.wall_ms - turn.config.offsets_retention_ms
    if group.state is GroupState.EMPTY and not group.pending and not group.writes:
        since_ms = group.since_ms if group.protocol_type else 0
        expired = [partition for partition, commit in group.offsets.items() if _since(commit, since_ms) <= oldest]
        if group.open:
            _forget(turn, set(expired) - {partition for partition, _ in _open(group)})
        elif len(expired) == len(group.offsets):
            _delete(turn, None)
        else:
            _forget(turn, expired)
    elif group.state is GroupState.STABLE:
        _forget(turn, _outlived(group, oldest))


def _since(commit: Commit, since_ms: int) -> int:
    """Start of the retention time: the commit, or the group's last change if that is later."""
    return max(commit.timestamp_ms, since_ms)


def _outlived(group: Group, oldest: int) -> list[NamedPartition]:
    """Expired offsets that are neither subscribed to nor being committed again: a tombstone must not remove a later
    commit."""
    old = [partition for partition, commit in group.offsets.items() if commit.timestamp_ms <= oldest]
    topics = subscribed_topics(group) if old else None
    if topics is None:
        return []
    committing = {partition for partition, _ in (*_in_flight(group), *_open(group))}
    return [partition for partition in old if partition.topic not in topics and partition not in committing]


def _forget(turn: Turn, partitions: Iterable[NamedPartition]) -> None:
    if turn.group.state is not GroupState.DEAD:
        _append_tombstones(turn, sorted(set(partitions)), ForgetWrite(partitions=()))


def _append_tombstones(turn: Turn, partitions: Sequence[NamedPartition], write: ForgetWrite) -> None:
    """Append tombstones in batches that the log accepts, all at once, so that no later commit comes between them."""
    group_id, left = turn.group.id, tuple(partitions)
    while left:
        chosen, left = _batch(group_id, left)
        turn.append(_forgotten(group_id, chosen), replace(write, partitions=chosen))


def _forgotten(group_id: str, partitions: Iterable[NamedPartition]) -> tuple[GroupRecord, ...]:
    return tuple(OffsetForgotten(group=group_id, partition=partition) for partition in partitions)


def _batch(
    group_id: str, partitions: tuple[NamedPartition, ...]
) -> tuple[tuple[NamedPartition, ...], tuple[NamedPartition, ...]]:
    """As many partitions as fit one batch, and the others."""
    room, each = GROUP_TOMBSTONES_BYTES_MAX, len(group_id.encode()) + TOMBSTONE_BYTES
    for at, partition in enumerate(partitions):
        room -= each + len(partition.topic.encode())
        if room < 0 and at:
            return partitions[:at], partitions[at:]
    return partitions, ()


def on_delete_offsets(turn: Turn, event: DeleteOffsets) -> None:
    """KIP-496: offsets that members may be reading stay. For a group with members, only consumers' topics are known."""
    group = turn.group
    topics = subscribed_topics(group)
    if group.state is GroupState.DEAD or group.is_nothing:
        turn.reply(event.waiter, DeleteOffsetsReply(error=_gone(group)))
    elif group.members and group.protocol_type != CONSUMER:
        turn.reply(event.waiter, DeleteOffsetsReply(error=ErrorCode.NON_EMPTY_GROUP))
    else:
        free = [topics is not None and partition.topic not in topics for partition in event.partitions]
        errors = tuple(ErrorCode.NONE if each else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for each in free)
        wanted = {partition for partition, each in zip(event.partitions, free, strict=True) if each}
        chosen = sorted(wanted & {partition for partition, _ in _known(group)})
        write = ForgetWrite(partitions=(), waiter=event.waiter, errors=errors)
        _append_tombstones(turn, chosen, write)
        if not chosen:
            on_forget_settled(turn, write, ErrorCode.NONE)


def on_forgotten(turn: Turn, write: ForgetWrite, error: ErrorCode) -> None:
    _drop(turn, write.partitions)
    on_forget_settled(turn, write, error)


def _drop(turn: Turn, partitions: Iterable[NamedPartition]) -> None:
    group, gone = turn.group, frozenset(partitions)
    with group.offsets.mutate() as offsets:
        for partition in gone:
            offsets.pop(partition, None)
        turn.update(offsets=offsets.finish())
    if group.open:  # a tombstone is later in the log than all that is durable
        outdated(turn, ((partition, group.next_write) for partition in gone))


def on_forget_settled(turn: Turn, write: ForgetWrite, error: ErrorCode) -> None:
    """Answer after its last batch, or the first that failed."""
    if write.waiter is None:
        return
    others = {
        number: replace(other, waiter=None)
        for number, other in turn.group.writes.items()
        if isinstance(other, ForgetWrite) and other.waiter == write.waiter
    }
    if error is ErrorCode.NONE and others:
        return
    turn.update(writes={**turn.group.writes, **others})
    turn.reply(write.waiter, DeleteOffsetsReply(error=error, partitions=write.errors))


def on_delete(turn: Turn, event: Delete) -> None:
    """Only a group without members can be deleted."""
    group = turn.group
    if group.state is GroupState.DEAD or group.is_nothing:
        turn.reply(event.waiter, DeleteReply(error=_gone(group)))
    elif group.state is not GroupState.EMPTY:
        turn.reply(event.waiter, DeleteReply(error=ErrorCode.NON_EMPTY_GROUP))
    else:
        _delete(turn, event.waiter)


def _gone(group: Group) -> ErrorCode:
    """The error for a group that is being deleted: until that is durable it has its offsets, and may keep them."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if group.state is GroupState.DEAD else ErrorCode.GROUP_ID_NOT_FOUND


def _delete(turn: Turn, waiter: int | None) -> None:
    """Write tombstones for all records of the group, including those still being written."""
    partitions = tuple(sorted({partition for partition, _ in _known(turn.group)}))
    turn.update(state=GroupState.DEAD, pending={})
    _delete_next(turn, DeleteWrite(waiter=waiter, rest=partitions))


def _delete_next(turn: Turn, write: DeleteWrite) -> None:
    """Write the next batch of tombstones, once the previous one is durable. In between it is a valid group with fewer
    offsets. The group goes with its last offset."""
    group = turn.group
    chosen, rest = _batch(group.id, write.rest)
    records = [*_forgotten(group.id, chosen), *(() if rest else _of_group(group))]
    if records:
        turn.append(tuple(records), replace(write, partitions=chosen, rest=rest))
    else:
        _answer_delete(turn, write, write.error)


def _of_group(group: Group) -> Iterable[GroupRecord]:
    if group.recorded or any(map(_records, group.writes.values())):
        yield GroupForgotten(group=group.id)
    yield from consumer.tombstones(group)


def _records(write: Write) -> bool:
    """Whether the log holds the record of a classic group once the write is durable."""
    if isinstance(write, ConsumerWrite):
        return write.recorded is True
    return isinstance(write, AssignmentWrite | ReplacementWrite | EmptyWrite)


def on_deleted(turn: Turn, write: DeleteWrite, error: ErrorCode) -> None:
    _drop(turn, write.partitions)
    error = write.error or error
    if write.rest:
        _delete_next(turn, DeleteWrite(waiter=write.waiter, rest=write.rest, error=error))
    else:
        _answer_delete(turn, write, error)


def on_delete_refused(turn: Turn, write: DeleteWrite, error: ErrorCode) -> None:
    """Continue with what is left of the group."""
    turn.update(state=GroupState.EMPTY)
    _answer_delete(turn, write, error)


def _answer_delete(turn: Turn, write: DeleteWrite, error: ErrorCode) -> None:
    turn.reply(write.waiter, DeleteReply(error=error))


def _known(group: Group) -> Iterable[tuple[NamedPartition, Commit]]:
    """All commits that the log holds or may soon hold."""
    yield from group.offsets.items()
    yield from _open(group)
    yield from _in_flight(group)


def _open(group: Group) -> Iterable[tuple[NamedPartition, Commit]]:
    """The latest offset of open transactions, for each partition."""
    each = [
        (open_one.place, partition, open_one.commit)
        for own in group.open.values()
        for partition, open_one in own.items()
    ]
    yield from {partition: commit for _, partition, commit in sorted(each, key=lambda one: one[0])}.items()


def _in_flight(group: Group) -> Iterable[tuple[NamedPartition, Commit]]:
    for write in group.writes.values():
        if isinstance(write, CommitWrite):
            yield from write.commits
        elif isinstance(write, OpenCommitWrite):
            yield from write.part.commits


def outdated(turn: Turn, later: Iterable[tuple[NamedPartition, int]]) -> None:
    """Forget open offsets of these partitions whose records are before these places in the log."""
    open_now = turn.group.open
    for partition, place in later:
        for producer_id, commits in open_now.items():
            known = commits.get(partition)
            if known is not None and known.place < place:
                left = commits.delete(partition)
                open_now = open_now.set(producer_id, left) if left else open_now.delete(producer_id)
    if open_now is not turn.group.open:
        turn.update(open=open_now)


NO_COMMIT: Final = Commit(offset=Offset(-1), timestamp_ms=-1, topic_id=NO_TOPIC_ID)
"""The answer of OffsetFetch where nothing is committed. A commit of offset -1 differs: it has a time and metadata."""


def lookup(group: Group | None, partition: NamedPartition) -> Commit:
    """OffsetFetch for one partition; NO_COMMIT where nothing is committed."""
    return (None if group is None else group.offsets.get(partition)) or NO_COMMIT
