"""Part of a catalog as JSON: about 200 bytes for each segment, and the hashes of the chain at both ends.

Promises: `run_of(piece_of(run))` gives the same entries. A piece is refused if its rows do not give its last hash, or
contradict themselves or one another. Snapshots of the image and the mirror's chunks consist of pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.values import Value
from headrace.metadata.descriptors import (
    COLUMNS,
    CatalogEntry,
    Row,
    contradiction,
    is_hash,
    linked,
    published_hash_of,
    segment_name,
)
from headrace.metadata.runs import ROW, Run, Unusual

BATCH_BYTES: Final = 7
OBJECT_BYTES: Final = 8
"""Places in a row."""
assert COLUMNS[BATCH_BYTES : OBJECT_BYTES + 1] == ("batch_bytes", "object_bytes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UnusualRow(Value):
    """Fields of a row that differ from nearly all other rows."""

    at: int
    key: str | None = None
    """The key, where it is not the directory and the usual name."""
    links: tuple[tuple[str, ...], ...] = ()
    """Deletions and replacements since the previous row."""
    hash: str | None = None
    """For a substitute: the hash of the last segment that it replaces."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Piece(Value):
    """Consecutive entries, at least one."""

    directory: str
    """Common prefix of the objects' keys."""
    previous_hash: str
    """Previous hash of the first row, with its links in it."""
    hash: str
    """Hash of the last row."""
    rows: tuple[Row, ...]
    unusual: tuple[UnusualRow, ...] = ()

    @property
    def has_packed(self) -> bool:
        """Whether one of its segments is packed (`SegmentDescriptor.is_packed`)."""
        return any(row[OBJECT_BYTES] <= row[BATCH_BYTES] for row in self.rows)


def piece_of(entries: list[CatalogEntry]) -> Piece:
    directory = entries[0].descriptor.key[: entries[0].descriptor.key.rfind("/") + 1]
    return Piece(
        directory=directory,
        previous_hash=entries[0].previous_hash,
        hash=entries[-1].hash,
        rows=tuple(entry.descriptor.row for entry in entries),
        unusual=tuple(_unusual_rows(directory, entries)),
    )


def _unusual_rows(directory: str, entries: list[CatalogEntry]) -> Iterator[UnusualRow]:
    for at, entry in enumerate(entries):
        one = entry.descriptor
        usual = directory + segment_name(one.start_offset, one.end_offset, one.leader_epoch, one.sha256)
        key = None if one.key == usual else one.key
        if key is not None or entry.deletions or entry.is_substitute:
            hash_ = entry.hash if entry.is_substitute else None
            yield UnusualRow(at=at, key=key, links=entry.deletions, hash=hash_)


USUAL: Final = UnusualRow(at=-1)


def run_of(piece: Piece) -> Run:
    """The run of a piece. Raises CorruptData. Vouchers of substitutes are checked for the whole catalog, not here. No
    object is made per row, because a planner reads very many."""
    odd_rows = {each.at: each for each in piece.unusual}
    if any(not 0 <= at < len(piece.rows) or not is_hash(odd.hash or piece.hash) for at, odd in odd_rows.items()):
        raise CorruptData("What is unusual of a catalog's rows is of none of them.")
    packed = bytearray()
    previous, following = piece.previous_hash, -1
    try:
        for at, row in enumerate(piece.rows):
            start, end, epoch, last_epoch, first_ms, last_ms, records, batches, size, crc32c, sha256 = row
            odd = odd_rows.get(at, USUAL) if odd_rows else USUAL
            key = piece.directory + segment_name(start, end, epoch, sha256) if odd.key is None else odd.key
            problem = contradiction(*row)
            if problem is not None or following not in (-1, start):
                raise CorruptData(f"Segment descriptor {key!r:.200}: {problem or f'it is not due at {start}'}.")
            if odd.links and at:
                previous = linked(previous, odd.links)
            previous = published_hash_of(previous, key, *row) if odd.hash is None else odd.hash
            digests = bytes.fromhex(sha256), bytes.fromhex(previous)
            packed += ROW.pack(
                start, end, first_ms, last_ms, records, batches, size, epoch, last_epoch, crc32c, *digests
            )
            following = end + 1
    except (TypeError, ValueError, struct.error) as error:
        raise CorruptData(f"A row of a catalog is malformed: {error}.") from error
    if not packed or previous != piece.hash:
        raise CorruptData(f"Rows of a catalog do not give their hash, {piece.hash:.16}.")
    unusual = {at: Unusual(odd.key, odd.links, odd.hash is not None) for at, odd in odd_rows.items()}
    return Run(piece.directory, piece.previous_hash, bytes(packed), unusual)
