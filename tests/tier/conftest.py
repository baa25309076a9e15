"""A store in memory with a topic whose batches the tests know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.ports import Objects
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.objects import open_objects
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record

CLUSTER = ClusterId("test-cluster")
TOPIC_ID = TopicId(UUID(int=0xABC))
ZERO = PartitionIndex(0)


@dataclass
class History:
    """Exports batches as the broker does: object, catalog, mirror."""

    objects: Objects
    topic: MirroredTopic = field(
        default_factory=lambda: MirroredTopic(
            cluster_id=CLUSTER, topic_id=TOPIC_ID, name="orders", partitions=2, raft_index=1
        )
    )
    partition: PartitionIndex = ZERO
    records: list[Record] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    raft_index: int = 1

    def __post_init__(self) -> None:
        self.mirror = MirrorWriter(self.objects, cluster_id=CLUSTER)
        self.mirror.write_topic(self.topic)
        self.catalog = PartitionCatalog.empty(TOPIC_ID, self.partition)

    def batch(self, values: Sequence[bytes], *, codec: Compression = Compression.NONE, epoch: int = 0) -> bytes:
        start = len(self.records)
        made = [Record(start + at, 1_000 + start + at, b"k", value) for at, value in enumerate(values)]
        data = encode_batch(made, compression=codec, leader_epoch=epoch)
        self.records += made
        self.batches.append(data)
        return data

    def source(self, **changes: Any) -> ExportSource:
        fields: dict[str, Any] = {
            "cluster_id": CLUSTER,
            "topic_id": TOPIC_ID,
            "topic": self.topic.name,
            "partition": self.partition,
            "leader_epoch": LeaderEpoch(9),
            "start_offset": self.catalog.next_offset,
            "limit_offset": Offset(len(self.records)),
        }
        return ExportSource(**fields | changes)

    def export(self, batches: Sequence[bytes], **changes: Any) -> None:
        known = self.catalog
        self.catalog = known.published(export_segment(self.objects, self.source(**changes), batches))
        self.raft_index += 1
        self.mirror.write_partition(TOPIC_ID, self.partition, self.catalog, self.raft_index, known=known)


@pytest.fixture
def history() -> History:
    return History(open_objects("memory:///"))


@pytest.fixture
def three_segments(history: History) -> History:
    """Segments of 3, 1 and 4 batches with 2 to 5 records each, under two leader epochs."""
    for count in (3, 1, 4):
        history.export(
            [
                history.batch([b"v" * 50] * (2 + at), codec=Compression(at), epoch=7 if len(history.records) < 9 else 9)
                for at in range(count)
            ]
        )
    return history
