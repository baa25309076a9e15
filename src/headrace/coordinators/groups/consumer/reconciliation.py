"""One member's way from what it reads to what it is to read.

Promises: a partition is given only when nobody else has it; who has it until it says that it gave it up (by naming
what it owns, without it) keeps it, and keeps its epoch, so that it can commit what it has read (KIP-848).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.base.ids import TopicPartition
from headrace.coordinators.groups.consumer.model import NO_PARTITIONS, ConsumerMember, MemberState, Partitions


def reconcile(
    member: ConsumerMember,
    *,
    owned: Partitions | None,
    target_epoch: int,
    target: Partitions,
    owners: Mapping[TopicPartition, str],
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
        return replace(_at_epoch(member, epoch), state=state, assigned=kept, revoking=given_up)
    missing = target - kept
    free = frozenset(partition for partition in missing if owners.get(partition, member.id) == member.id)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return replace(_at_epoch(member, target_epoch), state=state, assigned=kept | free, revoking=NO_PARTITIONS)


def _at_epoch(member: ConsumerMember, epoch: int) -> ConsumerMember:
    if epoch == member.epoch:
        return member
    return replace(member, epoch=epoch, previous_epoch=member.epoch)
