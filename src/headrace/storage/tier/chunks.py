"""Chunks of the catalog's mirror: documents that hold very many entries each, so that a planner reads few.

A chunk is written once, and named by its content: `chunks/<start>-<end>-<hash>`, where the hash is the first digits of
the SHA-256 of its bytes. So two writers never change each other's chunks, and no lock is needed. Only `state` says
which chunks count. The documents of single segments stay beside them, and are read where a chunk is lost or damaged. A
segment that replaced others has no such document, and is always in a chunk.

Promises: the chain of a chunk's entries is verified from its first hash to its last.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import PartitionIndex, TopicId
from headrace.base.limits import CATALOG_CHUNK_ENTRIES, CATALOG_DOCUMENT_BYTES_MAX
from headrace.base.ports import Objects
from headrace.metadata.codec import shape_of
from headrace.metadata.descriptors import COLUMNS
from headrace.metadata.pieces import Piece, piece_of, run_of
from headrace.metadata.segments import PartitionCatalog, Run

VERSION: Final = 1
TOPICS: Final = "storage/topics/"
DIGEST_CHARS: Final = 16
_DIGEST: Final = re.compile(f"[0-9a-f]{{{DIGEST_CHARS}}}\\Z")


class ChunkRef(NamedTuple):
    """A chunk, as `state` names it."""

    start_offset: int
    """Start of its first entry, which retention may have removed since."""
    end_offset: int
    """End of its last entry, inclusive."""
    digest: str

    @classmethod
    def from_json(cls, value: object) -> ChunkRef:
        """Raises CorruptData where the value names no chunk."""
        match value:
            case [int(start), int(end), str(digest)] if 0 <= start <= end and _DIGEST.match(digest):
                return cls(start, end, digest)
        raise CorruptData(f"A chunk's name is malformed: {value!r:.100}.")


def chunks_prefix(topic_id: TopicId, partition: PartitionIndex) -> str:
    return f"{TOPICS}{topic_id}/{partition}/chunks/"


def chunk_key(topic_id: TopicId, partition: PartitionIndex, ref: ChunkRef) -> str:
    return f"{chunks_prefix(topic_id, partition)}{ref.start_offset:020d}-{ref.end_offset:020d}-{ref.digest}"


def encode_chunk(
    topic_id: TopicId, partition: PartitionIndex, catalog: PartitionCatalog, start: int, end: int
) -> tuple[ChunkRef, bytes]:
    """Encode the entries that hold these offsets, `end` inclusive. Returns the chunk's name and its bytes."""
    entries = []
    for entry in catalog.reaching(start):
        if entry.descriptor.start_offset > end:
            break
        entries.append(entry)
    about: dict[str, Any] = {"columns": COLUMNS, "topic_id": str(topic_id), "partition": partition, "version": VERSION}
    text = json.dumps({**about, **shape_of(Piece).encode(piece_of(entries))}, sort_keys=True, ensure_ascii=False)
    data = (text.replace("], [", "],\n[") + "\n").encode()
    return ChunkRef(start, end, hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]), data


def is_there(objects: Objects, topic_id: TopicId, partition: PartitionIndex, ref: ChunkRef) -> bool:
    """Whether the chunk exists and is whole."""
    try:
        data = objects.get(chunk_key(topic_id, partition, ref))
    except FileNotFoundError:
        return False
    return hashlib.sha256(data).hexdigest().startswith(ref.digest)


def read_chunk(objects: Objects, topic_id: TopicId, partition: PartitionIndex, ref: ChunkRef) -> Run:
    """Read a chunk. Raises CorruptData where it is missing, or differs from its name."""
    key = chunk_key(topic_id, partition, ref)
    try:
        data = objects.get(key)
    except FileNotFoundError as error:
        raise CorruptData(f"Document '{key}' is not there.") from error
    if len(data) > CATALOG_DOCUMENT_BYTES_MAX or not hashlib.sha256(data).hexdigest().startswith(ref.digest):
        raise CorruptData(f"Document '{key}' is damaged.")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptData(f"Document '{key}' is not JSON: {error}.") from error
    if not isinstance(value, dict) or value.get("version") != VERSION or value.get("columns") != list(COLUMNS):
        raise CorruptData(f"Document '{key}' is not one that this version of Headrace reads.")
    rows = value.pop("rows", None)  # left out here, since they are very many: `run_of` checks them
    piece = shape_of(Piece).decode({**value, "rows": []}, "piece")
    if not isinstance(rows, list):
        raise CorruptData(f"Document '{key}' has no rows.")
    run = run_of(replace(piece, rows=tuple(rows)))
    if (run.start_offset, run.end_offset) != (ref.start_offset, ref.end_offset):
        raise CorruptData(f"Document '{key}' holds offsets {run.start_offset} to {run.end_offset}.")
    return run


class Stretch(NamedTuple):
    """Entries of one chunk, written or still to write."""

    start_offset: int
    end_offset: int
    """Inclusive."""
    entries: int
    there: ChunkRef | None
    """None: it still has to be written."""


def stretches(catalog: PartitionCatalog, kept: Iterable[ChunkRef]) -> list[Stretch]:
    """Cuts the catalog into chunks from its start on, without gaps; entries behind them have single documents. `kept`:
    chunks that agree with the catalog, except that retention may have removed the beginning of the first.
    """
    found: list[Stretch] = []
    at = int(catalog.start_offset)
    for ref in sorted(kept):
        if ref.end_offset >= at:
            found += _new(catalog, at, ref.start_offset - 1)
            start = max(at, ref.start_offset)
            found.append(Stretch(start, ref.end_offset, catalog.entries.count(start, ref.end_offset), ref))
            at = ref.end_offset + 1
    return _without_short(found + _new(catalog, at, _last_in_chunks(catalog, at)))


def _last_in_chunks(catalog: PartitionCatalog, start: int) -> int:
    """The last offset from `start` on that a chunk has to hold: full chunks, and all substitutes."""
    substitutes = [each.descriptor.end_offset for each in catalog.entries.unusual() if each.is_substitute]
    many = catalog.entries.count(start, catalog.end_offset) // CATALOG_CHUNK_ENTRIES * CATALOG_CHUNK_ENTRIES
    full = [each.descriptor.end_offset for each in islice(catalog.reaching(start), many)]
    return max([start - 1, *substitutes[-1:], *full[-1:]])


def _new(catalog: PartitionCatalog, start: int, end: int) -> list[Stretch]:
    """All entries of these offsets, as many in each chunk as fit."""
    found: list[Stretch] = []
    entries = catalog.reaching(start)
    while start <= end:
        there = [each for each in islice(entries, CATALOG_CHUNK_ENTRIES) if each.descriptor.start_offset <= end]
        found.append(Stretch(start, there[-1].descriptor.end_offset, len(there), None))
        start = there[-1].descriptor.next_offset
    return found


def _without_short(found: list[Stretch]) -> list[Stretch]:
    """Joins neighbours that fit into one chunk, where one of them has to be written anyway."""
    joined: list[Stretch] = []
    for each in found:
        last = joined[-1] if joined else None
        fits = last is not None and last.entries + each.entries <= CATALOG_CHUNK_ENTRIES
        if last is not None and fits and None in (last.there, each.there):
            joined[-1] = Stretch(last.start_offset, each.end_offset, last.entries + each.entries, None)
        else:
            joined.append(each)
    return joined
