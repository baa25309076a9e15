"""Brokers' reports of their faults: they are read as written, and anything else is reported as corrupt."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.ailments import (
    REQUEST,
    Ailment,
    Levels,
    Report,
    State,
    decode_report,
    encode_ailments,
    encode_report,
    version_of,
)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
numbers = st.integers(-1, 2**63 - 1)
lists = st.lists(st.builds(Ailment, texts, numbers, st.booleans(), numbers, numbers, texts), max_size=4)


states = st.lists(st.builds(State, kind=texts, text=texts, todo=texts), max_size=3)


@given(lists)
def test_what_earlier_versions_write_is_read(told: list[Ailment]) -> None:
    frame = encode_ailments(told)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    assert decode_report(memoryview(frame)[4:]) == Report(told)


brokers = st.integers(0, 2**31 - 1)
known = st.dictionaries(brokers, st.tuples(numbers, numbers), max_size=3)


@given(lists, states, st.dictionaries(brokers, states, max_size=3), st.none() | st.builds(Levels, numbers, known))
def test_what_is_written_is_read(
    told: list[Ailment], own: list[State], heard: dict[int, list[State]], levels: Levels | None
) -> None:
    report = Report(told, own, heard, levels)
    frame = encode_report(report)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    assert decode_report(memoryview(frame)[4:]) == report


@given(st.binary(max_size=100) | st.sampled_from([b"{}", b"[1]", b"[{}]", b'[{"topic": 1}]', b"1", b"[" * 100_000]))
def test_garbage_is_told_as_corrupt_or_is_nothing(garbage: bytes) -> None:
    try:
        assert decode_report(memoryview(garbage)) == Report([])
    except CorruptData:
        return


def test_a_request_is_a_header_and_nothing_else() -> None:
    assert struct.unpack_from(">i", REQUEST) == (len(REQUEST) - 4,)
    assert version_of(memoryview(REQUEST)[4:]) == 1
