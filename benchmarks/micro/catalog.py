"""The cost of very many durable segments: memory of the image, a snapshot, a start, and the planning of a read.

Run with ``python -m benchmarks.micro.catalog [--segments N]``. The descriptors are made up, and the mirror is written
without syncs; only the measured parts are real. ``--single`` plans from the documents of single segments, as earlier
versions did.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import tempfile
import time
import tracemalloc
import uuid
import zlib
from pathlib import Path
from typing import Final

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.ports import Buffer
from headrace.controller.brokers import register_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.codec import decode_line, encode_line
from headrace.metadata.events import SegmentPublished
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import SegmentDescriptor
from headrace.metadata.values import Endpoint
from headrace.spark.options import parse_options
from headrace.spark.read.extent import Sources
from headrace.spark.read.plan import plan_tasks
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter, state_key

CLUSTER: Final = ClusterId("9hHqbQqPQ9yzc9ZbXhYkVA")
TOPIC: Final = TopicId(uuid.UUID(int=1, version=4))
KEY: Final = TopicPartition(TOPIC, PartitionIndex(0))
PER_SEGMENT: Final = 1_000
SEGMENT_BYTES: Final = 1_000_000


class Unsynced(DirectoryObjects):
    """As if the disk were quick."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root)
        self._at = root

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        path = self._at / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return True


def segment(number: int) -> SegmentDescriptor:
    start = number * PER_SEGMENT
    known = SegmentDescriptor(
        key="",
        start_offset=Offset(start),
        end_offset=Offset(start + PER_SEGMENT - 1),
        leader_epoch=LeaderEpoch(1),
        first_timestamp_ms=1_700_000_000_000 + start,
        last_timestamp_ms=1_700_000_000_999 + start,
        records=PER_SEGMENT,
        batch_bytes=SEGMENT_BYTES,
        object_bytes=SEGMENT_BYTES + 5_000,
        crc32c=zlib.crc32(b"%d" % number),
        sha256=hashlib.sha256(b"%d" % number).hexdigest(),
        last_epoch=LeaderEpoch(1),
    )
    fields = {name: getattr(known, name) for name in SegmentDescriptor.__slots__}
    return SegmentDescriptor(**{**fields, "key": str(SegmentKey.of(CLUSTER, KEY, known))})


def empty() -> MetadataImage:
    """With one topic, by the controller's own decisions."""
    registered = register_broker(
        EMPTY_IMAGE,
        cluster_id=CLUSTER,
        broker_id=1,  # type: ignore[arg-type]  # a NewType
        directory_id=uuid.UUID(int=1),  # type: ignore[arg-type]
        endpoints=(Endpoint(listener="PLAINTEXT", host="broker.example", port=9092),),
        rack=None,
        unfenced=True,
    )
    image = EMPTY_IMAGE.replay(registered.events, index=1)
    new = NewTopic(topic_id=TOPIC, name="t", partitions=1, replication_factor=1, configs={})
    return image.replay(create_topics(image, [new], broker_configs={}).events, index=2)


def grown(image: MetadataImage, segments: int) -> MetadataImage:
    """By one entry of the commit log for each."""
    for number in range(segments):
        head = image.durable(KEY).head
        event = SegmentPublished(
            topic_id=TOPIC, partition=KEY.partition, descriptor=segment(number), previous_hash=head
        )
        image = image.replay([event], index=image.index + 1)
    return image


def planned(store: Path) -> float:
    """Seconds of a plan, as a driver makes it."""
    options = parse_options({"store": f"file://{store}", "topic": "t"}, streaming=False)
    begin = time.perf_counter()
    sources = Sources(options)
    tasks = plan_tasks(sources, sources.ranges())
    taken = time.perf_counter() - begin
    assert tasks
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--single", action="store_true")
    arguments = parser.parse_args()
    count: int = arguments.segments
    print(f"a partition of {count:,} durable segments")
    image = empty()
    tracemalloc.start()
    sample = grown(image, min(count, 5_000))
    gc.collect()
    print(f"  memory of the image for each     {tracemalloc.get_traced_memory()[0] / min(count, 5_000):10.0f} bytes")
    tracemalloc.stop()
    del sample
    begin = time.perf_counter()
    image = grown(image, count)
    print(f"  publishing each                  {(time.perf_counter() - begin) / count * 1e6:10.1f} us")
    begin = time.perf_counter()
    lines = [encode_line(event) for event in image.snapshot()]
    written = time.perf_counter() - begin
    text = b"".join(lines)
    print(f"  snapshot written                 {written:10.2f} s")
    print(
        f"  bytes of it for each             {len(text) / count:10.0f} ({len(zlib.compress(text)) / count:.0f} zipped)"
    )
    begin = time.perf_counter()
    again = EMPTY_IMAGE.replay([decode_line(line) for line in lines], index=image.index)
    print(f"  snapshot restored                {time.perf_counter() - begin:10.2f} s")
    assert again == image
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        writer = MirrorWriter(Unsynced(root), cluster_id=CLUSTER)
        writer.write_topic(MirroredTopic(cluster_id=CLUSTER, topic_id=TOPIC, name="t", partitions=1))
        begin = time.perf_counter()
        writer.write_partition(TOPIC, KEY.partition, image.durable(KEY), image.index)
        print(f"  mirror written                   {time.perf_counter() - begin:10.2f} s")
        state = root / state_key(TOPIC, KEY.partition)
        if arguments.single:
            known = json.loads(state.read_bytes())
            state.write_text(json.dumps({name: known[name] for name in known if name not in ("chunks", "singles")}))
        print(f"  bytes of its state               {state.stat().st_size:10,}")
        if not arguments.single:
            begin = time.perf_counter()
            writer.write_partition(TOPIC, KEY.partition, image.durable(KEY), image.index)
            print(f"  mirror looked through            {time.perf_counter() - begin:10.2f} s")
        print(f"  planning a read                  {min(planned(root) for _ in range(3)):10.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
