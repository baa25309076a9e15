"""Reads a table: the files that its commits list and no others, wherever they lie.

Promises that files left beside them by a crash, or by a run that was too late, are never read. A reader that began
before files were merged is not disturbed: only `vacuum` deletes the old ones.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.base.errors import UsageError
from headrace.spark.pipelines.tables.evolving import ddl
from headrace.spark.pipelines.tables.progress import Column, Commit, File, ProgressLog, State
from headrace.spark.pipelines.tables.writing import DATA
from headrace.storage.objects import directory_of, open_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VACUUM_HOURS = 168.0
OURS: Final = re.compile(r"/part-[^/]*-\d{20}-\d{20}(-and-\d+)?-[0-9a-f]{32}\.parquet\Z")
"""Names that `writing` gives. Other files may be a table format's own."""


def state_of(path: str) -> State:
    """The present state of the table at `path`. Raises UsageError where there is none."""
    return _there(path, ProgressLog(open_objects(path)).state())


def _there(path: str, state: State) -> State:
    if state.version < 0:
        raise UsageError(f"There is no table at '{path}': no pipeline has begun one there.")
    return state


def table(spark: SparkSession, path: str) -> DataFrame:
    """The table's present rows. ``.createOrReplaceTempView("orders")`` gives it a name in SQL."""
    state = state_of(path)
    files = [*state.files.values()]
    if not files:
        return spark.createDataFrame([], ddl(state.columns) or "topic string, partition int, offset bigint")
    if urlsplit(path).scheme in ("", "file"):
        root = directory_of(path)
        paths = [str(root / file.path) for file in files]
        reader = spark.read.schema(ddl(state.columns)).option("recursiveFileLookup", "true")
        return reader.parquet(*paths)
    return _through_objects(spark, path, files, state)


def vacuum(path: str, *, older_than_hours: float = VACUUM_HOURS) -> int:
    """Delete files that are not in the table, and return their number. They must be older than `older_than_hours`, and
    so must the commit that removed them, if one did. The time should be longer than any run and any query takes.
    """
    objects = open_objects(path)
    before_ms = int((time.time() - older_than_hours * 3600) * 1000)
    found = [meta for meta in objects.list(f"{DATA}/") if meta.modified_ms < before_ms]
    kept = _needed(path, before_ms)  # after the list: uncommitted files are too young for it
    gone = [meta.key for meta in found if meta.key not in kept and OURS.search(meta.key)]
    for key in gone:
        objects.delete(key)
    objects.discard_unfinished(before_ms)
    return len(gone)


def _needed(path: str, since_ms: int) -> set[str]:
    """Files of the present table, and those removed from it since `since_ms`. Raises UsageError where there is no
    table.
    """
    removed = set[str]()

    def noted() -> Iterator[Commit]:
        for commit in ProgressLog(open_objects(path)).commits():
            if commit.time_ms > since_ms:
                removed.update(commit.removed)
            yield commit

    return {*_there(path, State().after_all(noted())).files} | removed


def arrow_schema_of(columns: Sequence[Column]) -> Any:
    """A pyarrow.Schema of a table's columns. Needs a running session, which knows their types."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl(columns))
    assert isinstance(schema, StructType), "a table has columns"
    return to_arrow_schema(schema, timezone="UTC")


def conformed(rows: Any, schema: Any) -> Any:
    """A pyarrow.Table with these columns. Columns that its file lacks are null."""
    import pyarrow as pa

    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _through_objects(spark: SparkSession, path: str, files: Sequence[File], state: State) -> DataFrame:
    """Read through Headrace's object stores: Spark's own readers would need Hadoop's jars for them."""
    from headrace.spark.pipelines.tables.shaping import numbered

    schema, paths = arrow_schema_of(state.columns), [file.path for file in files]

    def read(number: int) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import parquet

        data = open_objects(path).get(paths[number])
        for batch in parquet.ParquetFile(pa.BufferReader(data)).iter_batches():
            yield from conformed(pa.Table.from_batches([batch]), schema).to_batches()

    return numbered(spark, len(paths), read, ddl(state.columns))
