"""Durable segments as the metadata knows them: what describes one, and the hash chain that binds a catalog's.

Promises: a descriptor and an entry are read back as they were written, and whatever is changed in them is noticed.
Never reads or writes an object: that is `headrace.storage.tier`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from json.encoder import encode_basestring_ascii as quoted
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.errors import CorruptData
from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset, PartitionIndex, TopicId

CHAIN_VERSION: Final = 1
DIGEST_CHARS: Final = 16
"""Of the SHA-256 of the object, in its name."""
_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
_LOST: Final = re.compile(r"lost-before-([0-9a-f]{64})\Z")
_VOUCHER: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{64})\Z")
_INT64_END: Final = 2**63
_INT32_END: Final = 2**31
Row: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, str]
"""What a descriptor says, but for its key: `COLUMNS`."""
COLUMNS: Final = (
    "start_offset",
    "end_offset",
    "leader_epoch",
    "last_epoch",
    "first_timestamp_ms",
    "last_timestamp_ms",
    "records",
    "batch_bytes",
    "object_bytes",
    "crc32c",
    "sha256",
)
_row_of: Final = attrgetter(*COLUMNS)


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

    @property
    def lacks_records(self) -> bool:
        """Compaction has taken some of those that were given its offsets."""
        return self.records <= self.end_offset - self.start_offset

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
        return contradiction(*self.row)

    @property
    def row(self) -> Row:
        found: Row = _row_of(self)
        return found


def contradiction(
    start: int,
    end: int,
    leader_epoch: int,
    last_epoch: int,
    first_ms: int,
    last_ms: int,
    records: int,
    batch_bytes: int,
    object_bytes: int,
    crc32c: int,
    sha256: str,
) -> str | None:
    """As that of a descriptor with this row."""
    if not 0 <= start <= end:
        return f"offsets {start} to {end} are no range"
    if not 0 < batch_bytes < object_bytes:
        return f"{batch_bytes} bytes of batches do not fit in {object_bytes} bytes of object"
    if not 0 <= records <= end - start + 1:
        return f"{records} records do not fit in offsets {start} to {end}"
    if not NO_EPOCH <= last_epoch <= leader_epoch:
        return f"batches of epoch {last_epoch} cannot be exported in epoch {leader_epoch}"
    if not 0 <= crc32c < 2**32 or not is_hash(sha256):
        return "a checksum is out of range"
    if max(end, records, object_bytes, abs(first_ms), abs(last_ms)) >= _INT64_END or leader_epoch >= _INT32_END:
        return "a number is out of range"
    return None


def is_hash(text: str) -> bool:
    """Whether it can be a SHA-256."""
    return _SHA256_HEX.match(text) is not None


def segment_name(start: int, end: int, leader_epoch: int, sha256: str) -> str:
    """The last part of the key of an exported segment's object."""
    return f"{start:020d}-{end:020d}-{leader_epoch:010d}-{sha256[:DIGEST_CHARS]}.segment"


# The hash chain. Each catalog event's hash covers the one before it, so the head proves the whole history.


def genesis_hash(topic_id: TopicId, partition: PartitionIndex) -> str:
    """The hash before the first event of a partition's catalog: 64 hexadecimal digits."""
    return hashlib.sha256(f"headrace catalog {CHAIN_VERSION}\n{topic_id}\n{partition}".encode()).hexdigest()


def published_hash(previous: str, segment: SegmentDescriptor) -> str:
    """The head after a segment was appended to the catalog: as `_link(previous, "published", [segment.to_json()])`."""
    return published_hash_of(previous, segment.key, *segment.row)


def published_hash_of(
    previous: str,
    key: str,
    start: int,
    end: int,
    leader_epoch: int,
    last_epoch: int,
    first_ms: int,
    last_ms: int,
    records: int,
    batch_bytes: int,
    object_bytes: int,
    crc32c: int,
    sha256: str,
) -> str:
    """The same, of a descriptor's row: a planner asks for very many."""
    known = "" if last_epoch == NO_EPOCH else f'"last_epoch":{last_epoch},'
    text = (
        f'[{quoted(previous)},"published",{{"batch_bytes":{batch_bytes},"crc32c":{crc32c},"end_offset":{end},'
        f'"first_timestamp_ms":{first_ms},"key":{quoted(key)},{known}"last_timestamp_ms":{last_ms},'
        f'"leader_epoch":{leader_epoch},"object_bytes":{object_bytes},"records":{records},'
        f'"sha256":{quoted(sha256)},"start_offset":{start}}}]'
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def replaced_hash(previous: str, vouchers: Sequence[str]) -> str:
    """The head after one segment took the place of others, in the same range (merging, compaction)."""
    return _link(previous, "replaced", [list(vouchers)])


def deleted_hash(previous: str, removed: Sequence[str]) -> str:
    """The head after segments (by their SHA-256) were dropped at the catalog's beginning (retention)."""
    return _link(previous, "deleted", [list(removed)])


def _link(previous: str, kind: str, content: list[Any]) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no spaces, ASCII) of ``[previous, kind, ...content]``."""
    text = json.dumps([previous, kind, *content], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


Link: TypeAlias = tuple[str, ...]
"""What one event other than a publication did to a catalog. A deletion: the segments that it took from the beginning,
by their SHA-256, in offset order. A replacement: the `Voucher` of what came in the place of
others, and then those of earlier replacements that are still wanted and hung on what has gone. See `lost_link` too."""


class Voucher(NamedTuple):
    """Binds a segment that took the place of others to the chain, whose earlier links are of those others."""

    start_offset: int
    end_offset: int
    """Inclusive."""
    proof: str

    def __str__(self) -> str:
        return f"{self.start_offset:020d}-{self.end_offset:020d}-{self.proof}"

    @classmethod
    def of(cls, segment: SegmentDescriptor, previous_hash: str, hash_: str) -> Voucher:
        """`previous_hash`: of the first that it replaces; `hash_`: of the last."""
        proof = _link(previous_hash, "substitute", [hash_, segment.to_json()])
        return cls(segment.start_offset, segment.end_offset, proof)

    @classmethod
    def parse(cls, text: str) -> Voucher | None:
        """None: it is none."""
        found = _VOUCHER.match(text)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])


def vouchers_of(link: Link) -> list[Voucher]:
    """None where it is not a replacement."""
    found = [voucher for text in link if (voucher := Voucher.parse(text)) is not None]
    return found if len(found) == len(link) else []


def lost_link(head: str) -> Link:
    """Stands for links that are not known any more, in a catalog of which `head` is known again. Snapshots of 0.1.0
    before decision 0038 could lose some; what was published since is a majority's word, and is kept."""
    return (f"lost-before-{head}",)


def linked(head: str, links: Iterable[Link]) -> str:
    """The head after these."""
    for link in links:
        if len(link) == 1 and (lost := _LOST.match(link[0])):
            head = lost[1]
            continue
        head = replaced_hash(head, link) if vouchers_of(link) else deleted_hash(head, link)
    return head


def links_from_json(value: object) -> tuple[Link, ...]:
    """Raises CorruptData."""
    if not isinstance(value, list) or not all(
        isinstance(removed, list) and all(isinstance(each, str) for each in removed) for removed in value
    ):
        raise CorruptData(f"Deletions of a catalog are malformed: {value!r:.100}.")
    return tuple(tuple(removed) for removed in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One segment with its place in the chain: ``hash = published_hash(previous_hash, descriptor)``, but for one that
    took the place of others, which has the first one's `previous_hash` and the last one's `hash`, and a voucher."""

    descriptor: SegmentDescriptor
    previous_hash: str
    hash: str
    deletions: tuple[Link, ...] = ()
    """What was deleted or replaced since the entry before this one was published: `previous_hash` is that entry's hash
    with these linked to it. Empty for a catalog's first."""
    is_substitute: bool = False
    """It took the place of others."""

    @property
    def voucher(self) -> Voucher:
        """Of a substitute."""
        return Voucher.of(self.descriptor, self.previous_hash, self.hash)

    def to_json(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "descriptor": self.descriptor.to_json(),
            "previous_hash": self.previous_hash,
            "hash": self.hash,
        }
        if self.deletions:
            known["deletions"] = [list(link) for link in self.deletions]
        return {**known, "is_substitute": True} if self.is_substitute else known

    @classmethod
    def from_json(cls, value: object) -> CatalogEntry:
        """Raises CorruptData where the entry is malformed or its hash is not the one of its content; that of a
        substitute is for its voucher to prove."""
        if not isinstance(value, Mapping):
            raise CorruptData(f"A catalog entry is not a JSON object: {value!r:.100}.")
        descriptor = SegmentDescriptor.from_json(value.get("descriptor"))
        previous, claimed, substitute = value.get("previous_hash"), value.get("hash"), value.get("is_substitute", False)
        is_proven = substitute is True and isinstance(claimed, str) and is_hash(claimed)
        if not isinstance(previous, str) or not (is_proven or published_hash(previous, descriptor) == claimed):
            raise CorruptData(f"The catalog entry of {descriptor.key!r:.200} does not match its hash.")
        return cls(
            descriptor=descriptor,
            previous_hash=previous,
            hash=str(claimed),
            deletions=links_from_json(value.get("deletions", [])),
            is_substitute=substitute is True,
        )
