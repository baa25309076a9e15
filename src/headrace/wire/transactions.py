"""Transactions in a log: the marker that ends one, and the entry of one that was aborted.

A marker is a control batch with one record. Its key is a version and the type, its value a version and the epoch of the
coordinator that decided. Byte-equal with Kafka's `MemoryRecords.withEndTransactionMarker` and `AbortedTxn` (KIP-98).

Layout, big-endian, sizes in bytes:
- key: version 2 (0), type 2 (0 abort, 1 commit)
- value: version 2 (0), coordinator epoch 4
- aborted transaction: version 2 (0), producer id 8, first offset 8, last offset 8, last stable offset 8
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from struct import Struct, error
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ports import Buffer
from headrace.wire.batches import BatchHeader, decode_records, encode_batch, parse_header
from headrace.wire.records import Record

VERSION: Final = 0
ABORT: Final = 0
COMMIT: Final = 1
KEY: Final = Struct(">hh")
VALUE: Final = Struct(">hi")
ABORTED: Final = Struct(">hqqqq")
"""One aborted transaction, as `.txnindex` files have it."""
_last_of: Final = attrgetter("last_offset")


class EndMarker(NamedTuple):
    """The end of one transaction."""

    committed: bool
    coordinator_epoch: int


class AbortedTransaction(NamedTuple):
    """A transaction whose records no reader under read_committed may see. Offsets are inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """No transaction that was open at that marker begins below. So none that ends later overlaps with lower offsets."""


def encode_marker(producer_id: int, producer_epoch: int, marker: EndMarker, *, timestamp: int) -> bytes:
    """Return the control batch of a marker, at offset 0."""
    key = KEY.pack(VERSION, COMMIT if marker.committed else ABORT)
    record = Record(0, timestamp, key, VALUE.pack(VERSION, marker.coordinator_epoch))
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def decode_marker(batch: Buffer) -> EndMarker | None:
    """Return the marker of a control batch. None: it holds none, since compaction has emptied it, or it is of another
    kind. Raises CorruptData."""
    header = parse_header(batch)
    if not header.is_control or not header.count:
        return None
    record = decode_records(batch)[0]
    try:
        _, kind = KEY.unpack_from(record.key or b"")
        if kind not in (ABORT, COMMIT):
            return None
        _, coordinator_epoch = VALUE.unpack_from(record.value or b"")
    except error as cut:
        raise CorruptData(f"The control batch at offset {header.base_offset} is cut.") from cut
    return EndMarker(kind == COMMIT, coordinator_epoch)


def marker_in(batches: Buffer, at: int, header: BatchHeader) -> EndMarker | None:
    """As `decode_marker`, for the batch at `at` of several."""
    return decode_marker(memoryview(batches)[at : at + header.size])


class OpenTransaction(NamedTuple):
    """A transaction that is not ended yet."""

    producer_id: int
    first_offset: int


def overlapping(aborted: Sequence[AbortedTransaction], start: int, end: int) -> list[AbortedTransaction]:
    """Those with offsets in [start, end), of transactions in the order of their markers."""
    found: list[AbortedTransaction] = []
    for at in range(bisect_left(aborted, start, key=_last_of), len(aborted)):
        each = aborted[at]
        if each.first_offset < end:
            found.append(each)
        if each.last_stable_offset >= end:
            break
    return found


def joined(*lists: Iterable[AbortedTransaction]) -> list[AbortedTransaction]:
    """All of these in the order of their markers, each once."""
    found = {each.last_offset: each for aborted in lists for each in aborted}
    return [found[at] for at in sorted(found)]


def encode_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return the entries of a `.txnindex` file."""
    return b"".join(ABORTED.pack(VERSION, *each) for each in aborted)


def decode_aborted(data: Buffer) -> Iterator[AbortedTransaction]:
    """Iterate over the whole entries. Raises CorruptData where one is of another version."""
    view = memoryview(data)
    for version, *fields in ABORTED.iter_unpack(view[: len(view) - len(view) % ABORTED.size]):
        if version != VERSION:
            raise CorruptData(f"An aborted transaction is of version {version}.")
        yield AbortedTransaction(*fields)
