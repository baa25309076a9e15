"""Durable segments as the metadata knows them: descriptors, one partition's catalog and its hash chain.

Promises: a catalog has no gap and no overlap, and each of its segments is bound by SHA-256 to all that came before.
Never reads or writes an object: that is `headrace.storage.tier`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias

import immutables

from headrace.base.errors import CorruptData
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId

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
    last_epoch: LeaderEpoch = NO_EPOCH
    """In which the last batch was appended; -1: not known (in segments of earlier versions)."""

    @property
    def next_offset(self) -> Offset:
        return Offset(self.end_offset + 1)

    def to_json(self) -> dict[str, Any]:
        """A dict of strings and ints that `from_json` reads back to an equal descriptor. What is not known is left out,
        so that the hashes of earlier versions hold."""
        known = {name: getattr(self, name) for name in SegmentDescriptor.__slots__}
        if self.last_epoch == NO_EPOCH:
            del known["last_epoch"]
        return known

    @classmethod
    def from_json(cls, value: object) -> SegmentDescriptor:
        """Raises CorruptData where a field is missing, of another type, or contradicts another."""
        if not isinstance(value, Mapping):
            raise CorruptData(f"A segment descriptor is not a JSON object: {value!r:.100}.")
        known: dict[str, Any] = {}
        for field in fields(cls):
            item = value.get(field.name, NO_EPOCH if field.name == "last_epoch" else None)
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
        if not NO_EPOCH <= self.last_epoch <= self.leader_epoch:
            return f"batches of epoch {self.last_epoch} cannot be exported in epoch {self.leader_epoch}"
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


Removed: TypeAlias = tuple[str, ...]
"""What one deletion took from the catalog's beginning: segments by their SHA-256, in offset order."""


def deletions_from_json(value: object) -> tuple[Removed, ...]:
    """Raises CorruptData."""
    if not isinstance(value, list) or not all(
        isinstance(removed, list) and all(isinstance(each, str) for each in removed) for removed in value
    ):
        raise CorruptData(f"Deletions of a catalog are malformed: {value!r:.100}.")
    return tuple(tuple(removed) for removed in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One published segment with its place in the chain: ``hash = published_hash(previous_hash, descriptor)``."""

    descriptor: SegmentDescriptor
    previous_hash: str
    hash: str
    deletions: tuple[Removed, ...] = ()
    """What was deleted since the entry before this one was published: `previous_hash` is that entry's hash with these
    linked to it. Empty for a catalog's first."""

    def to_json(self) -> dict[str, Any]:
        known = {"descriptor": self.descriptor.to_json(), "previous_hash": self.previous_hash, "hash": self.hash}
        return {**known, "deletions": [list(removed) for removed in self.deletions]} if self.deletions else known

    @classmethod
    def from_json(cls, value: object) -> CatalogEntry:
        """Raises CorruptData where the entry is malformed or its hash is not the one of its content."""
        if not isinstance(value, Mapping):
            raise CorruptData(f"A catalog entry is not a JSON object: {value!r:.100}.")
        descriptor = SegmentDescriptor.from_json(value.get("descriptor"))
        previous, claimed = value.get("previous_hash"), value.get("hash")
        if not isinstance(previous, str) or published_hash(previous, descriptor) != claimed:
            raise CorruptData(f"The catalog entry of {descriptor.key!r:.200} does not match its hash.")
        deletions = deletions_from_json(value.get("deletions", []))
        return cls(descriptor=descriptor, previous_hash=previous, hash=claimed, deletions=deletions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCatalog:
    """The durable history of one partition: contiguous segments and the head of their chain. Structurally shared.

    Invariants: each entry starts one above the end of the one before it and holds its hash, with the deletions since
    then linked to it, as `previous_hash`; `head` is the last entry's hash with `deletions` linked to it; no entry lies
    whole below `log_start_offset`, which is at most `next_offset`.
    """

    head: str
    entries: immutables.Map[Offset, CatalogEntry]
    """By start offset."""
    start_offset: Offset = NO_OFFSET
    """Of the first segment; -1 while there is none."""
    last_start: Offset = NO_OFFSET
    """Start offset of the last segment; -1 while there is none."""
    end_offset: Offset = NO_OFFSET
    """The durable frontier: the last offset that was ever held, inclusive; -1 where none was."""
    log_start_offset: Offset = FIRST_OFFSET
    """What lies below is deleted: no reader is given it, though the first segment may still hold it."""
    deletions: tuple[Removed, ...] = ()
    """Since the last entry was published."""
    batch_bytes: int = 0
    """Of all entries."""

    @classmethod
    def empty(cls, topic_id: TopicId, partition: PartitionIndex) -> PartitionCatalog:
        return cls(head=genesis_hash(topic_id, partition), entries=immutables.Map())

    @property
    def next_offset(self) -> Offset:
        """Where the next segment starts; 0 in a catalog that never held any, which may also begin higher."""
        return Offset(self.end_offset + 1)

    @property
    def readable_start(self) -> Offset:
        """The first offset that may be read of it; its end where there is none."""
        return max(self.start_offset, self.log_start_offset) if self.entries else self.next_offset

    def joined_start(self, local_start: Offset) -> Offset:
        """Where this history and a log that begins at `local_start` begin together. What a gap parts from the log does
        not count, nor what is deleted."""
        joins = self.entries and self.start_offset < local_start <= self.next_offset
        return max(self.start_offset if joins else local_start, self.log_start_offset)

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

    def differs_from(self, epochs: Sequence[tuple[LeaderEpoch, Offset]]) -> Offset | None:
        """Where a log with these epochs, in order, has records that cannot be those which are here: from the first
        epoch on that begins below the end, in a segment that was exported in an older one."""
        begins = [(epoch, start) for epoch, start in epochs if self.start_offset <= start < self.next_offset]
        for entry in self if begins else ():
            while begins and begins[0][1] < entry.descriptor.next_offset:
                epoch, start = begins.pop(0)
                if epoch > entry.descriptor.leader_epoch:
                    return start
            if not begins:
                break
        return None

    def refusal(self, descriptor: SegmentDescriptor, previous_hash: str) -> str | None:
        """Why this segment may not be published next, as one sentence; None where it may.

        An empty catalog may begin at any offset above what it held: where exports began after retention had cut the
        log's beginning.
        """
        if problem := descriptor.contradiction():
            return f"The segment's descriptor is impossible: {problem}."
        if previous_hash != self.head:
            return f"The segment continues {previous_hash[:16]}, but the catalog's head is {self.head[:16]}."
        start, following = descriptor.start_offset, self.next_offset
        if start != following and (self.entries or start < following):
            return f"The segment starts at {start}, but the catalog goes on at {following}."
        return None

    def published(self, descriptor: SegmentDescriptor) -> PartitionCatalog:
        """This catalog with one more segment. The caller has checked `refusal`."""
        assert self.refusal(descriptor, self.head) is None, descriptor
        head = published_hash(self.head, descriptor)
        entry = CatalogEntry(
            descriptor=descriptor,
            previous_hash=self.head,
            hash=head,
            deletions=self.deletions if self.entries else (),
        )
        return PartitionCatalog(
            head=head,
            entries=self.entries.set(descriptor.start_offset, entry),
            start_offset=self.start_offset if self.entries else descriptor.start_offset,
            last_start=descriptor.start_offset,
            end_offset=descriptor.end_offset,
            log_start_offset=self.log_start_offset,
            batch_bytes=self.batch_bytes + descriptor.batch_bytes,
        )

    # deleting from the beginning

    def below(self, offset: Offset) -> list[SegmentDescriptor]:
        """The segments that lie whole below `offset`."""
        found: list[SegmentDescriptor] = []
        for entry in self:
            if entry.descriptor.next_offset > offset:
                break
            found.append(entry.descriptor)
        return found

    def deleted(self, log_start_offset: Offset, removed: Removed) -> PartitionCatalog:
        """This catalog with its beginning moved up to `log_start_offset`, at most its end, where it is below; `removed`
        is linked to the chain, and are those that lie whole below it, where they are still here."""
        start = max(self.log_start_offset, min(log_start_offset, self.next_offset))
        gone = self.below(start)
        entries = self.entries.mutate()
        for descriptor in gone:
            del entries[descriptor.start_offset]
        first = gone[-1].next_offset if gone else self.start_offset
        if gone and (entry := entries.get(first)) is not None:
            entries[first] = replace(entry, deletions=())  # they are linked to an entry that is gone
        left = entries.finish()
        return PartitionCatalog(
            head=deleted_hash(self.head, removed) if removed else self.head,
            entries=left,
            start_offset=first if left else NO_OFFSET,
            last_start=self.last_start if left else NO_OFFSET,
            end_offset=self.end_offset,
            log_start_offset=start,
            deletions=(*self.deletions, removed) if removed and left else (),
            batch_bytes=self.batch_bytes - sum(descriptor.batch_bytes for descriptor in gone),
        )

    @property
    def anchor(self) -> PartitionCatalog:
        """What is left of it without its entries and deletions: these, replayed on it, give this catalog."""
        first = self.entries.get(self.start_offset)
        if first is None:
            return self
        return PartitionCatalog(
            head=first.previous_hash,
            entries=immutables.Map(),
            end_offset=Offset(self.start_offset - 1) if self.log_start_offset else NO_OFFSET,
            log_start_offset=self.log_start_offset,
        )
