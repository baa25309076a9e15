"""Record batches, version 2 (KIP-98; format in Kafka's protocol guide): headers read in place, records on demand.

Promises:
- Reading a header costs one `unpack_from`, and checking a batch copies nothing.
- Bad bytes raise `CorruptBatch` and nothing else.
- A buffer that is passed in never changes.
- Older formats (magic 0 and 1) are refused.

Layout, big-endian, sizes in bytes:
- base offset 8, length 4 (of everything after it), leader epoch 4, magic 1, CRC32C 4 (of everything after it);
- attributes 2, last offset delta 4, base timestamp 8, max timestamp 8;
- producer id 8, producer epoch 2, base sequence 4, count 4;
- the records, compressed as one block.

Base offset and leader epoch lie outside the CRC, so that a broker can set them in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.limits import DECOMPRESSED_BATCH_BYTES_MAX, REPACKED_BATCH_BYTES_MAX, UNPACKED_RECORDS_MAX
from headrace.base.ports import Buffer
from headrace.native import ROAD
from headrace.wire.codec import new
from headrace.wire.compression import Compression, check_frame, compress, decompress
from headrace.wire.records import Record as Record
from headrace.wire.records import pack_pairs, pack_records, unpack_pairs, unpack_records
from headrace.wire.walking import UNLIMITED, Walked, walk_records

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12
"""Bytes that `batch_length` does not count: base offset and the length itself."""
CRC_START: Final = 21
"""The CRC covers everything from here."""
ATTRIBUTES_END: Final = 23
MAGIC: Final = 2

HEADER: Final = Struct(">qiibIhiqqqhii")
OFFSET_AND_LENGTH: Final = Struct(">qi")
SHAPE: Final = Struct(">8xi9xh34xi")
"""Fields of a header: length, attributes, count."""
PREFIX: Final = Struct(">qii")
"""Base offset, length, leader epoch: the 16 bytes that a leader overwrites."""

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

SEQUENCE_MAX: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1
_CODEC_MAX: Final = int(Compression.ZSTD)


class CorruptBatch(CorruptData):
    """Bytes that are not a whole, valid record batch."""


class InvalidBatch(CorruptBatch):
    """A batch that was wrong when it was sent, so that sending it again is of no use."""


class BatchHeader(NamedTuple):
    """The fixed fields of one batch, in wire order. Timestamps are in milliseconds since 1970."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, on purpose: this is the field's name

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def newest_time(self) -> int:
        """The highest time of its records; -1 where it has none, for example where compaction emptied it."""
        return self.max_timestamp if self.count else -1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, which wraps as in Kafka: 2^31 - 1 is followed by 0. -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0


def is_of_transaction(buffer: Buffer) -> bool:
    """Whether the buffer begins with a whole header, of a batch of a transaction."""
    return len(buffer) >= HEADER_BYTES and buffer[ATTRIBUTES_END - 1] & TRANSACTIONAL != 0


def parse_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `at`, checking only that it is complete. Raises CorruptBatch where it is cut."""
    if len(buffer) - at < HEADER_BYTES:
        raise CorruptBatch(f"A batch header needs {HEADER_BYTES} bytes; {max(0, len(buffer) - at)} are left.")
    return BatchHeader._make(HEADER.unpack_from(buffer, at))


def check_in_python(buffer: Buffer, at: int = 0, end: int | None = None, *, compacted: bool = False) -> BatchHeader:
    """Read and check the batch at `at`, which must lie whole before `end` (the buffer's end by default).

    Checks length, magic, codec, CRC32C, and last offset delta + 1 = count > 0; unpacks nothing. With `compacted`,
    records may be missing, even all of them. Use that for batches from a log, never for those of a client. Raises
    CorruptBatch.
    """
    if end is None:
        end = len(buffer)
    if end - at < HEADER_BYTES:
        raise CorruptBatch(f"A batch header needs {HEADER_BYTES} bytes; {max(0, end - at)} are left.")
    header = new(BatchHeader, HEADER.unpack_from(buffer, at))
    base, length, _, magic, crc, attributes, delta, _, _, _, _, _, count = header
    batch_end = at + LENGTH_END + length
    if batch_end > end or length < HEADER_BYTES - LENGTH_END:
        raise CorruptBatch(f"A batch says {length} bytes; {end - at - LENGTH_END} are left.")
    if magic != MAGIC:
        kind = InvalidBatch if 0 <= magic < MAGIC else CorruptBatch
        raise kind(f"Record format {magic} is not read here: only version {MAGIC} is.")
    if crc32c(memoryview(buffer)[at + CRC_START : batch_end]) != crc:
        raise CorruptBatch(f"The batch at offset {base} fails its CRC32C.")
    if not (0 <= count <= delta + 1 if compacted else 0 < count == delta + 1) or delta < 0:
        raise InvalidBatch(f"A batch of {count} records has last offset delta {delta}.")
    if attributes & COMPRESSION_MASK > _CODEC_MAX:
        raise CorruptBatch(f"Compression codec {attributes & COMPRESSION_MASK} is not known.")
    return header


def _check_natively(buffer: Buffer, at: int = 0, end: int | None = None, *, compacted: bool = False) -> BatchHeader:
    found = _native_check(buffer, at, len(buffer) if end is None else end, compacted)
    return check_in_python(buffer, at, end, compacted=compacted) if found is None else new(BatchHeader, found)


if ROAD.native is not None:
    _native_check = ROAD.native.check_batch
check_batch: Final = check_in_python if ROAD.native is None else _check_natively
"""`check_in_python`, by the road that is taken."""


def check_batches(buffer: Buffer, *, gaps_below: int = 0) -> list[tuple[int, BatchHeader]]:
    """Check every batch of a produce request's records, or of another broker's log. Returns positions and headers.
    Batches below `gaps_below` may be compacted. Raises CorruptBatch, also where bytes are left over."""
    found: list[tuple[int, BatchHeader]] = []
    at, end = 0, len(buffer)
    while at < end:
        compacted = gaps_below > 0 and int.from_bytes(buffer[at : at + 8], signed=True) < gaps_below
        header = check_batch(buffer, at, end, compacted=compacted)
        found.append((at, header))
        at += LENGTH_END + header.batch_length
    return found


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch; CRCs are not checked. Raises CorruptBatch where the last one is cut."""
    at, end = 0, len(buffer)
    while at < end:
        header = parse_header(buffer, at)
        if header.batch_length < HEADER_BYTES - LENGTH_END or at + header.size > end:
            raise CorruptBatch(f"A batch says {header.batch_length} bytes; {end - at - LENGTH_END} are left.")
        yield at, header
        at += header.size


def end_of(batches: Buffer) -> Offset:
    """The offset after the last of these whole batches. CRCs are not checked. Raises CorruptBatch where one is cut."""
    at, end, last = 0, len(batches), 0
    while at < end:
        last = at
        at += LENGTH_END + OFFSET_AND_LENGTH.unpack_from(batches, at)[1]
    return Offset(parse_header(batches, last).next_offset)


def whole_batches(buffer: Buffer) -> int:
    """Size in bytes of the complete batches at the start of `buffer`; a fetch may cut the last one. CRCs are not
    checked."""
    at, end = 0, len(buffer)
    while end - at >= HEADER_BYTES:
        length = OFFSET_AND_LENGTH.unpack_from(buffer, at)[1]
        if length < HEADER_BYTES - LENGTH_END or at + LENGTH_END + length > end:
            break
        at += LENGTH_END + length
    return at


def emptied(header: BatchHeader) -> bytes:
    """The batch of this header without its records, as Kafka's cleaner leaves it (DefaultRecordBatch.writeEmptyHeader).
    It has no codec, because there are no bytes to unpack. It has no delete horizon and no base timestamp either."""
    kept = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    changed = header._replace(
        batch_length=HEADER_BYTES - LENGTH_END, crc=0, attributes=kept, base_timestamp=NO_TIMESTAMP, count=0
    )
    return _sealed(HEADER.pack(*changed), b"")


def mend_emptied(batches: Buffer) -> Buffer:
    """Make each of these complete batches readable. Returns the buffer itself where nothing needs mending.

    Older compactions left the codec in a batch that they emptied, with no bytes behind it. Java, librdkafka and others
    stop there. The mended batch keeps its size. A batch that fails its CRC32C is damaged and left as it is.
    """
    at, end = 0, len(batches)
    made: bytearray | None = None
    while end - at >= HEADER_BYTES:
        length, attributes, count = SHAPE.unpack_from(batches, at)
        if not count and length == HEADER_BYTES - LENGTH_END and attributes & COMPRESSION_MASK:
            header = parse_header(batches, at)
            if crc32c(memoryview(batches)[at + CRC_START : at + HEADER_BYTES]) == header.crc:
                made = bytearray(batches) if made is None else made
                made[at : at + HEADER_BYTES] = emptied(header)
        at += LENGTH_END + max(length, 0)
    return batches if made is None else made


def decode_records(batch: Buffer, *, limit: int = DECOMPRESSED_BATCH_BYTES_MAX) -> list[Record]:
    """Unpack one batch. The caller has called `check_batch`; the CRC is not checked again. With log append time, each
    record's timestamp is the batch's. Raises CorruptBatch; never unpacks more than `limit` bytes."""
    header = parse_header(batch)
    packed = _packed(batch, header)
    try:
        data = _unpacked(packed, header, limit)
        records = unpack_records(data, header.count, header.base_offset, header.base_timestamp)
    except (CorruptData, ValueError) as error:
        raise CorruptBatch(f"The batch at offset {header.base_offset} cannot be unpacked: {error}") from error
    if header.is_log_append_time:
        return [record._replace(timestamp=header.max_timestamp) for record in records]
    return records


def decode_pairs(batch: Buffer) -> list[tuple[bytes | None, bytes | None]]:
    """Like `decode_records`, but returns only keys and values."""
    header = parse_header(batch)
    packed = _packed(batch, header)
    try:
        return unpack_pairs(_unpacked(packed, header, DECOMPRESSED_BATCH_BYTES_MAX), header.count)
    except (CorruptData, ValueError) as error:
        raise CorruptBatch(f"The batch at offset {header.base_offset} cannot be unpacked: {error}") from error


def _packed(batch: Buffer, header: BatchHeader) -> memoryview:
    if header.size > len(batch) or header.count < 0:
        raise CorruptBatch(f"A batch says {header.batch_length} bytes and {header.count} records.")
    return memoryview(batch)[HEADER_BYTES : header.size]


def _unpacked(packed: memoryview, header: BatchHeader, limit: int) -> bytes:
    if not (packed or header.count):  # emptied by compaction; an older version may have left a codec in it
        return b""
    return bytes(decompress(Compression(header.attributes & COMPRESSION_MASK), packed, limit))


def small_records(batch: Buffer) -> list[Record] | None:
    """Like `decode_records`, for a broker that must not be held up. Returns None where it would take too long or fails.
    A batch with a correct CRC and unreadable records came so from its client, and is not damage."""
    if parse_header(batch).count > UNPACKED_RECORDS_MAX:
        return None
    try:
        return decode_records(batch, limit=REPACKED_BATCH_BYTES_MAX)
    except CorruptBatch:
        return None


class Repacked(NamedTuple):
    """A batch in the requested codec."""

    batch: bytes
    records: Walked


def walk_batch(batch: Buffer, *, limit: int, headers_max: int = UNLIMITED) -> Walked:
    """Check each record of a batch and its position, and return their summary. The caller has called `check_batch`.
    Raises CorruptBatch, as `walk_records` does; never unpacks more than `limit` bytes."""
    return _walk(batch, parse_header(batch), limit, headers_max)[1]


def unpacked_records(batch: Buffer, *, limit: int) -> bytes:
    """The records of a client's batch, unpacked. Raises CorruptBatch, also where Java could not unpack them."""
    return _unpacked_strictly(batch, parse_header(batch), limit)


def _walk(batch: Buffer, header: BatchHeader, limit: int, headers_max: int = UNLIMITED) -> tuple[bytes, Walked]:
    """As `walk_batch`, and the unpacked records before the summary."""
    if header.count > UNPACKED_RECORDS_MAX:
        raise CorruptBatch(f"A batch of {header.count} records is not unpacked; at most {UNPACKED_RECORDS_MAX} are.")
    data = _unpacked_strictly(batch, header, limit)
    try:
        return data, walk_records(data, header.count, header.base_timestamp, headers_max)
    except CorruptData as error:
        raise CorruptBatch(f"The records cannot be read: {error}") from error


def _unpacked_strictly(batch: Buffer, header: BatchHeader, limit: int) -> bytes:
    packed = memoryview(batch)[HEADER_BYTES : header.size]
    try:
        if header.attributes & COMPRESSION_MASK == Compression.NONE:
            return bytes(packed)
        codec = Compression(header.attributes & COMPRESSION_MASK)
        check_frame(codec, packed)
        return bytes(decompress(codec, packed, limit))
    except (CorruptData, ValueError) as error:
        raise CorruptBatch(f"The batch cannot be unpacked: {error}") from error


def with_newest_time(batch: Buffer, header: BatchHeader, newest_timestamp: int) -> tuple[bytes, BatchHeader]:
    """The batch and its header with the highest time of its records. For clients that omit it or send a wrong one;
    Kafka's broker sets it, too."""
    payload = memoryview(batch)[HEADER_BYTES : header.size]
    front = HEADER.pack(*header._replace(max_timestamp=newest_timestamp, crc=0))
    changed = header._replace(max_timestamp=newest_timestamp, crc=crc32c(payload, crc32c(front[CRC_START:])))
    return b"".join((HEADER.pack(*changed), payload)), changed


def repack(batch: Buffer, codec: Compression, *, limit: int, level: int | None = None) -> Repacked:
    """Check each record of a batch and its position, and return the batch in another codec, at that level. Where the
    batch has that codec already, its bytes stay the same. The caller has called `check_batch`. Raises CorruptBatch;
    never unpacks more than `limit` bytes."""
    header = parse_header(batch)
    data, records = _walk(batch, header, limit)
    if header.compression is codec:
        return Repacked(bytes(batch), records)
    payload = compress(codec, data, level)
    changed = header._replace(
        batch_length=HEADER_BYTES - LENGTH_END + len(payload),
        attributes=header.attributes & ~COMPRESSION_MASK | codec,
        max_timestamp=records.newest_timestamp,
        crc=0,
    )
    crc = crc32c(payload, crc32c(HEADER.pack(*changed)[CRC_START:]))
    return Repacked(HEADER.pack(*changed._replace(crc=crc)) + payload, records)


def encode_pairs(
    pairs: Sequence[tuple[bytes | None, bytes | None]], timestamp: int, producer: tuple[int, int] | None = None
) -> bytes:
    """Pack keys and values, at least one pair, with one timestamp, into one batch: `encode_batch` of such records.
    `producer`: the id and epoch of the transaction that they are a part of. Its sequence is 0, as a coordinator's
    always is on Kafka."""
    payload = pack_pairs(pairs)
    length, count = HEADER_BYTES - LENGTH_END + len(payload), len(pairs)
    attributes, about = (0, (-1, -1, -1)) if producer is None else (TRANSACTIONAL, (*producer, 0))
    header = HEADER.pack(0, length, -1, MAGIC, 0, attributes, count - 1, timestamp, timestamp, *about, count)
    return _sealed(header, payload)


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Pack records, at least one, offsets rising, into one batch. Its base offset is the first record's, or
    `base_offset` where that is given. `base_timestamp` is the first record's, as in the Java client."""
    assert records, "a batch holds at least one record"
    first, base_timestamp = records[0].offset, records[0].timestamp
    payload = compress(compression, pack_records(records, first, base_timestamp))
    attributes = int(compression)
    attributes |= (LOG_APPEND_TIME * log_append_time) | (TRANSACTIONAL * transactional) | (CONTROL * control)
    header = HEADER.pack(
        first if base_offset is None else base_offset,
        HEADER_BYTES - LENGTH_END + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        records[-1].offset - first,
        base_timestamp,
        max(record.timestamp for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return _sealed(header, payload)


def seal_records(
    room: memoryview,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    compression: Compression,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
) -> Buffer:
    """Make a batch of the `count` records that lie packed in `room` behind HEADER_BYTES free bytes for the header.

    Records that `compression` does not make smaller stay uncompressed; the result is then `room` itself.
    """
    records = room[HEADER_BYTES:]
    payload: Buffer = records if compression is Compression.NONE else compress(compression, records)
    if len(payload) >= len(records):
        payload, compression = records, Compression.NONE
    length = HEADER_BYTES - LENGTH_END + len(payload)
    times, producer = (base_timestamp, max_timestamp), (producer_id, producer_epoch, base_sequence)
    attributes = int(compression) | (TRANSACTIONAL * transactional)
    header = HEADER.pack(0, length, -1, MAGIC, 0, attributes, count - 1, *times, *producer, count)
    if compression is not Compression.NONE:
        return _sealed(header, payload)
    room[:HEADER_BYTES] = header
    room[CRC_START - 4 : CRC_START] = crc32c(room[CRC_START:]).to_bytes(4, "big")
    return room


def _sealed(header: bytes, payload: Buffer) -> bytes:
    """The batch, with its checksum set in the header."""
    crc = crc32c(payload, crc32c(header[CRC_START:]))
    return b"".join((header[: CRC_START - 4], crc.to_bytes(4, "big"), header[CRC_START:], payload))
