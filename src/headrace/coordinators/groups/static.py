"""Static members (KIP-345): one that returns under its `group.instance.id` takes its old place without a rebalance.

Promises: of two claimants of one instance id the later one has it, and the earlier one is fenced. A member that is told
of its new place has it durably. In a stable group the place comes with its assignment, so that no other member notices.

As in Kafka, only the choice of protocol is compared. A member that returns with other subscriptions gets its former
assignment until something else makes the group rebalance.
"""

from __future__ import annotations

from headrace.coordinators.groups import rebalance
from headrace.coordinators.groups.events import Join, JoinReply, SyncReply
from headrace.coordinators.groups.model import GroupState, Member, ReplacementWrite
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode


def replace_member(turn: Turn, event: Join, old: Member) -> None:
    """Give the place of `old` to the joining client, under a new member id."""
    assert event.instance_id is not None
    before = turn.group
    turn.reply(old.join_waiter, JoinReply(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old.id))
    turn.reply(old.sync_waiter, SyncReply(error=ErrorCode.FENCED_INSTANCE_ID))
    new = old._replace(
        id=event.new_member_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        join_waiter=None,
        sync_waiter=None,
        new=False,
        deadline_ms=turn.now.monotonic_ms + event.session_timeout_ms,
    )
    turn.rename(old.id, new)
    if before.state is GroupState.STABLE and rebalance.choose_protocol(turn.group) == before.protocol:
        _record(turn, event, old, before.leader or "")
        return
    turn.put(new._replace(join_waiter=event.waiter, deadline_ms=None))
    if before.state is GroupState.PREPARING:
        rebalance.complete_if_joined(turn)
    else:
        rebalance.prepare(turn, f"static member {event.instance_id} came back: {event.reason}")


def _record(turn: Turn, event: Join, old: Member, leader_before: str) -> None:
    """Record the replacement: all assignments stay, and the new member has the one of its former life."""
    group = turn.group
    record = rebalance.formed(group, {member.id: member.assignment for member in group.members.values()})
    write = ReplacementWrite(
        waiter=event.waiter,
        member_id=event.new_member_id,
        instance_id=event.instance_id or "",
        old=old,
        generation=group.generation,
        leader_before=leader_before,
        skips_assignment=event.skips_assignment,
    )
    turn.append((record,), write)


def on_replacement_refused(turn: Turn, write: ReplacementWrite, error: ErrorCode) -> None:
    """The log has nothing of it, so the former member stays until the client asks again."""
    group = turn.group
    member = group.members.get(write.member_id)
    if member is not None and group.state is GroupState.STABLE and group.generation == write.generation:
        turn.rename(member.id, write.old._replace(synced=member.synced, deadline_ms=turn.session(write.old)))
    on_replacement_settled(turn, write, error)


def on_replacement_settled(turn: Turn, write: ReplacementWrite, error: ErrorCode) -> None:
    """The member has its place durably, or will ask for it again. If the group began to rebalance meanwhile, it has
    joined that."""
    member = turn.group.members.get(write.member_id)
    if error is ErrorCode.NONE and member is None:
        error = turn.group.check_member(write.member_id, write.instance_id)
    if error is not ErrorCode.NONE or member is None:
        turn.reply(write.waiter, JoinReply(error=error, member_id=""))
    elif turn.group.state is GroupState.PREPARING:
        turn.put(member._replace(join_waiter=write.waiter, deadline_ms=None))
        rebalance.complete_if_joined(turn)
    else:
        turn.reply(write.waiter, _resumed(turn, write, member))
        turn.put(member._replace(deadline_ms=turn.session(member)))


def _resumed(turn: Turn, write: ReplacementWrite, member: Member) -> JoinReply:
    """The JoinGroup answer of the returned member. A leader must not compute the assignment again. It is told to skip
    that (KIP-814), or, in versions without the field, that another member leads."""
    reply = rebalance.joined(turn.group, member)
    if turn.group.generation != write.generation or member.id != turn.group.leader:
        return reply
    if write.skips_assignment:
        return reply._replace(skip_assignment=True)
    return reply._replace(leader=write.leader_before, members=())
