"""Durable segments in each codec of `storage.compression`: their size, their export, and how fast they are read.

python -m benchmarks.micro.packed [--records 200000] [--rounds 3]

Records are JSON of 1 KB, in batches of a client that packs nothing, or with lz4. They are exported to a directory
without a broker. `export` is what a broker's thread does. `history` is what it does to serve all of it: it reads,
proves and cuts blocks. `task` is what a Spark worker does: it makes Arrow columns of all values. These three are in MB
for each second of processor time, so that other work on the machine counts little. `spark` is a whole query, by the
clock, with two tasks at a time: it counts the rows and sums the lengths of the values.

All rates are of records, whatever the bytes in the store, and all is in the page cache. A slow store reads fewer bytes
besides.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from benchmarks.load import results
from benchmarks.load.cases import MEGABYTE
from benchmarks.spark.data import BATCH_BYTES, FIRST_TIMESTAMP_MS, value
from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import DURABLE_SEGMENT_BYTES_MAX
from headrace.base.ports import Objects
from headrace.metadata.segments import PartitionCatalog
from headrace.spark.options import parse_options
from headrace.spark.read.columns import Columns
from headrace.spark.read.decode import warm_up
from headrace.spark.read.extent import Sources
from headrace.spark.read.plan import plan_tasks
from headrace.spark.read.reading import TaskReader
from headrace.spark.session import spark_session
from headrace.storage.objects import open_objects
from headrace.storage.packed_blocks import CODECS
from headrace.storage.tier.blocks import Block, read_block, read_plan
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch, end_of
from headrace.wire.compression import Compression
from headrace.wire.records import Record

RECORD_BYTES: Final = 1024
DIFFERENT: Final = 20_000
"""Values. They are repeated 20 MB apart, which no block sees."""
FETCH_BYTES: Final = MEGABYTE
TOPIC: Final = "packed"
CLIENTS: Final = {"none": Compression.NONE, "lz4": Compression.LZ4}


def batches_of(records: int, codec: Compression) -> list[bytes]:
    """Batches of about 16 KB as sent, as a Java producer fills them, joined to segments."""
    random = Random(1)
    values = [value(random, RECORD_BYTES) for _ in range(min(DIFFERENT, records))]
    size = BATCH_BYTES // RECORD_BYTES
    sample = encode_batch([Record(at, 0, None, each) for at, each in enumerate(values[: 4 * size])], compression=codec)
    size = 4 * size * BATCH_BYTES // len(sample)
    segments, batches, total = [], list[bytes](), 0
    for start in range(0, records, size):
        offsets = range(start, min(start + size, records))
        held = [Record(at, FIRST_TIMESTAMP_MS + at, None, values[at % len(values)]) for at in offsets]
        batches.append(encode_batch(held, compression=codec))
        total += len(batches[-1])
        if total >= DURABLE_SEGMENT_BYTES_MAX:
            segments.append(b"".join(batches))
            batches, total = [], 0
    return [*segments, b"".join(batches)] if batches else segments


class History:
    """One topic in a store of its own."""

    def __init__(self, root: Path, segments: list[bytes], codec: Compression) -> None:
        self.url = f"file://{root}"
        self.objects: Objects = open_objects(self.url)
        topic_id, cluster = TopicId(UUID(int=1)), ClusterId("bench")
        mirror = MirrorWriter(self.objects, cluster_id=cluster)
        mirror.write_topic(MirroredTopic(cluster_id=cluster, topic_id=topic_id, name=TOPIC, partitions=1))
        self.catalog = PartitionCatalog.empty(topic_id, PartitionIndex(0))
        begun = time.process_time()
        for batches in segments:
            source = ExportSource(
                cluster_id=cluster,
                topic_id=topic_id,
                topic=TOPIC,
                partition=PartitionIndex(0),
                leader_epoch=LeaderEpoch(0),
                start_offset=self.catalog.next_offset,
                limit_offset=Offset(2**62),
                codec=codec,
            )
            self.catalog = self.catalog.published(export_segment(self.objects, source, [batches]))
        self.export_s = time.process_time() - begun
        mirror.write_partition(topic_id, PartitionIndex(0), self.catalog, raft_index=1)

    @property
    def object_bytes(self) -> int:
        return sum(entry.descriptor.object_bytes for entry in self.catalog)

    def serve(self) -> float:
        """Seconds for all of history in parts as large as a fetch."""
        begun = time.process_time()
        served = 0
        for entry in self.catalog:
            plan = read_plan(self.objects, entry.descriptor)
            for number in range(len(plan.starts)):
                block = read_block(self.objects, plan, number)
                served += sum(map(len, parts_of(block)))
        assert served == self.catalog.batch_bytes
        return time.process_time() - begun

    def decode(self) -> float:
        """Seconds for all values as Arrow columns, as Spark's tasks make them."""
        options = parse_options({"store": self.url, "topic": TOPIC}, streaming=False)
        store = Store.open(self.url)
        sources = Sources(options, store=store)
        begun = time.process_time()
        rows = 0
        for task in plan_tasks(sources, sources.ranges()):
            with TaskReader(options, Columns.select(["value"], headers=False), store=store) as reader:
                rows += sum(batch.num_rows for batch in reader.read(task))
        assert rows == self.catalog.next_offset
        return time.process_time() - begun


def parts_of(block: Block) -> Iterator[memoryview]:
    at = block.base_offset
    while at < block.next_offset:
        part = block.read(at, FETCH_BYTES, block.next_offset, at_least_one=True)
        yield part
        at = end_of(part)


def counted(spark: Any, history: History, records: int) -> float:
    """Seconds of a Spark query over all rows."""
    begun = time.perf_counter()
    rows = spark.read.format("headrace").options(store=history.url, topic=TOPIC).load()
    (found,) = rows.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").collect()
    assert (found["rows"], found["bytes"]) == (records, records * RECORD_BYTES)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    megabytes = given.records * RECORD_BYTES / MEGABYTE
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        stores: dict[tuple[str, str], History] = {}
        for client, codec in CLIENTS.items():
            segments = batches_of(given.records, codec)
            for name, packing in CODECS.items():
                stores[client, name] = History(Path(place) / f"{client}-{name}", segments, packing)
        warm_up()
        spark = spark_session("headrace bench", master="local[2]", settings={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        runs: dict[tuple[str, str], list[tuple[float, float, float]]] = {each: [] for each in stores}
        for _ in range(given.rounds + 1):  # in turns; the first is to warm up
            for each, history in stores.items():
                runs[each].append((history.serve(), history.decode(), counted(spark, history, given.records)))
        spark.stop()
    figures = []
    for (client, name), history in stores.items():
        served, decoded, queried = zip(*islice(runs[client, name], 1, None), strict=True)
        figures.append(
            {
                "client": client,
                "storage.compression": name,
                "object_mb": round(history.object_bytes / MEGABYTE, 1),
                "batch_mb": round(history.catalog.batch_bytes / MEGABYTE, 1),
                "export_mb_per_s": round(megabytes / history.export_s, 1),
                "history_mb_per_s": round(megabytes / statistics.median(served), 1),
                "task_mb_per_s": round(megabytes / statistics.median(decoded), 1),
                "spark_mb_per_s": round(megabytes / statistics.median(queried), 1),
                "history_s": [round(each, 3) for each in served],
                "task_s": [round(each, 3) for each in decoded],
                "spark_s": [round(each, 3) for each in queried],
            }
        )
        print({key: figure for key, figure in figures[-1].items() if not key.endswith("_s") or "mb" in key})
    title = f"{given.records:,} records of JSON of 1 KB: durable segments in each codec"
    print(results.append("packed-segments", {"case": "packed-segments", "title": title, "figures": figures}))


if __name__ == "__main__":
    main()
