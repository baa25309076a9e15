"""Columns in preallocated arrays, filled by the compiled kernel and handed to Arrow without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.base.errors import CorruptData
from headrace.base.limits import RECORD_HEADERS_MAX
from headrace.base.ports import Buffer
from headrace.spark.read import kernel
from headrace.spark.read.columns import HEADERS_TYPE, Columns
from headrace.wire.batches import BatchHeader

ROWS_PER_BATCH: Final = 32_768
"""Rows of an Arrow batch (16k to 65k suit Spark best)."""
BYTES_PER_COLUMN: Final = 8 * 1024 * 1024
"""Bytes of one variable-width column at which an Arrow batch is cut. One larger record still makes a batch."""
HEADERS_PER_BATCH: Final = 2 * RECORD_HEADERS_MAX


class NativeRows:
    """Gathers the rows of one partition. After each FULL, and at the end, `take` returns them as one Arrow batch."""

    def __init__(self, columns: Columns, topic: str, partition: int) -> None:
        self._columns = columns
        self._topic = topic
        self._partition = partition
        self._wants = (
            kernel.WANT_KEY * ("key" in columns)
            | kernel.WANT_VALUE * ("value" in columns)
            | kernel.WANT_TIMESTAMP * ("timestamp" in columns)
            | kernel.WANT_HEADERS * ("headers" in columns)
        )
        self._batch = np.zeros(kernel.BATCH_SIZE, np.int64)
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._make_room(BYTES_PER_COLUMN)

    def _make_room(self, width: int) -> None:
        """Make new arrays (the old ones belong to Arrow), with `width` bytes for each wanted variable-width column."""
        rows = ROWS_PER_BATCH
        headers = HEADERS_PER_BATCH if "headers" in self._columns else 0
        header_bytes = width if headers else 0
        self._state[: kernel.AT] = 0
        self._offsets = np.empty(rows, np.int64)
        self._timestamps = np.empty(rows, np.int64)
        self._types = np.empty(rows, np.int32)
        self._keys = Strings(rows, width if "key" in self._columns else 0)
        self._values = Strings(rows, width if "value" in self._columns else 0)
        self._header_ends = np.zeros(rows + 1, np.int32)
        self._names = Strings(headers, header_bytes)
        self._header_values = Strings(headers, header_bytes)

    def add(self, data: Buffer, header: BatchHeader, first: int, following: int) -> Iterator[Any]:
        """Add a decompressed batch's records with offsets in [first, following); yields Arrow batches as they fill.

        Raises CorruptData; the added rows must then not be used.
        """
        bytes_of = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        bytes_of.flags.writeable = False  # one compiled variant for all buffers
        append_time = int(header.is_log_append_time)
        self._batch[:] = (
            header.count,
            header.last_offset_delta,
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp,
            append_time,
            first,
            following,
        )
        self._state[kernel.AT :] = (0, 0, -1)
        while (status := self._fill(bytes_of)) != kernel.DONE:
            if status != kernel.FULL:
                raise CorruptData(kernel.REASONS[status])
            if self.rows:
                yield self.take()
            else:
                self._make_room(len(bytes_of))

    def _fill(self, data: Any) -> int:
        status: int = kernel.fill(
            data,
            self._batch,
            self._wants,
            self._state,
            self._offsets,
            self._timestamps,
            self._types,
            self._keys.ends,
            self._keys.bytes,
            self._keys.valid,
            self._values.ends,
            self._values.bytes,
            self._values.valid,
            self._header_ends,
            self._names.ends,
            self._names.bytes,
            self._header_values.ends,
            self._header_values.bytes,
            self._header_values.valid,
        )
        return status

    def fresh(self) -> NativeRows:
        """Another gatherer for this partition, without rows."""
        return NativeRows(self._columns, self._topic, self._partition)

    @property
    def rows(self) -> int:
        return int(self._state[kernel.ROW])

    def take(self) -> Any:
        """The gathered rows, as a pyarrow.RecordBatch; later ones go to new arrays. A header's name that is not UTF-8
        is decoded as in Java, with U+FFFD for invalid bytes.
        """
        arrays = [getattr(self, f"_column_{name}")() for name in self._columns.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._columns.arrow_schema)
        self._make_room(BYTES_PER_COLUMN)
        return batch

    def _column_key(self) -> Any:
        return self._keys.array(pa.binary(), self.rows, int(self._state[kernel.KEY_AT]))

    def _column_value(self) -> Any:
        return self._values.array(pa.binary(), self.rows, int(self._state[kernel.VALUE_AT]))

    def _column_topic(self) -> Any:
        return pa.repeat(pa.scalar(self._topic), self.rows)

    def _column_partition(self) -> Any:
        return pa.array(np.full(self.rows, self._partition, np.int32))

    def _column_offset(self) -> Any:
        return pa.array(self._offsets[: self.rows])

    def _column_timestamp(self) -> Any:
        return pa.array(self._timestamps[: self.rows]).view(pa.timestamp("us", tz="UTC"))

    def _column_timestampType(self) -> Any:  # noqa: N802 - the column's name in Spark
        return pa.array(self._types[: self.rows])

    def _column_headers(self) -> Any:
        count = int(self._state[kernel.HEADER_AT])
        names = self._names.array(pa.string(), count, int(self._state[kernel.NAME_AT]), nullable=False)
        values = self._header_values.array(pa.binary(), count, int(self._state[kernel.HVALUE_AT]))
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:
            bytes_of_names = names.view(pa.binary()).to_pylist()
            names = pa.array([name.decode(errors="replace") for name in bytes_of_names], pa.string())
        pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
        ends = pa.py_buffer(self._header_ends[: self.rows + 1])
        return pa.Array.from_buffers(HEADERS_TYPE, self.rows, [None, ends], children=[pairs])


class Strings:
    """One variable-width column: ends, bytes, validity."""

    __slots__ = ("bytes", "ends", "valid")

    def __init__(self, rows: int, width: int) -> None:
        self.ends = np.zeros(rows + 1 if width else 1, np.int32)
        self.bytes = np.empty(width, np.uint8)
        self.valid = np.empty(rows if width else 0, np.uint8)

    def array(self, kind: Any, rows: int, width: int, *, nullable: bool = True) -> Any:
        """The first `rows` as an Arrow array over these very bytes."""
        valid = self.valid[:rows]
        bitmap = None if not nullable or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(self.ends[: rows + 1]), pa.py_buffer(self.bytes[:width])]
        return pa.Array.from_buffers(kind, rows, buffers)
