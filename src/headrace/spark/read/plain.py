"""The slow twin of `headrace.spark.read.native`: the same rows from the same bytes in plain Python.

It is the tests' oracle, and used where numba cannot be imported. Promises the same rows, the same order and the same
refusals; the Arrow batches may be cut elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from headrace.base.errors import CorruptData
from headrace.base.ports import Buffer
from headrace.spark.read.columns import ARROW_TYPES, CREATE_TIME, LOG_APPEND_TIME, Columns
from headrace.wire.batches import BatchHeader
from headrace.wire.records import Record, readable_name, unpack_records

ROWS_PER_BATCH: Final = 32_768
BYTES_PER_BATCH: Final = 32 * 1024 * 1024
TIMESTAMP_MS_MAX: Final = 9_223_372_036_854_775


class PlainRows:
    """Gathers the rows of one partition, as `NativeRows` does."""

    def __init__(self, columns: Columns, topic: str, partition: int) -> None:
        self._columns = columns
        self._topic = topic
        self._partition = partition
        self._rows: list[tuple[Record, int]] = []
        self._bytes = 0

    def add(self, data: Buffer, header: BatchHeader, first: int, following: int) -> Iterator[Any]:
        """See `NativeRows.add`."""
        last, size = header.base_offset - 1, len(data)
        try:
            records = unpack_records(bytes(data), header.count, header.base_offset, header.base_timestamp)
        except (IndexError, ValueError) as error:
            raise CorruptData(f"A batch's records are malformed: {error}.") from error
        kind = LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME
        for record in records:
            if not last < record.offset <= header.last_offset:
                raise CorruptData("A record's offset does not rise within its batch.")
            last = record.offset
            if first <= record.offset < following:
                self._rows.append((self._stamped(record, header), kind))
        self._bytes += size
        if len(self._rows) >= ROWS_PER_BATCH or self._bytes >= BYTES_PER_BATCH:
            yield self.take()

    def _stamped(self, record: Record, header: BatchHeader) -> Record:
        if header.is_log_append_time:
            record = record._replace(timestamp=header.max_timestamp)
        if "timestamp" in self._columns:
            fixed = header.max_timestamp if header.is_log_append_time else header.base_timestamp
            if max(abs(fixed), abs(record.timestamp)) > TIMESTAMP_MS_MAX:
                raise CorruptData("A record's timestamp is out of the range of Spark's.")
        return record

    def fresh(self) -> PlainRows:
        """Another gatherer for this partition, without rows."""
        return PlainRows(self._columns, self._topic, self._partition)

    @property
    def rows(self) -> int:
        return len(self._rows)

    def take(self) -> Any:
        """See `NativeRows.take`."""
        arrays = [pa.array(self._values(name), ARROW_TYPES[name]) for name in self._columns.names]
        self._rows, self._bytes = [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns.arrow_schema)

    def _values(self, name: str) -> list[Any]:
        match name:
            case "topic":
                return [self._topic] * self.rows
            case "partition":
                return [self._partition] * self.rows
            case "timestamp":
                return [record.timestamp * 1000 for record, _ in self._rows]
            case "timestampType":
                return [kind for _, kind in self._rows]
            case "headers":
                return [
                    [{"key": readable_name(name), "value": value} for name, value in record.headers]
                    for record, _ in self._rows
                ]
            case _:
                return [getattr(record, name) for record, _ in self._rows]
