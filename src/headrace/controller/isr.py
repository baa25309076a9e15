"""Decides on the ISRs that leaders propose: the replicas that count for acknowledgement.

Promises:
- Only the leader of the current epoch changes an ISR, from the state that it knows.
- No member is fenced, or of another incarnation than the leader has seen.
- The ISR is never empty and never without its leader.
- Each partition is decided for itself, wholly or not at all.
- A repeated proposal changes nothing. A proposal of the present ISR still takes a partition epoch: no earlier proposal
  can be carried out after it.

Sources: KIP-497 (AlterPartition), KIP-841 (no fenced members), KIP-903 (members by broker epoch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import ISR_PROPOSALS_PER_ASK_MAX
from headrace.controller.decision import Decision, Refusal, decided, stale
from headrace.controller.elections import copies_failed, live_directories
from headrace.controller.reassignments import changes, finished
from headrace.metadata.events import IsrChanged, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """A replica in the incarnation in which it has fetched from the leader; for the leader its own."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """The ISR that a leader wants, in any order, and the state that it wants to change."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[IsrMember, ...]


def alter_isr(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, proposals: Sequence[IsrProposal]
) -> Decision[tuple[ErrorCode, ...] | Refusal]:
    """Return one error code for each proposal, in order:
    - NONE, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION.
    - FENCED_LEADER_EPOCH where the sender does not lead (any more).
    - NOT_CONTROLLER for an epoch that is not known here yet.
    - INVALID_UPDATE_VERSION where the partition has changed since.
    - INELIGIBLE_REPLICA where a member is fenced or another incarnation.
    - INVALID_REQUEST where this can be no ISR.

    A Refusal of all for an old incarnation of the sender, or more than ISR_PROPOSALS_PER_ASK_MAX.
    """
    asker = image.brokers.get(broker_id)
    if asker is None or asker.epoch != broker_epoch:
        return Decision((), stale(broker_id, broker_epoch))
    if len(proposals) > ISR_PROPOSALS_PER_ASK_MAX:
        return Decision((), _too_many())
    live = live_directories(image).keys()
    after: dict[TopicPartition, PartitionImage] = {}
    events: list[MetadataEvent] = []
    codes = []
    for proposal in proposals:
        key = TopicPartition(proposal.topic_id, proposal.partition)
        known = after.get(key) or image.partition(key)
        if known is None:
            there = image.topic_by_id(key.topic_id) is not None
            codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if there else ErrorCode.UNKNOWN_TOPIC_ID)
            continue
        verdict = _decide(image, broker_id, known, proposal)
        if isinstance(verdict, ErrorCode):
            codes.append(verdict)
            continue
        done, after[key] = changes(key.topic_id, known, finished(replace(known, isr=verdict), live))
        if not done:
            done, after[key] = _as_it_is(key.topic_id, known)
        events += done
        codes.append(ErrorCode.NONE)
    return Decision(tuple(events), tuple(codes))


def _as_it_is(topic_id: TopicId, known: PartitionImage) -> tuple[list[MetadataEvent], PartitionImage]:
    """Return the same ISR, under the next partition epoch."""
    after = replace(known, partition_epoch=PartitionEpoch(known.partition_epoch + 1))
    event = IsrChanged(
        topic_id=topic_id,
        partition=known.index,
        leader_epoch=known.leader_epoch,
        partition_epoch=after.partition_epoch,
        isr=known.isr,
    )
    return [event], after


def leave_isr(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, partitions: Sequence[TopicPartition]
) -> Decision[Refusal | None]:
    """Take a broker with useless copies of these partitions (their disk failed) out of their ISRs. It leads none of
    them, unless no other replica is in sync. A Refusal as by `alter_isr`."""
    asker = image.brokers.get(broker_id)
    if asker is None or asker.epoch != broker_epoch:
        return decided(stale(broker_id, broker_epoch))
    if len(partitions) > ISR_PROPOSALS_PER_ASK_MAX:
        return decided(_too_many())
    return decided([*copies_failed(image, broker_id, partitions)])


def _too_many() -> Refusal:
    message = f"One request changes the ISR of at most {ISR_PROPOSALS_PER_ASK_MAX} partitions: split it."
    return Refusal(ErrorCode.POLICY_VIOLATION, message)


def _decide(
    image: MetadataImage, leader: BrokerId, known: PartitionImage, proposal: IsrProposal
) -> tuple[BrokerId, ...] | ErrorCode:
    """Return the new ISR, in replica order; else the proposal's error, or NONE where nothing is to be done."""
    if proposal.leader_epoch > known.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # it was elected by a later controller than this one, as in Kafka
    if proposal.leader_epoch < known.leader_epoch or known.leader != leader:
        return ErrorCode.FENCED_LEADER_EPOCH
    wished = {member.broker_id for member in proposal.isr}
    isr = tuple(replica for replica in known.replicas if replica in wished)
    possible = leader in isr and len(isr) == len(proposal.isr)
    if possible and isr == known.isr and known.partition_epoch - proposal.partition_epoch == 1:
        return ErrorCode.NONE  # asked twice
    if proposal.partition_epoch != known.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if not possible:
        return ErrorCode.INVALID_REQUEST
    if not all(_eligible(image, member) for member in proposal.isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return isr


def _eligible(image: MetadataImage, member: IsrMember) -> bool:
    broker = image.brokers.get(member.broker_id)
    return broker is not None and not broker.fenced and broker.epoch == member.broker_epoch
