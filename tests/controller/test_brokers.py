"""Deciding on brokers: a new incarnation fences the old one, and nobody leads what he is not in sync with."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given

from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import PRODUCER_ID_BLOCK_SIZE
from headrace.controller.brokers import allocate_producer_ids, fence_broker, register_broker, unfence_broker
from headrace.controller.decision import Refusal
from headrace.controller.removal import remove_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Endpoint, PartitionImage
from headrace.wire.errors import ErrorCode
from tests.metadata.histories import Entry, histories

CLUSTER = ClusterId("c")
TOPIC = TopicId(uuid.UUID(int=7, version=4))
KEY = TopicPartition(TOPIC, PartitionIndex(0))


def register(
    image: MetadataImage, broker: int, directory: int = 1, cluster: ClusterId = CLUSTER, *, unfenced: bool = True
) -> MetadataImage:
    decision = register_broker(
        image,
        cluster_id=cluster,
        broker_id=BrokerId(broker),
        directory_id=DirectoryId(uuid.UUID(int=directory)),
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9000 + broker),),
        unfenced=unfenced,
    )
    assert decision.result == image.index + 1
    return image.replay(decision.events, index=image.index + 1)


def with_topic(image: MetadataImage, replicas: tuple[int, ...]) -> MetadataImage:
    topic = NewTopic(topic_id=TOPIC, name="t", assignments=((0, tuple(map(BrokerId, replicas))),), configs={})
    return image.replay(create_topics(image, [topic], broker_configs={}).events, index=image.index + 1)


def fence(image: MetadataImage, broker: int) -> MetadataImage:
    broker_id = BrokerId(broker)
    decision = fence_broker(image, broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch)
    assert decision.result is None
    return image.replay(decision.events, index=image.index + 1)


def state(image: MetadataImage) -> tuple[int, int, tuple[int, ...]]:
    """(leader, leader epoch, ISR)"""
    partition = image.partition(KEY)
    assert isinstance(partition, PartitionImage)
    return partition.leader, partition.leader_epoch, partition.isr


def test_the_first_registration_is_the_cluster_s_birth() -> None:
    image = register(EMPTY_IMAGE, 1)
    assert image.cluster_id == CLUSTER
    assert [(broker.id, broker.fenced) for broker in image.live_brokers()] == [(1, False)]


def test_a_directory_of_another_cluster_is_refused() -> None:
    image = register(EMPTY_IMAGE, 1)
    decision = register_broker(
        image, cluster_id=ClusterId("other"), broker_id=BrokerId(2), directory_id=DirectoryId(TOPIC), endpoints=()
    )
    assert isinstance(decision.result, Refusal)
    assert decision.result.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert decision.events == ()


def test_a_restart_of_the_only_broker_raises_every_leader_epoch_and_keeps_the_leader() -> None:
    image = with_topic(register(EMPTY_IMAGE, 1), (1,))
    assert state(image) == (1, 0, (1,))
    image = register(image, 1)
    assert state(image) == (1, 1, (1,))
    assert state(register(image, 1)) == (1, 2, (1,))


def test_a_restarted_leader_leaves_the_isr_and_another_member_leads() -> None:
    image = with_topic(register(register(register(EMPTY_IMAGE, 1), 2), 3), (2, 3, 1))
    assert state(register(image, 2)) == (3, 1, (3, 1))


def test_a_restarted_follower_leaves_the_isr_and_the_leader_goes_on() -> None:
    image = with_topic(register(register(EMPTY_IMAGE, 1), 2), (2, 1))
    assert state(register(image, 1)) == (2, 0, (2,))


def test_fencing_elects_the_next_live_member_in_replica_order_and_the_last_stays_in_the_isr() -> None:
    image = with_topic(register(register(register(EMPTY_IMAGE, 1), 2), 3), (2, 3, 1))
    image = fence(image, 2)
    assert state(image) == (3, 1, (3, 1))
    image = fence(image, 3)
    assert state(image) == (1, 2, (1,))
    image = fence(image, 1)
    assert state(image) == (NO_LEADER, 3, (1,))
    image = register(image, 3)
    assert state(image) == (NO_LEADER, 3, (1,)), "3 is not in sync: it may not lead"
    assert state(register(image, 1)) == (1, 4, (1,))


def unfence(image: MetadataImage, broker: int) -> MetadataImage:
    broker_id = BrokerId(broker)
    decision = unfence_broker(image, broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch)
    assert decision.result is None
    return image.replay(decision.events, index=image.index + 1)


def test_a_new_incarnation_leads_nothing_until_it_is_unfenced() -> None:
    image = with_topic(register(register(EMPTY_IMAGE, 1), 2), (1,))
    image = register(image, 1, unfenced=False)
    assert state(image) == (NO_LEADER, 1, (1,))
    assert [broker.id for broker in image.live_brokers()] == [2]
    image = unfence(image, 1)
    assert state(image) == (1, 2, (1,))
    assert unfence(image, 1).replay(()) == image.replay((), index=image.index + 1), "asking again changes nothing"


def test_the_same_incarnation_once_more_is_the_registration_that_was_made() -> None:
    wish: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "broker_id": BrokerId(1),
        "directory_id": DirectoryId(uuid.UUID(int=1)),
        "endpoints": (),
        "incarnation": IncarnationId(uuid.UUID(int=5)),
    }
    first = register_broker(EMPTY_IMAGE, **wish)
    image = EMPTY_IMAGE.replay(first.events, index=1)
    again = register_broker(image.replay((), index=7), **wish)
    assert (again.events, again.result) == ((), first.result)


def test_a_second_live_process_with_another_disk_is_refused() -> None:
    image = register(EMPTY_IMAGE, 1)
    wish: dict[str, Any] = {"cluster_id": CLUSTER, "broker_id": BrokerId(1), "endpoints": (), "in_session": True}
    other = register_broker(image, directory_id=DirectoryId(uuid.UUID(int=2)), **wish)
    assert isinstance(other.result, Refusal)
    assert other.result.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert not isinstance(register_broker(image, directory_id=DirectoryId(uuid.UUID(int=1)), **wish).result, Refusal)


def test_a_wiped_disk_leaves_every_isr_at_once_and_the_old_one_alone_may_lead_what_only_it_had() -> None:
    image = with_topic(register(register(EMPTY_IMAGE, 1, directory=1), 2), (1,))
    image = unfence(register(image, 1, directory=2, unfenced=False), 1)
    assert state(image) == (NO_LEADER, 1, (1,))
    image = unfence(register(image, 1, directory=2, unfenced=False), 1)
    assert state(image)[0] == NO_LEADER, "no number of restarts brings back what was lost"
    assert state(image)[2] == (1,)
    image = unfence(register(image, 1, directory=1, unfenced=False), 1)
    assert (state(image)[0], state(image)[2]) == (1, (1,)), "the old disk has it"
    partition = image.partition(KEY)
    assert partition is not None
    assert partition.kept_in is None


def test_a_broker_is_removed_once_it_is_stopped_and_nothing_is_lost_by_it() -> None:
    image = with_topic(register(register(EMPTY_IMAGE, 1), 2), (2, 1))
    running = remove_broker(image, broker_id=BrokerId(2)).result
    assert running is not None
    assert "stop it" in running.message
    image = fence(image, 2)
    image = image.replay(remove_broker(image, broker_id=BrokerId(2)).events, index=image.index + 1)
    assert set(image.brokers) == {1}
    partition = image.partition(KEY)
    assert partition is not None
    assert partition.replicas == partition.isr == (1,)
    only = fence(image, 1)
    refusal = remove_broker(only, broker_id=BrokerId(1)).result
    assert refusal is not None
    assert "only in-sync copy of 1 partitions, t-0" in refusal.message
    unknown = remove_broker(image, broker_id=BrokerId(9)).result
    assert unknown is not None
    assert unknown.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_wiped_disk_does_not_lead_what_it_no_longer_has() -> None:
    image = with_topic(register(EMPTY_IMAGE, 1, directory=1), (1,))
    assert state(register(image, 1, directory=2)) == (NO_LEADER, 1, (1,))


def test_a_stale_incarnation_is_refused() -> None:
    image = register(register(EMPTY_IMAGE, 1), 1)
    stale = BrokerEpoch(1)
    for refusal in (
        fence_broker(image, broker_id=BrokerId(1), broker_epoch=stale).result,
        allocate_producer_ids(image, broker_id=BrokerId(1), broker_epoch=stale).result,
        allocate_producer_ids(image, broker_id=BrokerId(9), broker_epoch=stale).result,
    ):
        assert isinstance(refusal, Refusal)
        assert refusal.code is ErrorCode.STALE_BROKER_EPOCH


def test_fencing_a_fenced_broker_changes_nothing() -> None:
    image = fence(register(EMPTY_IMAGE, 1), 1)
    again = fence_broker(image, broker_id=BrokerId(1), broker_epoch=image.brokers[BrokerId(1)].epoch)
    assert (again.events, again.result) == ((), None)


def test_producer_id_blocks_never_overlap() -> None:
    image = register(EMPTY_IMAGE, 1)
    given_out: list[int] = []
    for _ in range(3):
        decision = allocate_producer_ids(image, broker_id=BrokerId(1), broker_epoch=image.brokers[BrokerId(1)].epoch)
        assert not isinstance(decision.result, Refusal)
        first, count = decision.result
        given_out += range(first, first + count)
        image = image.replay(decision.events)
    assert given_out == list(range(3 * PRODUCER_ID_BLOCK_SIZE))


@given(histories())
def test_a_registration_raises_the_epoch_of_all_that_the_broker_led_and_of_nothing_else(entries: list[Entry]) -> None:
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        image = image.replay(entry, index=index)
    for broker in image.brokers.values():
        decision = register_broker(
            image,
            cluster_id=image.cluster_id,
            broker_id=broker.id,
            directory_id=broker.directory_id,
            endpoints=broker.endpoints,
        )
        after = image.replay(decision.events)
        for topic in image.topics.values():
            for old in topic.partitions:
                new = after.topics[topic.id].partitions[old.index]
                if old.leader == broker.id:
                    assert new.leader_epoch == old.leader_epoch + 1
                elif old.leader != NO_LEADER:
                    assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)


@pytest.mark.parametrize("times", [1, 3])
def test_a_broker_epoch_is_the_index_of_its_entry_so_it_only_rises(times: int) -> None:
    image = EMPTY_IMAGE
    for _ in range(times):
        image = register(image, 1)
    assert image.brokers[BrokerId(1)].epoch == image.index == times
