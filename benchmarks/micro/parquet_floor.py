"""The speed of Spark's own Parquet writer for rows that no source has to read: no source can be faster.

python -m benchmarks.micro.parquet_floor [--records 1000000] [--bytes 1024] [--rounds 5]

The rows are those of `make bench-spark` (its values, the columns of Kafka's source), in four partitions, kept in
Spark's memory, in its session on `local[2]`.

Prints rows a second for three measures:
- counting the rows with the lengths of their values, which is the cost of bringing them from memory;
- writing them to Parquet;
- writing them if bringing them cost nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from benchmarks.spark.data import FIRST_TIMESTAMP_MS, PARTITIONS, value
from benchmarks.spark.queries import Count, Session, ToParquet, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUES: Final = 10_000
"""That are different."""
WARM_UPS: Final = 3
COLUMNS: Final = (
    "CAST(NULL AS binary) AS key",
    "value",
    "'spark-floor-data' AS topic",
    f"CAST(id DIV (records DIV {PARTITIONS} + 1) AS int) AS partition",
    f"id % (records DIV {PARTITIONS} + 1) AS offset",
    f"timestamp_millis({FIRST_TIMESTAMP_MS} + id % 16) AS timestamp",
    "0 AS timestampType",
)


def rows_in_memory(session: Session, records: int, size: int) -> DataFrame:
    """All columns of Kafka's source; counted once, so that they are there."""
    spark, random = session.spark, Random(size)
    values = pa.table({"at": range(VALUES), "value": [value(random, size) for _ in range(VALUES)]})
    ids = spark.range(0, records, 1, PARTITIONS).selectExpr("id", f"pmod(hash(id), {VALUES}) AS at")
    joined = ids.join(spark.createDataFrame(values).hint("broadcast"), "at")
    rows = joined.selectExpr(*(each.replace("records", str(records)) for each in COLUMNS)).cache()
    assert rows.count() == records, "a row has its value"
    return rows


def timed(what: str, records: int, rounds: int, action: Callable[[], int]) -> float:
    """Seconds: the median, once Java has compiled it."""
    seconds = []
    for _ in range(WARM_UPS + rounds):
        begun = time.perf_counter()
        found = action()
        seconds.append(time.perf_counter() - begun)
        assert found == records, f"{found} rows instead of {records}"
    taken = median(seconds[WARM_UPS:])
    print(f"{what:40} {records / taken:12,.0f} rows/s", flush=True)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of each value")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with Session() as session, tempfile.TemporaryDirectory(prefix="headrace-floor-") as directory:
        out, rows = Path(directory) / "rows", rows_in_memory(session, chosen.records, chosen.bytes)

        def to_parquet() -> int:
            ToParquet().run(rows, out)
            return rows_in(out)

        brought = timed("counted", chosen.records, chosen.rounds, lambda: Count().run(rows, out))
        written = timed("to Parquet", chosen.records, chosen.rounds, to_parquet)
        left = chosen.records / max(written - brought, 1e-9)
        print(f"{'to Parquet, if bringing them were free':40} {left:12,.0f} rows/s")


if __name__ == "__main__":
    main()
