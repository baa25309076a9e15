"""Turns record batches into Arrow: decompresses and decodes them.

Promises every record of the wanted offsets once, in order, in batches of up to 32,768 rows. Damage raises CorruptData.
Never decompresses a batch beyond DECOMPRESSED_BATCH_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from headrace.base.limits import DECOMPRESSED_BATCH_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.spark.read.columns import Columns
from headrace.wire.batches import HEADER_BYTES, BatchHeader, encode_batch, parse_header
from headrace.wire.compression import decompress
from headrace.wire.records import Record


class Rows(Protocol):
    """Gathers rows: `NativeRows` or its slow twin `PlainRows`."""

    @property
    def rows(self) -> int: ...

    def add(self, data: Buffer, header: BatchHeader, first: int, following: int) -> Iterator[Any]: ...

    def take(self) -> Any: ...

    def fresh(self) -> Rows: ...


def rows_for(columns: Columns, topic: str, partition: int) -> Rows:
    """The fastest gatherer that this machine has."""
    try:
        from headrace.spark.read.native import NativeRows
    except ImportError:
        from headrace.spark.read.plain import PlainRows

        return PlainRows(columns, topic, partition)
    return NativeRows(columns, topic, partition)


def added(view: memoryview, at: int, header: BatchHeader, start: int, end: int) -> Callable[[Rows], Iterator[Any]]:
    """Returns a function that adds the records of one checked batch, at `at` of `view`, to rows: those from offset
    `start` up to `end`. That function raises CorruptData.
    """

    def add(rows: Rows) -> Iterator[Any]:
        packed = view[at + HEADER_BYTES : at + header.size]
        if not (packed or header.count):  # emptied by compaction, in an older version with any codec
            return
        data = decompress(header.compression, packed, DECOMPRESSED_BATCH_BYTES_MAX)
        yield from rows.add(data, header, start, end)

    return add


def is_compiled() -> bool:
    """Whether numba kept the compiled decoder beside its source, as `headrace.spark.session.classes` has it made."""
    return any((Path(__file__).parent / "__pycache__").glob("kernel.*.nbi"))


def warm_up() -> None:
    """Compile the decoder, or load it where it was compiled before. That takes seconds once, so that workers need not
    do it.
    """
    batch = encode_batch([Record(0, 0, b"k", b"v")])
    rows = rows_for(Columns.select(None, headers=True), "warm-up", 0)
    for _ in rows.add(memoryview(batch)[HEADER_BYTES:], parse_header(batch), 0, 1):
        continue
