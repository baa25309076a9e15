"""What a compaction keeps of record batches: of every key the last record, and tombstones for as long as they are owed.

Promises: offsets, epochs, producers and the order of what stays are as they were; a batch of which all stays is the
very same bytes. Sans-IO. `storage.log.compaction.cleaning` says what goes and what stays although it might go, and does
it to logs; `storage.tier.compact` does it to durable segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from crc32c import crc32c

from headrace.base.ids import LAST_OFFSET
from headrace.wire.batches import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    emptied,
    small_records,
)
from headrace.wire.compression import compress
from headrace.wire.records import Record, pack_records

DIGEST_BYTES: Final = 16
_KEPT_ATTRIBUTES: Final = COMPRESSION_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON


def add_last(last: dict[bytes, int], header: BatchHeader, raw: bytes) -> None:
    """Note the offsets of a batch's keys. Those of transactions replace nothing, for it is not asked whether they were
    aborted."""
    if header.is_control or header.is_transactional or not header.count:
        return
    for record in small_records(raw) or ():
        if record.key is not None:
            last[_digest(record.key)] = record.offset


@dataclass(slots=True, kw_only=True)
class Keeping:
    """What is known when it is decided what stays. It is asked of batches in the order of offsets, from the first."""

    last: Mapping[bytes, int]
    """The last offset of each key below `clean_to`, as `add_last` notes it."""
    clean_to: int
    """What begins here or above stays as it is."""
    now_ms: int
    delete_retention_ms: int
    tombstones_from: int = LAST_OFFSET
    """Tombstones from there on stay, unless a later record replaces them: what has their keys' values is elsewhere, or
    could not be unpacked."""
    is_shown_later: bool = False
    """Readers go by what there was before this round until they are shown what it made: a tombstone's time begins in
    the first round that finds nothing more for it to delete, and not in the one that takes it."""
    _taken: set[bytes] = field(default_factory=set)
    """Keys of which this round has taken a value."""

    def kept(self, header: BatchHeader, raw: bytes) -> bytes:
        """What stays of a batch: the very same bytes, or others, perhaps without records."""
        if not header.count:  # an older version may have left it a codec with nothing to unpack
            return emptied(header) if header.attributes & COMPRESSION_MASK else raw
        if header.is_control or header.base_offset >= self.clean_to:
            return raw
        records = small_records(raw)
        if records is None:
            self.tombstones_from = min(self.tombstones_from, header.base_offset)
            return raw
        kept = [record for record in records if self._stays(header, record)]
        if not kept:
            return emptied(header)
        horizon = None
        may_get_one = not (header.is_transactional or header.attributes & DELETE_HORIZON) and all(
            record.timestamp >= -1
            for record in kept  # or its distance to a horizon may have more than 64 bits
        )
        tombstones = [record.key for record in kept if record.value is None and record.key is not None]
        if may_get_one and tombstones and not any(_digest(key) in self._taken for key in tombstones):
            horizon = self.now_ms + self.delete_retention_ms
        if horizon is None and len(kept) == len(records):
            return raw
        return with_records(header, kept, horizon)

    def _stays(self, header: BatchHeader, record: Record) -> bool:
        if record.key is None:
            return True
        if self.last.get(digest := _digest(record.key), -1) > record.offset:
            if self.is_shown_later and record.value is not None:
                self._taken.add(digest)
            return False
        if record.value is not None or header.is_transactional or not header.attributes & DELETE_HORIZON:
            return True
        if record.offset >= self.tombstones_from:
            return True
        return header.base_timestamp > self.now_ms


def _digest(key: bytes) -> bytes:
    """Short keys as they are, longer ones by a digest that nobody finds two keys for."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def with_records(header: BatchHeader, records: Sequence[Record], horizon: int | None) -> bytes:
    """The same batch with these of its records, at least one, and with a horizon for its tombstones where one is given.
    Its header is what Kafka's cleaner writes (`MemoryRecords.filterTo`)."""
    base_time = _base_time(header, records) if horizon is None else horizon
    payload = compress(header.compression, pack_records(records, header.base_offset, base_time))
    kept = header.attributes & _KEPT_ATTRIBUTES
    changed = header._replace(
        attributes=kept if horizon is None else kept | DELETE_HORIZON,
        base_timestamp=base_time,
        max_timestamp=_newest(header, records),
        count=len(records),
    )
    return sealed(changed, payload)


def _base_time(header: BatchHeader, records: Sequence[Record]) -> int:
    """The first record's, unless there is a horizon in its place, or a record is so old that its distance from it may
    have more than 64 bits."""
    if header.attributes & DELETE_HORIZON or any(record.timestamp < NO_TIMESTAMP for record in records):
        return header.base_timestamp
    return records[0].timestamp


def sealed(header: BatchHeader, payload: bytes) -> bytes:
    """The batch of this header with this content: its length and CRC are worked out."""
    changed = header._replace(batch_length=HEADER_BYTES - LENGTH_END + len(payload), crc=0)
    crc = crc32c(payload, crc32c(HEADER.pack(*changed)[CRC_START:]))
    return HEADER.pack(*changed._replace(crc=crc)) + payload


def _newest(header: BatchHeader, records: Sequence[Record]) -> int:
    """Log append time is the batch's own."""
    if header.is_log_append_time:
        return header.max_timestamp
    return max(record.timestamp for record in records)
