"""One member's transition from its current assignment to its target.

Promises: a partition is given to a member only when no other member has it. The owner keeps it, and keeps its epoch so
that it can commit what it has read, until it reports to have given it up. It does so by listing what it owns, without
that partition (KIP-848). The epoch since which it owns a partition is never recorded too early (KIP-1251).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import immutables

from headrace.base.ids import TopicPartition
from headrace.base.values import replaced
from headrace.coordinators.groups.consumer.model import NO_PARTITIONS, ConsumerMember, MemberState, Partitions, Since


def reconcile(
    member: ConsumerMember,
    *,
    owned: Partitions | None,
    target_epoch: int,
    target: Partitions,
    owners: Mapping[TopicPartition, str] | immutables.MapMutation[TopicPartition, str],
) -> ConsumerMember:
    """The member after a heartbeat. `owned` has the partitions that it reports to own; None where it does not
    report."""
    epoch = member.epoch
    match member.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return member
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & member.revoking:
                return member
            epoch += 1
        case MemberState.UNRELEASED_PARTITIONS:
            pass
    kept, given_up = member.assigned & target, member.assigned - target
    if given_up and (owned is None or owned & given_up):
        state = MemberState.UNREVOKED_PARTITIONS
        since = _since(member, member.assigned, NO_PARTITIONS, target_epoch)
        return replaced(_at_epoch(member, epoch), state=state, assigned=kept, revoking=given_up, since=since)
    missing = target - kept
    free = frozenset(partition for partition in missing if owners.get(partition, member.id) == member.id)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    since = _since(member, kept, free, target_epoch)
    return replaced(
        _at_epoch(member, target_epoch), state=state, assigned=kept | free, revoking=NO_PARTITIONS, since=since
    )


def _since(member: ConsumerMember, kept: Partitions, given: Partitions, epoch: int) -> Since:
    """Assignment epochs. Newly given partitions, and those of a former life, count from this epoch on; others are
    unchanged. A partition that was given up and comes back counts as new, because others may have read it meanwhile."""
    if not given and len(kept) == len(member.since) and kept == member.assigned:  # nothing was given or taken away
        return member.since
    return immutables.Map(
        itertools.chain(((each, member.since.get(each, epoch)) for each in kept), ((each, epoch) for each in given))
    )


def _at_epoch(member: ConsumerMember, epoch: int) -> ConsumerMember:
    if epoch == member.epoch:
        return member
    return replaced(member, epoch=epoch, previous_epoch=member.epoch)
