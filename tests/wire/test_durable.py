"""The private API of durable history: what is said is heard, and nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.durable import API_KEY, decode_answer, decode_request, encode_answer, encode_request
from headrace.wire.headers import decode_request_header

objects = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5) | st.booleans())


@given(objects)
def test_what_is_said_is_heard(fields: dict[str, object]) -> None:
    frame = encode_request(fields)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_request_header(memoryview(frame)[4:])[0].api_key == API_KEY
    assert decode_request(memoryview(frame)[4:]) == fields
    assert decode_answer(memoryview(encode_answer(fields))[4:]) == fields


@given(st.binary(max_size=40))
def test_what_is_neither_question_nor_answer_is_corrupt(data: bytes) -> None:
    for decode in (decode_request, decode_answer):
        with suppress(CorruptData):
            assert isinstance(decode(memoryview(data)), dict)


@pytest.mark.parametrize("text", [b"[]", b"1", b"{", b"[" * 100_000, b"\xff"])
def test_only_an_object_is_an_answer(text: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_answer(memoryview(text))
