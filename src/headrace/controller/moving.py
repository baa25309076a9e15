"""Decides where partitions go when people want them moved: those of a topic, or all that a broker holds.

Promises:
- The number of a partition's replicas stays.
- The target takes the place of the replica that leaves. Where it has a copy already, that copy leads, and all replicas
  stay.
- The target is the named broker; else, of the live brokers without this partition, the one with the fewest partitions.
- Each partition goes there as in any reassignment (`controller.reassignments`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller.decision import Decision, Refusal
from headrace.controller.leaders import Election, PartitionRef, elect_leaders
from headrace.controller.moves import NOBODY, HandsOver, Targets, Unable, is_live
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class UnableBroker:
    """As in `moves.Unable`."""

    broker: BrokerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWish:
    """A wish that partitions of one topic, or of all, leave a broker."""

    topic: str | None = None
    partitions: tuple[PartitionIndex, ...] = ()
    """Empty: all."""
    broker: BrokerId | None = None
    """The broker that they are to leave; None: the leader of each."""
    to: BrokerId | None = None
    """None: the controller chooses."""
    bytes_per_second: int = -1
    unable: tuple[UnableBroker, ...] = ()
    """Brokers that were asked, and to which nothing can be handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOutcome:
    """The outcome for one partition."""

    topic: str
    partition: PartitionIndex
    source: BrokerId
    target: BrokerId
    """NO_LEADER: there is none."""
    is_handed_over: bool
    refusal: Refusal | None = None
    has_copy: bool = False
    """The target has a copy in sync already, and only leads from now on."""


def move_partitions(
    image: MetadataImage,
    wish: MoveWish,
    *,
    hands_over: HandsOver,
    unable: Unable = NOBODY,
    validate_only: bool = False,
) -> Decision[tuple[MoveOutcome, ...] | Refusal]:
    """Return one outcome for each partition that is to move. Partitions that are at their target, or on their way
    there, are left out. At most PARTITIONS_PER_REQUEST_MAX."""
    topic = None if wish.topic is None else image.topic(wish.topic)
    if wish.topic is not None and topic is None:
        return Decision((), Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{wish.topic}' does not exist."))
    if topic is not None and (absent := set(wish.partitions).difference(each.index for each in topic.partitions)):
        text = f"Partition {topic.name}-{min(absent)} does not exist."
        return Decision((), Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
    for named in (wish.broker, wish.to):
        if named is not None and named not in image.brokers:
            return Decision((), Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {named} is not registered."))
    if wish.to is not None and not is_live(image, wish.to):
        return Decision((), Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {wish.to} is not alive: start it first."))
    targets = Targets(image)
    unable = {**unable, **{one.broker: one.reason for one in wish.unable}}
    wishes: dict[int, Reassignment] = {}
    outcomes: list[MoveOutcome] = []
    elected: list[PartitionRef] = []
    for found, partition, source in _leaving(image, topic, wish):
        if len(outcomes) == PARTITIONS_PER_REQUEST_MAX:
            break
        goes_by_store = len(partition.replicas) == 1 and source not in unable and hands_over(found)
        not_able = unable if goes_by_store else NOBODY
        among_not = {*partition.replicas, *not_able}
        target = wish.to if wish.to is not None else targets.choose(without=source, among_not=among_not)
        if target is None:
            outcomes.append(_nowhere(image, found, partition, source, not_able))
            continue
        has_copy = target in _kept(partition)
        replicas = _replaced(partition, source, target)
        is_there = replicas == partition.replicas and (partition.leader == target or not has_copy)
        if is_there or (partition.move is not None and partition.move.target == target):
            continue
        refusal = _cannot_lead(found, partition, target, leaves=wish.broker is not None) if has_copy else None
        if refusal is None:
            wishes[len(outcomes)] = Reassignment(topic=found.name, partition=partition.index, replicas=replicas)
            if has_copy:
                elected.append(PartitionRef(found.name, partition.index))
        is_handed_over = goes_by_store and not has_copy and len(replicas) == 1
        outcomes.append(
            MoveOutcome(
                topic=found.name,
                partition=partition.index,
                source=source,
                target=target,
                is_handed_over=is_handed_over,
                refusal=refusal,
                has_copy=has_copy,
            )
        )
    decision = reassign_partitions(
        image,
        list(wishes.values()),
        factor_may_change=False,
        hands_over=hands_over,
        unable=unable,
        bytes_per_second=wish.bytes_per_second,
    )
    if isinstance(decision.result, Refusal):
        return Decision((), decision.result)
    for at, refusal in zip(wishes, decision.result, strict=True):
        outcomes[at] = replace(outcomes[at], refusal=refusal)
    if validate_only:
        return Decision((), tuple(outcomes))
    return Decision((*decision.events, *_elections(image, decision.events, elected)), tuple(outcomes))


def _nowhere(
    image: MetadataImage, topic: TopicImage, partition: PartitionImage, source: BrokerId, unable: Unable
) -> MoveOutcome:
    """Return the outcome for a partition that no live broker can take."""
    others = [broker.id for broker in image.live_brokers() if broker.id != source]
    kept = [replica for replica in _kept(partition) if replica != source]
    if not others:
        reason = "no other broker is alive: start one"
    elif reasons := [f"broker {broker}: {unable[broker]}" for broker in others if broker in unable]:
        reason = f"no other live broker can take it ({'; '.join(reasons)}): mend that, or start another broker"
    else:
        reason = "every other live broker has a copy of it already: start another one"
        if kept:
            fewer = f"headrace topic reassign {topic.name} --partition {partition.index} --replicas "
            reason += f", or let it have fewer replicas ('{fewer}{','.join(map(str, kept))}')"
    return MoveOutcome(
        topic=topic.name,
        partition=partition.index,
        source=source,
        target=NO_LEADER,
        is_handed_over=False,
        refusal=Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"It has nowhere to go, for {reason}."),
    )


def _cannot_lead(topic: TopicImage, partition: PartitionImage, target: BrokerId, *, leaves: bool) -> Refusal | None:
    """Return why a broker that has a copy already cannot be the target. `leaves`: the source shall have no copy any
    more."""
    name = f"{topic.name}-{partition.index}"
    if leaves:
        message = f"{name} has a copy on broker {target} already, and would have one less: name another broker."
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if target not in partition.isr:
        message = f"The copy of {name} on broker {target} is not in sync, and cannot lead: wait until it is."
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    return None


def _elections(
    image: MetadataImage, events: Sequence[MetadataEvent], elected: Sequence[PartitionRef]
) -> Sequence[MetadataEvent]:
    """Return the elections of targets that have a copy already, and lead at once; `events` have put them first."""
    if not elected:
        return ()
    return elect_leaders(image.replay(events, index=image.index + 1), Election.PREFERRED, elected).events


def _leaving(
    image: MetadataImage, topic: TopicImage | None, wish: MoveWish
) -> Iterator[tuple[TopicImage, PartitionImage, BrokerId]]:
    """Iterate over the partitions to move, each with the broker that it leaves."""
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


def _kept(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """Return the replicas that stay."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def _replaced(partition: PartitionImage, source: BrokerId, target: BrokerId) -> tuple[BrokerId, ...]:
    """Return the replicas with the target in place of the source. Where it has a copy already, it comes first, and none
    leaves."""
    kept = _kept(partition)
    if target in kept:
        return (target, *(replica for replica in kept if replica != target))
    return tuple(target if replica == source else replica for replica in kept)
