"""Elects leaders and changes ISRs when a broker comes, goes or changes its disk.

Promises: the ISR is never empty. A broker leads only partitions of whose ISR it is a member. It does not lead one whose
last in-sync copy is on another disk than the one that it came back with. In a cluster that shares logs, all of this is
decided by `controller.shared_logs`. Sources: KIP-631; DESIGN "Placement and failover".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from headrace.base.ids import NO_LEADER, BrokerId, DirectoryId, LeaderEpoch, PartitionEpoch, TopicPartition
from headrace.controller import shared_logs
from headrace.metadata.events import IsrChanged, LeaderChanged, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, PartitionImage, TopicImage

Among = Iterable[TopicPartition] | None
"""The partitions to look at; None: all."""
PartitionTest = Callable[[PartitionImage], bool]
"""Whether something has to be done about a partition. It is quick: it is called for every partition."""


def taken_out(image: MetadataImage, broker_id: BrokerId, among: Among = None) -> Iterator[MetadataEvent]:
    """Take a broker that is gone out of every ISR of which it is not the last member; others lead."""
    if image.shares_logs:
        yield from shared_logs.taken_over(image, broker_id, among)
        return
    live = live_directories(image, without=broker_id)
    for topic, partition in _in_sync(image, broker_id, among):
        yield from _changed(topic, partition, live, isr=_without(partition, broker_id), anew=broker_id)


def copies_failed(
    image: MetadataImage, broker_id: BrokerId, partitions: Iterable[TopicPartition]
) -> Iterator[MetadataEvent]:
    """Take a broker whose disk has failed under these partitions out of their ISRs, unless it is the last member;
    others lead."""
    if image.shares_logs:
        yield from shared_logs.given_up(image, broker_id, partitions)
        return
    live = live_directories(image, without=broker_id)
    for key in dict.fromkeys(partitions):
        topic, partition = image.topics.get(key.topic_id), image.partition(key)
        if topic is not None and partition is not None and broker_id in partition.isr and len(partition.isr) > 1:
            yield from _changed(topic, partition, live, isr=_without(partition, broker_id), anew=broker_id)


def started_anew(
    image: MetadataImage, broker_id: BrokerId, directory: DirectoryId, *, live: bool
) -> Iterator[MetadataEvent]:
    """Note that the broker is back as a new process with this directory. It may lead at once where it is `live`. The
    partitions that it led get a new leader epoch, even where it is elected again. It stays in the ISR only where no
    other replica is."""
    if image.shares_logs:
        yield from shared_logs.started_anew(image, broker_id, live=live)
        return
    known = image.brokers.get(broker_id)
    candidates = live_directories(image, without=broker_id)
    if live:
        candidates[broker_id] = directory
    for topic, partition in _in_sync(image, broker_id):
        isr = _without(partition, broker_id)
        is_last = isr == (broker_id,) and known is not None and known.directory_id != directory
        is_last = is_last and not partition.is_sealed  # nothing was written there yet
        kept_in = known.directory_id if known is not None and is_last else None
        yield from _changed(topic, partition, candidates, isr=isr, kept_in=kept_in, anew=broker_id)


def returned(image: MetadataImage, broker: BrokerImage, among: Among = None) -> Iterator[MetadataEvent]:
    """Give a leader to partitions without one that have the returned broker in their ISR."""
    if image.shares_logs:
        yield from shared_logs.returned(image, broker.id, among)
        return
    live = live_directories(image)
    live[broker.id] = broker.directory_id
    for topic, partition in _in_sync(image, broker.id, among):
        if partition.leader == NO_LEADER:
            yield from _changed(topic, partition, live)


def disk_lost(image: MetadataImage, broker: BrokerImage, among: Among = None) -> Iterator[MetadataEvent]:
    """Note that the broker comes back with another disk than it has registered. Where it is the last in sync, only its
    old disk may lead. It leads nothing by now."""
    if image.shares_logs:
        return
    for topic, partition in _in_sync(image, broker.id, among):
        if partition.is_sealed:  # nothing was written there yet
            continue
        if partition.isr == (broker.id,) and partition.leader == NO_LEADER and partition.kept_in is None:
            yield from _changed(topic, partition, {}, kept_in=broker.directory_id)


def _in_sync(
    image: MetadataImage, broker_id: BrokerId, among: Among = None
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Iterate over the partitions with the broker in their ISR, by their topics' names, or in the given order."""
    if among is not None or broker_id in image.copies:
        for topic, partition in image.all_partitions(among):
            if broker_id in partition.isr:
                yield topic, partition


def unsettled(image: MetadataImage, broker_id: BrokerId, *, fenced: bool | None = None) -> PartitionTest:
    """Return a test of whether a partition is not yet as it must be where the broker is `fenced`, or live. None: as the
    broker is now."""
    known = image.brokers.get(broker_id)
    is_fenced = known is not None and (known.fenced if fenced is None else fenced)

    def is_unsettled(partition: PartitionImage) -> bool:
        if known is None:
            return False
        if image.shares_logs:
            return shared_logs.is_unsettled(partition, broker_id, fenced=is_fenced)
        if broker_id not in partition.isr:
            return False
        if is_fenced:
            return partition.leader == broker_id or len(partition.isr) > 1
        return partition.leader == NO_LEADER and partition.kept_in in (None, known.directory_id)

    return is_unsettled


def changed_at_most(image: MetadataImage, broker_id: BrokerId) -> int:
    """Return the most partitions that the broker's coming or going may change. The number stays while they are changed
    in slices."""
    return sum(image.copies.values()) if image.shares_logs else image.copies.get(broker_id, 0)


def live_directories(image: MetadataImage, *, without: BrokerId | None = None) -> dict[BrokerId, DirectoryId]:
    """Return the unfenced brokers, each with its data directory."""
    return {
        broker.id: broker.directory_id
        for broker in image.brokers.values()
        if not broker.fenced and broker.id != without
    }


def _without(partition: PartitionImage, broker_id: BrokerId) -> tuple[BrokerId, ...]:
    """Return the ISR without the broker, unless it is the last member."""
    return tuple(member for member in partition.isr if member != broker_id) or (broker_id,)


def _changed(
    topic: TopicImage,
    before: PartitionImage,
    live: dict[BrokerId, DirectoryId],
    *,
    isr: tuple[BrokerId, ...] | None = None,
    kept_in: DirectoryId | None = None,
    anew: BrokerId = NO_LEADER,
) -> Iterator[MetadataEvent]:
    """Yield the event that gives the partition this ISR (None: its present one), and a leader where there can be one.
    `kept_in`: the disk that alone may lead, where none is noted yet. The broker in the last parameter, where it leads,
    goes on only under a new epoch."""
    if isr is None:
        isr = before.isr
    kept_in = before.kept_in or kept_in
    leader = before.leader
    if leader in (anew, NO_LEADER):
        leader = next((member for member in isr if member in live and kept_in in (None, live[member])), NO_LEADER)
    if leader != NO_LEADER:
        kept_in = None
    epoch = PartitionEpoch(before.partition_epoch + 1)
    if leader != before.leader or (before.leader == anew != NO_LEADER) or kept_in != before.kept_in:
        yield LeaderChanged(
            topic_id=topic.id,
            partition=before.index,
            leader=leader,
            leader_epoch=LeaderEpoch(before.leader_epoch + 1),
            partition_epoch=epoch,
            isr=isr,
            kept_in=kept_in,
        )
    elif isr != before.isr:
        yield IsrChanged(
            topic_id=topic.id,
            partition=before.index,
            leader_epoch=before.leader_epoch,
            partition_epoch=epoch,
            isr=isr,
        )


def only_copies(image: MetadataImage, broker_id: BrokerId) -> Collection[tuple[TopicImage, PartitionImage]]:
    """Return the partitions of which only the broker is in sync: acknowledged records would go with it."""
    is_only_copy = only_copy(image, broker_id)
    return [pair for pair in image.all_partitions() if is_only_copy(pair[1])]


def only_copy(image: MetadataImage, broker_id: BrokerId) -> PartitionTest:
    """Return a test of whether only the broker is in sync, and so has what no other has."""
    return lambda partition: partition.isr == (broker_id,) and not image.shares_logs
