"""The image as a cache: what anyone may ask of it, that a swap is whole, and that changes share all they can."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace

from headrace.base.ids import BrokerEpoch, BrokerId, DirectoryId, LeaderEpoch, PartitionEpoch, PartitionIndex, TopicId
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    LeaderChanged,
    MetadataEvent,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Endpoint, PartitionImage

SWAPS = 10_000
T, U = (TopicId(uuid.UUID(int=n, version=4)) for n in (1, 2))
ONE, TWO, THREE = map(BrokerId, (1, 2, 3))


def partition(index: int, *replicas: BrokerId, epoch: int = 0) -> PartitionImage:
    return PartitionImage(
        index=PartitionIndex(index),
        leader=replicas[0],
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch),
        replicas=replicas,
        isr=replicas,
    )


def broker(broker_id: BrokerId, *listeners: str) -> list[MetadataEvent]:
    epoch = BrokerEpoch(int(broker_id))
    endpoints = tuple(Endpoint(listener=name, host=f"{name}-{broker_id}", port=9092) for name in listeners)
    directory = DirectoryId(uuid.UUID(int=int(broker_id)))
    return [
        BrokerRegistered(broker_id=broker_id, broker_epoch=epoch, directory_id=directory, endpoints=endpoints),
        BrokerUnfenced(broker_id=broker_id, broker_epoch=epoch),
    ]


def topic(topic_id: TopicId, name: str, *partitions: PartitionImage) -> TopicCreated:
    return TopicCreated(topic_id=topic_id, name=name, partitions=partitions, configs={})


IMAGE = EMPTY_IMAGE.replay(
    [
        *broker(ONE, "PLAINTEXT", "SSL"),
        *broker(TWO, "PLAINTEXT"),
        *broker(THREE, "PLAINTEXT", "SSL"),
        topic(T, "t", partition(0, ONE, TWO, THREE), partition(1, TWO)),
        topic(U, "a", partition(0, THREE, ONE)),
    ],
    index=1,
)
FENCED = IMAGE.replay([BrokerFenced(broker_id=THREE, broker_epoch=BrokerEpoch(3))], index=2)


def test_topics_and_partitions() -> None:
    assert IMAGE.contains("t")
    assert IMAGE.contains("t", 1)
    assert not IMAGE.contains("t", 2)
    assert not IMAGE.contains("t", -1)
    assert not IMAGE.contains("x")
    assert IMAGE.topic_names() == ["a", "t"]
    assert [(of.name, one.index) for of, one in IMAGE.all_partitions()] == [("a", 0), ("t", 0), ("t", 1)]
    info = IMAGE.partition_info("t", 1)
    assert info is not None
    assert (info.leader, info.replicas) == (TWO, (TWO,))
    assert IMAGE.partition_info("t", 2) is IMAGE.partition_info("x", 0) is None


def test_endpoints_are_those_of_live_brokers_that_have_the_listener() -> None:
    assert {each.id for each in FENCED.live_brokers()} == {ONE, TWO}
    assert {node: endpoint.host for node, endpoint in FENCED.nodes("PLAINTEXT").items()} == {
        ONE: "PLAINTEXT-1",
        TWO: "PLAINTEXT-2",
    }
    assert set(IMAGE.replica_endpoints("t", 0, "PLAINTEXT")) == {ONE, TWO, THREE}
    assert set(FENCED.replica_endpoints("t", 0, "PLAINTEXT")) == {ONE, TWO}
    assert set(FENCED.replica_endpoints("t", 0, "SSL")) == {ONE}
    assert FENCED.replica_endpoints("t", 7, "SSL") == {}
    assert IMAGE.missing_listeners() == {TWO: ("SSL",)}


def test_a_delta_lists_deleted_partitions() -> None:
    delta = ImageDelta.of(IMAGE, [TopicDeleted(topic_id=T)], index=2)
    assert delta.deleted_partitions() == [(T, 0), (T, 1)]
    assert ImageDelta(IMAGE, delta.after).deleted_partitions() == [(T, 0), (T, 1)]
    grown = ImageDelta.of(IMAGE, [PartitionsAdded(topic_id=T, partitions=(partition(2, ONE),))], index=2)
    assert grown.deleted_partitions() == []


def test_a_change_of_brokers_keeps_every_partition_and_a_change_of_one_topic_all_others() -> None:
    for topic_id in (T, U):
        assert FENCED.topics[topic_id] is IMAGE.topics[topic_id]
    changed = IMAGE.replay([elected(IMAGE, T, 1, 1)], index=2)
    assert changed.topics[U] is IMAGE.topics[U]
    assert changed.topics[T].partitions[0] is IMAGE.topics[T].partitions[0]
    assert changed.topics[T].partitions[1] != IMAGE.topics[T].partitions[1]


def elected(image: MetadataImage, topic_id: TopicId, index: int, epoch: int) -> LeaderChanged:
    known = image.topics[topic_id].partitions[index]
    return LeaderChanged(
        topic_id=topic_id,
        partition=known.index,
        leader=known.replicas[epoch % len(known.replicas)],
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch),
        isr=known.isr,
    )


class Holder:
    """As a driver publishes: one attribute, one assignment."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image


def test_readers_that_race_ten_thousand_swaps_see_whole_images_only() -> None:
    """Each entry moves every partition to one epoch; a reader that took the image once finds one epoch in all of it."""
    holder, over = Holder(replace(IMAGE, index=0)), threading.Event()
    torn: list[str] = []
    seen: list[int] = []

    def read() -> None:
        last, count = -1, 0
        while not over.is_set() or count == 0:
            image = holder.image
            count += 1
            epochs = {int(one.leader_epoch) for _, one in image.all_partitions()}
            if epochs != {image.index}:
                torn.append(f"epochs {epochs} in the image of {image.index}")
            if image.index < last:
                torn.append(f"{image.index} after {last}")
            last = image.index
        seen.append(count)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    image = holder.image
    for index in range(1, SWAPS + 1):
        events = [elected(image, of.id, one.index, index) for of, one in image.all_partitions()]
        holder.image = image = image.replay(events, index=index)
    over.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert all(seen)
    assert holder.image.index == SWAPS
