"""Decides on the partitions of a cluster that shares logs: every broker reaches every log, so any live one may lead.

Promises:
- A partition's leader is its only replica, and its whole ISR. Where nobody leads, the last leader, or another broker
  that is registered, stands for it.
- A partition gets the live broker that leads the fewest, of several the one with the smallest id. Each decision counts
  what it has given out.
- Each new leader begins a leader epoch. So does a restart of the leader, even where it goes on.
- A decision that leaves a broker alive leaves no partition without a leader, among those that it looks at.
- Directories mean nothing here: a broker with an empty one has lost nothing, and may lead at once.
- Nothing is copied, handed over or recovered. A reassignment or a move changes the leader, and is done in its entry.
- Once `balanced` has nothing to do, no live broker leads two partitions more than another.

The functions are called by the deciding modules, each at one place, where `image.shares_logs`. Source: DESIGN
"Placement and failover".
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition
from headrace.controller.decision import Refusal
from headrace.metadata.events import LeaderChanged, MetadataEvent, ReplicasChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode

Done = tuple[list[MetadataEvent], PartitionImage]
"""Events, and the partition after them."""


class Leaderships:
    """Gives partitions to live brokers, each to the one that leads the fewest by then. Made for one decision."""

    def __init__(self, image: MetadataImage, *, without: BrokerId | None = None, also: BrokerId | None = None) -> None:
        """Count as the image does. `without` counts as fenced, `also` as live."""
        live = {broker.id for broker in image.live_brokers()} - {without}
        if also is not None:
            live.add(also)
        self._led = [(image.leaderships.get(broker, 0), broker) for broker in live]
        heapq.heapify(self._led)

    def __bool__(self) -> bool:
        """Whether any broker lives."""
        return bool(self._led)

    def next(self) -> BrokerId:
        """Return the next leader; NO_LEADER where no broker lives."""
        if not self._led:
            return NO_LEADER
        count, broker = self._led[0]
        heapq.heapreplace(self._led, (count + 1, broker))
        return broker


def led_by(topic: TopicImage, before: PartitionImage, leader: BrokerId, *, stands: BrokerId | None = None) -> Done:
    """Give the partition this leader, in a new epoch, or take it from the one that it has (NO_LEADER). `stands`: the
    replica where nobody leads; None: the present one."""
    replica = leader
    if leader == NO_LEADER:
        replica = before.replicas[0] if stands is None else stands
    epoch, events = before.partition_epoch, list[MetadataEvent]()
    leader_epoch = before.leader_epoch
    if (leader, before.leader) != (NO_LEADER, NO_LEADER):
        epoch, leader_epoch = PartitionEpoch(epoch + 1), LeaderEpoch(leader_epoch + 1)
        events.append(
            LeaderChanged(
                topic_id=topic.id,
                partition=before.index,
                leader=leader,
                leader_epoch=leader_epoch,
                partition_epoch=epoch,
                isr=(replica,),
            )
        )
    if before.replicas != (replica,):
        epoch = PartitionEpoch(epoch + 1)
        events.append(
            ReplicasChanged(
                topic_id=topic.id,
                partition=before.index,
                partition_epoch=epoch,
                replicas=(replica,),
                isr=(replica,),
            )
        )
    after = replace(
        before,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=epoch,
        replicas=(replica,),
        isr=(replica,),
    )
    return events, after


# when a broker comes, goes or cannot serve


def taken_over(
    image: MetadataImage, broker_id: BrokerId, among: Iterable[TopicPartition] | None
) -> Iterator[MetadataEvent]:
    """Give other leaders to the partitions of a broker that is gone; none where no other lives."""
    leaderships = Leaderships(image, without=broker_id)
    for topic, partition in image.all_partitions(among):
        if partition.leader == broker_id:
            yield from led_by(topic, partition, leaderships.next())[0]


def given_up(image: MetadataImage, broker_id: BrokerId, among: Iterable[TopicPartition]) -> Iterator[MetadataEvent]:
    """Give other leaders to partitions that a live broker cannot serve. Where no other lives, it opens them again, in a
    new epoch."""
    keys = dict.fromkeys(among)
    if Leaderships(image, without=broker_id):
        yield from taken_over(image, broker_id, keys)
        return
    for topic, partition in image.all_partitions(keys):
        if partition.leader == broker_id:
            yield from led_by(topic, partition, broker_id)[0]


def started_anew(image: MetadataImage, broker_id: BrokerId, *, live: bool) -> Iterator[MetadataEvent]:
    """Note that the broker is back as a new process. Where it is `live` it keeps what it led, and partitions without a
    leader get one. Otherwise others lead, as far as they live."""
    if not live:
        yield from taken_over(image, broker_id, None)
        return
    leaderships = Leaderships(image, also=broker_id)
    for topic, partition in image.all_partitions():
        if partition.leader == broker_id:
            yield from led_by(topic, partition, broker_id)[0]
        elif partition.leader == NO_LEADER:
            yield from led_by(topic, partition, leaderships.next())[0]


def returned(
    image: MetadataImage, broker_id: BrokerId, among: Iterable[TopicPartition] | None
) -> Iterator[MetadataEvent]:
    """Give leaders to partitions without one, now that this broker lives."""
    leaderships = Leaderships(image, also=broker_id)
    for topic, partition in image.all_partitions(among):
        if partition.leader == NO_LEADER:
            yield from led_by(topic, partition, leaderships.next())[0]


def forgotten(
    image: MetadataImage, broker_id: BrokerId, partitions: Iterable[tuple[TopicImage, PartitionImage]]
) -> Iterator[MetadataEvent]:
    """Take a fenced broker, which is removed, from its partitions. Where no broker lives, the registered one with the
    smallest id stands for them."""
    leaderships = Leaderships(image, without=broker_id)
    stands = min((other for other in image.brokers if other != broker_id), default=None)
    for topic, partition in partitions:
        if broker_id in partition.replicas:
            yield from led_by(topic, partition, leaderships.next(), stands=stands)[0]


def irremovable(image: MetadataImage, broker_id: BrokerId) -> Refusal | None:
    """Return the refusal to remove the last broker of a cluster with partitions: no other could stand for them."""
    if len(image.brokers) > 1 or not image.copies.get(broker_id):
        return None
    message = (
        f"Broker {broker_id} is the last one, and the cluster has partitions: start another broker first, or delete "
        "the topics."
    )
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def is_unsettled(partition: PartitionImage, broker_id: BrokerId, *, fenced: bool) -> bool:
    """Whether the partition is not yet as it must be where the broker is `fenced`, or live."""
    return partition.leader == (broker_id if fenced else NO_LEADER)


# as people ask for it


def elected(topic: TopicImage, partition: PartitionImage, leaderships: Leaderships) -> list[MetadataEvent] | Refusal:
    """Return the election of a leader where there is none. Nothing is lost by it."""
    leader = leaderships.next()
    if leader == NO_LEADER:
        message = f"No broker is alive that could lead {topic.name}-{partition.index}: start one."
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    return led_by(topic, partition, leader)[0]


def reassigned(
    image: MetadataImage, topic: TopicImage, partition: PartitionImage, replicas: tuple[BrokerId, ...] | None
) -> Done | Refusal:
    """Make the one broker that is named the leader, at once. `partition`: as it is by then."""
    name = f"{topic.name}-{partition.index}"
    if replicas is None:
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name} is not being reassigned.")
    if len(replicas) != 1:
        message = (
            f"{name} cannot be on {list(replicas)}: its one log is in {image.engine}, which keeps the copies, so name "
            "one broker, which leads it then."
        )
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    (target,) = replicas
    known = image.brokers.get(target)
    if known is None or known.fenced:
        problem = "is not registered" if known is None else "is not alive: start it first"
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name} cannot be led by broker {target}: it {problem}.")
    return ([], partition) if partition.leader == target else led_by(topic, partition, target)


def unassignable(image: MetadataImage, topic: str) -> Refusal:
    """Return the refusal of replicas that people assign to new partitions."""
    message = (
        f"Partitions of topic '{topic}' cannot be assigned to brokers: their logs are in {image.engine}, which every "
        "broker reaches, so leave the assignment out and the controller chooses leaders."
    )
    return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def unrecoverable(image: MetadataImage, topic: str) -> Refusal:
    """Return the refusal of a recovery from durable history."""
    message = (
        f"Topic '{topic}' is not recovered from durable history: its logs are in {image.engine}, so any broker that "
        "lives leads its partitions; start one."
    )
    return Refusal(ErrorCode.INVALID_REQUEST, message)


# as the controller does by itself


def balanced(image: MetadataImage, *, elections_max: int, recent: Container[BrokerId]) -> Iterator[list[MetadataEvent]]:
    """Yield up to `elections_max` changes of leaders that bring live brokers nearer to their shares. Those in `recent`
    get nothing. A broker gives first of the topic of which it leads the most."""
    led = {broker.id: image.leaderships.get(broker.id, 0) for broker in image.live_brokers()}
    shares = _shares(led)
    surplus = {broker: led[broker] - share for broker, share in shares.items() if led[broker] > share}
    lack = {b: share - led[b] for b, share in shares.items() if led[b] < share and b not in recent}
    count = min(elections_max, sum(surplus.values()), sum(lack.values()))
    givers = _led_by_each(image, surplus) if count > 0 else {}
    for _ in range(count):
        giver = max(surplus, key=lambda broker: (surplus[broker], -broker))
        taker = max(lack, key=lambda broker: (lack[broker], -broker))
        surplus[giver] -= 1
        lack[taker] -= 1
        topic, partition = givers[giver].pop()
        yield led_by(topic, partition, taker)[0]


def _shares(led: Mapping[BrokerId, int]) -> dict[BrokerId, int]:
    """Return how many partitions each broker is to lead. Those that lead the most have the odd ones."""
    if not led:
        return {}
    share, odd = divmod(sum(led.values()), len(led))
    ordered = sorted(led, key=lambda broker: (-led[broker], broker))
    return {broker: share + (at < odd) for at, broker in enumerate(ordered)}


class _Led:
    """The partitions that one broker leads, by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, deque[tuple[TopicImage, PartitionImage]]] = {}
        self._most: list[tuple[int, str]] = []

    def add(self, topic: TopicImage, partition: PartitionImage) -> None:
        self._by_topic.setdefault(topic.name, deque()).append((topic, partition))

    def pop(self) -> tuple[TopicImage, PartitionImage]:
        """Return a partition of the topic with the most, of several the first by name."""
        if not self._most:
            self._most = [(-len(there), name) for name, there in self._by_topic.items()]
            heapq.heapify(self._most)
        count, name = self._most[0]
        heapq.heapreplace(self._most, (count + 1, name))
        return self._by_topic[name].popleft()


def _led_by_each(image: MetadataImage, brokers: Collection[BrokerId]) -> dict[BrokerId, _Led]:
    found = {broker: _Led() for broker in brokers}
    for topic, partition in image.all_partitions():
        if (led := found.get(partition.leader)) is not None:
            led.add(topic, partition)
    return found
