"""From tasks to rows of a table: read, decoded, changed by the user's own function, and written, all in the workers.

Without decoding, rows go from record batches to Parquet in one worker and never through Java. Promises that each
attempt of a task reads its rows once, and that the columns which identify a row are there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.base.errors import UsageError
from headrace.spark.options import ReadOptions
from headrace.spark.pipelines.spec import Decode, Materialise
from headrace.spark.pipelines.tables.evolving import type_text
from headrace.spark.pipelines.tables.progress import Column, File
from headrace.spark.pipelines.tables.writing import FILE_SQL, PLACE, Layout, file_of, written
from headrace.spark.read.columns import Columns
from headrace.spark.read.plan import Task
from headrace.spark.results import collected

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

CORRUPT = "_headrace_corrupt"
PARTITIONED = ("string", "int", "bigint", "smallint", "tinyint", "boolean", "date")
"""Types of columns that may partition a table: their values become texts without loss."""
Batches = Iterable[Any]


def numbered(spark: SparkSession, count: int, work: Callable[[int], Batches], sql: str) -> DataFrame:
    """A frame of the rows that `work` yields for each number below `count`, each in a task of its own."""

    def run(batches: Batches) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(number)

    return spark.range(0, count, 1, count).mapInArrow(run, sql)


def read_by(options: ReadOptions, columns: Columns, tasks: Sequence[Task]) -> Callable[[int], Batches]:
    """Returns a function that yields the rows of one of these tasks."""

    def read(number: int) -> Iterator[Any]:
        from headrace.spark.read.reading import TaskReader
        from headrace.spark.read.settled import settle, settle_first

        with TaskReader(options, columns) as reader:
            settle()
            yield from reader.read(tasks[number])
        settle_first()

    return read


class Shape:
    """The shape of one pipeline's rows, in one session."""

    def __init__(self, spark: SparkSession, spec: Materialise) -> None:
        """Raises UsageError where the columns are impossible."""
        self._spark = spark
        self._spec = spec
        self._source = spec.source.columns
        self._direct = spec.decode == Decode() and not spec.columns
        self.schema = self._schema()
        self.layout = layout_of(spec, self.schema)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(each.name, type_text(each.dataType)) for each in self.schema.fields)

    def write(self, tasks: Sequence[Task]) -> list[File]:
        """Write all rows of the tasks, in whole files. Raises a worker's exceptions."""
        layout, read = self.layout, read_by(self._spec.source, self._source, tasks)
        if self._direct:
            frame = numbered(self._spark, len(tasks), lambda number: written(layout, read(number)), FILE_SQL)
        else:
            rows = self._shaped(numbered(self._spark, len(tasks), read, self._source.sql))
            frame = rows.mapInArrow(lambda batches: written(layout, batches), FILE_SQL)
        return [file_of(row) for row in collected(frame)]

    def _schema(self) -> StructType:
        schema = self._shaped(self._spark.createDataFrame([], self._source.sql)).schema
        names = [each.name for each in schema.fields]
        if missing := [name for name in PLACE if name not in names]:
            raise UsageError(
                f"The rows of pipeline '{self._spec.name}' have no column '{missing[0]}': a function has to keep "
                f"{', '.join(PLACE)}, by which a table knows its records."
            )
        lower = [name.lower() for name in names]
        if twice := [name for name in names if lower.count(name.lower()) > 1]:
            raise UsageError(
                f"Two columns of pipeline '{self._spec.name}' are called '{twice[0]}': rename one of them."
            )
        return schema

    def _shaped(self, frame: DataFrame) -> DataFrame:
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as f

        decode = self._spec.decode
        try:
            if decode.schema is not None:
                frame = _with_json(frame, decode.schema)
            elif decode.value == "string":
                frame = frame.withColumn("value", f.col("value").cast("string"))
            if decode.key == "string":
                frame = frame.withColumn("key", f.col("key").cast("string"))
            if decode.function is not None:
                frame = function_of(decode.function)(frame)
            for name, expression in self._spec.columns.items():
                frame = frame.withColumn(name, f.expr(expression))
        except PySparkException as error:
            raise UsageError(f"Pipeline '{self._spec.name}' cannot be: {str(error).splitlines()[0]}") from error
        return frame


def _with_json(frame: DataFrame, ddl: str) -> DataFrame:
    """The JSON's fields as columns. `value` remains only where it does not match the schema."""
    from pyspark.sql import functions as f

    fields, mark = _fields(ddl), uuid4().hex
    known = {name.lower() for name in frame.columns}
    if clash := [each.name for each in fields if each.name.lower() in known]:
        raise UsageError(
            f"Field '{clash[0]}' of the values' schema is the name of a column: take the value apart by a function."
        )
    frame = frame.withColumn("_json", _in_a_list(f.col("value").cast("string"), fields, mark))
    found = f.col("_json").getField(mark)
    is_whole = (f.size(found) == 2) & f.get(found, 1).getField(mark).isNotNull() & f.get(found, 0).isNotNull()
    is_one = f.coalesce(is_whole & f.col("_json").getField(CORRUPT).isNull(), f.lit(False))
    taken = [f.when(is_whole, f.get(found, 0).getField(each.name)).alias(each.name) for each in fields]
    others = [f.col(name) for name in frame.columns if name not in ("value", "_json")]
    return frame.select(*others, *taken, f.when(~is_one, f.col("value")).alias("value"))


def _in_a_list(text: SparkColumn, fields: Sequence[StructField], mark: str) -> SparkColumn:
    """Parse the text as the first element of a list of two. Spark reads no further than the end of the first JSON. If
    the second element is not found behind it, the text was not one JSON. `mark`: a name that no text can contain.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

    each = StructType([*fields, StructField(mark, IntegerType())])
    schema = StructType([StructField(mark, ArrayType(each)), StructField(CORRUPT, StringType())])
    wrapped = f.concat(f.lit(f'{{"{mark}":['), text, f.lit(f',{{"{mark}":1}}]}}'))
    return f.from_json(wrapped, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def _fields(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise UsageError(f"Key schema of section [decode] must be names and types, as 'id bigint', not '{ddl:.100}'.")
    return parsed.fields


def function_of(name: str, section: str = "decode") -> Callable[[DataFrame], DataFrame]:
    """The named function. Raises UsageError where it cannot be imported."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"Function '{name}' of section [{section}] cannot be imported: {error}.") from error
    return found  # type: ignore[no-any-return]


def layout_of(spec: Materialise, schema: StructType) -> Layout:
    """The layout of the files. Raises UsageError where the table cannot be partitioned so."""
    from pyspark.sql.pandas.types import to_arrow_schema

    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    for name in spec.partition_by:
        if name not in types:
            raise UsageError(f"Key partition_by names '{name}', which is no column; there are: {', '.join(types)}.")
        if types[name] not in PARTITIONED:
            raise UsageError(f"Column '{name}' is {types[name]}, but only {', '.join(PARTITIONED)} partition a table.")
    return Layout(
        url=spec.path,
        schema=to_arrow_schema(schema, timezone="UTC"),
        partition_by=spec.partition_by,
        file_bytes=spec.file_bytes,
        compression=spec.compression,
    )
