"""Frames between a follower and its leader that say something else than was sent: damaged, or as a broker in another
state would send them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from headrace.base.ids import LeaderEpoch, Offset
from headrace.wire.batches import CRC_START, LENGTH_END
from headrace.wire.errors import ErrorCode
from headrace.wire.replica_fetch import Copied, decode_answer, decode_request, encode_answer, encode_request

LENGTH_BYTES: Final = 4
ERRORS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
)
_BASE_OFFSET: Final = struct.Struct(">q")
_BATCH_LENGTH: Final = struct.Struct(">i")


class Twisted(NamedTuple):
    """A whole frame, in the place of another."""

    data: bytes
    told: str

    def __repr__(self) -> str:
        return f"<{len(self.data)} bytes: {self.told}>"


def flipped(frame: bytes, chance: Random) -> Twisted | None:
    """One bit behind its length is another."""
    if len(frame) == LENGTH_BYTES:
        return None
    bit = chance.randrange(8 * LENGTH_BYTES, 8 * len(frame))
    return Twisted(_with_bit(frame, bit), f"bit {bit} flipped")


def _with_bit(data: bytes, bit: int) -> bytes:
    made = bytearray(data)
    made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


# frames of the follower


def asked_less(frame: bytes, who: bytes, bytes_max: int) -> Twisted:
    """It takes answers of so many bytes."""
    request = decode_request(memoryview(frame)[LENGTH_BYTES:], len(who))
    return Twisted(encode_request(who, request._replace(bytes_max=bytes_max)), f"at most {bytes_max} bytes")


def reported_otherwise(frame: bytes, who: bytes, chance: Random) -> Twisted | None:
    """It has flushed more, or less."""
    request = decode_request(memoryview(frame)[LENGTH_BYTES:], len(who))
    flushed = list(request.flushed)
    if not flushed:
        return None
    at, more = chance.randrange(len(flushed)), chance.choice((-1, -5, 1, 1, 2, 50))
    flushed[at] = flushed[at]._replace(flushed_end=Offset(flushed[at].flushed_end + more))
    return Twisted(encode_request(who, request._replace(flushed=flushed)), f"report {at} {more:+}")


# frames of the leader


def answered_otherwise(frame: bytes, chance: Random) -> Twisted | None:
    """One of its rows is another."""
    rows = decode_answer(memoryview(frame)[LENGTH_BYTES:])
    if not rows:
        return None
    at = chance.randrange(len(rows))
    kinds = _ROWS if not rows[at].records or chance.random() < 0.3 else _RECORDS
    name = chance.choice(list(kinds))
    rows[at] = rows[at]._replace(**kinds[name](rows[at], chance))
    return Twisted(b"".join(encode_answer(rows)), f"row {at}: {name}")


def _diverging(row: Copied, chance: Random) -> dict[str, Any]:
    end = Offset(max(row.high_watermark - chance.choice((0, 0, 1, 5)), 0))
    return {"diverging_epoch": LeaderEpoch(chance.choice((-2, 0, 1, 3))), "diverging_end": end, "damaged": None}


def _leaping(row: Copied, chance: Random) -> dict[str, Any]:
    end = max(row.high_watermark, 0) + chance.choice((1, 5, 100))
    return {"skip_to": Offset(end), "gaps_below": Offset(end - chance.choice((0, 0, 0, 1)))}


def _moved(name: str, *by: int) -> Callable[[Copied, Random], dict[str, Any]]:
    return lambda row, chance: {name: max(getattr(row, name) + chance.choice(by), -1)}


_ROWS: Final[dict[str, Callable[[Copied, Random], dict[str, Any]]]] = {
    "refused": lambda _, chance: {"error": int(chance.choice(ERRORS))},
    "diverging": _diverging,
    "a leap": _leaping,
    "of another generation": _moved("generation", -1, 1),
    "committed": _moved("high_watermark", -1, 1, 3, 1_000),
    "deleted": lambda row, chance: {"log_start": Offset(max(row.high_watermark - chance.choice((0, 1, 5)), 0))},
    "gaps": lambda row, chance: {"gaps_below": Offset(max(row.high_watermark, 0) + chance.choice((0, 1, 50)))},
    "damaged": lambda row, _: {"damaged": None if row.diverging_epoch != -1 else (Offset(0), Offset(3))},
}


def _batches(records: bytes) -> list[bytes]:
    found, at = list[bytes](), 0
    while at < len(records):
        end = at + LENGTH_END + _BATCH_LENGTH.unpack_from(records, at + _BASE_OFFSET.size)[0]
        found.append(records[at:end])
        at = end
    return found


def _of_batches(how: Callable[[list[bytes], int, Random], Sequence[bytes]]) -> Callable[..., dict[str, Any]]:
    """Others in the place of the row's batches; `how` is given the place of one of them."""

    def made(row: Copied, chance: Random) -> dict[str, Any]:
        batches = _batches(bytes(row.records))
        return {"records": b"".join(how(batches, chance.randrange(len(batches)), chance))}

    return made


def _elsewhere(batches: list[bytes], at: int, chance: Random) -> Sequence[bytes]:
    batch = batches[at]
    base = _BASE_OFFSET.unpack_from(batch)[0] + chance.choice((1, 1, 2, 50, -1))
    return [*batches[:at], _BASE_OFFSET.pack(base) + batch[_BASE_OFFSET.size :], *batches[at + 1 :]]


def _damaged(batches: list[bytes], at: int, chance: Random) -> Sequence[bytes]:
    """Only its CRC tells of it."""
    bit = chance.randrange(8 * CRC_START, 8 * len(batches[at]))
    return [*batches[:at], _with_bit(batches[at], bit), *batches[at + 1 :]]


_RECORDS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "a batch elsewhere": _of_batches(_elsewhere),
    "a batch damaged": _of_batches(_damaged),
    "a batch lacks": _of_batches(lambda batches, at, _: [*batches[:at], *batches[at + 1 :]]),
    "a batch twice": _of_batches(lambda batches, at, _: [*batches[: at + 1], *batches[at:]]),
    "of another epoch": _of_batches(
        lambda batches, at, _: [*batches[:at], _with_bit(batches[at], 8 * LENGTH_END + 24), *batches[at + 1 :]]
    ),
}
