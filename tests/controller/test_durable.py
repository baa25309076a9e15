"""Deciding on durable segments: only the current leader publishes, only what comes next, and only once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.base.ids import LeaderEpoch, PartitionIndex, TopicId
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import publish_segment
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from tests.controller.test_brokers import KEY, TOPIC, register, with_topic
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
