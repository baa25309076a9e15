"""The transition from one generation to the next: PREPARING (members join) -> COMPLETING (the leader assigns) ->
STABLE.

Promises:
- A generation number is used once.
- An assignment is handed out only once it is durable, and only in its own generation.
- A member that does not join in time is left behind, never waited for.
- A static member that is late (KIP-345) still enters the next generation, and is removed when its session ends.

It behaves like Kafka's classic coordinator (KIP-62, KIP-134 initial delay, KIP-345, KIP-394).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.coordinators.groups.events import GroupFormed, JoinReply, MemberRecord, Subscriber, SyncReply
from headrace.coordinators.groups.model import EmptyWrite, Group, GroupState, Member
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode

POSTPONED_MS_MIN: Final = 1_000
"""Shortest wait for a member to join where only static members are left and none has joined."""


def prepare(turn: Turn, reason: str) -> None:
    """Ask all members to join again. From EMPTY, the first generation waits a little for others to join (KIP-134)."""
    turn.tell(reason)
    group, now = turn.group, turn.now.monotonic_ms
    if group.state is GroupState.COMPLETING:
        hand_out(turn, {}, ErrorCode.REBALANCE_IN_PROGRESS)
    delay = turn.config.group_initial_rebalance_delay_ms
    if group.state is GroupState.EMPTY and delay > 0:
        wait, left = delay, max(0, group.rebalance_timeout_ms - delay)
        turn.update(initial_delay_left_ms=left, newcomer=False)
    else:
        wait = group.rebalance_timeout_ms
    turn.update(state=GroupState.PREPARING, rebalance_deadline_ms=now + wait, sync_deadline_ms=None)
    turn.wake(turn.group.rebalance_deadline_ms)
    complete_if_joined(turn)


def complete_if_joined(turn: Turn) -> None:
    """Form the generation as soon as all have joined. The initial delay always runs to its end."""
    group = turn.group
    if group.state is GroupState.PREPARING and group.initial_delay_left_ms is None and turn.all_joined:
        complete(turn)


def on_rebalance_due(turn: Turn) -> None:
    """The time for joining is over. While new members keep joining, the initial delay is extended, up to the rebalance
    timeout in all."""
    group, left = turn.group, turn.group.initial_delay_left_ms
    if left is None or left == 0 or not group.newcomer:
        complete(turn)
        return
    wait = min(turn.config.group_initial_rebalance_delay_ms, left)
    turn.update(newcomer=False, initial_delay_left_ms=left - wait, rebalance_deadline_ms=turn.now.monotonic_ms + wait)


def complete(turn: Turn) -> None:
    """Form the next generation from the members that joined, and static members. The others are removed."""
    for member in turn.group.members.values():
        if member.join_waiter is None and member.instance_id is None:
            turn.drop(member.id)
    joined = [member.id for member in turn.group.members.values() if member.join_waiter is not None]
    if turn.group.members and not joined:
        _postpone(turn)
        return
    if joined and turn.group.leader not in joined:
        turn.update(leader=joined[0])
    generation = turn.group.generation + 1
    assert generation < 2**31
    turn.update(
        generation=generation,
        rebalance_deadline_ms=None,
        initial_delay_left_ms=None,
        newcomer=False,
        since_ms=turn.now.wall_ms,
    )
    if turn.group.members:
        _form(turn)
    else:
        turn.update(state=GroupState.EMPTY, protocol=None)
        turn.append((formed(turn.group, {}),), EmptyWrite())


def _postpone(turn: Turn) -> None:
    """No member is there to lead. Wait until a static member joins, or the last session has ended."""
    due = turn.now.monotonic_ms + max(turn.group.rebalance_timeout_ms, POSTPONED_MS_MIN)
    turn.update(rebalance_deadline_ms=due, initial_delay_left_ms=None, newcomer=False)
    turn.wake(due)


def _form(turn: Turn) -> None:
    protocol = choose_protocol(turn.group)
    due = turn.now.monotonic_ms + turn.group.rebalance_timeout_ms
    turn.update(state=GroupState.COMPLETING, protocol=protocol, sync_deadline_ms=due)
    turn.wake(due)
    members = []
    for member in turn.group.members.values():
        due_ms = member.deadline_ms if member.join_waiter is None else turn.session(member)
        turn.reply(member.join_waiter, joined(turn.group, member))
        members.append(member.joined(due_ms))
    turn.put_all(members)


def joined(group: Group, member: Member) -> JoinReply:
    """A member's JoinGroup answer. The leader's also lists the members and their subscriptions."""
    others: tuple[Subscriber, ...] = ()
    if member.id == group.leader:
        protocol, members = group.protocol, group.members.values()
        others = tuple([Subscriber(other.id, other.instance_id, other.metadata(protocol)) for other in members])
    return JoinReply(
        ErrorCode.NONE,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        others,
    )


def choose_protocol(group: Group) -> str:
    """Each member votes for its first choice among the protocols that all offer. The leader's preference breaks
    ties."""
    assert group.leader is not None
    offered = [[protocol.name for protocol in member.protocols] for member in group.members.values()]
    common = set(offered[0]).intersection(*offered)
    assert common, "a member that shares no protocol with the others was let in"
    votes = [next(name for name in names if name in common) for names in offered]
    preference = [protocol.name for protocol in group.members[group.leader].protocols]
    return max((name for name in preference if name in common), key=votes.count)


def hand_out(turn: Turn, assignments: Mapping[str, bytes], error: ErrorCode) -> None:
    """Give every member its assignment, answer those who wait for it, and restart their sessions."""
    members = []
    for member in turn.group.members.values():
        waits = member.sync_waiter is not None
        due_ms = turn.session(member) if waits else member.deadline_ms
        served = member.served(assignments.get(member.id, b""), due_ms)
        if waits:
            told = assigned(turn.group, served) if error is ErrorCode.NONE else SyncReply(error=error)
            turn.reply(member.sync_waiter, told)
        members.append(served)
    turn.put_all(members)


def assigned(group: Group, member: Member) -> SyncReply:
    return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)


def formed(group: Group, assignments: Mapping[str, bytes]) -> GroupFormed:
    """The record of the group's membership with these assignments."""
    members = [
        MemberRecord(
            member.id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol),
            assignments.get(member.id, b""),
            member.instance_id,
        )
        for member in group.members.values()
    ]
    return GroupFormed(
        group=group.id,
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        since_ms=group.since_ms,
        members=tuple(members),
    )


def remove(turn: Turn, members: Iterable[Member], reason: str) -> None:
    """Remove members that left, or whose session ended, and make the others rebalance. A removed member that waits in a
    request is answered that it is unknown, so that it starts over."""
    for member in members:
        turn.reply(member.join_waiter, JoinReply(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=""))
        turn.reply(member.sync_waiter, SyncReply(error=ErrorCode.UNKNOWN_MEMBER_ID))
        turn.drop(member.id)
    if turn.group.state is GroupState.PREPARING:
        complete_if_joined(turn)
    elif turn.group.state in (GroupState.COMPLETING, GroupState.STABLE):
        prepare(turn, reason)
