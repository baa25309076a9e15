"""Packs rows into records, with the compiled kernel, directly on Arrow's arrays.

`Packer` is the interface of this and its slow twin (`headrace.spark.write.plainpacking`).

Promises:

- The rows of one partition keep their order.
- A row with a key goes where the Java client would send it.
- Rows without a key take turns among the partitions by bytes. Repeated rows go to the partitions of the first time.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from headrace.spark.write.rows import Chunk, RowError
from headrace.wire.batches import HEADER_BYTES
from headrace.wire.varint import encode_varint

RECORD_OVERHEAD_BYTES: Final = 46
"""Maximum bytes of a record besides key, value and headers: lengths, deltas and counts."""
HEADER_OVERHEAD_BYTES: Final = 10
STAMP_HEADERS: Final = 3
QUERY: Final = "headrace.query"
BATCH: Final = "headrace.batch"
TASK: Final = "headrace.task"
DIGITS: Final = 12
"""Digits of a row's number in its task, at the end of that header."""
STICKY_ROW_BYTES: Final = 24
"""Bytes that a row without a key counts besides its value, where partitions take turns by bytes."""
TURN_BYTES: Final = 512 * 1024
"""Bytes of a turn. It is independent of options and topic configs: repeated rows must go where they went before."""


class Stamp(NamedTuple):
    """The identity of a record's writer, in three headers. The last one ends in the row's number in the task."""

    query: str
    batch: str
    task: str

    def headers(self, position: int) -> tuple[tuple[str, bytes], ...]:
        value = f"{self.task}:{position:0{DIGITS}d}"
        return (QUERY, self.query.encode()), (BATCH, self.batch.encode()), (TASK, value.encode())

    def packed(self) -> bytes:
        """The packed headers up to the row's number."""
        whole = b"".join(
            encode_varint(len(part)) + part for name, value in self.headers(0) for part in (name.encode(), value)
        )
        return whole[:-DIGITS]


class Layout(NamedTuple):
    """How the rows of one topic are packed."""

    partitions: int
    begin: int
    """The first partition for rows without a key."""
    limit: int
    """Maximum bytes of a batch, header and packed records. A larger record forms a batch alone."""
    stamp: Stamp | None
    turn: int = TURN_BYTES


class Packed(NamedTuple):
    """The records of one batch."""

    partition: int
    records: int
    base_timestamp: int
    max_timestamp: int
    room: memoryview
    """HEADER_BYTES that are free, and the records."""


class Packer(Protocol):
    """Packs the rows of one topic, in one task."""

    def pack(self, chunk: Chunk) -> list[Packed]:
        """The batches by partition, and in order. Raises RowError for a partition that the topic does not have."""
        ...


def packer_for(layout: Layout) -> Packer:
    """The fastest packer that this machine has."""
    try:
        return NativePacker(layout)
    except ImportError:
        from headrace.spark.write.plainpacking import PlainPacker

        return PlainPacker(layout)


class NativePacker:
    """See `Packer`. Raises ImportError where there is no numba."""

    def __init__(self, layout: Layout) -> None:
        from headrace.spark.write import packkernel

        self._kernel = packkernel
        self._layout = layout
        self._turn = np.array([layout.begin, layout.turn, 0], np.int64)
        self._stamp = _of_bytes(layout.stamp.packed() if layout.stamp is not None else b"")

    def pack(self, chunk: Chunk) -> list[Packed]:
        rows = chunk.rows
        chosen = chosen_partitions(chunk, self._layout.partitions)
        keys, values = ArrowStrings(chunk.key, rows), ArrowStrings(chunk.value, rows)
        headers = ArrowHeaders(chunk.headers, rows)
        partitions = np.empty(rows, np.int32)
        self._kernel.assign(
            keys.ends,
            keys.bytes,
            keys.valid,
            values.ends,
            values.valid,
            chosen,
            self._layout.partitions,
            self._turn,
            partitions,
        )
        starts = np.zeros(self._layout.partitions + 1, np.int64)
        order = np.empty(rows, np.int64)
        self._kernel.group(partitions, starts, order)
        out = np.empty(self._room_for(rows, keys, values, headers), np.uint8)
        table = np.empty((rows, self._kernel.TABLE_WIDTH), np.int64)
        count = self._kernel.pack(
            keys.ends,
            keys.bytes,
            keys.valid,
            values.ends,
            values.bytes,
            values.valid,
            chunk.times,
            chunk.positions,
            headers.ends,
            headers.names.ends,
            headers.names.bytes,
            headers.values.ends,
            headers.values.bytes,
            headers.values.valid,
            partitions,
            order,
            self._stamp,
            STAMP_HEADERS if len(self._stamp) else 0,
            self._layout.limit,
            out,
            table,
        )
        room = memoryview(out.data)
        return [
            Packed(partition, records, base, newest, room[begin:end])
            for partition, begin, end, records, base, newest in table[:count].tolist()
        ]

    def _room_for(self, rows: int, keys: ArrowStrings, values: ArrowStrings, headers: ArrowHeaders) -> int:
        """Enough bytes, even with each record in a batch of its own."""
        stamp = len(self._stamp) + DIGITS if len(self._stamp) else 0
        own = keys.width + values.width + headers.names.width + headers.values.width
        return own + rows * (HEADER_BYTES + RECORD_OVERHEAD_BYTES + stamp) + headers.count * HEADER_OVERHEAD_BYTES


class ArrowStrings:
    """The buffers of a binary or string column, in the form of the kernel. None: all null."""

    __slots__ = ("bytes", "ends", "valid")

    def __init__(self, array: Any, rows: int) -> None:
        if array is None or rows == 0:
            self.ends = fixed(np.zeros(rows + 1, np.int32))
            self.bytes = _of_bytes(b"")
            self.valid = fixed(np.zeros(rows, np.uint8))
            return
        _, ends, data = array.buffers()
        self.ends = fixed(np.frombuffer(ends, np.int32, rows + 1, array.offset * 4))
        self.bytes = _of_bytes(data if data is not None else b"")
        valid = np.asarray(array.is_valid()).view(np.uint8) if array.null_count else np.ones(rows, np.uint8)
        self.valid = fixed(valid)

    @property
    def width(self) -> int:
        return int(self.ends[-1]) - int(self.ends[0])


class ArrowHeaders:
    """The headers of all rows; None: no row has any."""

    __slots__ = ("count", "ends", "names", "values")

    def __init__(self, array: Any, rows: int) -> None:
        if array is None:
            self.count = 0
            self.ends = fixed(np.zeros(rows + 1, np.int32))
            self.names = self.values = ArrowStrings(None, 0)
            return
        self.ends = fixed(np.frombuffer(array.buffers()[1], np.int32, rows + 1, array.offset * 4))
        pairs = array.values
        self.count = len(pairs)
        self.names = ArrowStrings(pairs.field("key"), len(pairs))
        self.values = ArrowStrings(pairs.field("value"), len(pairs))


def _of_bytes(data: Any) -> Any:
    return fixed(np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8))


def fixed(array: Any) -> Any:
    """Read-only, like arrays over Arrow's buffers, so that one compiled variant serves all."""
    array.flags.writeable = False
    return array


def chosen_partitions(chunk: Chunk, count: int) -> Any:
    """numpy int32, -1 where the partitioner chooses. Raises RowError."""
    if chunk.partition is None:
        return np.full(chunk.rows, -1, np.int32)
    named = np.asarray(chunk.partition.is_valid())
    chosen = np.where(named, np.asarray(chunk.partition.fill_null(0)), -1).astype(np.int32)
    wrong = named & ((chosen < 0) | (chosen >= count))
    if wrong.any():
        at = int(np.argmax(wrong))
        partition = chunk.partition[at].as_py()
        raise RowError(
            int(chunk.positions[at]),
            f"it names partition {partition}, and topic '{chunk.topic}' has partitions 0 to {count - 1}.",
        )
    return chosen
