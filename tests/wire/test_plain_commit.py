"""The quick reader and writer of plain offset commits give what the generated ones give, or nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import decode_request_header, encode_request_frame, encode_response_frame
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.wire.plain_commit import VERSIONS, PlainCommit, read_plain_commit, topic_of, write_plain_answer

COMMIT = api(ApiKey.OFFSET_COMMIT)
assert COMMIT is not None

BY_ID = 10
versions = st.sampled_from(list(VERSIONS))
numbers = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("t.", min_size=120, max_size=249)
partitions = st.builds(
    OffsetCommitRequestPartition,
    partition_index=numbers,
    committed_offset=st.integers(-(2**63), 2**63 - 1),
    committed_leader_epoch=numbers,
    committed_metadata=st.none() | texts,
)
topics = st.builds(
    OffsetCommitRequestTopic,
    name=texts,
    topic_id=st.uuids(),
    partitions=st.lists(partitions, min_size=1, max_size=3).map(tuple),
)
requests = st.builds(
    OffsetCommitRequest,
    group_id=texts,
    generation_id_or_member_epoch=numbers,
    member_id=texts,
    group_instance_id=st.none() | texts,
    topics=st.lists(topics, min_size=1, max_size=3).map(tuple),
)


def frame_of(version: int, client: str | None, request: OffsetCommitRequest) -> bytes:
    assert COMMIT is not None
    return b"".join(map(bytes, encode_request_frame(COMMIT, version, 77, client, request)))[4:]


def check_equal(frame: bytes, found: PlainCommit) -> None:
    """Raises DecodeError where the twin does."""
    assert COMMIT is not None
    view = memoryview(frame)
    header, at = decode_request_header(view)
    request = COMMIT.decode_request(header.api_version, view[at:])
    by_id = header.api_version == BY_ID
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    named = (header.correlation_id, request.group_id, generation, member_id, request.group_instance_id)
    assert found[:5] == named
    assert [(topic_of(topic, by_id=by_id), positions) for topic, positions in found.topics] == [
        (
            topic.topic_id.bytes if by_id else topic.name.encode(),
            [
                (
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]


@given(versions, st.none() | st.text(max_size=12), requests)
@example(8, None, OffsetCommitRequest(topics=(OffsetCommitRequestTopic(name="t", partitions=()),)))
@example(10, "", OffsetCommitRequest(topics=()))
def test_requests_are_read_as_by_the_twin(version: int, client: str | None, request: OffsetCommitRequest) -> None:
    frame = frame_of(version, client, request)
    found = read_plain_commit(memoryview(frame))
    if found is not None:
        check_equal(frame, found)


@pytest.mark.parametrize("count", [(1, 1), (1, 126), (126, 1), (3, 4)])
@pytest.mark.parametrize("instance_id", [None, "one", ""])
def test_the_common_request_is_read(count: tuple[int, int], instance_id: str | None) -> None:
    positions = tuple(
        OffsetCommitRequestPartition(index, index + 9, committed_leader_epoch=1, committed_metadata=said)
        for index, said in enumerate(["", None, "m" * 126] * 42)
    )
    for version in VERSIONS:
        topic = OffsetCommitRequestTopic(name="t" * 126, topic_id=UUID(int=5), partitions=positions[-count[1] :])
        asked = OffsetCommitRequest(
            group_id="g" * 126,
            generation_id_or_member_epoch=3,
            member_id="m" * 126,
            group_instance_id=instance_id,
            topics=(topic,) * count[0],
        )
        frame = frame_of(version, "app", asked)
        found = read_plain_commit(memoryview(frame))
        assert found is not None
        check_equal(frame, found)


@given(versions, st.integers(0, 130), st.integers(0, 255), st.integers(-3, 3))
def test_damaged_requests_are_never_read_as_what_the_twin_refuses(
    version: int, at: int, byte: int, longer: int
) -> None:
    positions = (OffsetCommitRequestPartition(1, 2, 3, "said"), OffsetCommitRequestPartition(4, 5, 6, None))
    topic = OffsetCommitRequestTopic(name="topic", topic_id=UUID(int=1 << 70), partitions=positions)
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=7, member_id="m", group_instance_id="i", topics=(topic, topic)
    )
    whole = frame_of(version, "c", request)
    frame = bytearray(whole[: len(whole) + min(longer, 0)] + bytes(max(longer, 0)))
    if 4 <= at < len(frame):
        frame[at] = byte
    found = read_plain_commit(memoryview(bytes(frame)))
    if found is None or (version < BY_ID and not all(topic.isascii() for topic, _ in found.topics)):
        return  # a topic of such a name is never found
    check_equal(bytes(frame), found)


answers = st.lists(st.tuples(numbers, st.integers(0, 200)), min_size=1, max_size=3)
named = st.tuples(texts.filter(lambda name: 0 < len(name.encode()) < 127), st.uuids(), answers)


@given(versions, st.lists(named, min_size=1, max_size=3))
@example(8, [("t", UUID(int=1), [(0, 0)] * 126)] * 126)
@example(10, [("t", UUID(int=1), [(5, 27)])])
def test_answers_are_those_of_the_twin(version: int, told: list[tuple[str, UUID, list[tuple[int, int]]]]) -> None:
    assert COMMIT is not None
    response = OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=tuple(OffsetCommitResponsePartition(index, error) for index, error in each),
            )
            for name, topic_id, each in told
        )
    )
    twin = b"".join(map(bytes, encode_response_frame(COMMIT, version, 8, response)))
    asked = [
        (
            topic_id.bytes if version == BY_ID else bytes([len(name.encode()) + 1]) + name.encode(),
            [(index, 0, 0, "") for index, _ in each],
        )
        for name, topic_id, each in told
    ]
    errors = [error for _, _, each in told for _, error in each]
    assert bytes(write_plain_answer(8, asked, errors)) == twin
