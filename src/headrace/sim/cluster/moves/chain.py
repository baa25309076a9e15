"""The hash chain of a durable catalog, computed again from its documentation; it uses nothing of the shipped chain.

Promises:
- Segments follow one another without gaps.
- Each has the hash of everything before it.
- A substitute is exactly the segment that the last replacement of its offsets vouches for.
- A segment with such a voucher is there.
- The place of an offset in the chain never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

from headrace.metadata.segments import CatalogEntry, PartitionCatalog, SegmentDescriptor
from headrace.sim.history import PartitionKey

DESCRIBED: Final = (
    "key",
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
"""The fields of a segment that a link of the chain covers."""
VOUCHER: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{64})")


class Chains:
    """The chains of all partitions, as far as they were checked."""

    def __init__(self) -> None:
        self._places: dict[tuple[PartitionKey, int], str] = {}
        """By partition and offset: the hash before the segment that begins there."""

    def problem(self, key: PartitionKey, catalog: PartitionCatalog) -> str | None:
        """The first violation, as a sentence; None: there is none."""
        entries = [catalog.entries[start] for start in sorted(catalog.entries)]
        if not entries:
            self._places.setdefault((key, catalog.end_offset + 1), catalog.head)
            return None
        head, following = entries[0].previous_hash, int(entries[0].descriptor.start_offset)
        if following == 0:
            head = hashlib.sha256(f"headrace catalog 1\n{key.topic_id}\n{key.number}".encode()).hexdigest()
        for entry in entries:
            segment = entry.descriptor
            if segment.start_offset != following:
                return f"a segment starts at {segment.start_offset}, where {following} is due"
            if entry is not entries[0]:
                head = _linked(head, entry.deletions)
            if entry.previous_hash != head:
                return f"the segment at {following} is linked to {entry.previous_hash[:8]}, and follows on {head[:8]}"
            if self._places.setdefault((key, following), head) != head:
                return f"the segment at {following} follows on another hash than the one before it did"
            if not entry.is_substitute and entry.hash != _hash(head, "published", _described(segment)):
                return f"the segment at {following} has a hash that is not its own"
            head, following = entry.hash, segment.end_offset + 1
        if catalog.head != _linked(head, catalog.deletions):
            return "its head is not that of its last link"
        return _unvouched(entries, catalog)


def _unvouched(entries: list[CatalogEntry], catalog: PartitionCatalog) -> str | None:
    """Check offset by offset that the segment there is the one that the last voucher names."""
    last: dict[int, tuple[int, int, str]] = {}
    links = [link for entry in entries for link in entry.deletions] + list(catalog.deletions)
    for link in links:
        for start, end, proof in _vouchers(link):
            last.update(dict.fromkeys(range(start, end + 1), (start, end, proof)))
    for entry in entries:
        segment = entry.descriptor
        proof = _hash(entry.previous_hash, "substitute", entry.hash, _described(segment))
        wanted = (segment.start_offset, segment.end_offset, proof) if entry.is_substitute else None
        if any(last.get(at) != wanted for at in range(segment.start_offset, segment.end_offset + 1)):
            return f"the segment at {segment.start_offset} is not what the chain vouches for"
    return None


def _vouchers(link: Iterable[str]) -> list[tuple[int, int, str]]:
    """The vouchers of a link; an empty list for a deletion."""
    found = [VOUCHER.fullmatch(text) for text in link]
    return [(int(each[1]), int(each[2]), each[3]) for each in found if each is not None]


def _linked(head: str, links: Iterable[tuple[str, ...]]) -> str:
    for link in links:
        head = _hash(head, "replaced" if _vouchers(link) else "deleted", list(link))
    return head


def _described(segment: SegmentDescriptor) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in DESCRIBED}


def _hash(previous: str, kind: str, *content: Any) -> str:
    """The documented link: SHA-256 over canonical JSON."""
    text = json.dumps([previous, kind, *content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
