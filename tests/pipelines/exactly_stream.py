"""A stream as a process: it copies topic `s` into topic `t` exactly once, and ends when it has all that is there.

``python -m tests.pipelines.exactly_stream CHECKPOINT --json BOOTSTRAP``.
"""

from __future__ import annotations

import sys

from headrace.spark.session import SHORT_JOB, spark_session


def main(checkpoint: str, bootstrap: str) -> None:
    spark = spark_session("crash", master="local[2,4]", settings=SHORT_JOB)
    source = {
        "topic": "s",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "maxRecordsPerTrigger": "60",
        "minPartitions": "4",
    }
    query = (
        spark.readStream.format("headrace")
        .options(bootstrap=bootstrap, **source)
        .load()
        .select("key", "value", "headers")
        .writeStream.format("headrace")
        .options(bootstrap=bootstrap, topic="t", delivery="exactly-once", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
