"""Decides that partitions whose brokers are gone for good go on elsewhere, behind durable history alone.

Promises: only what nobody leads, and none of whose replicas lives, is touched, and only where history tells an offset
to go on from; it is one entry, in which the target is all of replicas and ISR, and leads, uncleanly, in a new leader
epoch, with which a new assignment begins: no log of before, whoever comes back with it, is of that. What is refused
changes nothing. Source: DESIGN section 4, "Recovery start".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.ids import (
    NO_LEADER,
    NO_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionIndex,
    TopicPartition,
)
from headrace.base.limits import ELECTIONS_PER_ENTRY_MAX
from headrace.controller.decision import Decision, Refusal
from headrace.controller.moves import cancelled, is_live
from headrace.controller.placement import Placement
from headrace.metadata.events import LeaderChanged, MetadataEvent, ReplicasChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWish:
    """Partitions of one topic that are to go on behind what is durable of them."""

    topic: str
    partitions: tuple[PartitionIndex, ...] = ()
    """None: all that nobody leads."""
    to: BrokerId | None = None
    """None: it is chosen as for a new partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOutcome:
    """What became of one of them."""

    topic: str
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...] = ()
    """Who held it, and is gone."""
    target: BrokerId = NO_LEADER
    """Who leads it now; -1 where it is refused."""
    end_offset: Offset = NO_OFFSET
    """The last that is durable: what was acknowledged above it is lost."""
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What became of a wish."""

    outcomes: tuple[RecoveryOutcome, ...]
    """One for each partition that is named, or that nobody leads, in order."""
    led: int = 0
    """How many others of the topic are led, and left alone."""


def recover_partitions(
    image: MetadataImage, wish: RecoveryWish, *, validate_only: bool = False
) -> Decision[Recovery | Refusal]:
    """At most ELECTIONS_PER_ENTRY_MAX at once: the rest is refused with REQUEST_TIMED_OUT, to be asked for again."""
    topic = image.topic(wish.topic)
    if topic is None:
        return Decision((), Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{wish.topic}' does not exist."))
    if (problem := _impossible(image, topic, wish)) is not None:
        return Decision((), problem)
    placement = Placement(image)
    events: list[MetadataEvent] = []
    outcomes: list[RecoveryOutcome] = []
    count = 0
    for index, partition in _wanted(topic, wish):
        refusal = _refused(image, topic, index, partition)
        if refusal is None and count == ELECTIONS_PER_ENTRY_MAX:
            message = f"One request recovers at most {ELECTIONS_PER_ENTRY_MAX} partitions: ask again for the rest."
            refusal = Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        if refusal is not None or partition is None:
            replicas = () if partition is None else partition.replicas
            outcomes.append(RecoveryOutcome(topic=topic.name, partition=index, replicas=replicas, refusal=refusal))
            continue
        count += 1
        target = wish.to if wish.to is not None else placement.place(index, 1).leader
        events += _recovered(topic, partition, target)
        outcomes.append(
            RecoveryOutcome(
                topic=topic.name,
                partition=index,
                replicas=partition.replicas,
                target=target,
                end_offset=image.durable(TopicPartition(topic.id, index)).end_offset,
            )
        )
    led = 0 if wish.partitions else sum(one.leader != NO_LEADER for one in topic.partitions)
    return Decision(() if validate_only else tuple(events), Recovery(outcomes=tuple(outcomes), led=led))


def _impossible(image: MetadataImage, topic: TopicImage, wish: RecoveryWish) -> Refusal | None:
    """Why nothing of it can be done."""
    if topic.internal:
        message = f"Topic '{topic.name}' is internal, and has no durable history: it cannot be recovered from any."
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    if wish.to is not None and wish.to not in image.brokers:
        return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {wish.to} is not registered.")
    if wish.to is not None and not is_live(image, wish.to):
        return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {wish.to} is not alive: start it first.")
    if not image.live_brokers():
        return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, "No broker is alive that could go on: start one.")
    return None


def _wanted(topic: TopicImage, wish: RecoveryWish) -> Iterator[tuple[PartitionIndex, PartitionImage | None]]:
    """None: there is no such partition."""
    if not wish.partitions:
        yield from ((one.index, one) for one in topic.partitions if one.leader == NO_LEADER)
        return
    for index in dict.fromkeys(wish.partitions):
        yield index, topic.partitions[index] if 0 <= index < len(topic.partitions) else None


def _refused(
    image: MetadataImage, topic: TopicImage, index: PartitionIndex, partition: PartitionImage | None
) -> Refusal | None:
    """Why one is left as it is, and how to proceed."""
    name = f"{topic.name}-{index}"
    if partition is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {name} does not exist.")
    if partition.is_sealed:
        message = (
            f"{name} is handed over and sealed, with nothing lost: it goes on at another broker as soon as one lives, "
            f"or name one with 'headrace topic move {topic.name} --partition {index} --to BROKER'."
        )
        return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, message)
    if partition.leader != NO_LEADER:
        message = (
            f"{name} is led by broker {partition.leader}, and left alone: where that is gone for good, ask again once "
            "its session is over (broker.session.timeout.ms)."
        )
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, message)
    living = next((replica for replica in partition.replicas if is_live(image, replica)), None)
    if living is not None:
        message = (
            f"Broker {living} is alive and has a copy of {name}: 'headrace topic elect {topic.name} --partition "
            f"{index} --unclean' has it lead, with what it has."
        )
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if image.durable(TopicPartition(topic.id, index)).end_offset < 0:
        message = f"{name} has no durable history to go on from: start broker {_either(partition.replicas)}."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    return None


def _either(brokers: tuple[BrokerId, ...]) -> str:
    return " or ".join(map(str, brokers))


def _recovered(topic: TopicImage, known: PartitionImage, target: BrokerId) -> list[MetadataEvent]:
    """The target alone has it, and leads it; nothing else that was under way is any more."""
    events: list[MetadataEvent] = []
    if known.move is not None:
        event, known = cancelled(topic.id, known)
        events.append(event)
    epoch = LeaderEpoch(known.leader_epoch + 1)
    led = LeaderChanged(
        topic_id=topic.id,
        partition=known.index,
        leader=target,
        leader_epoch=epoch,
        partition_epoch=PartitionEpoch(known.partition_epoch + 1),
        isr=(target,),
        unclean=True,
    )
    held = ReplicasChanged(
        topic_id=topic.id,
        partition=known.index,
        partition_epoch=PartitionEpoch(known.partition_epoch + 2),
        replicas=(target,),
        isr=(target,),
        recovered_epoch=epoch,
    )
    return [*events, led, held]
