"""The quick readers and writers of plain group requests give what the generated ones give, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.limits import GROUP_SUBSCRIPTION_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.codec import DecodeError
from headrace.wire.headers import decode_request_header, encode_request_frame, encode_response_frame
from headrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from headrace.wire.plain_groups import (
    HEARTBEAT_VERSIONS,
    JOIN_VERSIONS,
    PLAIN_NAME_BYTES_MAX,
    SYNC_VERSIONS,
    PlainHeader,
    PlainRequest,
    read_plain_heartbeat,
    read_plain_join,
    read_plain_sync,
    write_plain_heartbeat,
    write_plain_join,
    write_plain_sync,
)

CORRELATION: int = 77
numbers = st.integers(-(2**31), 2**31 - 1)
shorts = st.integers(-(2**15), 2**15 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("t.", min_size=120, max_size=135)
nullable = st.none() | texts
blobs = st.binary(max_size=20) | st.binary(min_size=120, max_size=135) | st.just(bytes(17_000))


def some(of: Any, **fields: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.builds(of, **fields), max_size=3).map(tuple)


class Way(NamedTuple):
    """One API, both ways."""

    codec: Api
    versions: range
    read: Callable[[memoryview], PlainRequest | None]
    write: Callable[[PlainHeader, Any], Buffer]
    requests: st.SearchStrategy[Any]
    responses: st.SearchStrategy[Any]
    common: Any
    """A request that must not be left to the twin."""


def way(key: ApiKey, *parts: Any) -> Way:
    codec = api(key)
    assert codec is not None
    return Way(codec, *parts)


NAME = "n" * PLAIN_NAME_BYTES_MAX
WAYS = {
    "heartbeat": way(
        ApiKey.HEARTBEAT,
        HEARTBEAT_VERSIONS,
        read_plain_heartbeat,
        write_plain_heartbeat,
        st.builds(HeartbeatRequest, group_id=texts, generation_id=numbers, member_id=texts, group_instance_id=nullable),
        st.builds(HeartbeatResponse, throttle_time_ms=numbers, error_code=shorts),
        HeartbeatRequest(NAME, 5, NAME, NAME),
    ),
    "join": way(
        ApiKey.JOIN_GROUP,
        JOIN_VERSIONS,
        read_plain_join,
        write_plain_join,
        st.builds(
            JoinGroupRequest,
            group_id=texts,
            session_timeout_ms=numbers,
            rebalance_timeout_ms=numbers,
            member_id=texts,
            group_instance_id=nullable,
            protocol_type=texts,
            protocols=some(JoinGroupRequestProtocol, name=texts, metadata=blobs),
        ),
        st.builds(
            JoinGroupResponse,
            throttle_time_ms=numbers,
            error_code=shorts,
            generation_id=numbers,
            protocol_type=nullable,
            protocol_name=nullable,
            leader=texts,
            skip_assignment=st.booleans(),
            member_id=texts,
            members=some(JoinGroupResponseMember, member_id=texts, group_instance_id=nullable, metadata=blobs),
        ),
        JoinGroupRequest(
            NAME, 10_000, 20_000, NAME, NAME, NAME, (JoinGroupRequestProtocol(NAME, bytes(300)),) * 126, None
        ),
    ),
    "sync": way(
        ApiKey.SYNC_GROUP,
        SYNC_VERSIONS,
        read_plain_sync,
        write_plain_sync,
        st.builds(
            SyncGroupRequest,
            group_id=texts,
            generation_id=numbers,
            member_id=texts,
            group_instance_id=nullable,
            protocol_type=nullable,
            protocol_name=nullable,
            assignments=some(SyncGroupRequestAssignment, member_id=texts, assignment=blobs),
        ),
        st.builds(
            SyncGroupResponse,
            throttle_time_ms=numbers,
            error_code=shorts,
            protocol_type=nullable,
            protocol_name=nullable,
            assignment=blobs,
        ),
        SyncGroupRequest(NAME, 5, NAME, NAME, NAME, NAME, (SyncGroupRequestAssignment(NAME, bytes(300)),) * 126),
    ),
}
MEMBERS = tuple(JoinGroupResponseMember(str(number), None, bytes(number)) for number in range(300))
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def frame_of(way: Way, version: int, client: str | None, request: Any) -> bytes:
    return b"".join(map(bytes, encode_request_frame(way.codec, version, CORRELATION, client, request)))[4:]


def twins(way: Way, frame: bytes) -> PlainRequest:
    """Raises DecodeError where it is malformed."""
    view = memoryview(frame)
    header, at = decode_request_header(view)
    assert header.api_key == way.codec.key
    told = PlainHeader(header.api_version, header.correlation_id, header.client_id or "")
    return told, way.codec.decode_request(header.api_version, view[at:])


@ways
@given(st.data())
def test_requests_are_read_as_by_the_twin(way: Way, data: st.DataObject) -> None:
    version, client = data.draw(st.sampled_from(way.versions)), data.draw(st.none() | st.text(max_size=12))
    frame = frame_of(way, version, client, data.draw(way.requests))
    found = way.read(memoryview(frame))
    assert found is None or found == twins(way, frame)


@ways
@pytest.mark.parametrize("client", [None, "", "app"])
def test_the_common_request_is_read(way: Way, client: str | None) -> None:
    for version in way.versions:
        for request in (way.common, way.common._replace(group_instance_id=None, member_id="")):
            frame = frame_of(way, version, client, request)
            assert way.read(memoryview(frame)) == twins(way, frame)


@ways
def test_what_is_not_plain_is_left(way: Way) -> None:
    """A name that is too long, no group, tags, a client's name that is no ASCII."""
    version = way.versions[0]
    for changed in ({"group_id": ""}, {"group_id": NAME + "n"}, {"member_id": NAME + "n"}):
        assert way.read(memoryview(frame_of(way, version, "app", way.common._replace(**changed)))) is None
    plain = frame_of(way, version, "app", way.common)
    tagged = plain[:-1] + b"\1\5\1x"
    assert twins(way, tagged)[1] == way.common
    assert way.read(memoryview(tagged)) is None
    at_the_front = plain[:13] + b"\1\5\1x" + plain[14:]
    assert twins(way, at_the_front)[1] == way.common
    assert way.read(memoryview(at_the_front)) is None
    assert way.read(memoryview(plain[:13] + b"\1" + plain[14:])) is None
    assert way.read(memoryview(frame_of(way, version, "ü", way.common))) is None


@pytest.mark.parametrize("name", ["join", "sync"])
def test_tags_of_what_stands_in_an_array_are_left(name: str) -> None:
    way = WAYS[name]
    plain = frame_of(way, way.versions[0], "app", way.common)
    assert way.read(memoryview(plain[:-2] + b"\1" + plain[-1:])) is None


def test_a_subscription_may_be_as_large_as_it_may() -> None:
    """A larger one is left to the general handler, which refuses it."""
    protocols = (JoinGroupRequestProtocol("range", bytes(GROUP_SUBSCRIPTION_BYTES_MAX)),)
    frame = frame_of(WAYS["join"], 9, "app", JoinGroupRequest("g", protocol_type="consumer", protocols=protocols))
    assert read_plain_join(memoryview(frame)) is None


@ways
@given(st.data())
def test_damaged_requests_are_never_read_as_what_the_twin_refuses(way: Way, data: st.DataObject) -> None:
    version, request = data.draw(st.sampled_from(way.versions)), data.draw(way.requests)
    whole = frame_of(way, version, "c", request)
    longer = data.draw(st.integers(-3, 3))
    frame = bytearray(whole[: len(whole) + min(longer, 0)] + bytes(max(longer, 0)))
    at = data.draw(st.integers(4, max(4, min(len(frame) - 1, 300))))
    if at < len(frame):
        frame[at] = data.draw(st.integers(0, 255))
    found = way.read(memoryview(bytes(frame)))
    if found is not None:
        assert found == twins(way, bytes(frame))


@ways
@given(st.data())
def test_whole_requests_alone_are_read(way: Way, data: st.DataObject) -> None:
    whole = frame_of(way, data.draw(st.sampled_from(way.versions)), "c", data.draw(way.requests))
    cut = data.draw(st.integers(4, len(whole) - 1))
    with pytest.raises(DecodeError):
        twins(way, whole[:cut])
    assert way.read(memoryview(whole[:cut])) is None


def check_answer(way: Way, version: int, response: Any) -> None:
    twin = b"".join(map(bytes, encode_response_frame(way.codec, version, CORRELATION, response)))
    assert bytes(way.write(PlainHeader(version, CORRELATION, ""), response)) == twin


@ways
@given(st.data())
def test_answers_are_those_of_the_twin(way: Way, data: st.DataObject) -> None:
    check_answer(way, data.draw(st.sampled_from(way.versions)), data.draw(way.responses))


@pytest.mark.parametrize("version", JOIN_VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 300])
def test_a_leader_is_told_of_any_number_of_members(count: int, version: int) -> None:
    check_answer(WAYS["join"], version, JoinGroupResponse(members=MEMBERS[:count]))
