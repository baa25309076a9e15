"""The table of corrupt ranges that a read with ``mode=PERMISSIVE`` skipped: Parquet files at `quarantinePath`.

One row per range: topic, partition, first_offset, last_offset (inclusive), object, reason. Promises that a row is
durable before any record behind its range is returned. It is there once, however often a task is repeated, since a file
is named by its content.
"""

from __future__ import annotations

import hashlib
import io
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from headrace.storage.objects import open_objects

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),
        pa.field("object", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


class Quarantine:
    """The quarantine in any directory or store that Headrace can write to, by its URL."""

    def __init__(self, url: str) -> None:
        """Raises UsageError."""
        self._objects = open_objects(url)

    def put(self, topic: str, partition: int, first: int, last: int, key: str, reason: str) -> None:
        """Write one row. Raises StorageFailure."""
        row = {
            "topic": topic,
            "partition": partition,
            "first_offset": first,
            "last_offset": last,
            "object": key,
            "reason": reason,
        }
        name = hashlib.sha256(repr(sorted(row.items())).encode()).hexdigest()[:16]
        file = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist([row], schema=SCHEMA), file)
        self._objects.put(f"{topic}-{partition}-{first:020d}-{name}.parquet", file.getvalue())
