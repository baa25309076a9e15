"""ConsumerGroupHeartbeat (KIP-848): the one request that joins, follows, says what was given up, and leaves.

Promises: total and pure: a group and a heartbeat go in, the group after it and the answer come out, and a refused one
changes nothing. Who is silent for a session, or takes longer than its rebalance timeout to give partitions up, is out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar

import immutables

from headrace.base.values import replaced
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
class ConsumerConfig:
    """What an operator sets, by Kafka's names with underscores."""

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is taken where members ask for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """The request. None: as it was said last."""

    waiter: int
    member_id: str
    epoch: int
    """0 joins, -1 leaves, -2 leaves for now (static members)."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    subscribed: tuple[str, ...] | None = None
    pattern: str | None = None
    """Empty: none any more."""
    assignor: str | None = None
    owned: Partitions | None = None


NOT_MET: Final = ConsumerHeartbeatReply(error=ErrorCode.UNKNOWN_MEMBER_ID)


def on_heartbeats(
    group: ConsumerGroup, events: Sequence[ConsumerHeartbeat], topics: Topics, now_ms: int, config: ConsumerConfig
) -> tuple[ConsumerGroup, list[ConsumerHeartbeatReply]]:
    """The group after them, and the answer to each. Heartbeats without `refusal`, of members that are all different.

    As if they came one after the other, those who give something up first; but shares are made out once, when all have
    said what they want, and nobody is given what the next of them takes away again.
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
    """At the topics, where members have `changed` what they want, or these have; `new`: so that shares are to be made
    out anew."""
    if changed or topics.version != group.topics_version:
        return look_at_topics(group, topics, bump=new)
    return group


def _wants_anew(before: ConsumerMember, after: ConsumerMember) -> bool:
    return before.epoch == JOINING_EPOCH or (before.topics, before.pattern) != (after.topics, after.pattern)


def joined(
    group: ConsumerGroup,
    before: ConsumerMember,
    after: ConsumerMember,
    owned: Partitions,
    topics: Topics,
    now_ms: int,
    config: ConsumerConfig,
) -> tuple[ConsumerGroup, ConsumerMember]:
    """The group once a member wants what it says now and has what it says, and the member as far as it can be."""
    group, changed = group.put(after), _wants_anew(before, after)
    group = _looked(group, topics, changed=changed, new=changed and _is_new_to(group, before, after))
    group = followed(group, [(after.id, owned)], topics, now_ms, config)
    return group, group.members[after.id]


Heard: TypeAlias = tuple[str, Partitions | None]
"""A member's id, and what it says to have; None where it does not say."""


def followed(
    group: ConsumerGroup, heard: Sequence[Heard], topics: Topics, now_ms: int, config: ConsumerConfig
) -> ConsumerGroup:
    """The group with each of these, in this order, as far on its way as it can be, and its time begun anew."""
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
    """A client that cannot tell what has reached the coordinator says all again, and is told all again."""
    subscribes = event.subscribed is not None or event.pattern is not None
    return subscribes and event.rebalance_timeout_ms is not None and event.owned is not None


# who may


def refusal(event: ConsumerHeartbeat, topics: Topics, config: ConsumerConfig) -> ConsumerHeartbeatReply | None:
    """Of what no group would take. To be asked first: a classic group is not looked into for it."""
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
                return _refused(ErrorCode.INVALID_REQUEST)  # two places are not taken at once
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
    """It comes with its epoch; or with the one before, where the answer that raised it was lost, and it has nothing
    that is not its own."""
    if event.epoch == member.epoch:
        return True
    lost = event.epoch == member.previous_epoch and event.epoch < member.epoch
    return lost and event.owned is not None and event.owned <= member.assigned


# coming


def entered(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, joins: bool
) -> tuple[ConsumerGroup, ConsumerMember]:
    """Who it is, a member from now on. A static member that comes back, be it over the other protocol, takes its place
    with all that belongs to it, but what its former life was still to give up; and no commit of that life counts."""
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
    """With what the request says anew."""
    known = (member.client_id, member.client_host) == (event.client_id, event.client_host)
    said = (
        event.instance_id,
        event.rack_id,
        event.rebalance_timeout_ms,
        event.subscribed,
        event.pattern,
        event.assignor,
    )
    if known and all(one is None for one in said):  # as most say
        return member
    return replaced(
        member,
        instance_id=_or(event.instance_id, member.instance_id),
        rack_id=_or(event.rack_id, member.rack_id),
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=_or(event.rebalance_timeout_ms, member.rebalance_timeout_ms),
        topics=member.topics if event.subscribed is None else tuple(sorted(set(event.subscribed))),
        pattern=member.pattern if event.pattern is None else (event.pattern or None),
        assignor=_or(event.assignor, member.assignor),
        classic=None,
    )


_T = TypeVar("_T")


def _or(said: _T | None, before: _T) -> _T:
    return before if said is None else said


def _is_new_to(group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> bool:
    """Whether who should read what is another question now: not for a static member that came back as it was."""
    return after.id not in group.targets or (before.topics, before.pattern) != (after.topics, after.pattern)


# time


def _timed(
    group: ConsumerGroup, moved: Iterable[tuple[ConsumerMember, ConsumerMember]], now_ms: int, config: ConsumerConfig
) -> ConsumerGroup:
    """The sessions of these members begin anew; so does the time to give partitions up, with each new demand. A classic
    member has the time for its next step instead. Each as it was before it moved on, and as it is."""
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
    """A classic member has chosen its own."""
    return config.group_consumer_session_timeout_ms if member.classic is None else member.classic.session_timeout_ms


def on_due(group: ConsumerGroup, now_ms: int) -> ConsumerGroup:
    """Without those whose time is up."""
    return without_members(group, [one for values in group.deadlines for one, due in values.items() if due <= now_ms])


def postponed(group: ConsumerGroup, now_ms: int, by_ms: int) -> ConsumerGroup:
    """With that much more time for those whose time is up."""
    sessions, revocations, joins, syncs = (
        values.update({member_id: now_ms + by_ms for member_id, due in values.items() if due <= now_ms})
        for values in group.deadlines
    )
    return replaced(group, sessions=sessions, revocations=revocations, joins=joins, syncs=syncs)


def put_off(group: ConsumerGroup, now_ms: int, by_ms: int, config: ConsumerConfig) -> ConsumerGroup:
    """With that much more time for everyone, but no more than who is heard only now."""
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


# going


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
    """Those who stay are to share out again, which the next heartbeat sees to."""
    gone = set(member_ids)
    for member_id in gone:
        group = group.drop(member_id)
    if not gone:
        return group
    patterns = {member.pattern for member in group.members.values()}
    for pattern in set(group.patterns) - patterns:
        group = replaced(group, patterns=group.patterns.delete(pattern))
    return replaced(group, epoch=group.epoch + 1)
