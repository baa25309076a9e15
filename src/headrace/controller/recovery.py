"""Decides that partitions whose brokers are gone for good continue elsewhere, from durable history alone.

Promises:
- Only partitions without a leader and without a live replica are touched, and only where history gives an offset to go
  on from.
- It is one entry. The target becomes the only replica and the whole ISR, and leads, uncleanly, in a new leader epoch.
- That epoch begins a new assignment: no older log belongs to it, whoever comes back with one.
- A refusal changes nothing.

Source: DESIGN section 4, "Recovery start".
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
from headrace.controller import shared_logs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.moves import cancelled, is_live
from headrace.controller.placement import Placement
from headrace.metadata.events import LeaderChanged, MetadataEvent, ReplicasChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWish:
    """A wish that partitions of one topic go on from their durable history."""

    topic: str
    partitions: tuple[PartitionIndex, ...] = ()
    """Empty: all without a leader."""
    to: BrokerId | None = None
    """None: it is chosen as for a new partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOutcome:
    """The outcome for one partition."""

    topic: str
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...] = ()
    """The brokers that held it, and are gone."""
    target: BrokerId = NO_LEADER
    """Its new leader; -1 where it is refused."""
    end_offset: Offset = NO_OFFSET
    """The last durable offset: acknowledged records above it are lost."""
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The outcome of a wish."""

    outcomes: tuple[RecoveryOutcome, ...]
    """One for each partition that is named, or that nobody leads, in order."""
    led: int = 0
    """The number of other partitions of the topic, which have leaders and are left alone."""


def recover_partitions(
    image: MetadataImage, wish: RecoveryWish, *, validate_only: bool = False
) -> Decision[Recovery | Refusal]:
    """Recover at most ELECTIONS_PER_ENTRY_MAX at once. The rest is refused with REQUEST_TIMED_OUT, to be asked for
    again."""
    topic = image.topic(wish.topic)
    if topic is None:
        return Decision((), Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{wish.topic}' does not exist."))
    if image.shares_logs:
        return Decision((), shared_logs.unrecoverable(image, topic.name))
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
    """Return why nothing of it can be done; else None."""
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
    """Iterate over the wanted partitions; None: there is no such partition."""
    if not wish.partitions:
        yield from ((one.index, one) for one in topic.partitions if one.leader == NO_LEADER)
        return
    for index in dict.fromkeys(wish.partitions):
        yield index, topic.partitions[index] if 0 <= index < len(topic.partitions) else None


def _refused(
    image: MetadataImage, topic: TopicImage, index: PartitionIndex, partition: PartitionImage | None
) -> Refusal | None:
    """Return why a partition is left as it is, and how to proceed."""
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
    """Return the events that give the partition to the target alone, and end everything else that was under way."""
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
