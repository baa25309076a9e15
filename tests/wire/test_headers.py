"""Headers in both generations, and the frame that a message travels in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.apis import APIS_BY_KEY, DecodeError, EncodeError, api
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_frame,
    encode_request_header,
    encode_response_frame,
    encode_response_header,
)
from headrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

a_version = st.sampled_from(
    [
        (known.key.value, version)
        for key in APIS_BY_KEY
        if (known := api(key)) is not None
        for version in range(known.min_version, known.max_version + 1)
    ]
)
int32 = st.integers(-(2**31), 2**31 - 1)
client_ids = st.none() | st.text(st.characters(codec="utf-8"), max_size=40)


@given(a_version, int32, client_ids, st.binary(max_size=5))
def test_a_request_header_reads_back_and_the_body_begins_after_it(
    which: tuple[int, int], correlation_id: int, client_id: str | None, body: bytes
) -> None:
    key, version = which
    raw = encode_request_header(key, version, correlation_id, client_id)
    header, at = decode_request_header(memoryview(raw + body))
    assert header == RequestHeader(key, version, correlation_id, client_id)
    assert at == len(raw)
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_request_header(memoryview(raw[:size]))


@given(a_version, int32)
def test_a_response_header_reads_back(which: tuple[int, int], correlation_id: int) -> None:
    raw = encode_response_header(*which, correlation_id)
    assert decode_response_header(*which, memoryview(raw + b"body")) == (correlation_id, len(raw))
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_response_header(*which, memoryview(raw[:size]))


@given(st.binary(max_size=40))
def test_random_bytes_are_a_header_or_refused(data: bytes) -> None:
    for decode in (decode_request_header, lambda view: decode_response_header(0, 9, view)):
        try:
            _, at = decode(memoryview(data))
        except DecodeError:
            continue
        assert at <= len(data)


def test_flexible_requests_have_tagged_fields_which_are_skipped() -> None:
    fixed = struct.pack(">hhih", 0, 9, 7, 1) + b"c"
    assert encode_request_header(0, 9, 7, "c") == fixed + b"\0"
    assert decode_request_header(memoryview(fixed + b"\1\5\3abc" + b"body")) == (RequestHeader(0, 9, 7, "c"), 17)
    assert encode_request_header(0, 8, 7, "c") == struct.pack(">hhih", 0, 8, 7, 1) + b"c"


def test_api_versions_of_the_future_can_still_be_answered() -> None:
    """KIP-511: the header is readable, and the answer's header is never flexible."""
    raw = encode_request_header(18, 99, 5, "later") + b"what this body holds is unknown"
    header, _ = decode_request_header(memoryview(raw))
    assert header == RequestHeader(18, 99, 5, "later")
    for version in (0, 3, 4, 99):
        assert encode_response_header(18, version, 5) == struct.pack(">i", 5)


def test_an_unknown_api_still_has_a_header() -> None:
    raw = struct.pack(">hhih", 999, 1, 3, -1)
    assert decode_request_header(memoryview(raw)) == (RequestHeader(999, 1, 3, None), 10)


def test_frames_carry_their_length_and_records_between_their_buffers() -> None:
    known = api(1)
    assert known is not None
    records = bytes(5000)
    partition = PartitionData(records=records)
    response = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),))
    buffers = encode_response_frame(known, 11, 42, response)
    assert any(buffer is records for buffer in buffers)
    (frame,) = FrameSplitter().feed(b"".join(buffers))
    correlation_id, at = decode_response_header(1, 11, frame)
    assert correlation_id == 42
    assert known.decode_response(11, frame[at:]) == response


def test_a_request_frame_reads_back() -> None:
    known = api(18)
    assert known is not None
    request = ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
    (frame,) = FrameSplitter().feed(b"".join(encode_request_frame(known, 3, 1, "me", request)))
    header, at = decode_request_header(frame)
    assert header == RequestHeader(18, 3, 1, "me")
    assert known.decode_request(3, frame[at:]) == request
    assert len(b"".join(encode_response_frame(known, 0, 1, ApiVersionsResponse()))) == 4 + 4 + 2 + 4


def test_a_header_that_does_not_fit_is_an_encode_error() -> None:
    with pytest.raises(EncodeError):
        encode_request_header(0, 9, 2**31, "c")
    with pytest.raises(EncodeError):
        encode_request_header(0, 9, 1, "c" * 40_000)
