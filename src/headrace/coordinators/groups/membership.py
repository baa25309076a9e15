"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the deadlines of silent members.

Promises: every request is answered once, either immediately or when its generation is decided. Only a member of the
current generation gets an assignment or keeps its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.coordinators.groups import rebalance, static
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.events import (
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Sync,
    SyncReply,
)
from headrace.coordinators.groups.model import AssignmentWrite, Group, GroupState, Member
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode

KEEPS_SESSION: Final = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""The answers of heartbeats that renew the session."""


def on_join(turn: Turn, event: Join) -> None:
    member, held = turn.group.members.get(event.member_id), _held(turn.group, event)
    error = _join_error(turn.group, event, turn.config)
    if error is not ErrorCode.NONE:
        turn.reply(event.waiter, JoinReply(error=error, member_id=event.member_id))
    elif member is not None:
        _rejoin(turn, event, member)
    elif event.member_id:
        turn.drop_pending(event.member_id)
        _admit(turn, event, event.member_id)
    elif held is not None:
        static.replace_member(turn, event, held)
    elif event.require_known_id and event.instance_id is None:
        due = turn.now.monotonic_ms + event.session_timeout_ms
        turn.update(pending={**turn.group.pending, event.new_member_id: due})
        turn.wake(due)
        turn.reply(event.waiter, JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=event.new_member_id))
    else:
        _admit(turn, event, event.new_member_id)


def _join_error(group: Group, event: Join, config: GroupConfig) -> ErrorCode:
    if not config.group_min_session_timeout_ms <= event.session_timeout_ms <= config.group_max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.member_id in group.pending:
        if event.instance_id is not None:
            return ErrorCode.INVALID_REQUEST  # only dynamic members get ids this way
    elif event.member_id and (error := group.check_member(event.member_id, event.instance_id)):
        return error
    elif not event.member_id and _held(group, event) is None and _size(group) >= config.group_max_size:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not event.protocol_type or not _fits(group, event):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _size(group: Group) -> int:
    return len(group.members) + len(group.pending)


def _held(group: Group, event: Join) -> Member | None:
    """The member whose place is requested by a client that has only an instance id."""
    if event.member_id or event.instance_id is None:
        return None
    return group.static_member(event.instance_id)


def _fits(group: Group, event: Join) -> bool:
    """Whether it shares a protocol with all other members, so that one can be chosen."""
    known = group.members.get(event.member_id)
    if known is not None and known.protocols == event.protocols and group.protocol_type == event.protocol_type:
        return True  # it still offers what it was admitted with
    common = {protocol.name for protocol in event.protocols}
    held = _held(group, event)
    own = event.member_id if held is None else held.id
    others = [member for member in group.members.values() if member.id != own]
    if others and group.protocol_type != event.protocol_type:
        return False
    return bool(common.intersection(*({protocol.name for protocol in other.protocols} for other in others)))


def _admit(turn: Turn, event: Join, member_id: str) -> None:
    """Admit a new member. It cannot send heartbeats while it waits, so it has a fixed time to get its first generation.
    A client that is still there tries again."""
    first = not turn.group.members
    turn.put(
        Member(
            id=member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=event.session_timeout_ms,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            protocols=event.protocols,
            join_waiter=event.waiter,
            new=True,
            deadline_ms=turn.now.monotonic_ms + turn.config.new_member_join_timeout_ms,
        )
    )
    if first:
        turn.update(leader=member_id, protocol_type=event.protocol_type)
    if turn.group.state is GroupState.PREPARING:
        turn.update(newcomer=True)
        rebalance.complete_if_joined(turn)
    else:
        rebalance.prepare(turn, f"member {member_id} is new: {event.reason}")


def _rejoin(turn: Turn, event: Join, member: Member) -> None:
    """A member joins again: it lost the answer, was told to, or subscribes to something else. The leader also does when
    the topics changed."""
    group = turn.group
    leader_asks = group.state is GroupState.STABLE and member.id == group.leader
    if group.state is not GroupState.PREPARING and member.protocols == event.protocols and not leader_asks:
        turn.reply(event.waiter, rebalance.joined(group, member))
        return
    again = ErrorCode.REBALANCE_IN_PROGRESS
    if member.join_waiter is not None:
        turn.reply(member.join_waiter, JoinReply(error=again, member_id=member.id))
    if member.sync_waiter is not None:
        turn.reply(member.sync_waiter, SyncReply(error=again))
    turn.put(
        Member(
            member.id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            member.instance_id,
            member.assignment,
            event.waiter,
            None,
            member.synced,
            member.new,
            member.deadline_ms if member.new else None,
        )
    )
    if len(group.members) == 1:
        turn.update(protocol_type=event.protocol_type)
    if group.state is GroupState.PREPARING:
        rebalance.complete_if_joined(turn)
    else:
        rebalance.prepare(turn, f"{'leader' if leader_asks else 'member'} {member.id} joins again: {event.reason}")


def on_sync(turn: Turn, event: Sync) -> None:
    group, member = turn.group, turn.group.members.get(event.member_id)
    error = _member_error(group, event)
    if error is ErrorCode.NONE and not _same_protocol(group, event):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if error is ErrorCode.NONE and group.state is GroupState.PREPARING:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    if error is not ErrorCode.NONE or member is None:
        turn.reply(event.waiter, SyncReply(error=error))
    elif group.state is GroupState.STABLE:
        turn.reply(event.waiter, rebalance.assigned(group, member))
        turn.put(member._replace(synced=True, deadline_ms=turn.session(member)))
    else:
        if member.sync_waiter is not None:
            turn.reply(member.sync_waiter, SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
        turn.put(member.syncing(event.waiter))
        if member.id == group.leader:
            _write_assignment(turn, event)


def _write_assignment(turn: Turn, event: Sync) -> None:
    """The leader has decided. Its first assignment in a generation counts; a repeated request only waits again."""
    group = turn.group
    for write in group.writes.values():
        if isinstance(write, AssignmentWrite) and write.generation == group.generation:
            return
    assignments = {member_id: event.assignments.get(member_id, b"") for member_id in group.members}
    record = rebalance.formed(group, assignments)
    turn.append((record,), AssignmentWrite(generation=group.generation, assignments=assignments))


def on_assignment_settled(turn: Turn, write: AssignmentWrite, error: ErrorCode) -> None:
    """An assignment is durable, or never will be. If its generation has passed, nothing happens."""
    group = turn.group
    if group.state is not GroupState.COMPLETING or group.generation != write.generation:
        return
    rebalance.hand_out(turn, write.assignments, error)
    if error is ErrorCode.NONE:
        turn.update(state=GroupState.STABLE)
    else:
        rebalance.prepare(turn, f"the assignment could not be written: {error.name}")


def on_heartbeat(turn: Turn, event: Heartbeat) -> None:
    error = answered(turn.group, event)
    if error in KEEPS_SESSION:
        on_heard(turn, {event.member_id: turn.now.monotonic_ms})
    turn.reply(event.waiter, HeartbeatReply(error=error))


def answered(group: Group, event: Heartbeat) -> ErrorCode:
    """The answer to a heartbeat in a classic group. A heartbeat only changes when a session ends. So the answer may be
    sent first if a `Heard` of those in KEEPS_SESSION is the group's next event, or precedes it. A member of a
    generation that is ending is told to join again."""
    error = _member_error(group, event)
    if error is ErrorCode.NONE and group.state is GroupState.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def on_heard(turn: Turn, at_ms: Mapping[str, int]) -> None:
    """Renew sessions of members heard from at these times. A member that waits in a request has no session to renew."""
    members, alive = turn.group.members, []
    for member_id, at in at_ms.items():
        member = members[member_id]
        if member.join_waiter is None and member.sync_waiter is None:
            alive.append(member.heard(at + member.session_timeout_ms))
    if alive:
        turn.put_all(alive)


def renewed(turn: Turn, members: Iterable[Member]) -> dict[str, Mapping[str, Member]]:
    """The change of the group when these members renew their sessions. A member that waits in a request has none to
    renew."""
    alive: dict[str, Member] = {}
    for member in members:
        if member.join_waiter is None and member.sync_waiter is None:
            due = turn.session(member)
            turn.wake(due)
            alive[member.id] = member.heard(due)
    return {"members": {**turn.group.members, **alive}} if alive else {}


def on_leave(turn: Turn, event: Leave) -> None:
    if turn.group.state is GroupState.DEAD:
        turn.reply(event.waiter, LeaveReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    leaving: dict[str, Member] = {}
    errors = []
    for leaver in event.members:
        found = _leaving(turn.group, leaver)
        if leaver.member_id in turn.group.pending:
            turn.drop_pending(leaver.member_id)
            found = ErrorCode.NONE
        elif isinstance(found, Member) and found.id in leaving:
            found = ErrorCode.UNKNOWN_MEMBER_ID  # the member is named twice
        if isinstance(found, Member):
            leaving[found.id] = found
        errors.append(found if isinstance(found, ErrorCode) else ErrorCode.NONE)
    if leaving:
        reasons = ", ".join(sorted({leaver.reason for leaver in event.members if leaver.reason}))
        rebalance.remove(turn, leaving.values(), f"members {', '.join(leaving)} left: {reasons}")
    else:
        rebalance.complete_if_joined(turn)
    turn.reply(event.waiter, LeaveReply(error=ErrorCode.NONE, members=tuple(errors)))


def _leaving(group: Group, leaver: Leaver) -> Member | ErrorCode:
    """The member that leaves. An administrator names a static member by its instance id alone."""
    by_instance = not leaver.member_id and leaver.instance_id is not None
    member = group.static_member(leaver.instance_id or "") if by_instance else group.members.get(leaver.member_id)
    error = ErrorCode.NONE if by_instance else group.check_member(leaver.member_id, leaver.instance_id)
    return member if member is not None and error is ErrorCode.NONE else error or ErrorCode.UNKNOWN_MEMBER_ID


def on_tick(turn: Turn) -> None:
    """Do what is due, then ask for the next tick."""
    now = turn.now.monotonic_ms
    for member_id, due in turn.group.pending.items():
        if due <= now:
            turn.drop_pending(member_id)
    silent = [one for one in turn.group.members.values() if one.deadline_ms is not None and one.deadline_ms <= now]
    if silent:
        rebalance.remove(turn, silent, f"nothing was heard of {', '.join(member.id for member in silent)}")
    else:
        rebalance.complete_if_joined(turn)
    if turn.group.rebalance_deadline_ms is not None and turn.group.rebalance_deadline_ms <= now:
        rebalance.on_rebalance_due(turn)
    if turn.group.sync_deadline_ms is not None and turn.group.sync_deadline_ms <= now:
        _on_sync_due(turn)
    turn.wake(turn.group.earliest_deadline_ms())


def _on_sync_due(turn: Turn) -> None:
    """Remove members that got their generation and never asked for their assignment."""
    turn.update(sync_deadline_ms=None)
    late = [member for member in turn.group.members.values() if not member.synced]
    if late:
        rebalance.remove(turn, late, f"{', '.join(member.id for member in late)} did not ask for their assignment")


def _member_error(group: Group, event: Sync | Heartbeat) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.check_member(event.member_id, event.instance_id)
    if error is ErrorCode.NONE and event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _same_protocol(group: Group, event: Sync) -> bool:
    return event.protocol_type in (None, group.protocol_type) and event.protocol in (None, group.protocol)
