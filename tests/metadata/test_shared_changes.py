"""The work of one broker where logs are shared: it has open what it leads, and nobody's log goes but with its topic."""

from __future__ import annotations

import uuid
from dataclasses import replace

from headrace.base.ids import (
    NO_LEADER,
    BrokerId,
    ClusterId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import DOUBTED_EPOCHS, DOUBTED_PRODUCER_IDS
from headrace.metadata.codec import decode_events, encode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import (
    ChangesDoubted,
    ClusterBorn,
    LeaderChanged,
    MetadataEvent,
    ReplicasChanged,
    TopicCreated,
    TopicDeleted,
)
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Engine, PartitionImage

TOPIC = TopicId(uuid.UUID(int=1))
ME, OTHER = BrokerId(1), BrokerId(2)
KEY = TopicPartition(TOPIC, PartitionIndex(0))


def led_by(leader: BrokerId) -> PartitionImage:
    return PartitionImage(
        index=PartitionIndex(0),
        leader=leader,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        replicas=(ME if leader == NO_LEADER else leader,),
        isr=(ME if leader == NO_LEADER else leader,),
    )


def image(leader: BrokerId) -> MetadataImage:
    created = TopicCreated(topic_id=TOPIC, name="t", partitions=(led_by(leader),), configs={})
    born = EMPTY_IMAGE.replay([ClusterBorn(cluster_id=ClusterId("c"), engine=Engine.REDIS)], index=1)
    return born.replay([created], index=2)


def changed(before: MetadataImage, *events: MetadataEvent) -> ImageDelta:
    return ImageDelta.of(before, events, index=before.index + 1)


def given_to(leader: BrokerId, epoch: int) -> list[MetadataEvent]:
    stands = ME if leader == NO_LEADER else leader
    return [
        LeaderChanged(
            topic_id=TOPIC,
            partition=PartitionIndex(0),
            leader=leader,
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=PartitionEpoch(2 * epoch),
            isr=(stands,),
        ),
        ReplicasChanged(
            topic_id=TOPIC,
            partition=PartitionIndex(0),
            partition_epoch=PartitionEpoch(2 * epoch + 1),
            replicas=(stands,),
            isr=(stands,),
        ),
    ]


def test_who_loses_the_lead_leaves_the_log_where_it_is() -> None:
    delta = changed(image(ME), *given_to(OTHER, 1))
    mine, theirs = delta.local_changes(ME), delta.local_changes(OTHER)
    assert (mine.left, mine.deleted, mine.leaders, mine.followers) == ((KEY,), (), (), ())
    assert ([local.key for local in theirs.leaders], theirs.left) == ([KEY], ())


def test_a_log_that_nobody_leads_is_open_nowhere() -> None:
    delta = changed(image(ME), *given_to(NO_LEADER, 1))
    changes = delta.local_changes(ME)
    assert (changes.left, changes.leaders, changes.followers) == ((KEY,), (), ())
    back = changed(delta.after, *given_to(ME, 2)).local_changes(ME)
    assert [local.key for local in back.leaders] == [KEY]


def test_a_deleted_topics_logs_are_deleted_by_every_broker() -> None:
    delta = changed(image(OTHER), TopicDeleted(topic_id=TOPIC))
    assert delta.local_changes(ME).deleted == delta.local_changes(OTHER).deleted == (KEY,)


def test_the_index_of_its_creation_is_a_topics_own_and_stays_in_snapshots() -> None:
    born = image(ME)
    (topic,) = born.topics.values()
    assert topic.created_index == 2
    copy = EMPTY_IMAGE.replay(decode_events(encode_events(born.snapshot())), index=9, is_snapshot=True)
    assert copy == replace(born, index=9)
    local = EMPTY_IMAGE.replay([ClusterBorn(cluster_id=ClusterId("c"))], index=1)
    local = local.replay([TopicCreated(topic_id=TOPIC, name="t", partitions=(led_by(ME),), configs={})], index=2)
    assert [topic.created_index for topic in local.topics.values()] == [0]


def test_a_doubt_raises_all_epochs_and_is_work_for_whoever_leads() -> None:
    before = image(ME)
    delta = changed(before, ChangesDoubted(number=2))
    (now,) = delta.after.topics[TOPIC].partitions
    assert (now.leader, now.leader_epoch, now.partition_epoch) == (ME, 2 * DOUBTED_EPOCHS, 2 * DOUBTED_EPOCHS)
    assert delta.after.next_producer_id == 2 * DOUBTED_PRODUCER_IDS
    assert [local.key for local in delta.local_changes(ME).leaders] == [KEY]
    assert delta.may_lack_changes
    later = changed(delta.after, ChangesDoubted(number=2))
    assert later.after.topics == delta.after.topics, "it is no news"
    assert not later.may_lack_changes
    assert changed(delta.after, ChangesDoubted(number=3)).after.topics[TOPIC].partitions[0].leader_epoch == 30_000
