"""Writes Arrow batches into Parquet files, in a worker. Files are named by their offsets and a unique number.

Promises that a file is put whole, once its rows are in it, under a name that no other attempt, task or run ever has. A
repeated task puts another file beside it, and only the files that the driver lists are in the table. So an old file
that `vacuum` finds in no commit is in no later one either. Never holds more than about PIPELINE_TASK_BYTES_MAX of
files, or PIPELINE_OPEN_FILES_MAX of them at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from headrace.base.limits import (
    PIPELINE_OPEN_FILES_MAX,
    PIPELINE_PATH_CHARS_MAX,
    PIPELINE_ROW_GROUP_BYTES,
    PIPELINE_ROW_GROUP_ROWS,
    PIPELINE_TASK_BYTES_MAX,
)
from headrace.spark.pipelines.tables.progress import File
from headrace.storage.objects import open_objects, put_parts

DATA: Final = "data"
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PLACE: Final = ("topic", "partition", "offset")
"""Columns in every row of a table, which identify its record."""
FILE_SQL: Final = "path string, records bigint, bytes bigint, `values` string"
FILE_SCHEMA: Final = pa.schema(
    [("path", pa.string()), ("records", pa.int64()), ("bytes", pa.int64()), ("values", pa.string())]
)

SAMPLE_ROWS: Final = 4096
"""Size of the sample that shows whether values repeat."""
DICTIONARY_BYTES: Final = 1024 * 1024
"""Maximum bytes of a Parquet writer's dictionary."""

Value = str | int | bool | None
Values = tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table's files are written. Cheap to pickle."""

    url: str
    schema: Any
    """A pyarrow.Schema: the columns of the incoming rows."""
    partition_by: tuple[str, ...]
    file_bytes: int
    """Approximate bytes of one file."""
    compression: str


class Span(NamedTuple):
    """Offsets of one partition, inclusive."""

    topic: str
    partition: int
    first: int
    last: int


def written(layout: Layout, batches: Iterable[Any]) -> Iterator[Any]:
    """Write files, and yield to the driver a RecordBatch of FILE_SCHEMA for each."""
    for file in TableWriter(layout).write(batches):
        row = {**file._asdict(), "values": json.dumps(dict(file.values), ensure_ascii=False)}
        yield pa.RecordBatch.from_pylist([row], schema=FILE_SCHEMA)


def file_of(row: Any) -> File:
    """The file in a row that the driver received."""
    return File(row["path"], row["records"], row["bytes"], json.loads(row["values"]))


class TableWriter:
    """The writer of one task."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._objects = open_objects(layout.url)
        self._open: dict[Values, _OpenFile] = {}

    def write(self, batches: Iterable[Any]) -> Iterator[File]:
        """Yields the files. Raises StorageFailure."""
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(self._layout.schema.names).cast(self._layout.schema)
            if table.num_rows:
                for values, rows in parted(table, self._layout.partition_by):
                    yield from self._add(values, rows)
        for values in [*self._open]:
            yield self._finish(values)

    def _add(self, values: Values, rows: Any) -> Iterator[File]:
        file = self._open.get(values)
        if file is None:
            file = self._open[values] = _OpenFile(self._layout)
        file.add(rows)
        if file.size >= self._layout.file_bytes:
            yield self._finish(values)
        held = sum(each.size for each in self._open.values())
        if len(self._open) > PIPELINE_OPEN_FILES_MAX or held > PIPELINE_TASK_BYTES_MAX:
            yield self._finish(max(self._open, key=lambda each: self._open[each].size))

    def _finish(self, values: Values) -> File:
        file = self._open.pop(values)
        parts = file.close()
        named = dict(zip(self._layout.partition_by, values, strict=True))
        path = "/".join([DATA, *(_directory(*item) for item in named.items()), file_name(file.spans())])
        put_parts(self._objects, path, parts)
        return File(path, file.records, sum(map(len, parts)), named)


class _Parts:
    """Collects written bytes as they come. Arrow's own memory sink is copied each time that it has doubled."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Does nothing: there is no file beneath."""

    def close(self) -> None:
        self.closed = True

    def taken(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return parts


class _OpenFile:
    """Rows that become one file, in memory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sink = _Parts()
        self._writer: Any = None
        """Made with the first rows, which show how to write them."""
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0
        self._spans: dict[tuple[str, int], tuple[int, int]] = {}
        self.records = 0

    @property
    def size(self) -> int:
        """Bytes of its file so far, and of the waiting rows."""
        return self._sink.size + self._bytes

    def add(self, rows: Any) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        self.records += rows.num_rows
        found = rows.select(PLACE).group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
        for row in found.to_pylist():
            place, first, last = (row["topic"], row["partition"]), row["offset_min"], row["offset_max"]
            low, high = self._spans.get(place, (first, last))
            self._spans[place] = (min(low, first), max(high, last))
        if self._rows >= PIPELINE_ROW_GROUP_ROWS or self._bytes >= PIPELINE_ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            if self._writer is None:
                self._writer = parquet.ParquetWriter(
                    self._sink,
                    self._layout.schema,
                    compression=self._layout.compression,
                    use_dictionary=dictionary_columns(rows),
                )
            self._writer.write_table(rows, row_group_size=self._rows)
            self._waiting, self._rows, self._bytes = [], 0, 0

    def spans(self) -> list[Span]:
        return [Span(*place, *ends) for place, ends in sorted(self._spans.items())]

    def close(self) -> list[bytes]:
        """The file, in parts."""
        self._flush()
        self._writer.close()
        return self._sink.taken()


def dictionary_columns(rows: Any) -> list[str]:
    """Columns of a pyarrow.Table, by Parquet's paths, whose values repeat often enough. For other columns a writer
    begins each row group with a dictionary and gives it up at a megabyte. That was a fifth of its work.
    """
    some, found = rows.slice(0, SAMPLE_ROWS), list[str]()
    for field in rows.schema:
        if pa.types.is_binary(field.type) or pa.types.is_string(field.type):
            values = pc.unique(some.column(field.name))
            if len(values) * 2 > some.num_rows >= SAMPLE_ROWS or values.nbytes > DICTIONARY_BYTES:
                continue
        found += leaves(field.name, field.type)
    return found


def leaves(path: str, kind: Any) -> list[str]:
    """Parquet's columns of a field (its logical types LIST and MAP)."""
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in leaves(f"{path}.{each.name}", each.type)]
    if pa.types.is_map(kind):
        return leaves(f"{path}.key_value.key", kind.key_type) + leaves(f"{path}.key_value.value", kind.item_type)
    if pa.types.is_list(kind):
        return leaves(f"{path}.list.element", kind.value_type)
    return [path]


def file_name(spans: list[Span]) -> str:
    """A unique name with the first span, and the number of further ones. Spark ignores names that begin with '_' or
    '.', as a topic's may.
    """
    first, more = spans[0], f"-and-{len(spans) - 1}" if len(spans) > 1 else ""
    topic = first.topic[:PIPELINE_PATH_CHARS_MAX]
    return f"part-{topic}-{first.partition}-{first.first:020d}-{first.last:020d}{more}-{uuid4().hex}.parquet"


def parted(table: Any, by: tuple[str, ...]) -> Iterator[tuple[Values, Any]]:
    """The rows of each combination of values, in their order."""
    if not by:
        yield (), table
        return
    for row in table.select(by).group_by(list(by)).aggregate([]).to_pylist():
        mask = None
        for name in by:
            column, value = table.column(name), row[name]
            same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            mask = same if mask is None else pc.and_(mask, same)
        yield tuple(_as_json(row[name]) for name in by), table.filter(mask)


def _as_json(value: Any) -> Value:
    """The value as JSON has it."""
    return value.isoformat() if isinstance(value, date) else value


def _directory(name: str, value: Value) -> str:
    """A directory named as in Hive, for people, and for finding files: the columns are in the files as well."""
    text = NULL if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    name, text = quote(name, safe="").replace(".", "%2E"), quote(text, safe=" ")
    return f"{name[:PIPELINE_PATH_CHARS_MAX]}={text[:PIPELINE_PATH_CHARS_MAX]}"
