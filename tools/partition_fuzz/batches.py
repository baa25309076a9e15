"""Batches of all kinds that clients may send: sound ones, wrong ones, and such as nobody sends.

Records are packed once. A batch gets a header of its own, and a CRC that is right unless that is the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.limits import RECORD_HEADERS_MAX, WALKED_ON_LOOP_HEADERS_MAX, WALKED_ON_LOOP_RECORDS_MAX
from headrace.native import Native
from headrace.wire.batches import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    SEQUENCE_MAX,
    TRANSACTIONAL,
    BatchHeader,
)
from headrace.wire.compression import Compression, compress
from headrace.wire.records import Record, RecordHeaders, pack_records
from headrace.wire.walking import UNLIMITED, walk_in_python

NO_PRODUCER: Final = (-1, -1, -1)
NO_HEADERS: Final[RecordHeaders] = ()


class Body(NamedTuple):
    """Packed records."""

    data: bytes
    records: int
    newest: int
    """Highest time, in milliseconds after the batch's first."""
    codec: Compression


class Made(NamedTuple):
    """A batch as a client sends it."""

    data: bytes
    mistake: str = ""

    def __repr__(self) -> str:
        told = f"{len(self.data)} bytes, crc {crc32c(self.data):08x}"
        if len(self.data) >= HEADER_BYTES:
            header = BatchHeader._make(HEADER.unpack_from(self.data))
            told += (
                f", producer {header.producer_id}/{header.producer_epoch}/{header.base_sequence}, count {header.count}"
                f", attributes {header.attributes:#x}, times {header.base_timestamp}..{header.max_timestamp}"
            )
        return f"<{told}{', ' * bool(self.mistake)}{self.mistake}>"


class Bodies:
    """All packed records, by kinds."""

    def __init__(self, chance: Random, native: Native) -> None:
        self._native: Final = native
        small = [_records(chance) for _ in range(80)]
        self.plain: Final = [_body(each) for each in small]
        self.single: Final = [each for each in self.plain if each.records == 1]
        packers = [each for each in Compression if each is not Compression.NONE]
        self.packed: Final = [_body(each, codec) for each in small[:8] for codec in packers]
        broken = [_broken(each, chance) for each in self.plain + self.packed[:8]]
        self.wrong: Final = [each for each in broken if self.are_walked_alike(made(each, 0).data)]
        self.heavy: Final = [_body(each) for each in _heavy()]

    def are_walked_alike(self, batch: bytes) -> bool:
        """Whether both roads find the same oldest time in it. For odd records, that of the twin may be too low."""
        if len(batch) < HEADER_BYTES:
            return True
        header, records = BatchHeader._make(HEADER.unpack_from(batch)), batch[HEADER_BYTES:]
        if header.attributes & COMPRESSION_MASK or header.count <= 0:
            return True
        found = self._native.walk_records(records, header.count, header.base_timestamp, UNLIMITED, RECORD_HEADERS_MAX)
        return found is None or found == walk_in_python(records, header.count, header.base_timestamp)

    def choose(self, chance: Random) -> Body:
        kinds: Sequence[tuple[float, Sequence[Body]]] = (
            (0.35, self.single), (0.89, self.plain), (0.95, self.packed), (0.985, self.wrong), (1.0, self.heavy)
        )  # fmt: skip
        at = chance.random()
        return chance.choice(next(found for below, found in kinds if at <= below))


def _records(chance: Random) -> list[Record]:
    size = chance.choice((0, 1, 10, 64, 100, 100, 300))
    headers: RecordHeaders = (("h" * chance.randrange(70), b"v" * chance.randrange(70)),) * chance.choice(
        (0, 0, 0, 1, 3)
    )
    keys = chance.choice(((b"k",), (b"k",), (b"",), (b"k" * 64,), (None,), (b"k", None)))
    step = chance.choice((0, 0, 1, 1, 70, 9_000, -3))
    return [
        Record(index, index * step, keys[index % len(keys)], chance.choice((b"v" * size, b"v" * size, None)), headers)
        for index in range(chance.choice((1, 1, 2, 3, 9, 40)))
    ]


def _heavy() -> list[list[Record]]:
    """Too long to be checked on the loop, or nearly; and long enough to fill what is kept in memory."""
    named: RecordHeaders = (("h", b""),)
    return [
        [Record(index, 0, b"k", b"", NO_HEADERS) for index in range(WALKED_ON_LOOP_RECORDS_MAX)],
        [Record(index, 0, b"k", b"", NO_HEADERS) for index in range(WALKED_ON_LOOP_RECORDS_MAX + 1)],
        [Record(0, 0, b"k", b"", named * (WALKED_ON_LOOP_HEADERS_MAX + 1))],
        [Record(index, 0, b"k", b"", named * (WALKED_ON_LOOP_HEADERS_MAX // 10)) for index in range(10)],
        [Record(0, 0, b"k", bytes(150_000), NO_HEADERS)],
        [Record(0, 0, b"k", bytes(300_000), NO_HEADERS)],
        [Record(0, 0, b"k", bytes(600_000), NO_HEADERS)],
    ]


def _body(records: Sequence[Record], codec: Compression = Compression.NONE) -> Body:
    newest = max(record.timestamp for record in records)
    return Body(compress(codec, bytes(pack_records(records, 0, 0))), len(records), newest, codec)


def _broken(body: Body, chance: Random) -> Body:
    raw = bytearray(body.data)
    match chance.randrange(3):
        case 0:
            del raw[chance.randrange(len(raw)) :]
        case 1:
            raw += b"\0"
        case _:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return body._replace(data=bytes(raw))


def made(
    body: Body, base_ms: int, producer: tuple[int, int, int] = NO_PRODUCER, *, attributes: int = 0, max_ms: int = -2
) -> Made:
    """A sound batch. `producer`: id, epoch, sequence. `max_ms`: -2 for that of the records."""
    newest = max(base_ms + body.newest, -1) if max_ms == -2 else max_ms
    length = HEADER_BYTES - LENGTH_END + len(body.data)
    header = BatchHeader(
        0, length, -1, 2, 0, attributes | body.codec, body.records - 1, base_ms, newest, *producer, body.records
    )  # fmt: skip
    return Made(sealed(header, body.data))


def sealed(header: BatchHeader, body: bytes) -> bytes:
    """The batch, with the right CRC."""
    raw = HEADER.pack(*header)
    return HEADER.pack(*header._replace(crc=crc32c(body, crc32c(raw[CRC_START:])))) + body


def _fields(**fields: int) -> Callable[[Made, Random], bytes]:
    def change(batch: Made, _: Random) -> bytes:
        header = BatchHeader._make(HEADER.unpack_from(batch.data))
        return sealed(header._replace(**fields), batch.data[HEADER_BYTES:])

    return change


def _more(name: str, *by: int) -> Callable[[Made, Random], bytes]:
    def change(batch: Made, chance: Random) -> bytes:
        header = BatchHeader._make(HEADER.unpack_from(batch.data))
        other = max(getattr(header, name) + chance.choice(by), -1)
        return sealed(header._replace(**{name: other}), batch.data[HEADER_BYTES:])

    return change


def _bits(bits: int) -> Callable[[Made, Random], bytes]:
    def change(batch: Made, _: Random) -> bytes:
        header = BatchHeader._make(HEADER.unpack_from(batch.data))
        return sealed(header._replace(attributes=header.attributes | bits), batch.data[HEADER_BYTES:])

    return change


def _flipped(first: int) -> Callable[[Made, Random], bytes]:
    def change(batch: Made, chance: Random) -> bytes:
        raw = bytearray(batch.data)
        raw[chance.randrange(first, len(raw))] ^= 1 << chance.randrange(8)
        return bytes(raw)

    return change


MISTAKES: Final[dict[str, Callable[[Made, Random], bytes]]] = {
    "a bit flipped behind the CRC": _flipped(CRC_START),
    "a bit flipped in the CRC": _flipped(CRC_START - 4),
    "a bit flipped anywhere": _flipped(0),
    "count": _more("count", -1, 1),
    "last offset delta": _more("last_offset_delta", -1, 1),
    "count and delta": lambda batch, chance: _more("count", 1)(
        Made(_more("last_offset_delta", 1)(batch, chance)), chance
    ),
    "length": _more("batch_length", -1, 1, 1000),
    "base offset": _fields(base_offset=5),
    "base offset below 0": _fields(base_offset=-1),
    "leader epoch": _fields(leader_epoch=77),
    "magic": _fields(magic=1),
    "later magic": _fields(magic=3),
    "control": _bits(CONTROL | TRANSACTIONAL),
    "control alone": _bits(CONTROL),
    "in a transaction": _bits(TRANSACTIONAL),
    "log append time": _bits(LOG_APPEND_TIME),
    "delete horizon": _bits(DELETE_HORIZON),
    "bits of no meaning": _bits(0x0F80),
    "codec": _bits(6),
    "another codec": _bits(int(Compression.LZ4)),
    "highest time": _more("max_timestamp", -1, 1, 5_000),
    "no highest time": _fields(max_timestamp=-1),
    "last time": _fields(max_timestamp=2**63 - 1),
    "earliest time": _fields(base_timestamp=-(2**63)),
    "no base time": _fields(base_timestamp=-1),
    "base time ahead": _more("base_timestamp", 40_000),
    "producer id": _fields(producer_id=-2),
    "no producer id": _fields(producer_id=-1),
    "producer epoch": _fields(producer_epoch=-1),
    "last producer epoch": _fields(producer_epoch=2**15 - 1),
    "no sequence": _fields(base_sequence=-1),
    "last sequence": _fields(base_sequence=SEQUENCE_MAX),
    "sequence below 0": _fields(base_sequence=-(2**31)),
    "cut": lambda batch, chance: batch.data[: chance.randrange(len(batch.data))],
    "more": lambda batch, chance: batch.data + b"\0" * chance.choice((1, 60, 61)),
    "two batches": lambda batch, _: batch.data * 2,
    "nothing": lambda _, __: b"",
}


def mistaken(batch: Made, chance: Random) -> Made:
    name = chance.choice(list(MISTAKES))
    return Made(MISTAKES[name](batch, chance), name)
