"""From slices of durable segments to Arrow: read, check, unpack, decode.

Promises every record of the slices' offsets once, in order, control batches left out, in batches of up to 32,768 rows;
and that any damage stops with `DamagedHistory`, which names topic, partition, offset and object. Never unpacks a batch
beyond DECOMPRESSED_BATCH_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headrace.base.errors import CorruptData
from headrace.base.limits import DECOMPRESSED_BATCH_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.spark.columns import Columns
from headrace.storage.tier.reader import SegmentSlice, Store
from headrace.wire.batches import HEADER_BYTES, BatchHeader, encode_batch, parse_header
from headrace.wire.compression import decompress
from headrace.wire.records import Record


class Rows(Protocol):
    """What gathers rows: `NativeRows` or its slow twin `PlainRows`."""

    @property
    def rows(self) -> int: ...

    def add(self, data: Buffer, header: BatchHeader, first: int, following: int) -> Iterator[Any]: ...

    def take(self) -> Any: ...


def rows_for(columns: Columns, topic: str, partition: int) -> Rows:
    """The fastest gatherer that this machine has."""
    try:
        from headrace.spark.native import NativeRows
    except ImportError:
        from headrace.spark.plain import PlainRows

        return PlainRows(columns, topic, partition)
    return NativeRows(columns, topic, partition)


def arrow_batches(store: Store, slices: Sequence[SegmentSlice], rows: Rows) -> Iterator[Any]:
    """pyarrow.RecordBatch of the slices, all of one partition and in offset order, through `rows`."""
    for part in slices:
        for buffer, batches in store.read(part):
            view = memoryview(buffer)
            for at, header in batches:
                if header.is_control or header.next_offset <= part.first_offset:
                    continue
                if header.base_offset >= part.next_offset:
                    break
                packed = view[at + HEADER_BYTES : at + header.size]
                try:
                    data = decompress(header.compression, packed, DECOMPRESSED_BATCH_BYTES_MAX)
                    yield from rows.add(data, header, part.first_offset, part.next_offset)
                except CorruptData as error:
                    raise part.damaged(header.base_offset, error) from error
    if rows.rows:
        try:
            last = rows.take()
        except CorruptData as error:
            raise slices[-1].damaged(slices[-1].base_offset, error) from error
        yield last


def warm_up() -> None:
    """Compile the decoder, or load it where it was compiled before: seconds once, so that workers need not."""
    batch = encode_batch([Record(0, 0, b"k", b"v")])
    rows = rows_for(Columns.select(None, headers=True), "warm-up", 0)
    for _ in rows.add(memoryview(batch)[HEADER_BYTES:], parse_header(batch), 0, 1):
        continue
