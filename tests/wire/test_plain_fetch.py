"""The quick reader and writer of plain fetch requests give what the generated ones give, or nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.limits import PLAIN_FETCH_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import decode_request_header, encode_request_frame, encode_response_frame
from headrace.wire.messages.fetch import AbortedTransaction as AbortedInFetch
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from headrace.wire.plain_fetch import VERSIONS, PlainFetch, read_plain_fetch, topic_of, write_plain_found
from headrace.wire.transactions import AbortedTransaction

FETCH = api(ApiKey.FETCH)
assert FETCH is not None

versions = st.sampled_from(list(VERSIONS))
small = st.integers(-1, 2**31 - 1)
large = st.integers(-1, 2**63 - 1)
names = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("t.", min_size=120, max_size=249)
partitions = st.tuples(small, small, large, large, small).map(
    lambda each: FetchPartition(
        partition=each[0],
        current_leader_epoch=each[1],
        fetch_offset=each[2],
        log_start_offset=each[3],
        partition_max_bytes=each[4],
    )
)
topics = st.builds(
    FetchTopic, topic=names, topic_id=st.uuids(), partitions=st.lists(partitions, min_size=1, max_size=3).map(tuple)
)
forgotten = st.just(()) | st.just((ForgottenTopic(topic="t", topic_id=UUID(int=1), partitions=(1,)),))
requests = st.fixed_dictionaries(
    {
        "replica_id": st.sampled_from([-1, -1, -1, 2]),
        "max_wait_ms": small,
        "min_bytes": small,
        "max_bytes": small,
        "isolation_level": st.sampled_from([0, 1]),
        "session_id": st.sampled_from([0, 0, 0, 7]),
        "session_epoch": st.sampled_from([-1, -1, -1, 0, 1]),
        "topics": st.lists(topics, max_size=3).map(tuple),
        "forgotten_topics_data": forgotten,
        "rack_id": st.text(max_size=3),
    }
).map(lambda fields: FetchRequest(**fields))  # type: ignore[arg-type] # fields by name
clients = st.none() | st.text(max_size=12)


def frame_of(version: int, client: str | None, request: FetchRequest) -> bytes:
    assert FETCH is not None
    return b"".join(map(bytes, encode_request_frame(FETCH, version, 77, client, request)))[4:]


def check_equal(frame: bytes, found: PlainFetch) -> None:
    assert FETCH is not None
    view = memoryview(frame)
    header, at = decode_request_header(view)
    request = FETCH.decode_request(header.api_version, view[at:])
    version = header.api_version
    assert (request.replica_id, request.session_id, request.session_epoch) == (-1, 0, -1)
    assert not request.forgotten_topics_data
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    assert found[:6] == (version, header.correlation_id, *limits)
    assert [(topic_of(topic, version), [tuple(asked) for asked in each]) for topic, each in found.topics] == [
        (
            topic.topic_id.bytes if version >= 13 else topic.topic.encode(),
            [(p.partition, p.current_leader_epoch, p.fetch_offset, p.partition_max_bytes) for p in topic.partitions],
        )
        for topic in request.topics
    ]


@given(versions, clients, requests)
@example(9, None, FetchRequest(session_epoch=-1))
@example(12, None, FetchRequest(session_epoch=-1, topics=(FetchTopic(topic="t"),)))
def test_requests_are_read_as_by_the_twin(version: int, client: str | None, request: FetchRequest) -> None:
    request = request._replace(
        replica_id=-1 if version >= 15 else request.replica_id, rack_id=request.rack_id if version >= 11 else ""
    )
    frame = frame_of(version, client, request)
    found = read_plain_fetch(memoryview(frame))
    if found is not None:
        check_equal(frame, found)


def plain(topic_count: int, partition_count: int, name_bytes: int = 5) -> FetchRequest:
    wanted = tuple(
        FetchPartition(partition=at, fetch_offset=at * 7, partition_max_bytes=9) for at in range(partition_count)
    )
    topic = FetchTopic(topic="t" * name_bytes, topic_id=UUID(int=5), partitions=wanted)
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=99, session_epoch=-1, topics=(topic,) * topic_count)


@pytest.mark.parametrize(("topic_count", "partition_count"), [(1, 1), (1, 126), (1, 127), (1, 800), (126, 1), (3, 4)])
def test_the_common_request_is_read(topic_count: int, partition_count: int) -> None:
    for version in VERSIONS:
        frame = frame_of(version, "consumer", plain(topic_count, partition_count, 126))
        found = read_plain_fetch(memoryview(frame))
        assert found is not None
        check_equal(frame, found)


def test_large_requests_are_left_to_the_twin_which_counts_their_elements() -> None:
    for version in VERSIONS:
        frame = frame_of(version, None, plain(1, PLAIN_FETCH_BYTES_MAX // 28))
        assert len(frame) > PLAIN_FETCH_BYTES_MAX
        assert read_plain_fetch(memoryview(frame)) is None


@pytest.mark.parametrize(
    "changes", [{"session_id": 3}, {"session_epoch": 0}, {"session_epoch": 1}, {"replica_id": 0}, {"topics": ()}]
)
def test_sessions_and_replicas_are_left_to_the_twin(changes: dict[str, object]) -> None:
    for version in VERSIONS:
        if "replica_id" not in changes or version < 15:
            frame = frame_of(version, "c", plain(1, 2)._replace(**changes))  # type: ignore[arg-type] # fields by name
            assert read_plain_fetch(memoryview(frame)) is None


@given(versions, st.integers(0, 200), st.integers(0, 255), st.integers(-3, 3))
def test_damaged_requests_are_never_read_as_what_the_twin_refuses(
    version: int, at: int, byte: int, longer: int
) -> None:
    whole = frame_of(version, "c", plain(2, 2)._replace(rack_id="r" if version >= 11 else ""))
    frame = bytearray(whole[: len(whole) + min(longer, 0)] + bytes(max(longer, 0)))
    if 4 <= at < len(frame):
        frame[at] = byte
    found = read_plain_fetch(memoryview(bytes(frame)))
    if found is None or (version < 13 and not all(topic.isascii() for topic, _ in found.topics)):
        return  # a topic of such a name is never found
    check_equal(bytes(frame), found)


GONE = AbortedTransaction(1, 2, 3, 4)
Told = tuple[int, int, int, int, bytes, list[AbortedTransaction]]
records = st.binary(max_size=400) | st.integers(16_000, 70_000).map(bytes)
ended = st.lists(st.builds(AbortedTransaction, large, large, large, large), max_size=3) | st.just(130 * [GONE])
found_ones = st.lists(st.tuples(small, large, large, large, records, ended), min_size=1, max_size=3)
named = st.tuples(names.filter(lambda name: 0 < len(name.encode()) < 127), st.uuids(), found_ones)


@given(versions, st.lists(named, min_size=1, max_size=3))
@example(11, [("t", UUID(int=1), [(at, 5, 5, 0, b"abc" * at, []) for at in range(300)])])
@example(17, [("t", UUID(int=1), [(at, 5, 5, 0, b"abc" * at, []) for at in range(300)])])
@example(13, [("t", UUID(int=1), [(1, 5, 5, 0, b"", [])])] * 126)
def test_answers_are_those_of_the_twin(version: int, topics: list[tuple[str, UUID, list[Told]]]) -> None:
    assert FETCH is not None
    for committed_only in (False, True):
        _check_answer(version, topics, committed_only)


def listed(aborted: list[AbortedTransaction]) -> tuple[AbortedInFetch, ...]:
    return tuple(AbortedInFetch(each.producer_id, each.first_offset) for each in aborted)


def _check_answer(version: int, topics: list[tuple[str, UUID, list[Told]]], committed_only: bool) -> None:
    assert FETCH is not None
    responses = tuple(
        FetchableTopicResponse(
            topic=name,
            topic_id=topic_id,
            partitions=tuple(
                PartitionData(
                    partition_index=index,
                    high_watermark=high,
                    last_stable_offset=stable,
                    log_start_offset=start,
                    aborted_transactions=listed(aborted) if committed_only else None,
                    records=memoryview(data),
                )
                for index, high, stable, start, data, aborted in each
            ),
        )
        for name, topic_id, each in topics
    )
    twin = encode_response_frame(FETCH, version, 8, FetchResponse(responses=responses))
    told = []
    for name, topic_id, each in topics:
        text = name.encode()
        topic = bytes([len(text) + 1]) + text if version == 12 else len(text).to_bytes(2, "big") + text
        ones = each if committed_only else [(*one[:5], []) for one in each]
        told.append((topic_id.bytes if version >= 13 else topic, ones))
    written: list[Buffer] = write_plain_found(version, 8, told, committed_only=committed_only)
    assert b"".join(map(bytes, written)) == b"".join(map(bytes, twin))
