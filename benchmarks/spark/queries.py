"""One Spark session for both sides, their options, and the queries over the rows.

Both use one session, `local[2]`, in one Java process. A side has the settings that its users get, or is tuned. Kafka's
source is tuned with the options that made it fastest; ours with the columns that the query needs, and larger tasks. The
time begins with `load`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.load.rivals import Rival
from benchmarks.spark.data import Data, HeadraceWithStore
from headrace.spark.read.decode import warm_up
from headrace.spark.session import spark_session
from tools import kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Final = {
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
}
KAFKA_TUNED: Final = {
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
}
OURS_TUNED: Final = {"maxBytesPerPartition": str(64 * 1024 * 1024)}


class Session:
    """Started when it is asked for first; a context manager that stops it. After a failure it ends with the process."""

    def __init__(self, master: str = "local[2]") -> None:
        self._master = master

    @cached_property
    def spark(self) -> SparkSession:
        warm_up()
        jars = os.pathsep.join(map(str, kafka_jars.spark_source()))
        settings = SETTINGS | {"spark.driver.extraClassPath": jars}
        spark = spark_session("headrace bench", master=self._master, settings=settings)
        spark.sparkContext.setLogLevel("ERROR")
        return spark

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and "spark" in self.__dict__:
            self.spark.stop()


def options(
    rival: Rival, data: Data, *, tuned: bool, columns: str | None = None, hot: bool = False
) -> tuple[str, Mapping[str, str]]:
    """The format and its options for all of a topic. `hot`: ours is told of no store, and so asks brokers."""
    if isinstance(rival, HeadraceWithStore):
        chosen = {"bootstrap": rival.bootstrap, "topic": data.topic, "startingOffsets": "earliest"}
        chosen |= {} if hot else {"store": rival.store}
        if tuned:
            chosen |= OURS_TUNED | ({} if columns is None else {"columns": columns})
        return "headrace", chosen
    chosen = {"kafka.bootstrap.servers": rival.bootstrap, "subscribe": data.topic, "startingOffsets": "earliest"}
    return "kafka", chosen | (KAFKA_TUNED if tuned else {})


class Action(Protocol):
    """The query over all rows of a topic."""

    @property
    def columns(self) -> str | None:
        """That it needs; None: all."""
        ...

    def run(self, rows: DataFrame, out: Path) -> int:
        """Run the timed part. Returns the rows that it has seen, or -1 where `out` has the number."""
        ...


class Count:
    """How many there are, and the sum of the lengths of their values."""

    columns: Final = "value"

    def run(self, rows: DataFrame, out: Path) -> int:
        (found,) = rows.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").collect()
        assert found["bytes"] % found["rows"] == 0, f"{found}: all values are of one length"
        return int(found["rows"])


class ToParquet:
    """All columns."""

    columns: Final = None

    def run(self, rows: DataFrame, out: Path) -> int:
        rows.write.mode("overwrite").parquet(str(out))
        return -1


def rows_in(directory: Path) -> int:
    """By the footers of the Parquet files alone."""
    from pyarrow import parquet

    return sum(parquet.read_metadata(file).num_rows for file in directory.rglob("*.parquet"))


def frame(session: Session, rival: Rival, data: Data, action: Action, *, tuned: bool, hot: bool = False) -> DataFrame:
    kind, chosen = options(rival, data, tuned=tuned, columns=action.columns, hot=hot)
    return session.spark.read.format(kind).options(**chosen).load()
