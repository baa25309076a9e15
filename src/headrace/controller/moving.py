"""Decides where partitions go that people want moved: of a topic, or all that a broker holds.

Promises: who leaves is replaced in its place; the target is the one that is named, else the live broker that holds the
fewest partitions and not this one; how each goes there is as for any reassignment (`controller.reassignments`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller.decision import Decision, Refusal
from headrace.controller.moves import HandsOver, Targets, is_live
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWish:
    """Partitions of one topic, or of all, that are to leave a broker."""

    topic: str | None = None
    partitions: tuple[PartitionIndex, ...] = ()
    """None: all."""
    broker: BrokerId | None = None
    """Whom they are to leave; None: whoever leads them."""
    to: BrokerId | None = None
    """None: it is chosen."""
    bytes_per_second: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOutcome:
    """What became of one of them."""

    topic: str
    partition: PartitionIndex
    source: BrokerId
    target: BrokerId
    is_handed_over: bool
    refusal: Refusal | None = None


def move_partitions(
    image: MetadataImage, wish: MoveWish, *, hands_over: HandsOver, validate_only: bool = False
) -> Decision[tuple[MoveOutcome, ...] | Refusal]:
    """One outcome for each partition that is to go; those that are where they shall be, or on their way there, are
    left out. At most PARTITIONS_PER_REQUEST_MAX."""
    topic = None if wish.topic is None else image.topic(wish.topic)
    if wish.topic is not None and topic is None:
        return Decision((), Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{wish.topic}' does not exist."))
    for named in (wish.broker, wish.to):
        if named is not None and named not in image.brokers:
            return Decision((), Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {named} is not registered."))
    if wish.to is not None and not is_live(image, wish.to):
        return Decision((), Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {wish.to} is not alive: start it first."))
    targets = Targets(image)
    wishes: list[Reassignment] = []
    outcomes: list[MoveOutcome] = []
    for found, partition, source in _leaving(image, topic, wish):
        target = wish.to if wish.to is not None else targets.choose(without=source, among_not=partition.replicas)
        if target is None:
            return Decision((), Refusal(ErrorCode.BROKER_NOT_AVAILABLE, "No other broker is alive: start one."))
        replicas = _replaced(partition, source, target)
        if replicas == partition.replicas or (partition.move is not None and partition.move.target == target):
            continue
        wishes.append(Reassignment(topic=found.name, partition=partition.index, replicas=replicas))
        is_handed_over = len(replicas) == len(partition.replicas) == 1 and hands_over(found)
        outcomes.append(
            MoveOutcome(
                topic=found.name,
                partition=partition.index,
                source=source,
                target=target,
                is_handed_over=is_handed_over,
            )
        )
        if len(wishes) == PARTITIONS_PER_REQUEST_MAX:
            break
    decision = reassign_partitions(image, wishes, hands_over=hands_over, bytes_per_second=wish.bytes_per_second)
    if isinstance(decision.result, Refusal):
        return Decision((), decision.result)
    told = tuple(
        MoveOutcome(
            topic=one.topic,
            partition=one.partition,
            source=one.source,
            target=one.target,
            is_handed_over=one.is_handed_over,
            refusal=refusal,
        )
        for one, refusal in zip(outcomes, decision.result, strict=True)
    )
    return Decision(() if validate_only else decision.events, told)


def _leaving(
    image: MetadataImage, topic: TopicImage | None, wish: MoveWish
) -> Iterator[tuple[TopicImage, PartitionImage, BrokerId]]:
    """With whom each is to leave."""
    every = image.all_partitions() if topic is None else ((topic, partition) for partition in topic.partitions)
    for found, partition in every:
        if wish.partitions and partition.index not in wish.partitions:
            continue
        source = wish.broker
        if source is None:
            source = partition.leader if partition.leader != NO_LEADER else partition.replicas[0]
        goes = source in partition.removing or partition.move is not None
        if source in partition.replicas and not (goes and (wish.to is None or wish.to in partition.replicas)):
            yield found, partition, source


def _replaced(partition: PartitionImage, source: BrokerId, target: BrokerId) -> tuple[BrokerId, ...]:
    """With the target in the place of who leaves; first, where it is a replica already."""
    kept = tuple(replica for replica in partition.replicas if replica not in partition.removing)
    if target in kept:
        return (target, *(replica for replica in kept if replica not in (source, target)))
    return tuple(target if replica == source else replica for replica in kept)
