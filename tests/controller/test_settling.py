"""A broker that comes or goes in slices leaves what it leaves in one entry."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BrokerId, ClusterId, DirectoryId, TopicPartition
from headrace.controller.brokers import fence_broker, lose_disk, register_broker, settle_broker, unfence_broker
from headrace.controller.decision import Decision, Refusal
from headrace.controller.elections import only_copies, unsettled
from headrace.controller.removal import holds, release_copies, remove_broker
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Endpoint
from tests.metadata.histories import Entry, histories

NEW_DISK = DirectoryId(uuid.UUID(int=77))


def after(image: MetadataImage, decision: Decision[Any]) -> MetadataImage:
    return image.replay(decision.events, index=image.index + 1)


def replayed(history: Sequence[Entry]) -> MetadataImage:
    image = EMPTY_IMAGE
    for entry in history:
        image = image.replay(entry, index=image.index + 1)
    return image


def told(image: MetadataImage, broker: BrokerId) -> dict[str, Any]:
    return {"broker_id": broker, "broker_epoch": image.brokers[broker].epoch}


def in_slices(
    image: MetadataImage, decide: Callable[..., Decision[Any]], found: list[TopicPartition], size: int
) -> MetadataImage:
    """In any order, and each twice: what was done is not done again."""
    found = found[::-1]
    for at in [*range(0, len(found), size), *range(0, len(found), size)]:
        image = after(image, decide(image, among=found[at : at + size]))
    return image


def found(image: MetadataImage, broker: BrokerId, *, fenced: bool | None = None) -> list[TopicPartition]:
    """The unsettled partitions, those that it leads first."""
    is_unsettled = unsettled(image, broker, fenced=fenced)
    pairs = [pair for pair in image.all_partitions() if is_unsettled(pair[1])]
    pairs.sort(key=lambda pair: pair[1].leader != broker)
    return [TopicPartition(topic.id, partition.index) for topic, partition in pairs]


def registered(image: MetadataImage, broker: BrokerId, directory: DirectoryId) -> MetadataImage:
    decision = register_broker(
        image,
        cluster_id=image.cluster_id or ClusterId("c"),
        broker_id=broker,
        directory_id=directory,
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9),),
    )
    return after(image, decision)


def settled(image: MetadataImage, broker: BrokerId, size: int) -> MetadataImage:
    image = in_slices(image, partial(settle_broker, **told(image, broker)), found(image, broker), size)
    assert found(image, broker) == []
    return image


def equal(one: MetadataImage, other: MetadataImage) -> bool:
    """But for when it was: the index, and with it the broker epoch."""
    assert one.leaderships == other.leaderships
    assert one.copies == other.copies
    return one.topics == other.topics and {
        (broker.id, broker.directory_id, broker.fenced) for broker in one.brokers.values()
    } == {(broker.id, broker.directory_id, broker.fenced) for broker in other.brokers.values()}


@given(histories(), st.integers(1, 4), st.booleans())
def test_what_slices_lead_to(history: Sequence[Entry], size: int, new_disk: bool) -> None:
    image = replayed(history)
    for broker, known in image.brokers.items():
        fenced = after(image, fence_broker(image, **told(image, broker)))
        first = found(image, broker, fenced=True)[:size]
        slowly = after(image, fence_broker(image, **told(image, broker), among=first))
        led = sum(partition.leader == broker for _, partition in image.all_partitions())
        left = sum(partition.leader == broker for _, partition in slowly.all_partitions())
        assert known.fenced or left == max(0, led - size), "what it leads has other leaders first"
        slowly = settled(slowly, broker, size)
        assert equal(fenced, slowly)

        directory = NEW_DISK if new_disk else known.directory_id
        back = registered(image, broker, directory)
        if new_disk:
            alone = [TopicPartition(topic.id, part.index) for topic, part in only_copies(slowly, broker)]
            slowly = in_slices(slowly, partial(lose_disk, **told(slowly, broker)), alone, size)
        before = slowly
        slowly = registered(slowly, broker, directory)
        assert slowly.topics == before.topics, "nothing is left to a registration's own entry"
        assert [(p.leader, p.isr, p.kept_in) for _, p in slowly.all_partitions()] == [
            (p.leader, p.isr, p.kept_in) for _, p in back.all_partitions()
        ]

        live = after(slowly, unfence_broker(slowly, **told(slowly, broker)))
        first = found(slowly, broker, fenced=False)[:size]
        gently = settled(after(slowly, unfence_broker(slowly, **told(slowly, broker), among=first)), broker, size)
        assert equal(live, gently)


@given(histories(), st.integers(1, 4))
def test_what_a_removal_in_slices_leads_to(history: Sequence[Entry], size: int) -> None:
    image = replayed(history)
    for broker in image.brokers:
        fenced = after(image, fence_broker(image, **told(image, broker)))
        at_once = remove_broker(fenced, broker_id=broker)
        if isinstance(at_once.result, Refusal):
            continue
        is_held = holds(fenced, broker)
        held = [TopicPartition(topic.id, part.index) for topic, part in fenced.all_partitions() if is_held(part)]
        slowly = in_slices(fenced, partial(release_copies, **told(fenced, broker)), held, size)
        assert slowly.copies.get(broker, 0) == 0
        last = remove_broker(slowly, broker_id=broker)
        assert len(last.events) == 1, "nothing is left to the last entry"
        assert equal(after(fenced, at_once), after(slowly, last))
