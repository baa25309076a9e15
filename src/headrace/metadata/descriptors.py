"""Durable segments in the metadata: their descriptors, and the hash chain that binds those of a catalog.

Promises: a descriptor and an entry are read back as they were written, and any change to them is detected. Never reads
or writes an object: that is the part of `headrace.storage.tier`.
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
from headrace.base.limits import PACKED_SEGMENT_BYTES_MAX
from headrace.base.values import Value

CHAIN_VERSION: Final = 1
DIGEST_CHARS: Final = 16
"""Digits of the object's SHA-256 that its name holds."""
_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
_LOST: Final = re.compile(r"lost-before-([0-9a-f]{64})\Z")
_VOUCHER: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{64})\Z")
_INT64_END: Final = 2**63
_INT32_END: Final = 2**31
Row: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, str]
"""The fields of a descriptor except its key: `COLUMNS`."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SegmentDescriptor(Value):
    """The content of one durable segment, and its proof. Immutable, like the object.

    `object_bytes` and `sha256` are of the object as a file. `batch_bytes` and `crc32c` are of the record batches as
    they are in the log, whether or not the object has them packed.

    Invariants: ``0 <= start_offset <= end_offset``; ``0 < batch_bytes``; only an object that is smaller than its
    batches is packed.
    """

    key: str
    """The object's key in the store."""
    start_offset: Offset
    end_offset: Offset
    """Inclusive."""
    leader_epoch: LeaderEpoch
    """Epoch of the leader that exported it. The batches inside keep the epochs in which they were appended."""
    first_timestamp_ms: int
    """Timestamp of the first record."""
    last_timestamp_ms: int
    """The largest timestamp in the segment."""
    records: int
    batch_bytes: int
    """Length of the record batches, unpacked."""
    object_bytes: int
    """Length of the whole object, footer included."""
    crc32c: int
    """CRC32C of the record batches."""
    sha256: str
    """SHA-256 of the whole object, 64 lower-case hexadecimal digits."""
    last_epoch: LeaderEpoch = NO_EPOCH
    """Epoch in which the last batch was appended; -1: not known (in segments of earlier versions)."""

    @property
    def next_offset(self) -> Offset:
        return Offset(self.end_offset + 1)

    @property
    def is_packed(self) -> bool:
        """Whether the object holds its batches in compressed blocks, rather than as they are."""
        return self.object_bytes <= self.batch_bytes

    @property
    def lacks_records(self) -> bool:
        """Whether compaction has removed some of the records that had its offsets."""
        return self.records <= self.end_offset - self.start_offset

    def to_json(self) -> dict[str, Any]:
        """A dict of strings and ints that `from_json` reads back to an equal descriptor. Unknown fields are left out,
        so that the hashes of earlier versions hold."""
        known = {name: getattr(self, name) for name in SegmentDescriptor.__slots__}
        if self.last_epoch == NO_EPOCH:
            del known["last_epoch"]
        return known

    @classmethod
    def from_json(cls, value: object) -> SegmentDescriptor:
        """The inverse of `to_json`. Raises CorruptData where a field is missing, of another type, or contradicts
        another."""
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
        """The contradiction in this descriptor, in a few words; None where there is none."""
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
    """`SegmentDescriptor.contradiction` for a row of fields."""
    if not 0 <= start <= end:
        return f"offsets {start} to {end} are no range"
    if batch_bytes <= 0 or object_bytes <= 0:
        return f"{batch_bytes} bytes of batches in {object_bytes} bytes of object are impossible"
    if batch_bytes >= object_bytes and batch_bytes > PACKED_SEGMENT_BYTES_MAX:
        return f"{batch_bytes} bytes of batches do not fit in {object_bytes} bytes of object, nor may they be packed"
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
    """Whether the text has the form of a SHA-256."""
    return _SHA256_HEX.match(text) is not None


def segment_name(start: int, end: int, leader_epoch: int, sha256: str) -> str:
    """The last part of the key of an exported segment's object."""
    return f"{start:020d}-{end:020d}-{leader_epoch:010d}-{sha256[:DIGEST_CHARS]}.segment"


# The hash chain. Each catalog event's hash covers the previous one, so the head proves the whole history.


def genesis_hash(topic_id: TopicId, partition: PartitionIndex) -> str:
    """The hash before the first event of a partition's catalog: 64 hexadecimal digits."""
    return hashlib.sha256(f"headrace catalog {CHAIN_VERSION}\n{topic_id}\n{partition}".encode()).hexdigest()


def published_hash(previous: str, segment: SegmentDescriptor) -> str:
    """The head after a segment was appended to the catalog: `_link(previous, "published", [segment.to_json()])`."""
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
    """`published_hash` for the fields of a descriptor: a planner calls it very often."""
    known = "" if last_epoch == NO_EPOCH else f'"last_epoch":{last_epoch},'
    text = (
        f'[{quoted(previous)},"published",{{"batch_bytes":{batch_bytes},"crc32c":{crc32c},"end_offset":{end},'
        f'"first_timestamp_ms":{first_ms},"key":{quoted(key)},{known}"last_timestamp_ms":{last_ms},'
        f'"leader_epoch":{leader_epoch},"object_bytes":{object_bytes},"records":{records},'
        f'"sha256":{quoted(sha256)},"start_offset":{start}}}]'
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def replaced_hash(previous: str, vouchers: Sequence[str]) -> str:
    """The head after one segment replaced others in the same range (merging, compaction)."""
    return _link(previous, "replaced", [list(vouchers)])


def deleted_hash(previous: str, removed: Sequence[str]) -> str:
    """The head after segments (by their SHA-256) were dropped at the catalog's beginning (retention)."""
    return _link(previous, "deleted", [list(removed)])


def _link(previous: str, kind: str, content: list[Any]) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no spaces, ASCII) of ``[previous, kind, ...content]``."""
    text = json.dumps([previous, kind, *content], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


Link: TypeAlias = tuple[str, ...]
"""The effect on a catalog of one event other than a publication. A deletion has the segments that it removed from the
beginning, by their SHA-256, in offset order. A replacement has the `Voucher` of the new segment first. After it come
the vouchers of earlier replacements that are still needed and were linked to segments that are gone. See `lost_link`
too."""


class Voucher(NamedTuple):
    """Binds a segment that replaced others to the chain, whose earlier links are those of the replaced segments."""

    start_offset: int
    end_offset: int
    """Inclusive."""
    proof: str

    def __str__(self) -> str:
        return f"{self.start_offset:020d}-{self.end_offset:020d}-{self.proof}"

    @classmethod
    def of(cls, segment: SegmentDescriptor, previous_hash: str, hash_: str) -> Voucher:
        """`previous_hash` is that of the first segment that it replaces, `hash_` that of the last."""
        proof = _link(previous_hash, "substitute", [hash_, segment.to_json()])
        return cls(segment.start_offset, segment.end_offset, proof)

    @classmethod
    def parse(cls, text: str) -> Voucher | None:
        """The voucher; None where the text is none."""
        found = _VOUCHER.match(text)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])


def vouchers_of(link: Link) -> list[Voucher]:
    """The vouchers of a replacement; an empty list where the link is not a replacement."""
    found = [voucher for text in link if (voucher := Voucher.parse(text)) is not None]
    return found if len(found) == len(link) else []


def lost_link(head: str) -> Link:
    """Stands for unknown links in a catalog whose `head` is known again. Snapshots of 0.1.0 before decision 0038 could
    lose some. A segment that was published since is a majority's decision and is kept."""
    return (f"lost-before-{head}",)


def linked(head: str, links: Iterable[Link]) -> str:
    """The head after these links."""
    for link in links:
        if len(link) == 1 and (lost := _LOST.match(link[0])):
            head = lost[1]
            continue
        head = replaced_hash(head, link) if vouchers_of(link) else deleted_hash(head, link)
    return head


def links_from_json(value: object) -> tuple[Link, ...]:
    """The links in parsed JSON. Raises CorruptData."""
    if not isinstance(value, list) or not all(
        isinstance(removed, list) and all(isinstance(each, str) for each in removed) for removed in value
    ):
        raise CorruptData(f"Deletions of a catalog are malformed: {value!r:.100}.")
    return tuple(tuple(removed) for removed in value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CatalogEntry(Value):
    """One segment with its place in the chain: ``hash = published_hash(previous_hash, descriptor)``. A substitute,
    which replaced others, has the `previous_hash` of the first of them, the `hash` of the last, and a voucher."""

    descriptor: SegmentDescriptor
    previous_hash: str
    hash: str
    deletions: tuple[Link, ...] = ()
    """Deletions and replacements since the previous entry was published. `previous_hash` is that entry's hash with
    these linked to it. Empty for the first entry of a catalog."""
    is_substitute: bool = False
    """The segment replaced others."""

    @property
    def voucher(self) -> Voucher:
        """The voucher of a substitute."""
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
        """The inverse of `to_json`. Raises CorruptData where the entry is malformed or its hash does not match its
        content. The hash of a substitute is proven by its voucher instead."""
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
