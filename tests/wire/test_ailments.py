"""What brokers tell of damaged logs: what is written is read, and anything else is told as corrupt."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.ailments import REQUEST, Ailment, decode_ailments, encode_ailments

texts = st.text(st.characters(codec="utf-8"), max_size=30)
numbers = st.integers(-1, 2**63 - 1)
lists = st.lists(st.builds(Ailment, texts, numbers, st.booleans(), numbers, numbers, texts), max_size=4)


@given(lists)
def test_what_is_written_is_read(told: list[Ailment]) -> None:
    frame = encode_ailments(told)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    assert decode_ailments(memoryview(frame)[4:]) == told


@given(st.binary(max_size=100) | st.sampled_from([b"{}", b"[1]", b"[{}]", b'[{"topic": 1}]', b"1", b"[" * 100_000]))
def test_garbage_is_told_as_corrupt_or_is_nothing(garbage: bytes) -> None:
    try:
        assert decode_ailments(memoryview(garbage)) == []
    except CorruptData:
        return


def test_a_request_is_a_header_and_nothing_else() -> None:
    assert struct.unpack_from(">i", REQUEST) == (len(REQUEST) - 4,)
