"""Members of a consumer group that speak the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup while the
group migrates from one protocol to the other (KIP-848).

Promises:
- A classic member sees its member epoch as the generation.
- It is told to join again (REBALANCE_IN_PROGRESS) whenever it must give up partitions or can get some.
- Its JoinGroup lists what it still owns, and SyncGroup returns the coordinator's decision; there is no leader.
- Answers wait for nothing but the disk.
- A member is removed if it does not join within its rebalance timeout after it was told to. So is one that does not ask
  for its assignment within that time after joining, and one that is silent for its session.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer import embedded, heartbeats
from headrace.coordinators.groups.consumer.machine import become_classic, change, wake_for
from headrace.coordinators.groups.consumer.model import (
    NO_PARTITIONS,
    ClassicMembership,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    without,
)
from headrace.coordinators.groups.consumer.targets import look_at_topics
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
from headrace.coordinators.groups.model import Group, GroupState
from headrace.coordinators.groups.subscriptions import CONSUMER
from headrace.coordinators.groups.turn import Turn
from headrace.wire.errors import ErrorCode


def on_join(turn: Turn, event: Join) -> None:
    """JoinGroup: become a member, or report the owned partitions and be reconciled. An empty group becomes a classic
    one. The client takes that error as transient and retries."""
    group = _consumer(turn)
    error = _join_error(turn.group, group, event, turn.config)
    if error is ErrorCode.NONE and not group.members:
        become_classic(turn, group)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    said = error or _said(turn, group, event)
    if isinstance(said, ErrorCode):
        turn.reply(event.waiter, JoinReply(error=said, member_id=event.member_id))
        return
    if not event.member_id and event.require_known_id and event.instance_id is None:
        turn.reply(event.waiter, JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=event.new_member_id))
        return
    group, member = _moved(turn, group, event, said)
    reply = JoinReply(
        error=ErrorCode.NONE,
        member_id=member.id,
        generation=member.epoch,
        protocol_type=CONSUMER,
        protocol=event.protocols[0].name,
    )
    due = turn.now.monotonic_ms + member.rebalance_timeout_ms
    group = replace(group, joins=without(group.joins, member.id), syncs=group.syncs.set(member.id, due))
    change(turn, group, ((event.waiter, reply),))
    wake_for(turn, group, member.id)


def _said(turn: Turn, group: ConsumerGroup, event: Join) -> embedded.Subscription | ErrorCode:
    """The subscription and owned partitions that a member reports. An unknown id was handed out (KIP-394) and owns
    nothing, or was removed. A removed one would bring back partitions that others read by now."""
    said = embedded.subscription(event.protocols[0].metadata, turn.topics)
    if said is None:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    known = not event.member_id or event.member_id in group.members
    return said if known or not said.owns else ErrorCode.UNKNOWN_MEMBER_ID


def _moved(
    turn: Turn, group: ConsumerGroup, event: Join, said: embedded.Subscription
) -> tuple[ConsumerGroup, ConsumerMember]:
    """The group with the member, reconciled as far as possible."""
    member_id = event.member_id or event.new_member_id
    group, before = heartbeats.entered(group, member_id, event.instance_id, joins=not event.member_id)
    after = replace(
        before,
        instance_id=before.instance_id if event.instance_id is None else event.instance_id,
        rack_id=said.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        topics=said.topics,
        pattern=None,
        assignor=None,
        classic=ClassicMembership(event.session_timeout_ms, event.protocols),
    )
    now_ms, config = turn.now.monotonic_ms, turn.config.consumer
    return heartbeats.joined(group, before, after, said.owned, turn.topics, now_ms, config)


def _join_error(whole: Group, group: ConsumerGroup, event: Join, config: GroupConfig) -> ErrorCode:
    if not config.group_min_session_timeout_ms <= event.session_timeout_ms <= config.group_max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if whole.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    held = None if event.instance_id is None else group.static_member(event.instance_id)
    if event.member_id and event.instance_id is not None and group.members:
        if held is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if held.id != event.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    comes = held is None and event.member_id not in group.members
    if comes and len(group.members) >= config.consumer.group_consumer_max_size:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    own = event.member_id if held is None else held.id
    others = [one.classic for one in group.members.values() if one.id != own and one.classic is not None]
    common = {protocol.name for protocol in event.protocols}
    common = common.intersection(*({name for name, _ in other.protocols} for other in others))
    fits = event.protocol_type == CONSUMER or not group.members
    return ErrorCode.NONE if fits and common else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def on_sync(turn: Turn, event: Sync) -> None:
    """SyncGroup: returns the partitions that the member may read now."""
    group, member, error = _member(turn, event)
    if member is None or member.classic is None or error is not ErrorCode.NONE:
        turn.reply(event.waiter, SyncReply(error=error))
        return
    offered = [name for name, _ in member.classic.protocols]
    protocol = event.protocol or offered[0]  # the group may have changed since the member joined
    if event.protocol_type not in (None, CONSUMER) or protocol not in offered:
        turn.reply(event.waiter, SyncReply(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        group = _asked_again(turn, replace(group, syncs=without(group.syncs, member.id)), member)
        change(turn, group, ((event.waiter, SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS)),))
        wake_for(turn, group, member.id)
    else:
        said = embedded.subscription(member.classic.protocols[0][1], turn.topics)
        share = embedded.assignment(member.assigned, turn.topics, 0 if said is None else said.version)
        reply = SyncReply(error=ErrorCode.NONE, protocol_type=CONSUMER, protocol=protocol, assignment=share)
        group = replace(_renewed(turn, group, member), syncs=without(group.syncs, member.id))
        change(turn, group, ((event.waiter, reply),))


def on_heartbeat(turn: Turn, event: Heartbeat) -> None:
    """Heartbeat: renews the session and tells the member whether it must join again. It also checks for changed topics,
    because in a group of classic members alone nothing else does."""
    group, member, error = _member(turn, event)
    if member is None or error is not ErrorCode.NONE:
        turn.reply(event.waiter, HeartbeatReply(error=error))
        return
    if turn.topics.version != group.topics_version:
        group = look_at_topics(group, turn.topics, bump=False)
    group = _renewed(turn, group, member)
    if _is_to_join(group, member):
        group, error = _asked_again(turn, group, member), ErrorCode.REBALANCE_IN_PROGRESS
    change(turn, group, ((event.waiter, HeartbeatReply(error=error)),))
    wake_for(turn, group, member.id)


def _is_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether it must join: the group moved on, it must give up partitions, or all that it waits for are free."""
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    missing = group.targets.get(member.id, NO_PARTITIONS) - member.assigned
    return member.state is MemberState.UNRELEASED_PARTITIONS and not any(each in group.owners for each in missing)


def _member(turn: Turn, event: Sync | Heartbeat) -> tuple[ConsumerGroup, ConsumerMember | None, ErrorCode]:
    group = _consumer(turn)
    member = group.members.get(event.member_id)
    if turn.group.state is GroupState.DEAD:
        return group, member, ErrorCode.COORDINATOR_NOT_AVAILABLE
    if member is not None and member.classic is None:
        return group, member, ErrorCode.UNKNOWN_MEMBER_ID
    if event.instance_id is not None and group.static_member(event.instance_id) is None:
        return group, member, ErrorCode.UNKNOWN_MEMBER_ID
    return group, member, group.check_member(event.member_id, event.generation, event.instance_id)


def _consumer(turn: Turn) -> ConsumerGroup:
    assert turn.group.consumer is not None
    return turn.group.consumer


def _renewed(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroup:
    """The group with a renewed session of the member."""
    due = turn.now.monotonic_ms + heartbeats.session_ms(member, turn.config.consumer)
    return replace(group, sessions=group.sessions.set(member.id, due))


def _asked_again(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroup:
    """The group in which the member's rebalance timeout runs, from the first time it was told to join."""
    if member.id in group.joins:
        return group
    return replace(group, joins=group.joins.set(member.id, turn.now.monotonic_ms + member.rebalance_timeout_ms))


def on_leave(turn: Turn, event: Leave) -> None:
    """LeaveGroup: only classic members may leave so, as in Kafka."""
    group = _consumer(turn)
    if turn.group.state is GroupState.DEAD:
        turn.reply(event.waiter, LeaveReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    leaving: list[str] = []
    errors = []
    for leaver in event.members:
        found = _leaving(group, leaver)
        if isinstance(found, ConsumerMember) and found.id in leaving:
            found = ErrorCode.UNKNOWN_MEMBER_ID  # the member is named twice
        if isinstance(found, ConsumerMember):
            leaving.append(found.id)
        errors.append(found if isinstance(found, ErrorCode) else ErrorCode.NONE)
    reply = LeaveReply(error=ErrorCode.NONE, members=tuple(errors))
    change(turn, heartbeats.without_members(group, leaving), ((event.waiter, reply),))


def _leaving(group: ConsumerGroup, leaver: Leaver) -> ConsumerMember | ErrorCode:
    """The member that leaves. An administrator names a static member by its instance id alone."""
    if leaver.instance_id is None:
        member = group.members.get(leaver.member_id)
    else:
        member = group.static_member(leaver.instance_id)
        if member is not None and leaver.member_id not in ("", member.id):
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.UNKNOWN_MEMBER_ID if member is None or member.classic is None else member
