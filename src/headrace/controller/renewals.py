"""Decides whether a broker may drop a damaged copy and copy it again from the leader.

Promises:
- The broker leaves the ISR in an entry that begins a leader epoch, so that its earlier reports of the copy do not
  count.
- The ISR keeps at least min.insync.replicas live members, and never loses its last one.
- A leader hands leadership over in the same entry, to a member that it names. It stays in sync where it may not leave.
- A repeated request does no more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import ISR_PROPOSALS_PER_ASK_MAX
from headrace.controller.decision import Decision, Refusal, stale
from headrace.controller.elections import live_directories
from headrace.metadata.events import LeaderChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRenewal:
    """One copy that the asking broker wants to begin again."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    """The leader epoch in which that broker knows it."""
    successor: BrokerId = NO_LEADER
    """The next leader, where that broker leads now: a member of the ISR whose copy is sound."""


def renew_copies(
    image: MetadataImage,
    *,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    copies: Sequence[CopyRenewal],
    min_in_sync: Callable[[TopicImage], int],
) -> Decision[tuple[ErrorCode, ...] | Refusal]:
    """Return one error code for each copy, in order:
    - NONE: it is done. In the epoch that begins, the sender neither leads it nor is in sync, unless it led it before
      and too few would be left.
    - NOT_ENOUGH_REPLICAS where too few would be left in sync.
    - LEADER_NOT_AVAILABLE where nobody leads it, or could in the sender's place.
    - UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.

    A Refusal of all for an old incarnation of the sender, or too many copies.
    """
    asker = image.brokers.get(broker_id)
    if asker is None or asker.epoch != broker_epoch:
        return Decision((), stale(broker_id, broker_epoch))
    if len(copies) > ISR_PROPOSALS_PER_ASK_MAX:
        message = f"One request is for at most {ISR_PROPOSALS_PER_ASK_MAX} copies: split it."
        return Decision((), Refusal(ErrorCode.POLICY_VIOLATION, message))
    live = live_directories(image, without=broker_id).keys()
    events: dict[TopicPartition, LeaderChanged] = {}
    codes = []
    for copy in copies:
        key = TopicPartition(copy.topic_id, copy.partition)
        topic, known = image.topics.get(copy.topic_id), image.partition(key)
        if topic is None or known is None or broker_id not in known.replicas:
            codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        left = tuple(member for member in known.isr if member != broker_id)
        living, least = [member for member in left if member in live], max(1, min_in_sync(topic))
        code = _problem(broker_id, known, copy, living, least)
        codes.append(code)
        if code is ErrorCode.NONE and copy.leader_epoch == known.leader_epoch:
            leader = copy.successor if known.leader == broker_id else known.leader
            isr = known.isr if broker_id in known.isr and len(living) < least else left
            events[key] = _next_epoch(topic, known, isr, leader)
    return Decision(tuple(events.values()), tuple(codes))


def _problem(
    broker: BrokerId, known: PartitionImage, copy: CopyRenewal, left: Sequence[BrokerId], least: int
) -> ErrorCode:
    """Return why a copy may not be dropped, or NONE. `left`: the live members of the ISR without the broker."""
    if copy.leader_epoch > known.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if copy.leader_epoch < known.leader_epoch:  # as when the answer to the same request was lost
        return ErrorCode.FENCED_LEADER_EPOCH if broker in known.isr else ErrorCode.NONE
    if known.leader == NO_LEADER or (known.leader == broker and copy.successor not in left):
        return ErrorCode.LEADER_NOT_AVAILABLE
    too_few = broker in known.isr and len(left) < least
    return ErrorCode.NOT_ENOUGH_REPLICAS if too_few and known.leader != broker else ErrorCode.NONE


def _next_epoch(topic: TopicImage, known: PartitionImage, isr: tuple[BrokerId, ...], leader: BrokerId) -> LeaderChanged:
    return LeaderChanged(
        topic_id=topic.id,
        partition=known.index,
        leader=leader,
        leader_epoch=LeaderEpoch(known.leader_epoch + 1),
        partition_epoch=PartitionEpoch(known.partition_epoch + 1),
        isr=isr,
    )
