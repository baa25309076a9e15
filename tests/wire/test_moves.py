"""Messages between commands and brokers about moves, as bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.moves import (
    LIST,
    MEASURE,
    MOVE,
    AskedView,
    FinishedView,
    MoveAnswer,
    MoveRequest,
    MoveView,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

numbers = st.integers(-1, 2**40)
requests = st.builds(
    MoveRequest,
    kind=st.sampled_from([LIST, MEASURE, MOVE]),
    topic=st.none() | st.text(),
    partitions=st.lists(numbers).map(tuple),
    broker=st.none() | numbers,
    to=st.none() | numbers,
    bytes_per_second=numbers,
    dry_run=st.booleans(),
)
answers = st.builds(
    MoveAnswer,
    error=st.text(),
    moves=st.lists(
        st.builds(
            MoveView,
            topic=st.text(),
            partition=numbers,
            source=numbers,
            target=numbers,
            phase=st.text(),
            bytes_left=numbers,
            obstacle=st.text(),
        )
    ).map(tuple),
    finished=st.lists(
        st.builds(FinishedView, topic=st.text(), partition=numbers, source=numbers, offset=numbers, pause_ms=numbers)
    ).map(tuple),
    asked=st.lists(
        st.builds(
            AskedView,
            topic=st.text(),
            partition=numbers,
            source=numbers,
            target=numbers,
            is_handed_over=st.booleans(),
            refusal=st.text(),
            has_copy=st.booleans(),
        )
    ).map(tuple),
)


@given(requests)
def test_a_request_is_read_as_it_was_written(request: MoveRequest) -> None:
    assert decode_request(memoryview(encode_request(request))[4:]) == request


@given(answers)
def test_an_answer_is_read_as_it_was_written(answer: MoveAnswer) -> None:
    assert decode_answer(memoryview(encode_answer(answer))[4:]) == answer


def test_an_answer_of_a_broker_of_before_knows_no_copies_and_a_command_of_before_reads_this_one() -> None:
    answer = MoveAnswer(asked=(AskedView("t", 0, 1, 2, False, "", True),))
    told = json.loads(encode_answer(answer)[4:])
    assert "has_copy" not in told["asked"][0]
    del told["copies"]
    assert decode_answer(memoryview(json.dumps(told).encode())).asked == (answer.asked[0]._replace(has_copy=False),)


@given(st.binary(max_size=60))
def test_whatever_else_comes_is_corrupt_data(junk: bytes) -> None:
    for decode in (decode_request, decode_answer):
        with pytest.raises(CorruptData):
            decode(memoryview(junk))


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"kind": "move"}', b'{"partitions": 1}', b'{"partitions": [], "other": 1}']
)
def test_json_of_another_shape_is_corrupt_data(body: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_request(memoryview(bytes(10) + body))
    with pytest.raises(CorruptData):
        decode_answer(memoryview(body))
