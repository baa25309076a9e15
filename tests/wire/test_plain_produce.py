"""The quick reader and writer of plain produce requests give what the generated ones give, or nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import decode_request_header, encode_request_frame, encode_response_frame
from headrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.wire.plain_produce import (
    VERSIONS,
    PlainAnswer,
    PlainProduce,
    read_plain_produce,
    topic_of,
    write_plain_answer,
    write_single_answer,
)

PRODUCE = api(ApiKey.PRODUCE)
assert PRODUCE is not None

versions = st.sampled_from(list(VERSIONS))
indexes = st.integers(-1, 2**31 - 1)
numbers = st.integers(-1, 2**63 - 1)
names = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("t.", min_size=120, max_size=249)
clients = st.none() | st.text(max_size=12)
bytes_ = st.binary(max_size=300).map(lambda data: memoryview(data))
partitions = st.builds(PartitionProduceData, index=indexes, records=st.none() | bytes_)
topics = st.builds(
    TopicProduceData,
    name=names,
    topic_id=st.uuids(),
    partition_data=st.lists(partitions, min_size=1, max_size=3).map(tuple),
)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.just("t"),
    acks=st.sampled_from([-1, 0, 1, 7]),
    timeout_ms=st.integers(-1, 2**31 - 1),
    topic_data=st.lists(topics, min_size=1, max_size=3).map(tuple),
)


def frame_of(version: int, client: str | None, request: ProduceRequest) -> bytes:
    assert PRODUCE is not None
    return b"".join(map(bytes, encode_request_frame(PRODUCE, version, 77, client, request)))[4:]


def by_the_twin(frame: bytes) -> tuple[int, ProduceRequest]:
    """Raises DecodeError."""
    assert PRODUCE is not None
    view = memoryview(frame)
    header, at = decode_request_header(view)
    return header.correlation_id, PRODUCE.decode_request(header.api_version, view[at:])


def check_equal(frame: bytes, found: PlainProduce) -> None:
    correlation_id, request = by_the_twin(frame)
    by_id = frame[3] == 13
    assert request.transactional_id is None
    assert found[:3] == (correlation_id, request.acks, request.timeout_ms)
    assert [
        (topic_of(topic, by_id=by_id), [(index, bytes(records)) for index, records in batches])
        for topic, batches in found.topics
    ] == [
        (
            topic.topic_id.bytes if by_id else topic.name.encode(),
            [(data.index, None if data.records is None else bytes(data.records)) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]


@given(versions, clients, requests)
@example(9, None, ProduceRequest(topic_data=(TopicProduceData(name="t", partition_data=()),)))
@example(13, "", ProduceRequest(topic_data=()))
def test_requests_are_read_as_by_the_twin(version: int, client: str | None, request: ProduceRequest) -> None:
    frame = frame_of(version, client, request)
    found = read_plain_produce(memoryview(frame))
    if found is not None:
        check_equal(frame, found)


@pytest.mark.parametrize("name", ["header tags", "transactional id"])
def test_tags_and_a_transactional_id_are_left_to_the_twin_whatever_follows(name: str) -> None:
    """A frame may be made so that what follows them reads as a common request."""
    topic = TopicProduceData("t", partition_data=(PartitionProduceData(1, memoryview(b"records")),))
    frame = bytearray(frame_of(9, "c", ProduceRequest(acks=1, timeout_ms=9, topic_data=(topic,))))
    assert read_plain_produce(memoryview(bytes(frame))) is not None
    tags_at = 2 + 2 + 4 + 2 + len("c")
    assert frame[tags_at : tags_at + 2] == b"\0\0"
    frame[tags_at + ("header tags", "transactional id").index(name)] = 1
    assert read_plain_produce(memoryview(bytes(frame))) is None


@pytest.mark.parametrize("topics_and_partitions", [(1, 1), (1, 126), (126, 1), (3, 4)])
def test_the_common_request_is_read(topics_and_partitions: tuple[int, int]) -> None:
    topic_count, partition_count = topics_and_partitions
    data = tuple(PartitionProduceData(index, memoryview(bytes(size))) for index, size in enumerate([0, 9, 20_000] * 42))
    for version in VERSIONS:
        topic = TopicProduceData(name="t" * 126, topic_id=UUID(int=5), partition_data=data[-partition_count:])
        asked = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,) * topic_count)
        frame = frame_of(version, "perf", asked)
        found = read_plain_produce(memoryview(frame))
        assert found is not None
        check_equal(frame, found)


@given(
    versions,
    st.integers(0, 130),
    st.integers(0, 255),
    st.integers(-3, 3),
)
def test_damaged_requests_are_never_read_as_what_the_twin_refuses(
    version: int, at: int, byte: int, longer: int
) -> None:
    topic = TopicProduceData(
        name="topic",
        topic_id=UUID(int=1 << 70),
        partition_data=(PartitionProduceData(1, memoryview(b"records")), PartitionProduceData(2, memoryview(b"more"))),
    )
    whole = frame_of(version, "c", ProduceRequest(acks=1, timeout_ms=9, topic_data=(topic, topic)))
    frame = bytearray(whole[: len(whole) + min(longer, 0)] + bytes(max(longer, 0)))
    if 4 <= at < len(frame):
        frame[at] = byte
    found = read_plain_produce(memoryview(bytes(frame)))
    if found is None or (version < 13 and not all(topic.isascii() for topic, _ in found.topics)):
        return  # a topic of such a name is never found
    check_equal(bytes(frame), found)


outcomes = st.lists(
    st.builds(PlainAnswer, indexes, st.integers(0, 120), numbers, numbers, numbers, st.none() | st.text(max_size=300)),
    min_size=1,
    max_size=3,
)
named = st.tuples(names.filter(lambda name: 0 < len(name.encode()) < 127), st.uuids(), outcomes)


@given(versions, st.lists(named, min_size=1, max_size=3))
@example(9, [("t", UUID(int=1), [PlainAnswer(0, 0, 1, 2, 3)] * 126)] * 126)
def test_answers_are_those_of_the_twin(version: int, topics: list[tuple[str, UUID, list[PlainAnswer]]]) -> None:
    assert PRODUCE is not None
    responses = tuple(
        TopicProduceResponse(
            name=name,
            topic_id=topic_id,
            partition_responses=tuple(
                PartitionProduceResponse(index, error, base, time, start, error_message=message)
                for index, error, base, time, start, message in answers
            ),
        )
        for name, topic_id, answers in topics
    )
    twin = encode_response_frame(PRODUCE, version, 8, ProduceResponse(responses=responses))
    told = [
        (topic_id.bytes if version == 13 else bytes([len(name.encode()) + 1]) + name.encode(), answers)
        for name, topic_id, answers in topics
    ]
    assert bytes(write_plain_answer(8, told)) == b"".join(map(bytes, twin))


@given(versions, named.filter(lambda one: one[2][0].message is None))
def test_single_answers_are_those_of_many(version: int, one: tuple[str, UUID, list[PlainAnswer]]) -> None:
    name, topic_id, (only, *_) = one
    topic = topic_id.bytes if version == 13 else bytes([len(name.encode()) + 1]) + name.encode()
    assert write_single_answer(8, topic, *only[:5]) == write_plain_answer(8, [(topic, [only])])
