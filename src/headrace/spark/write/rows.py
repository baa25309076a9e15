"""Rows to write, out of Arrow: gathered into chunks, checked, and brought to one form.

Promises chunks of up to SPARK_CHUNK_BYTES_MAX and SPARK_CHUNK_ROWS_MAX, in the order of the rows, each of one topic. A
row that cannot be a record raises RowError, which names the row. Copies only data that lies in several batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import UsageError
from headrace.base.limits import RECORD_HEADERS_MAX, SPARK_CHUNK_BYTES_MAX, SPARK_CHUNK_ROWS_MAX
from headrace.spark.read.columns import HEADERS_TYPE

ARROW_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
    "headers": HEADERS_TYPE,
}
POSITION: Final = "_position"
"""An int64 column with other row numbers than those in the task. It is never a user's, since writes refuse it."""


class RowError(UsageError):
    """A row that cannot become a record."""

    def __init__(self, row: int, reason: str) -> None:
        """`row`: its number in the task, from 0 on."""
        super().__init__(f"Row {row} of this task cannot be written: {reason}")
        self.row = row
        self.reason = reason


class Chunk(NamedTuple):
    """Rows of one topic, at least one. Missing columns are None."""

    topic: str
    positions: Any
    """numpy int64: the rows' numbers in the task, or the values of column POSITION."""
    key: Any
    """pyarrow.BinaryArray, as `value`."""
    value: Any
    partition: Any
    """pyarrow.Int32Array; null where the partitioner chooses."""
    times: Any
    """numpy int64: milliseconds since 1970."""
    headers: Any
    """pyarrow.ListArray of key and value, without nulls."""

    @property
    def rows(self) -> int:
        return len(self.positions)


def chunks(batches: Iterable[Any], topic: str | None, *, stamped: int = 0) -> Iterator[Chunk]:
    """Chunks of pyarrow.RecordBatch. `topic` None: each row's own. `stamped`: number of headers that each record gets
    besides its own. Raises RowError.
    """
    gathered: list[Any] = []
    size, count, position = 0, 0, 0
    for batch in batches:
        for part in _cut(batch):
            if gathered and not _fits(size + part.nbytes, count + part.num_rows):
                yield from _chunks(gathered, position, topic, stamped)
                position += count
                gathered, size, count = [], 0, 0
            gathered.append(part)
            size += part.nbytes
            count += part.num_rows
    if gathered:
        yield from _chunks(gathered, position, topic, stamped)


def _fits(size: int, count: int) -> bool:
    return size <= SPARK_CHUNK_BYTES_MAX and count <= SPARK_CHUNK_ROWS_MAX


def _cut(batch: Any) -> Iterator[Any]:
    """Cut a batch that is larger than a chunk in halves, again and again. A row is not cut."""
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or _fits(batch.nbytes, batch.num_rows):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


def _chunks(gathered: list[Any], position: int, topic: str | None, stamped: int) -> Iterator[Chunk]:
    columns = {name: _column(gathered, name) for name in ARROW_TYPES if name in gathered[0].schema.names}
    if POSITION in gathered[0].schema.names:
        positions = np.concatenate([np.asarray(batch.column(POSITION)) for batch in gathered])
    else:
        positions = np.arange(position, position + sum(batch.num_rows for batch in gathered), dtype=np.int64)
    if topic is not None:
        yield _chunk(topic, positions, columns, stamped)
        return
    _check(columns["topic"].is_null(), positions, "it has no topic; fill column topic, or give option topic.")
    _check_text(columns["topic"], positions, "its topic is no UTF-8.")
    for name in columns["topic"].unique().to_pylist():
        chosen = pc.indices_nonzero(pc.equal(columns["topic"], name))
        own = {each: column.take(chosen) for each, column in columns.items()}
        yield _chunk(name, positions[chosen.to_numpy()], own, stamped)


def _column(gathered: list[Any], name: str) -> Any:
    """One contiguous array, in the type that is packed."""
    kind = ARROW_TYPES[name]
    parts = [batch.column(name) for batch in gathered]
    if name == "timestamp":
        parts = [part.cast(pa.timestamp("us", tz="UTC")) for part in parts]
    return pa.concat_arrays([part if part.type.equals(kind) else part.cast(kind) for part in parts])


def _chunk(topic: str, positions: Any, columns: dict[str, Any], stamped: int) -> Chunk:
    headers = columns.get("headers")
    if headers is not None:
        headers = _checked_headers(headers, positions, stamped)
    return Chunk(
        topic,
        positions,
        columns.get("key"),
        columns["value"],
        columns.get("partition"),
        _times(columns.get("timestamp"), positions),
        headers,
    )


def _times(microseconds: Any, positions: Any) -> Any:
    """Timestamps in milliseconds; the present time where a row has none."""
    now = time.time_ns() // 1_000_000
    if microseconds is None:
        return np.full(len(positions), now, np.int64)
    known = np.asarray(microseconds.fill_null(now * 1000)) // 1000
    _check(known < 0, positions, "its timestamp lies before 1970, where Kafka has none.")
    return known


def _checked_headers(headers: Any, positions: Any, stamped: int) -> Any:
    """The headers without data under nulls. Every header must have a name, and there are no more than readers accept.
    Raises RowError.
    """
    counts = np.asarray(pc.list_value_length(headers).fill_null(0))
    own = f", {stamped} of them for who wrote it (includeIdentity)" if stamped else ""
    reason = f"it has too many headers, of which a record has {RECORD_HEADERS_MAX} at most{own}."
    _check(counts > RECORD_HEADERS_MAX - stamped, positions, reason)
    pairs = headers.flatten()
    nameless = np.asarray(pc.or_(pairs.is_null(), pc.struct_field(pairs, "key").is_null()))
    _check(nameless, np.repeat(positions, counts), "one of its headers has no name (key).")
    _check_text(pc.struct_field(pairs, "key"), np.repeat(positions, counts), "the name (key) of a header is no UTF-8.")
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    return pa.ListArray.from_arrays(pa.array(ends), pairs)


def _check_text(text: Any, positions: Any, reason: str) -> None:
    """Spark's strings may hold any bytes, but a record's must be UTF-8. Raises RowError."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        _check([_is_no_text(each) for each in text.cast(pa.binary()).to_pylist()], positions, reason)
        raise


def _is_no_text(data: bytes | None) -> bool:
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


def _check(wrong: Any, positions: Any, reason: str) -> None:
    """Raises RowError for the first row that is wrong."""
    marks = np.asarray(wrong)
    if marks.any():
        raise RowError(int(positions[int(np.argmax(marks))]), reason)
