"""Varints as Kafka writes them: unsigned (lengths, counts and tags of flexible versions, KIP-482) and zigzag (fields of
records, KIP-98). They are little-endian groups of 7 bits. The hot paths have their own inlined twins; these are the
reference.

Decoders never read past the buffer's end and refuse a number wider than its type with `DecodeError`.
"""

from __future__ import annotations

from headrace.base.errors import CorruptData
from headrace.base.ports import Buffer


class DecodeError(CorruptData):
    """Bytes that are not the message they claim to be: cut, too long, or with impossible contents."""


def encode_unsigned_varint(value: int) -> bytes:
    """Encode a `value` in [0, 2**64)."""
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_unsigned_varint(data: Buffer, at: int, *, bits: int = 32) -> tuple[int, int]:
    """Return (value, position after it)."""
    value = shift = 0
    size = len(data)
    while shift < bits:
        if at >= size:
            raise DecodeError("a varint is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> bits:
                break
            return value, at
        shift += 7
    raise DecodeError(f"a varint is wider than {bits} bits")


def encode_varint(value: int) -> bytes:
    """Zigzag encoding of a signed 64-bit number. Kafka's varint and varlong look alike on the wire."""
    return encode_unsigned_varint((value << 1) ^ (value >> 63))


def decode_varint(data: Buffer, at: int, *, bits: int = 32) -> tuple[int, int]:
    """Return (signed value, position after it)."""
    value, at = decode_unsigned_varint(data, at, bits=bits)
    return (value >> 1) ^ -(value & 1), at
