"""Catalogs of an earlier version, whose deletions within a segment dropped the links of the earlier ones.

No segment that was published behind a lost link is dropped, or the broker does not start. The events are made here as
that version made them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, LeaderEpoch, Offset, PartitionEpoch, PartitionIndex
from headrace.metadata.codec import encode_line
from headrace.metadata.events import (
    CatalogAnchored,
    CatalogListed,
    LeaderChanged,
    MetadataEvent,
    SegmentPublished,
    SegmentsDeleted,
)
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.orphans import is_orphan
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import SegmentDescriptor, deleted_hash, genesis_hash, published_hash
from headrace.raft.membership import Membership
from headrace.raft.messages import SnapshotMark
from headrace.storage.raftlog.metadata_log import image_of_snapshot
from headrace.storage.raftlog.snapshots import Snapshot
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter
from headrace.storage.tier.reader import Store
from tests.controller.test_brokers import CLUSTER, KEY, TOPIC, register, with_topic
from tests.metadata.histories import descriptor
from tests.tier.test_chunks import Dict

ABOUT: dict[str, Any] = {"topic_id": TOPIC, "partition": PartitionIndex(0)}


def begun() -> MetadataImage:
    return register(with_topic(register(EMPTY_IMAGE, 1), (1,)), 1)


def segment(start: int, epoch: int = 0) -> SegmentDescriptor:
    made = descriptor(start, 10, epoch)
    return dataclasses.replace(made, key=str(SegmentKey.of(CLUSTER, KEY, made)))


HEADS: list[str] = [genesis_hash(*KEY)]
"""Before each of the segments at 0, 10, ..., as that version had it in memory: the link of the deletion was in it."""
GONE = (segment(0).sha256,)
for number in range(6):
    HEADS.append(published_hash(HEADS[-1], segment(number * 10)))
    if number == 3:
        HEADS[-1] = deleted_hash(HEADS[-1], GONE)


def published(number: int) -> SegmentPublished:
    return SegmentPublished(**ABOUT, descriptor=segment(number * 10), previous_hash=HEADS[number])


def restored(events: Iterable[MetadataEvent]) -> MetadataImage:
    """From a snapshot's lines, as a start does."""
    lines = tuple(map(encode_line, [*begun().snapshot(), *events]))
    return image_of_snapshot(Snapshot(SnapshotMark(20, 1, Membership()), lines))


def older_snapshot(count: int) -> list[MetadataEvent]:
    """Of the first segments, the first of which is deleted, and part of the second; the link of that is lost."""
    anchor = CatalogAnchored(**ABOUT, head=HEADS[1], end_offset=Offset(9), log_start_offset=Offset(15))
    return [anchor, *map(published, range(1, count))]


def check_whole(image: MetadataImage) -> None:
    catalog = image.durable(KEY)
    assert [entry.descriptor for entry in catalog] == [segment(start) for start in range(10, 60, 10)]
    assert (catalog.head, catalog.log_start_offset) == (HEADS[-1], 15)
    assert catalog.unvouched() is None
    raised = image.replay([LeaderChanged(**ABOUT, leader=BrokerId(1), leader_epoch=LeaderEpoch(9),
        partition_epoch=PartitionEpoch(90), isr=(BrokerId(1),))])  # fmt: skip
    assert not any(is_orphan(raised, SegmentKey.of(CLUSTER, KEY, segment(start))) for start in range(10, 60, 10))


@pytest.mark.parametrize("count", [4, 5, 6])
def test_what_was_published_behind_a_lost_link_is_kept(count: int) -> None:
    """Whether the snapshot has it, or the log behind it."""
    image = restored(older_snapshot(count)).replay(map(published, range(count, 6)))
    check_whole(image)
    check_whole(restored(image.snapshot()))
    assert restored(image.snapshot()).catalog == image.catalog


def test_a_catalog_with_a_lost_link_is_mirrored_and_read() -> None:
    objects, catalog = Dict(), restored(older_snapshot(6)).durable(KEY)
    MirrorWriter(objects, cluster_id=CLUSTER).write_partition(*KEY, catalog, 21)
    topic = MirroredTopic(cluster_id=CLUSTER, topic_id=TOPIC, name="t", partitions=1)
    assert Store(objects).catalog(topic, PartitionIndex(0)) == catalog


def test_brokers_that_lost_a_link_and_others_come_to_one_head() -> None:
    """The controller's link is lost; this broker's is not."""
    here = begun().replay([*map(published, range(4)), removal(15, HEADS[4], GONE, last=True)])
    assert here.durable(KEY).head == HEADS[4]
    without = published_hash(HEADS[3], segment(30))
    for image in (here, restored(older_snapshot(4))):
        image = image.replay([dataclasses.replace(published(4), previous_hash=without)])
        assert image.durable(KEY).head == published_hash(without, segment(40))
        gone = (segment(10).sha256,)
        image = image.replay([removal(20, HEADS[2], gone)])
        assert image.durable(KEY).log_start_offset == 20
        assert image.durable(KEY).head == deleted_hash(HEADS[2], gone)
        assert [entry.descriptor.start_offset for entry in image.durable(KEY)] == [20, 30, 40]
        assert image.replay([removal(20, HEADS[1], gone), removal(99, "no hash", ())]) == image


def removal(start: int, head: str, gone: tuple[str, ...], *, last: bool = False) -> SegmentsDeleted:
    before = published_hash(HEADS[3], segment(30)) if last else head
    return SegmentsDeleted(**ABOUT, log_start_offset=Offset(start), removed=gone, previous_hash=before)


def test_a_snapshot_whose_segments_do_not_follow_stops_the_start() -> None:
    with pytest.raises(CorruptData, match="does not hold"):
        restored([*older_snapshot(4), published(5)])


@pytest.mark.parametrize("changes", [{"previous_hash": "0" * 64}, {"hash": "0" * 64}, {"rows": ()}])
def test_a_piece_that_does_not_hold_stops_the_start(changes: dict[str, Any]) -> None:
    image = restored(older_snapshot(6))
    events = list(image.snapshot())
    (at,) = [at for at, event in enumerate(events) if isinstance(event, CatalogListed)]
    listed = events[at]
    assert isinstance(listed, CatalogListed)
    events[at] = dataclasses.replace(listed, piece=dataclasses.replace(listed.piece, **changes))
    with pytest.raises(CorruptData, match="does not hold"):
        restored(events)
