"""Deciding on durable segments: only the current leader publishes, only what comes next, and only once."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import pytest

from headrace.base.ids import BrokerId, LeaderEpoch, Offset, PartitionEpoch, PartitionIndex, TopicId
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import delete_history, publish_segment, refusal_of_all, replace_segments
from headrace.metadata.events import MoveStarted
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.segment_keys import SegmentKey
from headrace.wire.errors import ErrorCode
from tests.controller.test_brokers import CLUSTER, KEY, TOPIC, register, with_topic
from tests.metadata.histories import descriptor


def publish(image: MetadataImage, **changes: Any) -> Decision[Refusal | None]:
    """Offsets 0 to 2 in leader epoch 1, unless told otherwise."""
    given = {
        "topic_id": TOPIC,
        "partition": PartitionIndex(0),
        "leader_epoch": LeaderEpoch(1),
        "descriptor": descriptor(0, 3, 1),
        "previous_hash": image.durable(KEY).head,
    }
    return publish_segment(image, **{**given, **changes})


@pytest.fixture
def image() -> MetadataImage:
    """Broker 1 leads partition 0 in leader epoch 1."""
    return register(with_topic(register(EMPTY_IMAGE, 1), (1,)), 1)


def test_segments_are_published_one_after_the_other(image: MetadataImage) -> None:
    decision = publish(image)
    assert decision.result is None
    image = image.replay(decision.events)
    image = image.replay(publish(image, descriptor=descriptor(3, 2, 1)).events)
    catalog = image.durable(KEY)
    assert [entry.descriptor.start_offset for entry in catalog] == [0, 3]
    assert catalog.end_offset == 4


def test_publishing_the_last_again_is_accepted_and_changes_nothing(image: MetadataImage) -> None:
    """The exporter that never saw its answer asks again, perhaps after a restart."""
    published = image.replay(publish(image).events)
    for again in (publish(published), publish(register(published, 1))):
        assert (again.events, again.result) == ((), None)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic_id": TopicId(uuid.UUID(int=9))}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": PartitionIndex(1)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader_epoch": LeaderEpoch(0)}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"descriptor": descriptor(0, 3, 0)}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": LeaderEpoch(2), "descriptor": descriptor(0, 3, 2)}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"previous_hash": "0" * 64}, ErrorCode.INVALID_REQUEST),
        ({"descriptor": descriptor(5, -1, 1)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_stale_owner_or_a_wrong_segment_is_refused(
    image: MetadataImage, changes: dict[str, Any], code: ErrorCode
) -> None:
    decision = publish(image, **changes)
    assert decision.result is not None
    assert decision.result.code is code
    assert decision.events == ()


@pytest.mark.parametrize("start", [2, 4])
def test_a_gap_or_an_overlap_is_refused(image: MetadataImage, start: int) -> None:
    image = image.replay(publish(image).events)
    refused = publish(image, descriptor=descriptor(start, 3, 1))
    assert refused.result is not None
    assert "the catalog goes on at 3" in refused.result.message


@pytest.mark.parametrize("log_start", [0, 2, 3, 9])
def test_the_first_segment_brings_nothing_back_that_the_log_has_not_any_more(
    image: MetadataImage, log_start: int
) -> None:
    """In one entry: whoever crashes behind it leaves nothing to be hidden."""
    decision = publish(image, log_start_offset=Offset(log_start))
    catalog = image.replay(decision.events).durable(KEY)
    assert catalog.readable_start == min(log_start, 3)
    assert catalog.end_offset == 2


def test_a_later_segment_deletes_nothing_though_the_log_begins_above(image: MetadataImage) -> None:
    """Local retention has taken what history has."""
    image = image.replay(publish(image).events)
    image = image.replay(publish(image, descriptor=descriptor(3, 2, 1), log_start_offset=Offset(4)).events)
    assert image.durable(KEY).readable_start == 0


def delete(image: MetadataImage, before: int, *, leader_epoch: int = 1) -> Decision[Refusal | None]:
    return delete_history(
        image,
        topic_id=TOPIC,
        partition=PartitionIndex(0),
        leader_epoch=LeaderEpoch(leader_epoch),
        log_start_offset=Offset(before),
    )


@pytest.fixture
def three(image: MetadataImage) -> MetadataImage:
    """Segments of offsets 0 to 2, 3 to 4, 5 to 8."""
    for start, records in ((0, 3), (3, 2), (5, 4)):
        image = image.replay(publish(image, descriptor=descriptor(start, records, 1)).events)
    return image


@pytest.mark.parametrize(
    ("before", "segments", "start"),
    [(0, [0, 3, 5], 0), (2, [0, 3, 5], 2), (3, [3, 5], 3), (6, [5], 6), (9, [], 9), (50, [], 9)],
)
def test_history_is_deleted_from_its_beginning_and_the_chain_goes_on(
    three: MetadataImage, before: int, segments: list[int], start: int
) -> None:
    deleted = three.replay(delete(three, before).events)
    catalog = deleted.durable(KEY)
    assert [entry.descriptor.start_offset for entry in catalog] == segments
    assert (catalog.log_start_offset, catalog.end_offset) == (start, 8)
    assert (catalog.head == three.durable(KEY).head) == (len(segments) == 3)
    assert catalog.batch_bytes == 100 * len(segments)
    assert deleted.replay(delete(three, before).events) == deleted
    assert EMPTY_IMAGE.replay(deleted.snapshot(), index=deleted.index) == deleted
    published = deleted.replay(publish(deleted, descriptor=descriptor(9, 2, 1)).events)
    again = published.replay(delete(published, 9).events)
    assert EMPTY_IMAGE.replay(published.snapshot(), index=published.index) == published
    assert [entry.descriptor.start_offset for entry in again.durable(KEY)] == [9]


def test_what_joins_a_history_without_a_gap_begins_with_it(three: MetadataImage) -> None:
    catalog = three.replay(delete(three, 4).events).durable(KEY)
    assert [catalog.joined_start(Offset(local)) for local in (0, 3, 4, 6, 9, 10)] == [4, 4, 4, 4, 4, 10]


def test_only_the_leader_deletes_and_nothing_deleted_comes_back(three: MetadataImage) -> None:
    for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        refused = delete(three, 3, leader_epoch=epoch)
        assert refused.result is not None
        assert refused.result.code is code
    deleted = three.replay(delete(three, 9).events)
    assert delete(deleted, 3).events == ()
    refused = publish(deleted, descriptor=descriptor(5, 4, 1))
    assert refused.result is not None
    assert "goes on at 9" in refused.result.message


def replacing(image: MetadataImage, made_in: int = 1, **changes: Any) -> Decision[Refusal | None]:
    """Offsets 0 to 4, of two segments, unless told otherwise."""
    made = descriptor(0, 5, 1)
    made = dataclasses.replace(made, key=str(SegmentKey.of(CLUSTER, KEY, made, made_in=LeaderEpoch(made_in))))
    given = {
        "topic_id": TOPIC,
        "partition": PartitionIndex(0),
        "leader_epoch": LeaderEpoch(1),
        "descriptor": made,
        "removed": ("0" * 64, "0" * 64),
    }
    return replace_segments(image, **{**given, **changes})


@pytest.fixture
def parted(image: MetadataImage) -> MetadataImage:
    """Offsets 0 to 2, 3 to 4 and 5 to 6."""
    for start, records in ((0, 3), (3, 2), (5, 2)):
        image = image.replay(publish(image, descriptor=descriptor(start, records, 1)).events)
    return image


def test_one_segment_takes_the_place_of_two_once(parted: MetadataImage) -> None:
    decision = replacing(parted)
    assert decision.result is None
    image = parted.replay(decision.events)
    assert [entry.descriptor.start_offset for entry in image.durable(KEY)] == [0, 5]
    assert image.replay(decision.events) == image
    assert (replacing(image).events, replacing(image).result) == ((), None)
    after = image.replay(publish(image, descriptor=descriptor(7, 2, 1)).events)
    assert after.durable(KEY).end_offset == 8
    assert EMPTY_IMAGE.replay(after.snapshot(), index=after.index) == after


def test_nothing_is_merged_behind_too_many_links(parted: MetadataImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.controller.durable.CATALOG_LINKS_MAX", 1)
    deleted = parted.replay(delete(parted, 1).events)
    assert replacing(deleted).result is None
    deleted = deleted.replay(delete(deleted, 3).events)
    assert len(deleted.durable(KEY).deletions) == 1
    refused = replacing(deleted)
    assert refused.result is not None
    assert "after the next one" in refused.result.message
    assert refused.result.code is ErrorCode.POLICY_VIOLATION, "else each group would be made, and refused"


def test_nothing_is_merged_while_it_is_handed_over(parted: MetadataImage) -> None:
    known = parted.partition(KEY)
    assert known is not None
    move = MoveStarted(
        topic_id=TOPIC,
        partition=PartitionIndex(0),
        partition_epoch=PartitionEpoch(known.partition_epoch + 1),
        source=BrokerId(1),
        target=BrokerId(2),
    )
    moving = parted.replay([move])
    assert (decision := replacing(moving)).events == ()
    assert decision.result == refusal_of_all(moving, KEY)
    assert decision.result is not None
    assert decision.result.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert refusal_of_all(parted, KEY) is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic_id": TopicId(uuid.UUID(int=9))}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader_epoch": LeaderEpoch(0)}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": LeaderEpoch(2)}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"made_in": 0}, ErrorCode.INVALID_REQUEST),
        ({"descriptor": descriptor(0, 5, 1)}, ErrorCode.INVALID_REQUEST),
        ({"removed": ("0" * 64,)}, ErrorCode.INVALID_REQUEST),
        ({"removed": ("0" * 64, "1" * 64)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_no_other_replacement_is_taken(parted: MetadataImage, changes: dict[str, Any], code: ErrorCode) -> None:
    decision = replacing(parted, **changes)
    assert decision.events == ()
    assert isinstance(decision.result, Refusal)
    assert decision.result.code is code
