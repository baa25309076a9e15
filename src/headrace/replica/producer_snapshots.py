"""The file form of a partition's producers: Kafka's own producer snapshot, version 1, and a supplement behind it.

Kafka's snapshot keeps one batch for each producer, so that after a restart only the last one is recognised as a
duplicate. The supplement keeps the batches before it, too. Kafka's tools read the file and do not look at the
supplement.

Layout, big-endian:
- Head: version 2, CRC32C 4 (of everything behind it, the supplement included), count 4.
- For each producer: id 8, epoch 2, last sequence 4, last offset 8, offset delta 4, timestamp 8.
- For each producer, behind that: coordinator epoch 4 (-1: none), first offset of its open transaction 8 (-1: none).
- Supplement: magic 4; then for each producer, in the same order, count 1 and as many batches, oldest first.
- A batch of the supplement: first sequence 4, last sequence 4, base offset 8, last offset 8, timestamp 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.limits import PRODUCER_BATCHES_CACHED, PRODUCERS_PER_PARTITION_MAX
from headrace.wire.batches import SEQUENCE_MAX

VERSION: Final = 1
HEAD: Final = Struct(">hI")
COUNT: Final = Struct(">i")
ENTRY: Final = Struct(">qhiqiqiq")
BATCH: Final = Struct(">iiqqq")
MAGIC: Final = b"HRP1"


class RememberedBatch(NamedTuple):
    """One appended batch. Sequences and offsets are inclusive. The timestamp is that of the append, in milliseconds; in
    a snapshot that Kafka wrote, it is the highest of the batch's records."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int = -1


class ProducerEntry(NamedTuple):
    """One producer: its epoch, its last batches, oldest first, and its transaction."""

    producer_id: int
    epoch: int
    batches: Sequence[RememberedBatch]
    """Empty where a marker began the epoch, and nothing was written in it yet."""
    coordinator_epoch: int = -1
    """Of the last marker; -1: there was none."""
    transaction_start: int = -1
    """The first offset of its open transaction; -1: none is open."""
    marked_ms: int = -1
    """Where it has no batches: when the marker was appended. -1: that is unknown."""

    @property
    def timestamp(self) -> int:
        """When its last batch was appended, or that marker."""
        return self.batches[-1].timestamp if self.batches else self.marked_ms

    @property
    def last_sequence(self) -> int:
        """The last sequence of its epoch; -1: there is none."""
        return self.batches[-1].last_sequence if self.batches else -1


def encode_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    """Return the whole file."""
    entries, earlier, count = bytearray(), bytearray(MAGIC), 0
    for producer in producers:
        *before, last = producer.batches or (RememberedBatch(-1, -1, -1, -1),)
        entries += ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            last.last_sequence,
            last.last_offset,
            last.last_offset - last.base_offset,
            producer.timestamp,
            producer.coordinator_epoch,
            producer.transaction_start,
        )
        earlier.append(len(before))
        for batch in before:
            earlier += BATCH.pack(*batch)
        count += 1
    body = COUNT.pack(count) + entries + earlier
    return HEAD.pack(VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Return the producers of a snapshot; one of Kafka's, without the supplement, is read as well. Raises CorruptData
    where the bytes are no snapshot."""
    try:
        version, crc = HEAD.unpack_from(data)
        (count,) = COUNT.unpack_from(data, HEAD.size)
        if version != VERSION or crc != crc32c(data[HEAD.size :]):
            raise CorruptData("A producer snapshot is of another version, or fails its CRC32C.")
        if not 0 <= count <= PRODUCERS_PER_PARTITION_MAX:
            raise CorruptData(f"A producer snapshot says {count} producers.")
        at = HEAD.size + COUNT.size
        entries = [ENTRY.unpack_from(data, at + number * ENTRY.size) for number in range(count)]
        earlier = _read_supplement(data, at + count * ENTRY.size, count)
    except (struct.error, IndexError) as error:
        raise CorruptData("A producer snapshot is cut.") from error
    return [_entry(*entry, before=before) for entry, before in zip(entries, earlier, strict=True)]


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_start: int,
    *,
    before: list[RememberedBatch],
) -> ProducerEntry:
    if last_offset < 0:
        return ProducerEntry(producer_id, epoch, [], coordinator_epoch, transaction_start, timestamp)
    batches = [*before, _last_batch(last_sequence, last_offset, delta, timestamp)]
    return ProducerEntry(producer_id, epoch, batches, coordinator_epoch, transaction_start)


def _last_batch(last_sequence: int, last_offset: int, delta: int, timestamp: int) -> RememberedBatch:
    first_sequence = (last_sequence - delta) & SEQUENCE_MAX
    return RememberedBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)


def _read_supplement(data: bytes, at: int, count: int) -> list[list[RememberedBatch]]:
    """Return the batches before the last, for each producer."""
    if at == len(data):
        return [[] for _ in range(count)]
    if data[at : at + len(MAGIC)] != MAGIC:
        raise CorruptData("What follows a producer snapshot is not known.")
    at += len(MAGIC)
    found: list[list[RememberedBatch]] = []
    for _ in range(count):
        length = data[at]
        if length >= PRODUCER_BATCHES_CACHED:
            raise CorruptData(f"A producer snapshot has {length + 1} batches of one producer.")
        at += 1
        found.append([RememberedBatch(*BATCH.unpack_from(data, at + number * BATCH.size)) for number in range(length)])
        at += length * BATCH.size
    if at != len(data):
        raise CorruptData("A producer snapshot goes on after its end.")
    return found
