"""Decides on moves of partitions with one replica: the owner seals the partition, and another broker goes on with it.

Promises:
- A seal is accepted only of the live owner in its current leader epoch, for a live target that has read the store.
- It is accepted only where durable history has everything that the owner wrote. The seal and the new owner are one
  entry.
- Until the seal, a move can be cancelled. That begins a leader epoch, so that a late seal is refused.
- After the seal it only goes forward: to this target or, until that has finished, to another.
- A target that dies, or cannot open its log, is replaced. A dead owner is never sealed for.
- A repeated request changes nothing.

Source: DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.controller.decision import Decision, Refusal, decided, stale
from headrace.controller.durable import publish_segment
from headrace.metadata.events import (
    LeaderChanged,
    MetadataEvent,
    MoveCancelled,
    MoveFinished,
    MoveProven,
    MoveRetargeted,
    MoveSealed,
    MoveStarted,
    ReplicasChanged,
)
from headrace.metadata.image import MetadataImage
from headrace.metadata.moves import Move, StorageStateSealed
from headrace.metadata.segments import SegmentDescriptor
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode

HandsOver = Callable[[TopicImage], bool]
"""Whether partitions of a topic are handed over, with their history in the store, rather than copied."""


Unable = Mapping[BrokerId, str]
"""Brokers to which nothing can be handed over, each with the reason: a clause about it."""
NOBODY: Final[Unable] = {}


def not_to(name: str, target: BrokerId, unable: Unable) -> Refusal | None:
    """Return a refusal where the partition of this name cannot be handed over to the broker."""
    if (reason := unable.get(target)) is None:
        return None
    message = f"{name} cannot be handed over to broker {target}, for {reason}: mend that, or choose another broker."
    return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def never(_: TopicImage) -> bool:
    """Return False: without a store, nothing is handed over."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedTail:
    """The last durable segment of an owner: in the store, and published with its seal."""

    descriptor: SegmentDescriptor
    previous_hash: str
    """The head of the catalog that it continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The proposal of an owner: the final state of its partition, and the target."""

    topic_id: TopicId
    partition: PartitionIndex
    broker_epoch: BrokerEpoch
    """The owner's epoch."""
    target: BrokerId
    state: StorageStateSealed
    tail: SealedTail | None = None


def is_live(image: MetadataImage, broker: BrokerId) -> bool:
    """Whether the broker is registered, and not fenced."""
    known = image.brokers.get(broker)
    return known is not None and not known.fenced


# the steps, as brokers ask for them


def prove_move(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> Decision[Refusal | None]:
    """Note that the target has read what the owner exported."""
    known = image.partition(TopicPartition(topic_id, partition))
    if known is None or known.move is None or known.move.target != broker_id or known.is_sealed:
        return decided(_not_moving(partition))
    if (problem := _outdated(image, broker_id, broker_epoch)) is not None:
        return decided(problem)
    if known.move.proven_by == broker_epoch:
        return decided([])
    proven = MoveProven(topic_id=topic_id, partition=partition, partition_epoch=_next(known), broker_epoch=broker_epoch)
    return decided([proven])


def seal_move(image: MetadataImage, seal: Seal) -> Decision[Refusal | None]:
    """Seal the partition after the owner's last write. The target is the owner from this entry on, in which the owner's
    last segment joins durable history too."""
    key, state = TopicPartition(seal.topic_id, seal.partition), seal.state
    known = image.partition(key)
    if known is None:
        return decided(_not_moving(seal.partition))
    if known.move is not None and known.move.state == state:
        return decided([])
    published = _published(image, seal)
    if isinstance(published.result, Refusal):
        return published
    problem = _unsealable(image.replay(published.events), key, known, seal)
    if problem is not None:
        return decided(problem)
    sealed = MoveSealed(
        topic_id=key.topic_id,
        partition=key.partition,
        partition_epoch=_next(known),
        assignment_epoch=known.leader_epoch + 1,
        state=state,
    )
    return decided([*published.events, sealed, *_owned_by(key, known, seal.target, after=sealed.partition_epoch)])


def _published(image: MetadataImage, seal: Seal) -> Decision[Refusal | None]:
    if seal.tail is None:
        return decided([])
    return publish_segment(
        image,
        topic_id=seal.topic_id,
        partition=seal.partition,
        leader_epoch=seal.state.leader_epoch,
        descriptor=seal.tail.descriptor,
        previous_hash=seal.tail.previous_hash,
        log_start_offset=seal.state.log_start_offset,
    )


def _unsealable(image: MetadataImage, key: TopicPartition, known: PartitionImage, seal: Seal) -> Refusal | None:
    move, state = known.move, seal.state
    if state.leader_epoch != known.leader_epoch or known.leader != state.broker_id:
        return Refusal(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"Partition {key.partition} was sealed in leader epoch {state.leader_epoch} by broker {state.broker_id}, "
            f"but broker {known.leader} leads it in {known.leader_epoch}.",
        )
    if move is None or move.target != seal.target or move.source != state.broker_id or known.is_sealed:
        return _not_moving(key.partition)
    if known.replicas != (state.broker_id,):
        message = f"Partition {key.partition} has other replicas {list(known.replicas)}: it is not handed over."
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if (problem := _outdated(image, state.broker_id, seal.broker_epoch)) is not None:
        return problem
    is_proven = is_live(image, seal.target) and move.proven_by == image.brokers[seal.target].epoch
    if not is_live(image, seal.target) or not (is_proven or not image.durable(key).entries):
        message = f"Broker {seal.target} is not alive, or has not read the store: nothing is handed over to it."
        return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, message)
    return _uncovered(image, key, state)


def _uncovered(image: MetadataImage, key: TopicPartition, state: StorageStateSealed) -> Refusal | None:
    """Return a refusal where durable history lacks records that the owner wrote, or has records that it deleted."""
    catalog = image.durable(key)
    if state.log_start_offset == state.next_offset and catalog.end_offset <= state.last_committed_offset:
        if not catalog.entries or catalog.readable_start >= state.log_start_offset:
            return None  # there is nothing to be read
    elif catalog.end_offset == state.last_committed_offset:
        begins_at_most = max(state.log_start_offset, catalog.log_start_offset)  # deleted records are not missing
        if state.log_start_offset <= catalog.readable_start <= begins_at_most:
            return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"Durable history of partition {key.partition} has offsets {catalog.readable_start} to {catalog.end_offset}, "
        f"but its owner wrote {state.log_start_offset} to {state.last_committed_offset}.",
    )


def finish_move(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> Decision[Refusal | None]:
    """Finish the move: the target's log is there, empty and durable, where the owner's ended. It may write from this
    entry on."""
    known = image.partition(TopicPartition(topic_id, partition))
    if known is None or known.leader != broker_id or known.leader_epoch != leader_epoch:
        return decided(_not_moving(partition))
    if (problem := _outdated(image, broker_id, broker_epoch)) is not None:
        return decided(problem)
    if not known.is_sealed:
        return decided([])
    return decided([MoveFinished(topic_id=topic_id, partition=partition, partition_epoch=_next(known))])


def fail_target(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    unable: Collection[BrokerId] = (),
) -> Decision[Refusal | None]:
    """Choose another target, as this one cannot open its log, though it lives. `unable`: as in `Unable`."""
    known = image.partition(TopicPartition(topic_id, partition))
    if known is None or known.leader != broker_id or known.leader_epoch != leader_epoch or not known.is_sealed:
        return decided(_not_moving(partition))
    if (problem := _outdated(image, broker_id, broker_epoch)) is not None:
        return decided(problem)
    assert known.move is not None
    another = Targets(image).choose(without=broker_id, rather_not=known.move.source, among_not=unable)
    if another is None:
        return decided(Refusal(ErrorCode.BROKER_NOT_AVAILABLE, "No other broker is alive that could go on: start one."))
    return decided(retargeted(topic_id, known, another))


def give_up_move(
    image: MetadataImage,
    *,
    topic_id: TopicId,
    partition: PartitionIndex,
    leader_epoch: LeaderEpoch,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    for_good: bool,
) -> Decision[Refusal | None]:
    """Give the move up: the owner cannot hand the partition over, and goes on in a new leader epoch. Unless `for_good`,
    the move begins again in it."""
    known = image.partition(TopicPartition(topic_id, partition))
    if known is None or known.leader != broker_id or known.leader_epoch != leader_epoch or known.is_sealed:
        return decided(_not_moving(partition))
    if (problem := _outdated(image, broker_id, broker_epoch)) is not None:
        return decided(problem)
    if known.move is None:
        return decided([])
    move = known.move
    event, after = cancelled(topic_id, known)
    if for_good:
        return decided([event])
    anew, _ = started(image.topics[topic_id], after, move.target, bytes_per_second=move.bytes_per_second)
    return decided([event, anew])


def _outdated(image: MetadataImage, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> Refusal | None:
    """Return a refusal where the sender is not the broker's live incarnation."""
    known = image.brokers.get(broker_id)
    return stale(broker_id, broker_epoch) if known is None or known.epoch != broker_epoch or known.fenced else None


def _not_moving(partition: PartitionIndex) -> Refusal:
    return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"Partition {partition} is not on such a way (any more).")


# steps that people ask for, one partition at a time


def started(
    topic: TopicImage, known: PartitionImage, target: BrokerId, *, bytes_per_second: int
) -> tuple[MetadataEvent, PartitionImage]:
    """Begin to hand the partition over."""
    move = Move(source=known.replicas[0], target=target, bytes_per_second=bytes_per_second)
    after = replace(known, move=move, partition_epoch=_next(known))
    event = MoveStarted(
        topic_id=topic.id,
        partition=known.index,
        partition_epoch=after.partition_epoch,
        source=move.source,
        target=target,
        bytes_per_second=bytes_per_second,
    )
    return event, after


def cancelled(topic_id: TopicId, known: PartitionImage) -> tuple[MetadataEvent, PartitionImage]:
    """Cancel the move: the owner, which is not sealed, stays."""
    assert not known.is_sealed, "from the seal on it goes forward only"
    after = replace(known, move=None, leader_epoch=LeaderEpoch(known.leader_epoch + 1), partition_epoch=_next(known))
    event = MoveCancelled(
        topic_id=topic_id,
        partition=known.index,
        leader_epoch=after.leader_epoch,
        partition_epoch=after.partition_epoch,
    )
    return event, after


def retargeted(topic_id: TopicId, known: PartitionImage, target: BrokerId) -> list[MetadataEvent]:
    """Let another broker go on with the sealed partition. The earlier target has written nothing."""
    assert known.is_sealed, "until the seal it is cancelled, and begun anew"
    aimed = MoveRetargeted(
        topic_id=topic_id,
        partition=known.index,
        partition_epoch=_next(known),
        assignment_epoch=known.leader_epoch + 1,
        target=target,
    )
    key = TopicPartition(topic_id, known.index)
    return [aimed, *_owned_by(key, known, target, after=aimed.partition_epoch)]


def _owned_by(
    key: TopicPartition, known: PartitionImage, owner: BrokerId, *, after: PartitionEpoch
) -> list[MetadataEvent]:
    return [
        LeaderChanged(
            topic_id=key.topic_id,
            partition=key.partition,
            leader=owner,
            leader_epoch=LeaderEpoch(known.leader_epoch + 1),
            partition_epoch=PartitionEpoch(after + 1),
            isr=(owner,),
        ),
        ReplicasChanged(
            topic_id=key.topic_id,
            partition=key.partition,
            partition_epoch=PartitionEpoch(after + 2),
            replicas=(owner,),
            isr=(owner,),
        ),
    ]


def _next(known: PartitionImage) -> PartitionEpoch:
    return PartitionEpoch(known.partition_epoch + 1)


# steps that the controller takes by itself


class Targets:
    """Chooses the targets of moves, so that each broker gets its share."""

    def __init__(self, image: MetadataImage) -> None:
        self._held = {broker.id: image.copies.get(broker.id, 0) for broker in image.live_brokers()}

    def choose(
        self, *, without: BrokerId, rather_not: BrokerId | None = None, among_not: Collection[BrokerId] = ()
    ) -> BrokerId | None:
        """Return the live broker with the fewest partitions, and of several the smallest id. None where no other
        lives."""
        others = (broker for broker in self._held if broker != without and broker not in among_not)
        chosen = min(others, key=lambda broker: (broker == rather_not, self._held[broker], broker), default=None)
        if chosen is not None:
            self._held[chosen] += 1
        return chosen


def tend_moves(image: MetadataImage, *, moves_max: int, unable: Collection[BrokerId] = ()) -> Decision[int]:
    """Let up to `moves_max` moves continue that cannot by themselves. Where the target is gone for good, a move is
    cancelled before the seal; after the seal, a dead target is replaced. The result is their number. `unable`: as in
    `Unable`."""
    found = list(islice(_tended(image, unable), moves_max))
    return Decision(tuple(event for events in found for event in events), len(found))


def _tended(image: MetadataImage, unable: Collection[BrokerId]) -> Iterator[list[MetadataEvent]]:
    targets = Targets(image)
    for key, move in sorted(image.moves.items(), key=lambda item: item[0]):
        known = image.partition(key)
        assert known is not None, "a move is of a partition"
        if not known.is_sealed and move.target not in image.brokers:
            yield [cancelled(key.topic_id, known)[0]]
        elif known.is_sealed and not is_live(image, move.target):
            another = targets.choose(without=move.target, rather_not=move.source, among_not=unable)
            if another is not None:
                yield retargeted(key.topic_id, known, another)
