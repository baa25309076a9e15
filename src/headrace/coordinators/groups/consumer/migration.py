"""Groups that change their protocol while they have members (KIP-848's online upgrade and downgrade).

Promises: over either change, a partition that a member may be reading stays its own until it reports to have given it
up. A member that is in step stays a member, and keeps its number (generation, or epoch). Otherwise this follows Kafka
4.1; decision 0029 lists the differences.
"""

from __future__ import annotations

from dataclasses import replace

import immutables

from headrace.base.limits import GROUP_UPGRADE_BYTES_MAX
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer import embedded
from headrace.coordinators.groups.consumer.heartbeats import session_ms
from headrace.coordinators.groups.consumer.model import (
    NO_PARTITIONS,
    ClassicMembership,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    Topics,
)
from headrace.coordinators.groups.model import Group, GroupState, Member, Moment, Protocol
from headrace.coordinators.groups.rebalance import choose_protocol
from headrace.coordinators.groups.subscriptions import CONSUMER


def upgraded(group: Group, topics: Topics, now: Moment, config: GroupConfig) -> ConsumerGroup | None:
    """A classic group as a consumer group of its members. None where it cannot be one: the policy forbids it, or it is
    not of consumers, too large, or has undecodable data.

    Members without a generation are left out. They own nothing, and join again when they are told to, under their known
    id, if they have one.
    """
    old = [member for member in group.members.values() if not member.new]
    size = sum(len(offered.metadata) for member in old for offered in member.protocols)
    fits = len(old) <= config.consumer.group_consumer_max_size and size <= GROUP_UPGRADE_BYTES_MAX
    if not (config.migration.upgrades and group.protocol_type == CONSUMER and fits):
        return None
    after = ConsumerGroup(epoch=group.generation, target_epoch=group.generation)
    claims: dict[str, tuple[embedded.Subscription, Partitions]] = {}
    for member in old:
        said = embedded.subscription(_metadata(group, member), topics)
        share = embedded.assigned(member.assignment, topics)
        if said is None or share is None:
            return None
        joined = group.state is GroupState.PREPARING and member.join_waiter is not None
        claims[member.id] = said, NO_PARTITIONS if joined else share
    for member in old:  # assignments of the generation take precedence over what members owned when they joined it
        said, share = claims[member.id]
        free = frozenset(partition for partition in share if partition not in after.owners)
        after = after.put(_consumer(group, member, said, free))
    for member_id, (said, _) in claims.items():
        after = _keeping(after, after.members[member_id], said.owned)
    members = after.members.values()
    return replace(
        after,
        targets=immutables.Map((member.id, member.assigned) for member in members),
        sessions=immutables.Map((one.id, now.monotonic_ms + session_ms(one, config.consumer)) for one in members),
    )


def _metadata(group: Group, member: Member) -> bytes:
    """The metadata of a member. A consumer's protocols all carry the same; before the first generation none is
    chosen."""
    return member.metadata(group.protocol) or member.protocols[0].metadata


def _consumer(group: Group, member: Member, said: embedded.Subscription, share: Partitions) -> ConsumerMember:
    return ConsumerMember(
        id=member.id,
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=said.topics,
        classic=ClassicMembership(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=share,
        since=immutables.Map((each, group.generation) for each in share),
    )


def _keeping(group: ConsumerGroup, member: ConsumerMember, owned: Partitions) -> ConsumerGroup:
    """A cooperative member keeps reading what it owned when it joined until it learns otherwise. It reports that by
    joining again without it."""
    kept = frozenset(partition for partition in owned if partition not in group.owners)
    if not kept:
        return group
    since = member.since.update((each, member.epoch) for each in kept)
    return group.put(replace(member, state=MemberState.UNREVOKED_PARTITIONS, revoking=kept, since=since))


def is_due(group: ConsumerGroup, now_ms: int, config: GroupConfig) -> bool:
    """Whether no member speaks the consumer protocol any more, and the others can continue as a classic group.

    They can once they are in step. Until then, a member that missed the latest epoch may be reading partitions that are
    another's in it, and would not belong to the generation. It is told as in any consumer group, and removed if it does
    not follow.
    """
    if not (config.migration.downgrades and group.members and group.is_classic):
        return False
    return now_ms >= group.converts_from_ms and len(group.members) <= config.group_max_size and group.is_in_step


def downgraded(group: Group, consumer: ConsumerGroup, topics: Topics, now: Moment) -> Group:
    """The classic group of a consumer group's members, which are all classic, in step, and to join again. Its
    generation is their common epoch."""
    stay = [consumer.members[member_id] for member_id in sorted(consumer.members)]
    generation = stay[0].epoch if stay else consumer.epoch
    classic = replace(
        group,
        state=GroupState.STABLE if stay else GroupState.EMPTY,
        generation=generation,
        protocol_type=CONSUMER,
        protocol=None,
        leader=stay[0].id if stay else None,
        members={member.id: _classic(member, topics, now) for member in stay},
        pending={},
        consumer=None,
        since_ms=now.wall_ms if stay else group.since_ms,
    )
    return replace(classic, protocol=choose_protocol(classic)) if stay else classic


def _classic(member: ConsumerMember, topics: Topics, now: Moment) -> Member:
    """The classic member, with its current partitions as its assignment."""
    assert member.classic is not None
    protocols = tuple(Protocol(name, metadata) for name, metadata in member.classic.protocols)
    said = embedded.subscription(protocols[0].metadata, topics)
    version = 0 if said is None else said.version
    return Member(
        id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=protocols,
        assignment=embedded.assignment(member.assigned | member.revoking, topics, version),
        synced=True,
        deadline_ms=now.monotonic_ms + member.classic.session_timeout_ms,
    )
