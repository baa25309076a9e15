"""Makes the image with which a cluster goes on after the loss of its quorum, from the metadata of one survivor.

Promises:
- A lost decision that no survivor knows cannot pass for a new one: all epochs, broker epochs and producer ids leave it
  far below.
- Nobody has an incarnation, leads or is unfenced before it has registered again.
- Where a survivor is in sync, it is to lead; where none is, the last of the lost brokers.
- No ISR is empty.

Source: the fencing that decision 0050 asks for; etcd's `--force-new-cluster` and what it leaves open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Lineage,
    PartitionEpoch,
    ProducerId,
)
from headrace.base.limits import QUORUM_RECOVERY_EPOCHS, QUORUM_RECOVERY_PRODUCER_IDS
from headrace.controller.brokers import fence_broker
from headrace.controller.decision import Refusal
from headrace.metadata.events import (
    BrokerRegistered,
    LeaderChanged,
    MetadataEvent,
    ProducerIdsAllocated,
    QuorumRecovered,
)
from headrace.metadata.image import MetadataImage
from headrace.wire.errors import ErrorCode


def recovered(
    image: MetadataImage, *, survivors: Collection[BrokerId], lineage: Lineage, by: BrokerId, at_ms: int, index: int
) -> MetadataImage:
    """Return the first image of the new lineage, at `index`. `survivors`: brokers that are still there, among them
    `by`, whose metadata this is."""
    after = _fenced(image, sorted(image.brokers, key=lambda broker: (broker == by, broker in survivors, broker)))
    began = QuorumRecovered(number=lineage.number, recovery=lineage.recovery, broker_id=by, at_ms=at_ms)
    return after.replay([began, *_begun_anew(after, BrokerEpoch(index))], index=index)


def _fenced(image: MetadataImage, brokers: list[BrokerId]) -> MetadataImage:
    """Fence all brokers, one after the other. The last stays in an ISR that it shares with those before it."""
    for broker_id in brokers:
        decision = fence_broker(image, broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch)
        image = image.replay(decision.events)
    return image


def _begun_anew(image: MetadataImage, epoch: BrokerEpoch) -> Iterator[MetadataEvent]:
    for broker in image.brokers.values():
        yield BrokerRegistered(
            broker_id=broker.id,
            broker_epoch=epoch,
            directory_id=broker.directory_id,
            endpoints=broker.endpoints,
            rack=broker.rack,
            level=broker.level,
            level_min=broker.level_min,
        )
    for topic, partition in image.all_partitions():
        yield LeaderChanged(
            topic_id=topic.id,
            partition=partition.index,
            leader=NO_LEADER,
            leader_epoch=LeaderEpoch(partition.leader_epoch + QUORUM_RECOVERY_EPOCHS),
            partition_epoch=PartitionEpoch(partition.partition_epoch + QUORUM_RECOVERY_EPOCHS),
            isr=partition.isr,
            kept_in=partition.kept_in,
        )
    yield ProducerIdsAllocated(
        broker_id=BrokerId(-1),
        broker_epoch=BrokerEpoch(-1),
        start=image.next_producer_id,
        end=ProducerId(image.next_producer_id + QUORUM_RECOVERY_PRODUCER_IDS),
    )


def other_lineage(image: MetadataImage, broker_id: BrokerId, told: str | None) -> Refusal | None:
    """Return why a broker cannot join this cluster with its lineage `told`; None where it can. `told` is None where it
    has no log yet, and so no lineage."""
    if told is None or told == str(image.lineage):
        return None
    try:
        theirs = Lineage.parsed(told)
    except ValueError as error:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} says that {error}.")
    if theirs.number < image.lineage.number:
        return Refusal(ErrorCode.INCONSISTENT_VOTER_SET, superseded(image.lineage))
    message = (
        f"Broker {broker_id} follows recovery {theirs} of the quorum, and this cluster {image.lineage}: one "
        "of the two must be given up. Start the broker with an empty data directory, or have it join the other brokers."
    )
    return Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID, message)


def superseded(lineage: Lineage) -> str:
    """Return the message for a broker whose metadata is from before a recovery."""
    return (
        f"The cluster's quorum was lost and recovered (recovery {lineage}) without this broker, whose metadata counts "
        "no more: 'headrace quorum rejoin --data DIR' sets it aside and keeps the partitions' logs; start the broker "
        "with --join then."
    )
