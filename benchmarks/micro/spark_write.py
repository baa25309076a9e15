"""Spark's writes, by stages: rows packed, batches sealed, one task delivered, and a whole write in `local[2]`.

python -m benchmarks.micro.spark_write [--records 1000000] [--bytes 100] [--connector JARS]

Prints rows a second. `--connector` names the jars of spark-sql-kafka-0-10, with commas: it then writes the same frame
to the same broker, too. Keys are 8 bytes, values random letters; the topic has 4 partitions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.spark.session import spark_session
from headrace.spark.write.packing import Layout, NativePacker
from headrace.spark.write.rows import chunks
from headrace.spark.write.sink import parse_write_options
from headrace.spark.write.writing import Producer, TaskWriter
from headrace.wire.batches import seal_records
from headrace.wire.compression import Compression
from tools.servers.broker_process import BrokerProcess

ROWS = 10_000
PARTITIONS = 4
BATCH_BYTES = 512 * 1024
ROUNDS = 3


def table(records: int, size: int) -> list[Any]:
    """Arrow batches as Spark hands them out."""
    letters = np.random.default_rng(7).integers(97, 123, (ROWS, size - 8), np.uint8)
    values = pa.array([row.tobytes() for row in letters], pa.binary())
    keys = [pa.array([b"%08d" % (at + row) for row in range(ROWS)]) for at in range(0, records, ROWS)]
    return [pa.RecordBatch.from_arrays([key, values], ["key", "value"]) for key in keys]


def best(what: str, records: int, action: Callable[[], Any]) -> None:
    """Of ROUNDS."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    print(f"{what:44} {records / min(seconds):12,.0f} rows/s", flush=True)


def stages(batches: list[Any], records: int) -> None:
    layout = Layout(PARTITIONS, 0, BATCH_BYTES, None)
    packer = NativePacker(layout)
    packed = [each for chunk in chunks(batches, "t") for each in packer.pack(chunk)]
    best("packed", records, lambda: [packer.pack(chunk) for chunk in chunks(batches, "t")])
    for codec in Compression:

        def seal(codec: Compression = codec) -> None:
            for each in packed:
                seal_records(
                    each.room,
                    count=each.records,
                    base_timestamp=each.base_timestamp,
                    max_timestamp=each.max_timestamp,
                    compression=codec,
                    producer_id=1,
                    producer_epoch=0,
                    base_sequence=0,
                )

        if codec is not Compression.GZIP:
            best(f"sealed, {codec.name.lower()}", records, seal)


def create(bootstrap: str, topic: str) -> None:
    AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(topic, PARTITIONS)])[topic].result(20)


def whole(bootstrap: str, records: int, size: int, jars: str | None) -> None:
    settings = {"spark.jars": jars} if jars else {}
    spark = spark_session("spark_write", master="local[2]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.range(0, records, 1, 4).selectExpr(
        "lpad(string(id), 8, '0') as key", f"lpad(string(id), {size - 8}, sha2(string(id), 512)) as value"
    )
    frame = frame.cache()
    frame.count()
    for codec in ("none", "lz4", "zstd"):
        ours = {"bootstrap": bootstrap, "topic": "spark", "compression": codec}
        writer = frame.write.format("headrace").options(**ours).mode("append")
        best(f"Spark, headrace, {codec}", records, writer.save)
        if jars:
            theirs = {"kafka.bootstrap.servers": bootstrap, "topic": "spark", "kafka.compression.type": codec}
            rival = frame.write.format("kafka").options(**theirs)
            best(f"Spark, spark-sql-kafka-0-10, {codec}", records, rival.save)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--connector")
    arguments = parser.parse_args()
    batches = table(arguments.records, arguments.bytes)
    stages(batches, arguments.records)
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory)) as broker:
        create(broker.bootstrap, "task")
        create(broker.bootstrap, "spark")
        for codec in ("none", "lz4"):
            options = parse_write_options(
                {"bootstrap": broker.bootstrap, "topic": "task", "compression": codec}, streaming=False
            )
            best(f"one task, {codec}", arguments.records, lambda: TaskWriter(options, {}, None).write(batches))  # noqa: B023
        Producer.forget()
        whole(broker.bootstrap, arguments.records, arguments.bytes, arguments.connector)


if __name__ == "__main__":
    main()
