"""Random record batches of every shape that a client may send or a log may hold, and the records that a cleaner may
remove."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record, RecordHeaders

TIME: Final = 1_700_000_000_000
NAMES: Final = ("", "h", "größe", "a rather long name of a header " * 4)
COMMIT: Final = Record(0, TIME, b"\0\0\0\1", b"\0\0\0\0\0\0")
"""A transaction's marker, as its coordinator writes it."""


class Shape(NamedTuple):
    """A batch as it is sent, and what is in it; offsets from 0."""

    batch: bytes
    records: list[Record]


def random_value(random: Random) -> bytes | None:
    return random.choice([None, b"", random.randbytes(random.randrange(300)), b"v" * random.randrange(900)])


def random_headers(random: Random) -> RecordHeaders:
    count = random.choice([0, 0, 0, 1, 3])
    return tuple(
        (random.choice(NAMES), random.choice([None, b"", random.randbytes(random.randrange(200))]))
        for _ in range(count)
    )


def random_times(random: Random, count: int) -> list[int]:
    """Rising, falling, all one, none at all, or far apart."""
    match random.randrange(6):
        case 0:
            return [TIME + at for at in range(count)]
        case 1:
            return [TIME - 1_000 * at for at in range(count)]
        case 2:
            return [TIME] * count
        case 3:
            return [-1] * count
        case 4:
            return [random.choice([0, TIME, 2**44]) for _ in range(count)]
        case _:
            return [TIME + random.randrange(10_000) for _ in range(count)]


def random_records(random: Random, keys: list[bytes | None], *, count: int | None = None) -> list[Record]:
    """With keys of these."""
    count = count or random.choice([1, 1, 2, 3, 8, 40])
    return [
        Record(at, time, random.choice(keys), random_value(random), random_headers(random))
        for at, time in enumerate(random_times(random, count))
    ]


def large_records(random: Random, keys: list[bytes | None], size: int) -> list[Record]:
    """One of so many bytes, half of which no codec makes smaller, between two small ones."""
    half = random.randbytes(size // 2) + b"." * (size // 2)
    values = [b"before", half, None]
    return [Record(at, TIME, random.choice(keys), value) for at, value in enumerate(values)]


def random_shape(random: Random, keys: list[bytes | None], **about: int | bool) -> Shape:
    """In any codec."""
    records = random_records(random, keys)
    return Shape(encode_batch(records, compression=random.choice(list(Compression)), **about), records)  # type: ignore[arg-type]


def random_part(random: Random, records: list[Record]) -> list[Record]:
    """The records of a batch that a cleaner keeps: all, none, all but one end, one alone, or any."""
    match random.randrange(8):
        case 0:
            return records
        case 1 | 2:
            return []
        case 3:
            return records[1:]
        case 4:
            return records[:-1]
        case 5:
            return records[:1]
        case 6:
            return records[-1:]
        case _:
            return [record for record in records if random.random() < 0.5]
