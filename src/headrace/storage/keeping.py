"""The choice of records that a compaction keeps: the last record of every key, and tombstones for their time.

Promises: offsets, epochs, producers and the order of the kept records do not change; a batch that keeps all its records
keeps its very bytes. Sans-IO. `storage.log.compaction.cleaning` lists what is removed and what is kept, and applies it
to logs; `storage.redis.cleaning` applies it to Streams, and `storage.tier.compact` to durable segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from crc32c import crc32c

from headrace.base.ids import LAST_OFFSET
from headrace.storage.decided import Decided
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
    parse_header,
    small_records,
)
from headrace.wire.compression import compress
from headrace.wire.records import Record, pack_records

DIGEST_BYTES: Final = 16
_KEPT_ATTRIBUTES: Final = COMPRESSION_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON


def add_last(last: dict[bytes, int], header: BatchHeader, raw: bytes, decided: Decided | None = None) -> None:
    """Note the offsets of a batch's keys. Keys of aborted transactions replace nothing; without `decided`, those of no
    transaction do.
    """
    if header.is_control or not header.count:
        return
    if header.is_transactional and (decided is None or decided.is_aborted(header)):
        return
    for record in small_records(raw) or ():
        if record.key is not None:
            last[_digest(record.key)] = record.offset


@dataclass(slots=True, kw_only=True)
class Keeping:
    """Decides which records stay. It is called with batches in the order of offsets, from the first."""

    last: Mapping[bytes, int]
    """The last offset of each key below `clean_to`, as `add_last` notes it."""
    clean_to: int
    """Batches that begin at or above this offset stay as they are."""
    now_ms: int
    delete_retention_ms: int
    tombstones_from: int = LAST_OFFSET
    """Tombstones from this offset on stay, unless a later record replaces them. Values of their keys are in another
    place, or could not be decompressed.
    """
    decided: Decided | None = None
    """Tells which transactions were aborted: their records go, and markers that nobody needs. None: it is not known.
    Then markers stay, and tombstones of transactions.
    """
    is_shown_later: bool = False
    """Readers see the state before this round until its result is published. So a tombstone's time begins in the first
    round that finds no value left for it to delete. The round that removes the value does not start it.
    """
    _taken: set[bytes] = field(default_factory=set)
    """Keys of which this round has removed a value."""

    def kept(self, header: BatchHeader, raw: bytes) -> bytes:
        """The kept part of a batch: the same bytes, or changed ones, perhaps without records."""
        decided = self.decided
        if decided is not None and header.is_transactional:
            if header.is_control:
                return self._kept_marker(header, raw, is_bare=decided.on_marker(header))
            decided.on_batch(header)
            if header.count and header.base_offset < self.clean_to and decided.is_aborted(header):
                return emptied(header)
        if not header.count:  # an older version may have left it a codec with no content
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
        may_get_one = not (self._is_undecided(header) or header.attributes & DELETE_HORIZON) and all(
            record.timestamp >= -1
            for record in kept  # otherwise its distance to a horizon may exceed 64 bits
        )
        tombstones = [record.key for record in kept if record.value is None and record.key is not None]
        if may_get_one and tombstones and not any(_digest(key) in self._taken for key in tombstones):
            horizon = self.now_ms + self.delete_retention_ms
        if horizon is None and len(kept) == len(records):
            return raw
        return with_records(header, kept, horizon)

    def left(self, header: BatchHeader, raw: bytes, remembered: frozenset[int]) -> bytes | None:
        """As `kept`, but None for a batch that is not needed without its records. Batches that end at a `remembered`
        offset always are.
        """
        kept = self.kept(header, raw)
        is_empty = not header.count if kept is raw else not parse_header(kept).count
        if header.is_control and is_empty and header.last_offset in remembered:
            return raw  # its producer's epoch is in it alone
        stays_empty = header.is_control and self.decided is None
        is_kept = not is_empty or stays_empty or header.base_offset >= self.clean_to
        return kept if is_kept or header.last_offset in remembered else None

    def _kept_marker(self, header: BatchHeader, raw: bytes, *, is_bare: bool) -> bytes:
        """As `kept`. A marker goes once its transaction has no batches, and `delete_retention_ms` have passed since a
        round found that.
        """
        if not is_bare or header.base_offset >= self.clean_to or not header.count:
            return raw
        if not header.attributes & DELETE_HORIZON:
            records = small_records(raw)
            return with_records(header, records, self.now_ms + self.delete_retention_ms) if records else raw
        return raw if header.base_timestamp > self.now_ms else emptied(header)

    def _is_undecided(self, header: BatchHeader) -> bool:
        """Whether the batch may be of an aborted transaction."""
        return header.is_transactional and self.decided is None

    def _stays(self, header: BatchHeader, record: Record) -> bool:
        if record.key is None:
            return True
        if self.last.get(digest := _digest(record.key), -1) > record.offset:
            if self.is_shown_later and record.value is not None:
                self._taken.add(digest)
            return False
        if record.value is not None or self._is_undecided(header) or not header.attributes & DELETE_HORIZON:
            return True
        if record.offset >= self.tombstones_from:
            return True
        return header.base_timestamp > self.now_ms


def _digest(key: bytes) -> bytes:
    """A short key as it is; a longer one as a digest without known collisions."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def with_records(header: BatchHeader, records: Sequence[Record], horizon: int | None) -> bytes:
    """The batch with these of its records, at least one, and with a horizon for its tombstones if one is given. Its
    header is what Kafka's cleaner writes (`MemoryRecords.filterTo`).
    """
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
    """The first record's timestamp. The batch's base time stays where it is a horizon, or where a record is so old that
    its distance may exceed 64 bits.
    """
    if header.attributes & DELETE_HORIZON or any(record.timestamp < NO_TIMESTAMP for record in records):
        return header.base_timestamp
    return records[0].timestamp


def sealed(header: BatchHeader, payload: bytes) -> bytes:
    """A batch of this header and payload, with its length and CRC computed."""
    changed = header._replace(batch_length=HEADER_BYTES - LENGTH_END + len(payload), crc=0)
    crc = crc32c(payload, crc32c(HEADER.pack(*changed)[CRC_START:]))
    return HEADER.pack(*changed._replace(crc=crc)) + payload


def _newest(header: BatchHeader, records: Sequence[Record]) -> int:
    """The highest timestamp of the records; for log append time, the batch's own."""
    if header.is_log_append_time:
        return header.max_timestamp
    return max(record.timestamp for record in records)
