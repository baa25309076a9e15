"""One member's way from what it reads to what it is to read.

Promises: a partition is given only when nobody else has it; who has it until it says that it gave it up (by naming
what it owns, without it) keeps it, and keeps its epoch, so that it can commit what it has read (KIP-848). Since which
epoch it has it is never told too early (KIP-1251).
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
    """The member after a heartbeat. `owned`: what it says to have; None where it does not say."""
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
    """What it is given, and what a former life of it had, is its own from this epoch on; of the rest nothing changes.
    What it gave up and is given again is given anew: others may have read it meanwhile."""
    if not given and len(kept) == len(member.since) and kept == member.assigned:  # nothing was given or taken away
        return member.since
    return immutables.Map(
        itertools.chain(((each, member.since.get(each, epoch)) for each in kept), ((each, epoch) for each in given))
    )


def _at_epoch(member: ConsumerMember, epoch: int) -> ConsumerMember:
    if epoch == member.epoch:
        return member
    return replaced(member, epoch=epoch, previous_epoch=member.epoch)
