"""Varints against plain arithmetic, and the hot twins against them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.codec import long_varint, varint
from headrace.wire.varint import (
    DecodeError,
    decode_unsigned_varint,
    decode_varint,
    encode_unsigned_varint,
    encode_varint,
)
from tests.wire.schema import slow_varint

edges = st.sampled_from([n for bits in range(0, 32, 7) for n in (2**bits - 1, 2**bits, 2**bits + 1)] + [2**32 - 1])
uint32 = edges | st.integers(0, 2**32 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(uint32, st.binary(max_size=3))
def test_unsigned_varints_read_back(value: int, rest: bytes) -> None:
    raw = encode_unsigned_varint(value)
    assert raw == slow_varint(value) == varint(value)
    assert decode_unsigned_varint(raw + rest, 0) == (value, len(raw))
    if value > 127:
        assert long_varint(memoryview(raw + rest), 1, raw[0]) == (value, len(raw))
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_unsigned_varint(raw[:size], 0)


@given(int64)
def test_signed_varints_read_back_and_are_zigzag(value: int) -> None:
    raw = encode_varint(value)
    assert decode_varint(raw, 0, bits=64) == (value, len(raw))
    assert raw == slow_varint(2 * value if value >= 0 else -2 * value - 1)


@pytest.mark.parametrize("raw", [b"\xff" * 5, b"\xff\xff\xff\xff\x10", b"\x80" * 6, b"\x80" * 12])
def test_a_varint_wider_than_its_type_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_unsigned_varint(raw, 0)
    with pytest.raises((DecodeError, IndexError)):
        long_varint(memoryview(raw), 1, raw[0])


def test_a_negative_number_is_no_unsigned_varint() -> None:
    with pytest.raises(ValueError, match="cannot hold -1"):
        encode_unsigned_varint(-1)
