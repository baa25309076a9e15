"""The data source ``headrace`` of PySpark: durable history from the store, and the newer records from the brokers.

Promises:

- The driver fixes the offset range of every partition once. Each task reads its part, durable segments straight from
  the store.
- The rows are those that a Kafka consumer gets for those offsets.
- Damage and loss fail the job with a text that names topic, partition, offset and object.
- Rows are written at least once, by `headrace.spark.write.writers`.

Workers import numba only when they read or write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from headrace.base.errors import UsageError
from headrace.spark.options import ReadOptions, parse_options
from headrace.spark.read.columns import Columns
from headrace.spark.read.extent import Sources
from headrace.spark.read.filters import ALL, wanted_by
from headrace.spark.read.plan import Task, plan_tasks
from headrace.spark.telling import alone

START_DIGITS: Final = 8
"""Hexadecimal digits of the name of a start of a query. Spark copies one data source for all that a start does."""


@alone
class HeadraceDataSource(DataSource):
    """``spark.read.format("headrace").option("store", URL).option("topic", NAME).load()``, and ``spark.readStream``;
    ``df.write.format("headrace").option("bootstrap", HOST).option("topic", NAME).mode("append").save()``, and
    ``df.writeStream``.

    The options are those of docs/SPARK.md.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._start = uuid4().hex[:START_DIGITS]

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return parse_options(self.options).columns.sql

    def reader(self, schema: StructType) -> HeadraceReader:
        options = parse_options(self.options, streaming=False)
        kind = FilteringReader if options.push_filters else HeadraceReader
        return kind(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from headrace.spark.read.streaming import HeadraceStreamReader

        return HeadraceStreamReader(parse_options(self.options, streaming=True), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.write.writers import HeadraceWriter, plan_write

        return HeadraceWriter(plan_write(self.options, schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from headrace.spark.write.writers import HeadraceStreamWriter, plan_write

        return HeadraceStreamWriter(plan_write(self.options, schema, overwrite, streaming=True), self._start)


def columns_of(schema: StructType) -> Columns:
    """The columns of a schema. Raises UsageError where Spark asks for other columns."""
    columns = Columns.select(schema.fieldNames(), headers=True)
    if schema.simpleString() != columns.simple_string:
        raise UsageError(f"The schema asked for is {schema.simpleString()}, but must be {columns.simple_string}.")
    return columns


@alone
class HeadraceReader(DataSourceReader):
    """Plans in the driver, reads in the workers."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._wanted = ALL

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per task. Spark makes one of None where there is nothing to read."""
        sources = Sources(self._options)
        try:
            tasks = plan_tasks(sources, sources.ranges(), self._wanted)
        finally:
            sources.close()
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """pyarrow.RecordBatch of up to 32,768 rows."""
        return rows_of(self._options, self._columns, partition)


@alone
class FilteringReader(HeadraceReader):
    """A reader that Spark gives a query's filters. Spark refuses it unless spark.sql.python.filterPushdown.enabled is
    set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Returns all filters: Spark checks the rows again, so the filters here only reduce what is read."""
        self._wanted = wanted_by(filters)
        return filters


def rows_of(options: ReadOptions, columns: Columns, partition: InputPartition) -> Iterator[Any]:
    """Called in a worker: the rows of its task."""
    from headrace.spark.read.reading import TaskReader
    from headrace.spark.read.settled import settle, settle_first

    task: Task | None = partition.value
    if task is None:
        return
    with TaskReader(options, columns) as reader:
        settle()
        yield from reader.read(task)
    settle_first()
