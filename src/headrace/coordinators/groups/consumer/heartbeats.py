"""ConsumerGroupHeartbeat (KIP-848): the one request with which a member joins, reports what it gave up, and leaves.

Promises: total and pure. A group and heartbeats go in, the next group and the answers come out. A refused heartbeat
changes nothing. A member is removed if it is silent for a session, or gives partitions up later than its rebalance
timeout allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar

import immutables

from headrace.base.values import replaced
from headrace.coordinators.groups.configs import ConsumerConfig
from headrace.coordinators.groups.consumer.model import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_FOR_NOW_EPOCH,
    NO_PARTITIONS,
    NOTHING_SINCE,
    ConsumerGroup,
    ConsumerHeartbeatReply,
    ConsumerMember,
    MemberState,
    Partitions,
    Topics,
    pass_on,
    without,
)
from headrace.coordinators.groups.consumer.reconciliation import reconcile
from headrace.coordinators.groups.consumer.targets import look_at_topics, retargeted
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """The request. None: as in the previous request."""

    waiter: int
    member_id: str
    epoch: int
    """0 joins, -1 leaves, -2 leaves temporarily (static members)."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    subscribed: tuple[str, ...] | None = None
    pattern: str | None = None
    """Empty: no longer subscribed to a pattern."""
    principal: str | None = None
    """The client, as `User:name`; None: nobody asks what it may describe."""
    assignor: str | None = None
    owned: Partitions | None = None


NOT_MET: Final = ConsumerHeartbeatReply(error=ErrorCode.UNKNOWN_MEMBER_ID)


def on_heartbeats(
    group: ConsumerGroup, events: Sequence[ConsumerHeartbeat], topics: Topics, now_ms: int, config: ConsumerConfig
) -> tuple[ConsumerGroup, list[ConsumerHeartbeatReply]]:
    """Apply heartbeats of different members, all without a `refusal`. Returns the next group and the answer to each.

    They count as if one came after the other, those that give something up first. But targets are computed once, after
    all subscriptions are known. So no member gets a partition that the next one takes away again.
    """
    replies = [NOT_MET] * len(events)
    following: list[tuple[int, ConsumerMember]] = []
    changed = new = False
    for at, event in enumerate(events):
        if event.epoch in (LEAVING_EPOCH, LEAVING_FOR_NOW_EPOCH):
            group, replies[at] = _on_leave(group, event)
        elif (refused := _refusal(group, event, config)) is not None:
            replies[at] = refused
        else:
            group, before = entered(group, event.member_id, event.instance_id, joins=event.epoch == JOINING_EPOCH)
            after = _updated(before, event)
            group = group.put(after)
            if _wants_anew(before, after):
                changed, new = True, new or _is_new_to(group, before, after)
            following.append((at, before))
    if following:
        group = _looked(group, topics, changed=changed, new=new)
    following = [(at, before) for at, before in following if events[at].member_id in group.members]
    following.sort(key=lambda each: events[each[0]].owned is None)
    group = followed(group, [(events[at].member_id, events[at].owned) for at, _ in following], topics, now_ms, config)
    for at, before in following:
        replies[at] = _answer(events[at], before, group.members[events[at].member_id], config)
    return group, replies


def _answer(
    event: ConsumerHeartbeat, before: ConsumerMember, member: ConsumerMember, config: ConsumerConfig
) -> ConsumerHeartbeatReply:
    whole = event.epoch == JOINING_EPOCH or _is_full(event)
    return ConsumerHeartbeatReply(
        member_id=member.id,
        epoch=member.epoch,
        interval_ms=config.group_consumer_heartbeat_interval_ms,
        assigned=member.assigned if whole or member.assigned != before.assigned else None,
    )


def _looked(group: ConsumerGroup, topics: Topics, *, changed: bool, new: bool) -> ConsumerGroup:
    """Resolve the topics again where members have `changed` their subscriptions, or the topics changed. `new`: targets
    must be computed again."""
    if changed or topics.version != group.topics_version:
        return look_at_topics(group, topics, bump=new)
    return group


def _wants_anew(before: ConsumerMember, after: ConsumerMember) -> bool:
    return before.epoch == JOINING_EPOCH or (before.topics, before.sight) != (after.topics, after.sight)


def joined(
    group: ConsumerGroup,
    before: ConsumerMember,
    after: ConsumerMember,
    owned: Partitions,
    topics: Topics,
    now_ms: int,
    config: ConsumerConfig,
) -> tuple[ConsumerGroup, ConsumerMember]:
    """The group after a member's new subscription and its owned partitions, and the member, reconciled as far as
    possible."""
    group, changed = group.put(after), _wants_anew(before, after)
    group = _looked(group, topics, changed=changed, new=changed and _is_new_to(group, before, after))
    group = followed(group, [(after.id, owned)], topics, now_ms, config)
    return group, group.members[after.id]


Heard: TypeAlias = tuple[str, Partitions | None]
"""A member's id, and the partitions that it reports to own; None where it does not report them."""


def followed(
    group: ConsumerGroup, heard: Sequence[Heard], topics: Topics, now_ms: int, config: ConsumerConfig
) -> ConsumerGroup:
    """The group with each of these members, in this order, reconciled as far as possible and its timers restarted."""
    if not heard:
        return group
    if group.epoch > group.target_epoch:
        group = retargeted(group, topics, config.group_consumer_assignors)
    moved = []
    with group.members.mutate() as members, group.owners.mutate() as owners:
        for member_id, owned in heard:
            after = members[member_id]
            member = reconcile(
                after,
                owned=owned,
                target_epoch=group.target_epoch,
                target=group.targets.get(member_id, NO_PARTITIONS),
                owners=owners,
            )
            if member is not after:
                pass_on(owners, after, member)
                members[member_id] = member
            moved.append((after, member))
        if any(after is not member for after, member in moved):
            group = replaced(group, members=members.finish(), owners=owners.finish())
    return _timed(group, moved, now_ms, config)


def _is_full(event: ConsumerHeartbeat) -> bool:
    """Whether the client repeats all fields, as it does when it cannot tell what arrived. It gets a full answer."""
    subscribes = event.subscribed is not None or event.pattern is not None
    return subscribes and event.rebalance_timeout_ms is not None and event.owned is not None


# admission


def refusal(event: ConsumerHeartbeat, topics: Topics, config: ConsumerConfig) -> ConsumerHeartbeatReply | None:
    """The refusal of a heartbeat that no group would accept. Ask this first, so that a classic group is not examined
    for it."""
    if event.epoch in (LEAVING_EPOCH, LEAVING_FOR_NOW_EPOCH):
        return None
    if event.assignor is not None and event.assignor not in config.group_consumer_assignors:
        known = ", ".join(config.group_consumer_assignors)
        message = f"ServerAssignor {event.assignor} is not supported. Supported assignors: {known}."
        return ConsumerHeartbeatReply(error=ErrorCode.UNSUPPORTED_ASSIGNOR, message=message)
    if event.pattern and topics.matching(event.pattern) is None:
        message = f"SubscribedTopicRegex `{event.pattern}` is not a valid regular expression."
        return ConsumerHeartbeatReply(error=ErrorCode.INVALID_REGULAR_EXPRESSION, message=message)
    return None


def _refusal(group: ConsumerGroup, event: ConsumerHeartbeat, config: ConsumerConfig) -> ConsumerHeartbeatReply | None:
    member = group.members.get(event.member_id)
    if event.instance_id is not None:
        held = group.static_member(event.instance_id)
        if event.epoch == JOINING_EPOCH and held is not None and held.id != event.member_id:
            if member is not None:
                return _refused(ErrorCode.INVALID_REQUEST)  # a member cannot hold two places at once
            free = held.epoch == LEAVING_FOR_NOW_EPOCH or held.classic is not None
            return None if free else _refused(ErrorCode.UNRELEASED_INSTANCE_ID)
        if event.epoch != JOINING_EPOCH and held is None:
            return NOT_MET
        if held is not None and held.id != event.member_id:
            return _refused(ErrorCode.FENCED_INSTANCE_ID)
        if held is None and member is not None:
            return _refused(ErrorCode.INVALID_REQUEST)  # a dynamic member does not become a static one
    if member is None:
        if event.epoch != JOINING_EPOCH:
            return NOT_MET
        full = len(group.members) >= config.group_consumer_max_size
        return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED) if full else None
    if event.epoch == JOINING_EPOCH and member.epoch == LEAVING_FOR_NOW_EPOCH:
        return None
    return None if _epoch_holds(member, event) else _refused(ErrorCode.FENCED_MEMBER_EPOCH)


def _refused(error: ErrorCode) -> ConsumerHeartbeatReply:
    return ConsumerHeartbeatReply(error=error)


def _epoch_holds(member: ConsumerMember, event: ConsumerHeartbeat) -> bool:
    """Whether the epoch is the member's. The previous epoch counts, too, if the answer that raised it was lost and the
    member owns nothing that is not its own."""
    if event.epoch == member.epoch:
        return True
    lost = event.epoch == member.previous_epoch and event.epoch < member.epoch
    return lost and event.owned is not None and event.owned <= member.assigned


# joining


def entered(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, joins: bool
) -> tuple[ConsumerGroup, ConsumerMember]:
    """The group with the member, and the member. A returning static member takes its place, also over the other
    protocol. It keeps everything of its former life except partitions it was still to give up. Commits of that life no
    longer count."""
    held = None if instance_id is None else group.static_member(instance_id)
    if joins and held is not None and (held.epoch == LEAVING_FOR_NOW_EPOCH or held.id != member_id):
        back = replaced(
            held,
            id=member_id,
            epoch=JOINING_EPOCH,
            previous_epoch=JOINING_EPOCH,
            state=MemberState.STABLE,
            revoking=NO_PARTITIONS,
            since=NOTHING_SINCE,
        )
        target = group.targets.get(held.id)
        group = group.drop(held.id).put(back)
        return (group if target is None else replaced(group, targets=group.targets.set(back.id, target))), back
    member = group.members.get(member_id)
    return group, ConsumerMember(id=member_id) if member is None else member


def _updated(member: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
    """The member with the fields that the request changes."""
    known = (member.client_id, member.client_host) == (event.client_id, event.client_host)
    known = known and (not member.pattern or member.principal == event.principal)
    said = (
        event.instance_id,
        event.rack_id,
        event.rebalance_timeout_ms,
        event.subscribed,
        event.pattern,
        event.assignor,
    )
    if known and all(one is None for one in said):  # nearly all requests say nothing new
        return member
    pattern = member.pattern if event.pattern is None else (event.pattern or None)
    return replaced(
        member,
        instance_id=_or(event.instance_id, member.instance_id),
        rack_id=_or(event.rack_id, member.rack_id),
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=_or(event.rebalance_timeout_ms, member.rebalance_timeout_ms),
        topics=member.topics if event.subscribed is None else tuple(sorted(set(event.subscribed))),
        pattern=pattern,
        principal=event.principal if pattern else None,
        assignor=_or(event.assignor, member.assignor),
        classic=None,
    )


_T = TypeVar("_T")


def _or(said: _T | None, before: _T) -> _T:
    return before if said is None else said


def _is_new_to(group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> bool:
    """Whether the assignment must be computed again. For a static member that came back unchanged it need not be."""
    return after.id not in group.targets or (before.topics, before.pattern) != (after.topics, after.pattern)


# timers


def _timed(
    group: ConsumerGroup, moved: Iterable[tuple[ConsumerMember, ConsumerMember]], now_ms: int, config: ConsumerConfig
) -> ConsumerGroup:
    """Restart the sessions of these members. The time to give partitions up restarts with each new demand. A classic
    member has the time for its next step instead. `moved` has each member before and after it was reconciled."""
    joins, syncs = group.joins, group.syncs
    with group.sessions.mutate() as sessions, group.revocations.mutate() as revocations:
        for before, member in moved:
            sessions[member.id] = now_ms + session_ms(member, config)
            if member.classic is None:
                joins, syncs = without(joins, member.id), without(syncs, member.id)
            if member.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
                revocations.pop(member.id, None)
            elif member.id not in revocations or (member.epoch, member.revoking) != (before.epoch, before.revoking):
                revocations[member.id] = now_ms + member.rebalance_timeout_ms
        times = sessions.finish(), revocations.finish()
    return replaced(group, sessions=times[0], revocations=times[1], joins=joins, syncs=syncs)


def session_ms(member: ConsumerMember, config: ConsumerConfig) -> int:
    """Session timeout of a member; a classic member has chosen its own."""
    return config.group_consumer_session_timeout_ms if member.classic is None else member.classic.session_timeout_ms


def on_due(group: ConsumerGroup, now_ms: int) -> ConsumerGroup:
    """The group without members whose deadlines have passed."""
    return without_members(group, [one for values in group.deadlines for one, due in values.items() if due <= now_ms])


def postponed(group: ConsumerGroup, now_ms: int, by_ms: int) -> ConsumerGroup:
    """The group with the passed deadlines moved to `by_ms` from now."""
    sessions, revocations, joins, syncs = (
        values.update({member_id: now_ms + by_ms for member_id, due in values.items() if due <= now_ms})
        for values in group.deadlines
    )
    return replaced(group, sessions=sessions, revocations=revocations, joins=joins, syncs=syncs)


def put_off(group: ConsumerGroup, now_ms: int, by_ms: int, config: ConsumerConfig) -> ConsumerGroup:
    """The group with all deadlines later by `by_ms`, but no later than if the member were heard from now."""
    sessions, revocations, joins, syncs = (
        values.update(
            {
                member_id: max(due, min(due + by_ms, now_ms + timeout_ms(group.members[member_id])))
                for member_id, due in values.items()
            }
        )
        for values, timeout_ms in (
            (group.sessions, partial(session_ms, config=config)),
            (group.revocations, attrgetter("rebalance_timeout_ms")),
            (group.joins, attrgetter("rebalance_timeout_ms")),
            (group.syncs, attrgetter("rebalance_timeout_ms")),
        )
    )
    return replaced(group, sessions=sessions, revocations=revocations, joins=joins, syncs=syncs)


# leaving


def _on_leave(group: ConsumerGroup, event: ConsumerHeartbeat) -> tuple[ConsumerGroup, ConsumerHeartbeatReply]:
    done = ConsumerHeartbeatReply(member_id=event.member_id, epoch=event.epoch)
    member = group.members.get(event.member_id)
    if event.instance_id is not None:
        held = group.static_member(event.instance_id)
        if held is None or (held.classic is not None and event.epoch == LEAVING_FOR_NOW_EPOCH):
            return group, NOT_MET
        if held.id != event.member_id:
            return group, _refused(ErrorCode.FENCED_INSTANCE_ID)
        if event.epoch == LEAVING_FOR_NOW_EPOCH:
            away = replaced(
                held,
                epoch=LEAVING_FOR_NOW_EPOCH,
                state=MemberState.STABLE,
                revoking=NO_PARTITIONS,
                since=immutables.Map((each, held.since[each]) for each in held.assigned),
            )
            return replaced(group.put(away), revocations=without(group.revocations, held.id)), done
    if member is None:
        return group, NOT_MET
    return without_members(group, [member.id]), done


def without_members(group: ConsumerGroup, member_ids: Iterable[str]) -> ConsumerGroup:
    """The group without these members. The next heartbeat computes the targets of the others."""
    gone = set(member_ids)
    for member_id in gone:
        group = group.drop(member_id)
    if not gone:
        return group
    patterns = {member.pattern for member in group.members.values()}
    for pattern in set(group.patterns) - patterns:
        group = replaced(group, patterns=group.patterns.delete(pattern))
    return replaced(group, epoch=group.epoch + 1)
