"""Decides on the removal of brokers for good: what becomes of their copies.

Promises: nothing is removed that only this broker has. One broker's removal is one decision, and so one entry. Where it
has very many copies, these are released in slices before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.base.ids import BrokerEpoch, BrokerId, TopicPartition
from headrace.controller import shared_logs
from headrace.controller.decision import Decision, Refusal, decided, stale
from headrace.controller.elections import PartitionTest, live_directories, only_copies, only_copy
from headrace.controller.reassignments import changes, without_broker
from headrace.metadata.events import BrokerRemoved, MetadataEvent, VoteWithheld
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode


def remove_broker(image: MetadataImage, *, broker_id: BrokerId) -> Decision[Refusal | None]:
    """Forget a broker that was stopped, and its copies of partitions that others have in sync."""
    known = image.brokers.get(broker_id)
    if known is None:
        message = f"Broker {broker_id} is not registered; 'headrace broker list' shows those that are."
        return decided(Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, message))
    if not known.fenced:
        message = f"Broker {broker_id} is running: stop it before it is removed."
        return decided(Refusal(ErrorCode.INVALID_REQUEST, message))
    if image.shares_logs and (irremovable := shared_logs.irremovable(image, broker_id)) is not None:
        return decided(irremovable)
    if alone := only_copies(image, broker_id):
        topic, partition = next(iter(alone))
        message = (
            f"Broker {broker_id} has the only in-sync copy of {len(alone)} partitions, {topic.name}-{partition.index} "
            "among them: delete their topics first, or start it again."
        )
        return decided(Refusal(ErrorCode.INVALID_REQUEST, message))
    forgotten = [VoteWithheld(broker_id=broker_id, withheld=False)] if broker_id in image.withheld else []
    return decided([*_without(image, broker_id, image.all_partitions()), *forgotten, _removed(known)])


def holds(_: MetadataImage, broker_id: BrokerId) -> PartitionTest:
    """Return a test of whether the broker is a replica of a partition."""
    return lambda partition: broker_id in partition.replicas


def release_copies(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, among: Iterable[TopicPartition]
) -> Decision[Refusal | None]:
    """Remove a stopped broker, which is to be forgotten, from the replicas of these partitions, except where only it is
    in sync."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch or not known.fenced:
        return decided(stale(broker_id, broker_epoch))
    is_only_copy = only_copy(image, broker_id)
    released = (pair for pair in image.all_partitions(among) if not is_only_copy(pair[1]))
    return decided([*_without(image, broker_id, released)])


def _removed(broker: BrokerImage) -> BrokerRemoved:
    return BrokerRemoved(broker_id=broker.id, broker_epoch=broker.epoch)


def _without(
    image: MetadataImage, broker_id: BrokerId, partitions: Iterable[tuple[TopicImage, PartitionImage]]
) -> Iterator[MetadataEvent]:
    """Yield the changes without the broker. A fenced broker is in no ISR except as the last member."""
    if image.shares_logs:
        yield from shared_logs.forgotten(image, broker_id, partitions)
        return
    live = live_directories(image).keys()
    for topic, partition in partitions:
        if broker_id in partition.replicas:
            yield from changes(topic.id, partition, without_broker(partition, broker_id, live))[0]
