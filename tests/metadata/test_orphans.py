"""An object that is called an orphan is referred to by no catalog, then or ever after, whoever asks for it."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import delete_history, publish_segment, replace_segments
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.orphans import has_left, is_orphan
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import SegmentDescriptor
from tests.controller.test_brokers import CLUSTER as C
from tests.controller.test_brokers import KEY, TOPIC, register, with_topic
from tests.metadata.histories import CLUSTER, TOPIC_IDS, Entry, descriptor, histories

keys = st.builds(
    SegmentKey,
    st.just(CLUSTER),
    st.sampled_from(TOPIC_IDS),
    st.integers(0, 2).map(PartitionIndex),
    st.integers(0, 20).map(Offset),
    st.integers(0, 30).map(Offset),
    st.integers(0, 4).map(LeaderEpoch),
    st.just("0" * 16),
    st.none() | st.integers(0, 4).map(LeaderEpoch),
    st.booleans(),
)


def named(segment: SegmentDescriptor, key: SegmentKey) -> SegmentDescriptor:
    return replace(
        segment,
        key=str(key),
        start_offset=key.start_offset,
        end_offset=key.end_offset,
        leader_epoch=key.leader_epoch,
        records=0,
    )


def is_taken(image: MetadataImage, key: SegmentKey) -> bool:
    """Whether the controller takes it from whoever says what fits best, or has."""
    where = TopicPartition(key.topic_id, key.partition)
    catalog = image.durable(where)
    decision = taken(image, key)
    return decision.result is None or any(entry.descriptor.key == str(key) for entry in catalog)


def taken(image: MetadataImage, key: SegmentKey) -> Decision[Refusal | None]:
    """The controller's decision if the object were published, or put in the place of the segments with its offsets."""
    segment = named(descriptor(0, 1, 0), key)
    catalog = image.durable(TopicPartition(key.topic_id, key.partition))
    if key.made_in is None:
        return publish_segment(
            image,
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=key.leader_epoch,
            descriptor=segment,
            previous_hash=catalog.head,
        )
    there = catalog.between(key.start_offset, key.end_offset)
    return replace_segments(
        image,
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=key.made_in,
        descriptor=replace(segment, last_epoch=there[-1].descriptor.last_epoch) if there else segment,
        removed=[entry.descriptor.sha256 for entry in there],
    )


@given(keys)
def test_a_key_is_read_back(key: SegmentKey) -> None:
    assert SegmentKey.parse(str(key)) == key


@pytest.mark.parametrize("change", ["x", "/x", ".segment"])
def test_nothing_else_is_a_key(change: str) -> None:
    key = str(SegmentKey.of(C, KEY, descriptor(0, 3, 1)))
    for other in (key + change, change + key, key.upper(), key.replace("/0/", "/00/"), key[:-9], "segment-0", ""):
        assert SegmentKey.parse(other) is None


@given(histories(), st.lists(keys, min_size=1, max_size=40))
def test_an_orphan_is_never_referred_to_again(entries: list[Entry], candidates: list[SegmentKey]) -> None:
    image, orphans = EMPTY_IMAGE, set[SegmentKey]()
    for entry in entries:
        image = image.replay(entry, index=image.index + 1)
        orphans = {key for key in orphans if key.topic_id in image.topics}  # an id is given once, but not by these
        orphans |= {key for key in candidates if is_orphan(image, key)}
        assert not [key for key in orphans if is_taken(image, key)]
        for key in candidates:  # and exporters go on: what can be published is, now and then
            if key.start_offset % 2 and not key.end_offset < key.start_offset and is_taken(image, key):
                image = image.replay(taken(image, key).events)


@pytest.fixture
def image() -> MetadataImage:
    """Broker 1 leads partition 0 in leader epoch 1; its catalog holds offsets 0 to 2 and 3 to 4."""
    image = register(with_topic(register(EMPTY_IMAGE, 1), (1,)), 1)
    for start, records in ((0, 3), (3, 2)):
        image = image.replay(publish(image, start, records).events)
    return image


def key_of(start: int, records: int, epoch: int, **changes: object) -> SegmentKey:
    return SegmentKey.of(C, KEY, descriptor(start, records, epoch))._replace(**changes)  # type: ignore[arg-type]


def publish(image: MetadataImage, start: int, records: int, epoch: int = 1, key: str | None = None):  # type: ignore[no-untyped-def]
    segment = descriptor(start, records, epoch)
    segment = replace(segment, key=key if key is not None else str(SegmentKey.of(C, KEY, segment)))
    return publish_segment(
        image,
        topic_id=TOPIC,
        partition=PartitionIndex(0),
        leader_epoch=LeaderEpoch(epoch),
        descriptor=segment,
        previous_hash=image.durable(KEY).head,
    )


@pytest.mark.parametrize(
    ("key", "orphan"),
    [
        (key_of(0, 3, 1), False),  # referred to
        (key_of(3, 2, 1), False),
        (key_of(3, 2, 1, digest="f" * 16), True),  # another object of the same range
        (key_of(3, 1, 1), True),
        (key_of(5, 2, 1), False),  # it may be on its way
        (key_of(5, 2, 0), True),  # of a leader that is no more
        (key_of(5, 2, 2), False),  # of one that is not known here yet
        (key_of(9, 2, 1), False),
        (key_of(0, 3, 1, cluster_id=ClusterId("other")), False),
        (key_of(0, 3, 0, topic_id=TopicId(uuid.UUID(int=9))), False),  # it may not be known here yet
        (key_of(0, 3, 0, partition=PartitionIndex(1)), False),
        (key_of(0, 3, 1, made_in=LeaderEpoch(1)), False),  # made of the first, it may be on its way
        (key_of(0, 5, 1, made_in=LeaderEpoch(1)), False),
        (key_of(0, 5, 1, made_in=LeaderEpoch(2)), False),
        (key_of(0, 5, 1, made_in=LeaderEpoch(0)), True),  # by a leader that is no more
        (key_of(0, 4, 1, made_in=LeaderEpoch(1)), True),  # no segment ends there, nor ever will
        (key_of(1, 4, 1, made_in=LeaderEpoch(1)), True),
        (key_of(0, 9, 1, made_in=LeaderEpoch(1)), False),  # by one who knows more
    ],
)
def test_only_what_can_never_be_published_is_an_orphan(image: MetadataImage, key: SegmentKey, orphan: bool) -> None:
    assert is_orphan(image, key) is orphan


def test_what_left_its_catalog_is_an_orphan_that_may_still_be_read(image: MetadataImage) -> None:
    deleted = image.replay(
        delete_history(
            image, topic_id=TOPIC, partition=PartitionIndex(0), leader_epoch=LeaderEpoch(1), log_start_offset=Offset(3)
        ).events
    )
    gone, kept, stray = key_of(0, 3, 1), key_of(3, 2, 1), key_of(3, 1, 1)
    assert [is_orphan(deleted, key) for key in (gone, kept, stray)] == [True, False, True]
    assert [has_left(deleted, key) for key in (gone, kept, stray)] == [True, False, False]


@pytest.mark.parametrize("wrong", [key_of(5, 2, 0), key_of(4, 3, 1), key_of(5, 3, 1), key_of(5, 2, 1, digest="f" * 16)])
def test_an_object_that_is_named_as_another_segments_is_not_published(image: MetadataImage, wrong: SegmentKey) -> None:
    """Else what its name says would not tell whether it is an orphan."""
    refused = publish(image, 5, 2, key=str(wrong)).result
    assert refused is not None
    assert "is named as another segment's" in refused.message
    assert publish(image, 5, 2).result is None
