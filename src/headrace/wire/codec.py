"""The base of the generated codecs: bounds, varints of more than one byte, arrays of plain values, tagged fields.

Decoding stays within bounds in these ways:
- A position only ever grows.
- Reading a fixed-width value or a single byte past the end raises (`struct.error`, `IndexError`).
- A slice past the end comes out short, but leaves the position past the end, which the caller that began refuses.
- An array is refused before any element is made where its count cannot fit in the remaining bytes. So is one where all
  arrays of a large message together hold too much.

`headrace.wire.apis` turns all of these into `DecodeError`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from headrace.base.limits import (
    ARRAY_ELEMENTS_MAX,
    STRING_BYTES_MAX,
    TAGGED_FIELDS_MAX,
    UNCOUNTED_MESSAGE_BYTES_MAX,
    UUIDS_CACHED,
)
from headrace.base.ports import Buffer
from headrace.wire.varint import DecodeError, decode_unsigned_varint, encode_unsigned_varint

__all__ = ["DecodeError", "EncodeError"]

NO_UUID: Final = uuid.UUID(int=0)
JOINED_RECORDS_BYTES_MAX: Final = 512
"""Records up to this size are copied into the stream of small fields: that is cheaper than another buffer to send."""

new: Final = tuple.__new__
"""Makes a NamedTuple from its fields' values at half the cost of calling the class."""


class EncodeError(ValueError):
    """A message that this version cannot express: our own mistake, or a client that asks too much of a broker."""


# Decoding


@lru_cache(maxsize=UUIDS_CACHED)
def uuid_of(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def long_varint(data: memoryview, at: int, first: int) -> tuple[int, int]:
    """An unsigned varint whose `first` byte, already read, has its high bit set; `at` is the position after it."""
    byte = data[at]
    if byte < 128:
        return first & 127 | byte << 7, at + 1
    third = data[at + 1]
    if third < 128:
        return first & 127 | (byte & 127) << 7 | third << 14, at + 2
    return decode_unsigned_varint(data, at - 1)


def string_varint(data: memoryview, at: int, first: int) -> tuple[int, int]:
    """As `long_varint`, for the length of a string plus one. A string is no longer than one with an int16 length, as in
    Kafka."""
    length, at = long_varint(data, at, first)
    if length > STRING_BYTES_MAX + 1:
        raise DecodeError(f"a string claims {length - 1} bytes; at most {STRING_BYTES_MAX} are allowed")
    return length, at


def unexpected_null(name: str) -> DecodeError:
    return DecodeError(f"{name} is null, which it may not be")


def check_count(data: memoryview, at: int, count: int, element_bytes_min: int) -> None:
    """Refuse an array that could not fit in the remaining bytes, before any element is made."""
    if count > ARRAY_ELEMENTS_MAX or count * element_bytes_min > len(data) - at:
        raise DecodeError(f"an array claims {count} elements, which {len(data) - at} bytes cannot hold")
    if _budgets:
        spend(data, count)


_budgets: Final[dict[int, int]] = {}
"""Number of further array elements that each message being decoded may have, by the identity of its bytes. Small
messages are not listed: each element takes at least a byte, so their size bounds them."""


def grant(data: memoryview, elements_max: int) -> None:
    """All arrays of `data` together may have `elements_max` elements, until `settle`."""
    if len(data) > UNCOUNTED_MESSAGE_BYTES_MAX:
        _budgets[id(data)] = elements_max


def settle(data: memoryview) -> None:
    """Decoding of `data` has ended."""
    if _budgets:
        _budgets.pop(id(data), None)


def spend(data: memoryview, count: int) -> None:
    """Count one more array of `count` elements, and refuse it where the message may not have that many."""
    if _budgets and count > 0 and (left := _budgets.get(id(data))) is not None:
        if count > left:
            raise DecodeError(f"an array claims {count} elements; its message may have only {left} more")
        _budgets[id(data)] = left - count


class _Arrays(dict[int, struct.Struct]):
    """Compiled formats for arrays of one fixed-width type, by their length. Only the short ones are kept."""

    def __init__(self, letter: str) -> None:
        super().__init__()
        self.letter = letter

    def __missing__(self, count: int) -> struct.Struct:
        if not 0 <= count <= ARRAY_ELEMENTS_MAX:
            raise OverflowError(f"an array of {count} elements")
        compiled = struct.Struct(f">{count}{self.letter}")
        if count < 256:
            self[count] = compiled
        return compiled


ARRAYS_B: Final = _Arrays("b")
ARRAYS_H: Final = _Arrays("h")
ARRAYS_I: Final = _Arrays("i")
ARRAYS_Q: Final = _Arrays("q")


def read_strings(data: memoryview, at: int, count: int) -> tuple[tuple[str, ...], int]:
    """Read an array of strings with int16 lengths. Returns it and the position after it."""
    check_count(data, at, count, 2)
    strings = []
    for _ in range(count):
        length = data[at] << 8 | data[at + 1]
        if length > 0x7FFF:
            raise unexpected_null("a string of an array")
        at += 2 + length
        strings.append(str(data[at - length : at], "utf-8"))
    return tuple(strings), at


def read_compact_strings(data: memoryview, at: int, count: int) -> tuple[tuple[str, ...], int]:
    """Read an array of strings with varint lengths. Returns it and the position after it."""
    check_count(data, at, count, 1)
    strings = []
    for _ in range(count):
        length = data[at]
        at += 1
        if length > 127:
            length, at = string_varint(data, at, length)
        if length == 0:
            raise unexpected_null("a string of an array")
        end = at + length - 1
        strings.append(str(data[at:end], "utf-8"))
        at = end
    return tuple(strings), at


def read_uuids(data: memoryview, at: int, count: int) -> tuple[tuple[uuid.UUID, ...], int]:
    check_count(data, at, count, 16)
    return tuple([uuid_of(bytes(data[at + 16 * i : at + 16 * i + 16])) for i in range(count)]), at + 16 * count


TagReader = Callable[[memoryview, int, int], int]


def skip_tags(data: memoryview, at: int, first: int) -> int:
    """Skip tagged fields that this version of the schema does not know. Return the position after them."""
    return at_end_of(split_tags(data, at, first), at)


def at_end_of(tags: list[tuple[int, int, int]], at: int) -> int:
    return tags[-1][2] if tags else at


def split_tags(data: memoryview, at: int, first: int) -> list[tuple[int, int, int]]:
    """The tagged fields as (tag, start, end). `first` is the first byte of their count, `at` the position after it."""
    count = first
    if first > 127:
        count, at = long_varint(data, at, first)
    if count > TAGGED_FIELDS_MAX:
        raise DecodeError(f"{count} tagged fields")
    tags = []
    last = -1
    for _ in range(count):
        tag, at = decode_unsigned_varint(data, at)
        if tag <= last:
            raise DecodeError(f"tagged field {tag} after {last}")
        last = tag
        size, at = decode_unsigned_varint(data, at)
        if size > len(data) - at:
            raise DecodeError(f"tagged field {tag} claims {size} bytes of {len(data) - at}")
        tags.append((tag, at, at + size))
        at += size
    return tags


def check_tag(name: str, at: int, end: int) -> None:
    if at != end:
        raise DecodeError(f"tagged field {name} is {at - end} bytes longer than it claims")


# Encoding


def varint(value: int) -> bytes:
    """Encode an unsigned varint, for callers that have excluded the one-byte case or do not need speed."""
    if 127 < value < 16_384:
        return bytes((value & 127 | 128, value >> 7))
    if 16_383 < value < 2_097_152:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    return encode_unsigned_varint(value)


def write_strings(values: tuple[str, ...], out: bytearray) -> None:
    for value in values:
        raw = value.encode()
        out += len(raw).to_bytes(2, "big", signed=True)
        out += raw


def write_compact_strings(values: tuple[str, ...], out: bytearray) -> None:
    for value in values:
        raw = value.encode()
        out += varint(len(raw) + 1)
        out += raw


def write_uuids(values: tuple[uuid.UUID, ...], out: bytearray) -> None:
    for value in values:
        out += value.bytes


def write_tags(tags: list[tuple[int, bytearray]], out: bytearray) -> None:
    """Write tagged fields, in the order of their tags, with count and sizes."""
    out += varint(len(tags))
    for tag, raw in tags:
        out += varint(tag)
        out += varint(len(raw))
        out += raw


def add_records(records: Buffer, out: bytearray, done: list[Buffer]) -> bytearray:
    """Add records without copying them: close `out`, add them as they are, and return a new `out`."""
    if len(records) <= JOINED_RECORDS_BYTES_MAX:
        out += records
        return out
    done.append(out)
    done.append(records)
    return bytearray()


def unsayable(message: Any, name: str) -> EncodeError:
    """The error for a request's field that the version lacks and that may not be left out."""
    return EncodeError(f"{type(message).__name__} cannot carry {name}={getattr(message, name)!r}")
