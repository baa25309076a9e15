"""The data source ``headrace`` of PySpark: durable segments as rows (batch).

Promises: the driver fixes the offset range of every partition once; each task reads its part straight from the store,
with no broker; the rows are those that a Kafka consumer gets for the same offsets. Damage fails the job with a text
that names topic, partition, offset and object. Workers import numba only when they read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.base.errors import UsageError
from headrace.spark.columns import Columns
from headrace.spark.plan import ReadOptions, TaskPlan, parse_options, plan_read
from headrace.storage.tier.reader import Store


class HeadraceSource(DataSource):
    """``spark.read.format("headrace").option("store", URL).option("topic", NAME).load()``

    Options: `store` (URL of the store) and `topic` (names or ids, with commas) must be given. `startingOffsets`
    (earliest) and `endingOffsets` (latest, exclusive): or JSON as in Spark's Kafka source, ``{"topic": {"0": 23}}``,
    with -2 for earliest and -1 for latest. `includeHeaders` (false). `columns` (all): only these are decoded, with
    commas. `sliceBytes` (16 MiB): bytes that one task reads, about.
    """

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return parse_options(self.options).columns.sql

    def reader(self, schema: StructType) -> HeadraceReader:
        options = parse_options(self.options)
        columns = Columns.select(schema.fieldNames(), headers=True)
        if schema.simpleString() != columns.simple_string:
            raise UsageError(f"The schema asked for is {schema.simpleString()}, but must be {columns.simple_string}.")
        return HeadraceReader(options, columns)


class HeadraceReader(DataSourceReader):
    """Plans in the driver, reads in the workers."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """One per task; Spark makes one of None where there is nothing to read."""
        tasks = plan_read(self._options, Store.open(self._options.store))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """pyarrow.RecordBatch of up to 32,768 rows."""
        from headrace.spark.decode import arrow_batches, rows_for

        task: TaskPlan | None = partition.value
        if task is None:
            return
        rows = rows_for(self._columns, task.topic, task.partition)
        yield from arrow_batches(Store.open(task.store), task.slices, rows)
