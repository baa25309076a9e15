"""Counts rows in a worker, by partition and hour, and by key. Imports no Spark.

Promises that every row is counted once in each. Sizes are bytes of keys and values, without headers and framing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

HOUR: Final = "hour"
KEY: Final = "key"
COUNT_SQL: Final = (
    "kind string, topic string, partition int, hour bigint, key binary, records bigint, bytes bigint, "
    "keyless bigint, empty bigint, largest bigint"
)
"""`hour`: since 1970; `keyless`: records without a key; `empty`: without a value, as tombstones."""
COUNT_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("hour", pa.int64()),
        ("key", pa.binary()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("keyless", pa.int64()),
        ("empty", pa.int64()),
        ("largest", pa.int64()),
    ]
)
COLUMNS: Final = ("key", "value", "topic", "partition", "timestamp")
HOUR_US: Final = 3_600_000_000


def counted(batches: Iterable[Any]) -> Iterator[Any]:
    """RecordBatches of COUNT_SCHEMA: for each batch of rows its hours, and its keys."""
    for batch in batches:
        if batch.num_rows:
            table = _measured(batch)
            yield from _sums(HOUR, table, ["topic", "partition", "hour"])
            yield from _sums(KEY, table.filter(pc.is_valid(table.column("key"))), ["topic", "partition", "key"])


def _measured(batch: Any) -> Any:
    key, value = batch.column("key"), batch.column("value")
    sizes = [pc.fill_null(pc.binary_length(each), 0).cast(pa.int64()) for each in (key, value)]
    micros = batch.column("timestamp").cast(pa.int64())
    return pa.table(
        {
            "topic": batch.column("topic"),
            "partition": batch.column("partition"),
            "hour": _floored(micros),
            "key": key,
            "bytes": pc.add(*sizes),
            "keyless": pc.is_null(key).cast(pa.int64()),
            "empty": pc.is_null(value).cast(pa.int64()),
        }
    )


def _floored(micros: Any) -> Any:
    """Hours, rounded towards the past, even before 1970."""
    hours = pc.divide(micros, HOUR_US)
    behind = pc.and_(pc.less(micros, 0), pc.not_equal(pc.multiply(hours, HOUR_US), micros))
    return pc.subtract(hours, behind.cast(pa.int64()))


def _sums(kind: str, table: Any, by: list[str]) -> Iterator[Any]:
    sums = [("bytes", "sum"), ("bytes", "count"), ("keyless", "sum"), ("empty", "sum"), ("bytes", "max")]
    found = table.group_by(by).aggregate(sums)
    if not found.num_rows:
        return
    names = {"records": "bytes_count", "bytes": "bytes_sum", "largest": "bytes_max"}
    names |= {"keyless": "keyless_sum", "empty": "empty_sum"}
    columns = []
    for field in COUNT_SCHEMA:
        if field.name == "kind":
            columns.append(pa.array([kind] * found.num_rows, field.type))
        elif (name := names.get(field.name, field.name)) in found.column_names:
            columns.append(found.column(name).cast(field.type))
        else:
            columns.append(pa.nulls(found.num_rows, field.type))
    yield from pa.Table.from_arrays(columns, schema=COUNT_SCHEMA).combine_chunks().to_batches()
