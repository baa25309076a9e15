"""A durable segment object, byte by byte.

Promises: the record batches are verbatim as in the log. The object begins with them (version 1), or with blocks that
unpack to them (version 2). The end of the object holds everything else about them, proven by a checksum. Never rewrites
a batch.

Layout (integers big-endian, unsigned):

| position | bytes | content |
|---|---|---|
| 0 | | version 1: record batches, version 2 (KIP-98), back to back; nothing between them |
| 0 | | version 2: blocks of whole record batches (`storage.packed_blocks`), back to back |
| | | footer: one JSON object, UTF-8, sorted keys, no spaces |
| size - 24 | 4 | length of the footer |
| size - 20 | 4 | CRC32C of the footer |
| size - 16 | 4 | format version: 1, or 2 |
| size - 12 | 4 | zero |
| size - 8 | 8 | the letters HEADRACE |

Version 2 is used only where the object is then no larger than its batches. So sizes alone show the version. Positions
in the footer are those of unpacked batches, except in ``blocks``.

The footer's fields:
- ``format`` ("headrace durable segment") and ``version``;
- ``cluster_id``, ``topic_id``, ``topic`` (its name at the export) and ``partition``;
- ``start_offset`` and ``end_offset`` (inclusive), and ``leader_epoch`` of the exporter;
- ``first_timestamp_ms`` (of the first record) and ``last_timestamp_ms`` (the largest);
- ``records``, and ``batch_bytes`` and ``crc32c`` of the batches, unpacked;
- ``leader_epochs``: ``[epoch, first offset here]``;
- ``index``: ``[base offset, position, largest timestamp up to and in this batch]``, for the first batch and then one
  per 64 KiB or more; in version 2, for the first batch of each block;
- ``producers``: the producer snapshot after the last batch, as in the log's own snapshot file, in Base64 and without
  times (null in the oldest segments);
- ``aborted_transactions``: ``[producer id, first offset, last offset, last stable offset]`` of each that overlaps with
  this segment, in the order of their markers, which may lie behind it;
- ``undecided_transactions``: ``[producer id, first offset]`` of each that nobody had ended yet, in a segment that was
  exported for a seal. Later segments, or the log, tell how it ended (absent where there is none);
- ``checksums``: for each entry of ``index``, the CRC32C of all bytes from that batch up to the next entry's. They prove
  a part of the object without the rest (absent in the oldest segments);
- ``blocks`` (only in version 2): for each entry of ``index``, the block's position in the object, and last the end of
  the last block.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import SEGMENT_FOOTER_BYTES_MAX
from headrace.metadata.descriptors import DIGEST_CHARS
from headrace.metadata.segment_keys import SegmentKey
from headrace.wire.transactions import AbortedTransaction, OpenTransaction, joined

FORMAT: Final = "headrace durable segment"
FORMAT_VERSION: Final = 1
PACKED_VERSION: Final = 2
MAGIC: Final = b"HEADRACE"
TRAILER: Final = Struct(">IIII8s")
INDEX_INTERVAL_BYTES: Final = 64 * 1024
TAIL_GUESS_BYTES: Final = 64 * 1024
"""Bytes that a reader requests first: the footer of a 64 MiB segment usually fits."""


_OPTIONAL: Final = frozenset({"checksums", "blocks", "undecided_transactions"})
"""Fields that not every footer has."""


class EpochStart(NamedTuple):
    leader_epoch: int
    start_offset: int


class IndexEntry(NamedTuple):
    base_offset: int
    position: int
    """Position of the batch among the unpacked batches, in bytes."""
    max_timestamp_ms: int
    """The largest timestamp of all records up to and in this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """The footer of a segment. Invariant: `index` rises, and its first entry is the first batch, at position 0."""

    cluster_id: ClusterId
    topic_id: TopicId
    topic: str
    partition: PartitionIndex
    start_offset: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch
    first_timestamp_ms: int
    last_timestamp_ms: int
    records: int
    batch_bytes: int
    crc32c: int
    leader_epochs: tuple[EpochStart, ...]
    index: tuple[IndexEntry, ...]
    producers: Any
    aborted_transactions: tuple[AbortedTransaction, ...]
    """All that overlap with it, but those of `undecided_transactions`, in the order of their markers."""
    undecided_transactions: tuple[OpenTransaction, ...] = ()
    """Those that were open when it was exported. They begin in it, or below."""
    checksums: tuple[int, ...] = ()
    """CRC32C of the batches from each entry of `index` to the next; empty: unknown."""
    blocks: tuple[int, ...] = ()
    """Position in the object of the block of each entry of `index`, and the end of the last; empty: not packed."""

    def floor(self, offset: int) -> IndexEntry:
        """The last indexed batch that does not begin above `offset`; the first where all do."""
        at = bisect_right(self.index, offset, key=lambda entry: entry.base_offset)
        return self.index[max(0, at - 1)]


def encode_footer(footer: SegmentFooter) -> bytes:
    """The footer and the trailer, which follow the batches in the object."""
    fields = {name: getattr(footer, name) for name in SegmentFooter.__slots__}
    version = PACKED_VERSION if footer.blocks else FORMAT_VERSION
    for name in ("blocks", "undecided_transactions"):
        if not fields[name]:
            del fields[name]
    fields |= {"topic_id": str(footer.topic_id), "format": FORMAT, "version": version}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return text + TRAILER.pack(len(text), crc32c(text), version, 0, MAGIC)


def footer_length(tail: bytes) -> int:
    """Bytes of footer and trailer together, from an object's last bytes. Raises CorruptData."""
    if len(tail) < TRAILER.size:
        raise CorruptData("it is too short to be a durable segment")
    length, _, version, _, magic = TRAILER.unpack_from(tail, len(tail) - TRAILER.size)
    if magic != MAGIC:
        raise CorruptData("it does not end as a durable segment does")
    if version not in (FORMAT_VERSION, PACKED_VERSION):
        raise CorruptData(f"its format version is {version}, and only up to {PACKED_VERSION} is known here")
    if length > SEGMENT_FOOTER_BYTES_MAX:
        raise CorruptData(f"its footer says {length} bytes")
    return int(length) + TRAILER.size


def decode_footer(tail: bytes) -> SegmentFooter:
    """Decode the footer from an object's last bytes, at least `footer_length` of them. Raises CorruptData."""
    length = footer_length(tail)
    text = tail[len(tail) - length : len(tail) - TRAILER.size]
    if len(text) + TRAILER.size != length or crc32c(text) != TRAILER.unpack_from(tail, len(tail) - TRAILER.size)[1]:
        raise CorruptData("its footer fails its CRC32C")
    try:
        return _footer_from(json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"its footer is malformed: {error!r}") from error


def _footer_from(fields: Mapping[str, Any]) -> SegmentFooter:
    known = {name: fields[name] for name in SegmentFooter.__slots__ if name not in _OPTIONAL}
    known["checksums"] = tuple(fields.get("checksums", ()))
    known["blocks"] = tuple(fields.get("blocks", ()))
    known["topic_id"] = TopicId(UUID(fields["topic_id"]))
    known["leader_epochs"] = tuple(EpochStart(*item) for item in fields["leader_epochs"])
    known["index"] = tuple(IndexEntry(*item) for item in fields["index"])
    known["aborted_transactions"] = tuple(joined(AbortedTransaction(*item) for item in fields["aborted_transactions"]))
    undecided = fields.get("undecided_transactions", ())
    known["undecided_transactions"] = tuple(OpenTransaction(*item) for item in undecided)
    if not known["index"]:
        raise ValueError("its offset index is empty")
    if known["checksums"] and len(known["checksums"]) != len(known["index"]):
        raise ValueError("its checksums are not those of its index")
    if known["blocks"] or fields["version"] == PACKED_VERSION:
        _check_blocks(known)
    return SegmentFooter(**known)


def _check_blocks(known: Mapping[str, Any]) -> None:
    """Raises ValueError, TypeError."""
    blocks, index = known["blocks"], known["index"]
    if len(blocks) != len(index) + 1 or len(known["checksums"]) != len(index):
        raise ValueError("its blocks are not those of its index")
    positions = [*(entry.position for entry in index), known["batch_bytes"]]
    for places in (blocks, positions):
        if any(type(place) is not int for place in places) or any(one >= other for one, other in pairwise(places)):
            raise ValueError("its blocks do not follow each other")
    if blocks[0] or positions[0]:
        raise ValueError("its first block is not where the object begins")


def segment_key(footer: SegmentFooter, sha256: str, made_in: LeaderEpoch | None = None) -> str:
    """The key of the object that holds this segment. It is unique by content."""
    return str(
        SegmentKey(
            footer.cluster_id,
            footer.topic_id,
            footer.partition,
            footer.start_offset,
            footer.end_offset,
            footer.leader_epoch,
            sha256[:DIGEST_CHARS],
            made_in,
            bool(footer.undecided_transactions),
        )
    )


def cuts_of(footer: SegmentFooter, start: int, end: int, slice_bytes: int) -> list[tuple[int, int]]:
    """(base offset, position) of the beginning of each slice, and of the end of the last, by the footer's index."""
    first = footer.floor(start)
    tail = (int(footer.end_offset) + 1, footer.batch_bytes)
    within = [(e.base_offset, e.position) for e in footer.index if first.base_offset < e.base_offset] + [tail]
    last = next(index for index, (base, _) in enumerate(within) if base >= min(end, tail[0]))
    within = within[: last + 1]
    total = within[-1][1] - first.position
    step = total / max(1, round(total / slice_bytes))
    cuts = [(first.base_offset, first.position)]
    for base, position in within[:-1]:
        if position - cuts[-1][1] >= step:
            cuts.append((base, position))
    return [*cuts, within[-1]]
