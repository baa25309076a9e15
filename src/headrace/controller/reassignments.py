"""Decides which brokers hold a partition: replicas are added first, and others removed once those are in sync.

Promises:
- While it is under way, `replicas` are first the wanted ones, in their order, and then those to be removed.
  Acknowledged records are on both.
- It is finished when all added replicas are in sync and a replica that stays can lead, in the entry that makes it so.
- A replica is removed only in an entry that begins a leader epoch.
- The ISR is never empty, and stays in replica order.
- A cancelled reassignment leaves the replicas from before.

A partition with one replica and durable history is handed over instead (`controller.moves`). Where the cluster shares
logs, the one broker that is named leads at once (`controller.shared_logs`). Source: KIP-455.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from headrace.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller import shared_logs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.elections import live_directories
from headrace.controller.moves import NOBODY, HandsOver, Unable, cancelled, never, not_to, retargeted, started
from headrace.metadata.events import DesiredReplicasChanged, IsrChanged, LeaderChanged, MetadataEvent, ReplicasChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.moves import UNLIMITED_RATE
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The brokers that shall hold a partition, the preferred leader first. None: those from before the reassignment
    under way."""

    topic: str
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...] | None


def reassign_partitions(
    image: MetadataImage,
    wishes: Sequence[Reassignment],
    *,
    factor_may_change: bool = True,
    hands_over: HandsOver = never,
    unable: Unable = NOBODY,
    bytes_per_second: int = UNLIMITED_RATE,
) -> Decision[tuple[Refusal | None, ...] | Refusal]:
    """Return a refusal or None for each, in order, each decided on the state after those before it. `bytes_per_second`
    limits the exports of moves."""
    if len(wishes) > PARTITIONS_PER_REQUEST_MAX:
        message = f"One request reassigns at most {PARTITIONS_PER_REQUEST_MAX} partitions: split it."
        return Decision((), Refusal(ErrorCode.POLICY_VIOLATION, message))
    live = live_directories(image).keys()
    after: dict[TopicPartition, PartitionImage] = {}
    events: list[MetadataEvent] = []
    refusals: list[Refusal | None] = []
    for wish in wishes:
        topic, partition = image.topic(wish.topic), image.partition_info(wish.topic, wish.partition)
        if topic is None or partition is None:
            message = f"Partition {wish.topic}-{wish.partition} does not exist."
            refusals.append(Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
            continue
        key = TopicPartition(topic.id, partition.index)
        partition = after.get(key, partition)
        done: _Done | Refusal | None
        if image.shares_logs:
            done = shared_logs.reassigned(image, topic, partition, wish.replicas)
        elif partition.is_sealed:
            done = _aimed_elsewhere(topic, partition, wish, live, unable)
        else:
            done = _under_way(topic, partition, wish)
            is_able = partition.replicas[0] not in unable
            if done is None and is_able and hands_over(topic) and (target := _target(partition, wish)) is not None:
                problem = not_to(f"{topic.name}-{partition.index}", target, unable)
                done = problem or _handed_over(topic, partition, target, live, bytes_per_second)
            if done is None:
                done = _copied(image, topic, partition, wish, live, factor_may_change=factor_may_change)
        if isinstance(done, Refusal):
            refusals.append(done)
            continue
        more, after[key] = done
        events += more
        refusals.append(None)
    return Decision((*events, *_desired(image, after)), tuple(refusals))


def _desired(image: MetadataImage, placed: Mapping[TopicPartition, PartitionImage]) -> Iterator[DesiredReplicasChanged]:
    """Yield the number of replicas that topics shall have, once an operator has set these partitions. It is at most the
    smallest of the changed numbers, and at least what all of a topic's partitions have then."""
    by_topic: dict[TopicId, dict[int, PartitionImage]] = {}
    for key, after in placed.items():
        by_topic.setdefault(key.topic_id, {})[key.partition] = after
    for topic_id, after_of in by_topic.items():
        topic = image.topics[topic_id]
        changed = [
            after.replication_factor
            for index, after in after_of.items()
            if after.replication_factor != topic.partitions[index].replication_factor
        ]
        if not changed:
            continue
        least = min(after_of.get(one.index, one).replication_factor for one in topic.partitions)
        desired = max(min(topic.desired_replicas, *changed), least)
        if desired != topic.desired_replicas:
            yield DesiredReplicasChanged(topic_id=topic_id, desired_replicas=desired)


_Done = tuple[list[MetadataEvent], PartitionImage]
"""The events that do it, and the partition after them."""


def _copied(
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    wish: Reassignment,
    live: Collection[BrokerId],
    *,
    factor_may_change: bool,
) -> _Done | Refusal:
    """Reassign by replicas that come and go. A move that is under way is cancelled first."""
    done: list[MetadataEvent] = []
    before = partition
    if partition.move is not None:
        event, before = cancelled(topic.id, partition)
        done.append(event)
    wanted = _wanted(image, topic, before, wish, live, factor_may_change=factor_may_change)
    if isinstance(wanted, Refusal):
        return wanted
    more, after = changes(topic.id, before, finished(wanted, live))
    return [*done, *more], after


def _target(partition: PartitionImage, wish: Reassignment) -> BrokerId | None:
    """Return the broker to which the only replica is to be handed over; None where the wish is another."""
    if wish.replicas is None or len(wish.replicas) != 1 or len(partition.replicas) != 1:
        return None
    return None if wish.replicas == partition.replicas else wish.replicas[0]


def _under_way(topic: TopicImage, partition: PartitionImage, wish: Reassignment) -> _Done | None:
    """Return the effect of a wish on a move that is under way and can be cancelled; None: none."""
    if partition.move is None:
        return None
    if wish.replicas == (partition.move.target,):
        return [], partition
    if wish.replicas in (None, partition.replicas):
        event, after = cancelled(topic.id, partition)
        return [event], after
    return None


def _handed_over(
    topic: TopicImage,
    partition: PartitionImage,
    target: BrokerId,
    live: Collection[BrokerId],
    bytes_per_second: int,
) -> _Done | Refusal:
    if target not in live:
        message = f"{topic.name}-{partition.index} cannot be handed over to broker {target}: it is not alive."
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    done: list[MetadataEvent] = []
    if partition.move is not None:
        event, partition = cancelled(topic.id, partition)
        done.append(event)
    event, after = started(topic, partition, target, bytes_per_second=bytes_per_second)
    return [*done, event], after


def _aimed_elsewhere(
    topic: TopicImage, partition: PartitionImage, wish: Reassignment, live: Collection[BrokerId], unable: Unable
) -> _Done | Refusal:
    """Let a sealed partition go forward: to its target, or to another."""
    assert partition.move is not None
    name = f"{topic.name}-{partition.index}"
    if wish.replicas == (partition.move.target,):
        return [], partition
    if wish.replicas is None or len(wish.replicas) != 1:
        message = f"{name} is handed over to broker {partition.move.target}, and sealed: wait until it is there."
        return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, message)
    (target,) = wish.replicas
    if target not in live:
        message = f"{name} cannot be handed over to broker {target}: it is not alive."
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return not_to(name, target, unable) or _retargeted(topic, partition, target)


def _retargeted(topic: TopicImage, partition: PartitionImage, target: BrokerId) -> _Done:
    """Return the events of a new target, with the partition after them."""
    assert partition.move is not None
    events = retargeted(topic.id, partition, target)
    after = replace(
        partition,
        leader=target,
        leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
        partition_epoch=PartitionEpoch(partition.partition_epoch + len(events)),
        replicas=(target,),
        isr=(target,),
        assignment_epoch=partition.leader_epoch + 1,
        move=replace(partition.move, target=target, proven_by=None),
    )
    return events, after


def _wanted(
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    wish: Reassignment,
    live: Collection[BrokerId],
    *,
    factor_may_change: bool,
) -> PartitionImage | Refusal:
    """Return the partition on its way to the wish, or why it cannot be."""
    name = f"{topic.name}-{partition.index}"
    if wish.replicas is None:
        return _cancelled(name, partition, live)
    if problem := _impossible(image, wish.replicas):
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name} cannot be on {list(wish.replicas)}: {problem}.")
    if not factor_may_change and len(wish.replicas) != partition.replication_factor:
        message = f"{name} has {partition.replication_factor} replicas, and would have {len(wish.replicas)}."
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    dropped = _rest(partition.adding, wish.replicas)
    partition = (_without(partition, dropped, live) or partition) if dropped else partition
    removing = _rest(partition.replicas, wish.replicas)
    replicas = (*wish.replicas, *removing)
    return replace(
        partition,
        replicas=replicas,
        isr=tuple(replica for replica in replicas if replica in partition.isr),
        adding=_rest(wish.replicas, _rest(partition.replicas, partition.adding)),
        removing=removing,
    )


def _impossible(image: MetadataImage, replicas: tuple[BrokerId, ...]) -> str | None:
    if not replicas:
        return "there must be at least one replica"
    if len(set(replicas)) < len(replicas):
        return "a broker is repeated"
    unknown = next((replica for replica in replicas if replica not in image.brokers), None)
    return None if unknown is None else f"broker {unknown} is not registered"


def _cancelled(name: str, partition: PartitionImage, live: Collection[BrokerId]) -> PartitionImage | Refusal:
    if not partition.is_reassigned:
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name} is not being reassigned.")
    without = _without(replace(partition, removing=()), partition.adding, live)
    if without is None:
        message = f"The reassignment of {name} cannot be cancelled: only brokers that it adds are in sync and live."
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return without


def finished(partition: PartitionImage, live: Collection[BrokerId]) -> PartitionImage:
    """Return the partition without the replicas to be removed, if all that are added are in sync; else unchanged."""
    if not partition.is_reassigned or not set(partition.adding) <= set(partition.isr):
        return partition
    without = _without(partition, partition.removing, live)
    return partition if without is None else replace(without, adding=(), removing=())


def without_broker(partition: PartitionImage, broker: BrokerId, live: Collection[BrokerId]) -> PartitionImage:
    """Return the partition after a dead broker is gone for good. Where it is the only target of the reassignment, that
    is cancelled. Where it still leads and no other in-sync replica lives, nobody leads."""
    leaderless = replace(partition, leader=NO_LEADER)
    without = _without(partition, (broker,), live) or _without(leaderless, (broker,), live)
    assert without is not None, "a broker that alone is in sync is not removed"
    if set(without.replicas) <= set(without.removing):
        without = replace(without, removing=())
    return finished(without, live)


def _without(
    partition: PartitionImage, gone: Collection[BrokerId], live: Collection[BrokerId]
) -> PartitionImage | None:
    """Return the partition without these replicas, with another leader where its own goes. None where no remaining
    replica is in sync, or can lead instead."""
    isr = _rest(partition.isr, gone)
    leader: BrokerId | None = partition.leader
    if leader in gone:
        leader = next((member for member in isr if member in live), None)
    if not isr or leader is None:
        return None
    return replace(
        partition,
        leader=leader,
        replicas=_rest(partition.replicas, gone),
        isr=isr,
        adding=_rest(partition.adding, gone),
        removing=_rest(partition.removing, gone),
    )


def _rest(brokers: Sequence[BrokerId], gone: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in brokers if broker not in gone)


def changes(
    topic_id: TopicId, before: PartitionImage, after: PartitionImage
) -> tuple[list[MetadataEvent], PartitionImage]:
    """Return the events that make the leader, the ISR and the replicas those of `after`, and the partition as it is
    then.

    Where a replica is removed, a leader epoch begins, even under the same leader, as in Kafka. Its broker deletes the
    copy when it hears of that, which may be late. Until then it reports to the leader how far the copy is. The leader
    may have heard already that it is a replica again, and would count on a copy that is about to be deleted. Reports of
    an earlier epoch do not count. In the new epoch, that broker reports nothing before it has heard of all this.
    """
    events: list[MetadataEvent] = []
    known = replace(after, leader_epoch=before.leader_epoch, partition_epoch=before.partition_epoch)
    moved = _placed(after) != _placed(before)
    goes_on = after.leader == before.leader != NO_LEADER
    if after.leader != before.leader or (goes_on and not set(before.replicas) <= set(after.replicas)):
        known = replace(_next(known, elected=True), is_unclean=goes_on and before.is_unclean)
        events.append(
            LeaderChanged(
                topic_id=topic_id,
                partition=known.index,
                leader=known.leader,
                leader_epoch=known.leader_epoch,
                partition_epoch=known.partition_epoch,
                isr=known.isr,
                unclean=known.is_unclean,
            )
        )
    elif after.isr != before.isr and not moved:
        known = _next(known)
        events.append(
            IsrChanged(
                topic_id=topic_id,
                partition=known.index,
                leader_epoch=known.leader_epoch,
                partition_epoch=known.partition_epoch,
                isr=known.isr,
            )
        )
    if moved:
        known = _next(known)
        events.append(
            ReplicasChanged(
                topic_id=topic_id,
                partition=known.index,
                partition_epoch=known.partition_epoch,
                replicas=known.replicas,
                isr=known.isr,
                adding=known.adding,
                removing=known.removing,
            )
        )
    return events, known


def _placed(partition: PartitionImage) -> tuple[tuple[BrokerId, ...], ...]:
    return partition.replicas, partition.adding, partition.removing


def _next(partition: PartitionImage, *, elected: bool = False) -> PartitionImage:
    return replace(
        partition,
        partition_epoch=PartitionEpoch(partition.partition_epoch + 1),
        leader_epoch=LeaderEpoch(partition.leader_epoch + elected),
    )


def finish_reassignments(image: MetadataImage, *, partitions_max: int) -> Decision[int]:
    """Finish up to `partitions_max` reassignments that can be finished, and were not when the ISR changed. The result
    is their number."""
    found = list(islice(_finishable(image, live_directories(image).keys()), partitions_max))
    events = [event for topic, partition, after in found for event in changes(topic.id, partition, after)[0]]
    return Decision(tuple(events), len(found))


def _finishable(
    image: MetadataImage, live: Collection[BrokerId]
) -> Iterator[tuple[TopicImage, PartitionImage, PartitionImage]]:
    for topic, partition in image.all_partitions():
        if partition.is_reassigned and (after := finished(partition, live)) is not partition:
            yield topic, partition, after
