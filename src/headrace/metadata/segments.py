"""Durable segments as the metadata knows them: descriptors, one partition's catalog and its hash chain.

Promises: a catalog has no gap and no overlap, and each of its segments is bound by SHA-256 to all that came before.
Never reads or writes an object: that is `headrace.storage.tier`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import immutables

from headrace.base.errors import CorruptData
from headrace.base.ids import NO_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId

CHAIN_VERSION: Final = 1
_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDescriptor:
    """What one durable segment holds, and how to prove it. Immutable, as the object is.

    Invariants: ``0 <= start_offset <= end_offset``; ``0 < batch_bytes < object_bytes``.
    """

    key: str
    """The object's key in the store."""
    start_offset: Offset
    end_offset: Offset
    """Inclusive."""
    leader_epoch: LeaderEpoch
    """Of the leader that exported it; the batches inside keep the epochs under which they were appended."""
    first_timestamp_ms: int
    """Of the first record."""
    last_timestamp_ms: int
    """The largest in the segment."""
    records: int
    batch_bytes: int
    """Length of the record batches, which are the object's beginning."""
    object_bytes: int
    """Length of the whole object, footer included."""
    crc32c: int
    """CRC32C of the record batches."""
    sha256: str
    """SHA-256 of the whole object, 64 lower-case hexadecimal digits."""

    @property
    def next_offset(self) -> Offset:
        return Offset(self.end_offset + 1)

    def to_json(self) -> dict[str, Any]:
        """A dict of strings and ints that `from_json` reads back to an equal descriptor."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> SegmentDescriptor:
        """Raises CorruptData where a field is missing, of another type, or contradicts another."""
        if not isinstance(value, Mapping):
            raise CorruptData(f"A segment descriptor is not a JSON object: {value!r:.100}.")
        known: dict[str, Any] = {}
        for field in fields(cls):
            item = value.get(field.name)
            wanted = str if field.name in ("key", "sha256") else int
            if type(item) is not wanted:
                raise CorruptData(f"A segment descriptor's {field.name} is {item!r:.100}, not {wanted.__name__}.")
            known[field.name] = item
        descriptor = cls(**known)
        if problem := descriptor.contradiction():
            raise CorruptData(f"Segment descriptor {descriptor.key!r:.200}: {problem}.")
        return descriptor

    def contradiction(self) -> str | None:
        """What in this descriptor cannot be, in a few words; None where all can."""
        if not 0 <= self.start_offset <= self.end_offset:
            return f"offsets {self.start_offset} to {self.end_offset} are no range"
        if not 0 < self.batch_bytes < self.object_bytes:
            return f"{self.batch_bytes} bytes of batches do not fit in {self.object_bytes} bytes of object"
        if not 0 <= self.records <= self.end_offset - self.start_offset + 1:
            return f"{self.records} records do not fit in offsets {self.start_offset} to {self.end_offset}"
        if not 0 <= self.crc32c < 2**32 or not _SHA256_HEX.match(self.sha256):
            return "a checksum is out of range"
        return None


# The hash chain. Each catalog event's hash covers the one before it, so the head proves the whole history.


def genesis_hash(topic_id: TopicId, partition: PartitionIndex) -> str:
    """The hash before the first event of a partition's catalog: 64 hexadecimal digits."""
    return hashlib.sha256(f"headrace catalog {CHAIN_VERSION}\n{topic_id}\n{partition}".encode()).hexdigest()


def published_hash(previous: str, descriptor: SegmentDescriptor) -> str:
    """The head after a segment was appended to the catalog."""
    return _link(previous, "published", [descriptor.to_json()])


def replaced_hash(previous: str, removed: Sequence[str], added: Sequence[SegmentDescriptor]) -> str:
    """The head after segments (by their SHA-256) were replaced by others that hold the same range (compaction)."""
    return _link(previous, "replaced", [list(removed), [descriptor.to_json() for descriptor in added]])


def deleted_hash(previous: str, removed: Sequence[str]) -> str:
    """The head after segments (by their SHA-256) were dropped at the catalog's beginning (retention)."""
    return _link(previous, "deleted", [list(removed)])


def _link(previous: str, kind: str, content: list[Any]) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no spaces, ASCII) of ``[previous, kind, ...content]``."""
    text = json.dumps([previous, kind, *content], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One published segment with its place in the chain: ``hash = published_hash(previous_hash, descriptor)``."""

    descriptor: SegmentDescriptor
    previous_hash: str
    hash: str

    def to_json(self) -> dict[str, Any]:
        return {"descriptor": self.descriptor.to_json(), "previous_hash": self.previous_hash, "hash": self.hash}

    @classmethod
    def from_json(cls, value: object) -> CatalogEntry:
        """Raises CorruptData where the entry is malformed or its hash is not the one of its content."""
        if not isinstance(value, Mapping):
            raise CorruptData(f"A catalog entry is not a JSON object: {value!r:.100}.")
        descriptor = SegmentDescriptor.from_json(value.get("descriptor"))
        previous, claimed = value.get("previous_hash"), value.get("hash")
        if not isinstance(previous, str) or published_hash(previous, descriptor) != claimed:
            raise CorruptData(f"The catalog entry of {descriptor.key!r:.200} does not match its hash.")
        return cls(descriptor=descriptor, previous_hash=previous, hash=claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCatalog:
    """The durable history of one partition: contiguous segments and the head of their chain. Structurally shared.

    Invariants: each entry starts one above the end of the one before it and holds its hash as `previous_hash`;
    `head` is the last entry's hash.
    """

    head: str
    entries: immutables.Map[Offset, CatalogEntry]
    """By start offset."""
    start_offset: Offset = NO_OFFSET
    """Of the first segment; -1 while there is none."""
    last_start: Offset = NO_OFFSET
    """Start offset of the last segment; -1 while there is none."""
    end_offset: Offset = NO_OFFSET
    """The durable frontier: the last offset held, inclusive; -1 while there is none."""

    @classmethod
    def empty(cls, topic_id: TopicId, partition: PartitionIndex) -> PartitionCatalog:
        return cls(head=genesis_hash(topic_id, partition), entries=immutables.Map())

    @property
    def next_offset(self) -> Offset:
        """Where the next segment starts; 0 in an empty catalog, which may also begin higher."""
        return Offset(self.end_offset + 1)

    @property
    def last(self) -> CatalogEntry | None:
        return self.entries.get(self.last_start)

    def __iter__(self) -> Iterator[CatalogEntry]:
        """The entries in offset order."""
        return self._from(self.start_offset)

    def above(self, offset: Offset) -> Iterator[CatalogEntry]:
        """The entries that begin above `offset`, which is the end of one of them or below all."""
        return self._from(max(self.start_offset, Offset(offset + 1)))

    def _from(self, at: Offset) -> Iterator[CatalogEntry]:
        while (entry := self.entries.get(at)) is not None:
            yield entry
            at = entry.descriptor.next_offset

    def refusal(self, descriptor: SegmentDescriptor, previous_hash: str) -> str | None:
        """Why this segment may not be published next, as one sentence; None where it may.

        An empty catalog may begin at any offset: where exports began after retention had cut the log's beginning.
        """
        if problem := descriptor.contradiction():
            return f"The segment's descriptor is impossible: {problem}."
        if previous_hash != self.head:
            return f"The segment continues {previous_hash[:16]}, but the catalog's head is {self.head[:16]}."
        if self.entries and descriptor.start_offset != self.next_offset:
            return f"The segment starts at {descriptor.start_offset}, but the catalog goes on at {self.next_offset}."
        return None

    def published(self, descriptor: SegmentDescriptor) -> PartitionCatalog:
        """This catalog with one more segment. The caller has checked `refusal`."""
        assert self.refusal(descriptor, self.head) is None, descriptor
        head = published_hash(self.head, descriptor)
        entry = CatalogEntry(descriptor=descriptor, previous_hash=self.head, hash=head)
        return PartitionCatalog(
            head=head,
            entries=self.entries.set(descriptor.start_offset, entry),
            start_offset=self.start_offset if self.entries else descriptor.start_offset,
            last_start=descriptor.start_offset,
            end_offset=descriptor.end_offset,
        )
