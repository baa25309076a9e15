"""Decides on brokers: their incarnations, who leads when one goes or comes, and their producer ids.

Promises: everything that one broker's coming or going asks for is one decision, and so one entry; the ISR is never
empty; a broker leads nothing that is not in its ISR. Sources: KIP-631 (broker epochs), KIP-730 (producer ids), DESIGN
"Placement and failover".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    ProducerId,
)
from headrace.base.limits import PRODUCER_ID_BLOCK_SIZE
from headrace.controller.decision import Decision, Refusal, decided
from headrace.metadata.events import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ClusterBorn,
    IsrChanged,
    LeaderChanged,
    MetadataEvent,
    ProducerIdsAllocated,
)
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import Endpoint, PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


def register_broker(
    image: MetadataImage,
    *,
    cluster_id: ClusterId,
    broker_id: BrokerId,
    directory_id: DirectoryId,
    endpoints: tuple[Endpoint, ...],
    rack: str | None = None,
) -> Decision[BrokerEpoch | Refusal]:
    """A new incarnation, which fences the one before it and is unfenced at once: all that the broker led gets a new
    leader epoch, also where it is elected again. An unborn cluster is born by it. `cluster_id` is the one that the
    broker's directory carries. The result is the broker epoch, an int."""
    if image.cluster_id and image.cluster_id != cluster_id:
        message = f"The data directory belongs to cluster {cluster_id}, but its commit log to {image.cluster_id}."
        return Decision((), Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID, message))
    epoch = BrokerEpoch(image.index + 1)
    known = image.brokers.get(broker_id)
    keeps_logs = known is None or known.directory_id == directory_id
    born: list[MetadataEvent] = [] if image.cluster_id else [ClusterBorn(cluster_id=cluster_id)]
    registered = BrokerRegistered(
        broker_id=broker_id, broker_epoch=epoch, directory_id=directory_id, endpoints=endpoints, rack=rack
    )
    unfenced = BrokerUnfenced(broker_id=broker_id, broker_epoch=epoch)
    moved = _reelected(image, broker_id, electable=keeps_logs)
    return Decision((*born, registered, unfenced, *moved), epoch)


def fence_broker(image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> Decision[Refusal | None]:
    """Takes the broker out of every ISR of which it is not the last member, and elects others for what it led."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return decided(_stale(broker_id, broker_epoch))
    if known.fenced:
        return decided([])
    fenced = BrokerFenced(broker_id=broker_id, broker_epoch=broker_epoch)
    return decided([fenced, *_reelected(image, broker_id, electable=False)])


def allocate_producer_ids(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Decision[tuple[ProducerId, int] | Refusal]:
    """A block of producer ids that nobody else gets: the first, and how many."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return Decision((), _stale(broker_id, broker_epoch))
    start = image.next_producer_id
    block = ProducerIdsAllocated(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        start=start,
        end=ProducerId(start + PRODUCER_ID_BLOCK_SIZE),
    )
    return Decision((block,), (start, PRODUCER_ID_BLOCK_SIZE))


def _stale(broker_id: BrokerId, broker_epoch: BrokerEpoch) -> Refusal:
    return Refusal(
        ErrorCode.STALE_BROKER_EPOCH,
        f"Broker {broker_id} with epoch {broker_epoch} is not registered: it was restarted or never there.",
    )


def _reelected(image: MetadataImage, broker_id: BrokerId, *, electable: bool) -> Iterator[MetadataEvent]:
    """What becomes of every partition that the broker's old incarnation was in sync with. `electable`: whether its
    new one may lead, as the last in the ISR."""
    live = {broker.id for broker in image.live_brokers()} - {broker_id}
    for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
        for partition in topic.partitions:
            if broker_id in partition.isr:
                yield from _without(topic, partition, broker_id, live, electable)


def _without(
    topic: TopicImage, partition: PartitionImage, broker_id: BrokerId, live: Collection[BrokerId], electable: bool
) -> Iterator[MetadataEvent]:
    isr = tuple(member for member in partition.isr if member != broker_id) or (broker_id,)
    leader = partition.leader
    if leader in (broker_id, NO_LEADER):
        candidates = {*live, broker_id} if electable and isr == (broker_id,) else live
        leader = next((member for member in isr if member in candidates), NO_LEADER)
    epoch = PartitionEpoch(partition.partition_epoch + 1)
    if leader != partition.leader or partition.leader == broker_id:
        yield LeaderChanged(
            topic_id=topic.id,
            partition=partition.index,
            leader=leader,
            leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
            partition_epoch=epoch,
            isr=isr,
        )
    elif isr != partition.isr:
        yield IsrChanged(
            topic_id=topic.id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=epoch,
            isr=isr,
        )
