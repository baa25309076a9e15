"""Laws of the generated codecs, over every message in every version."""

from __future__ import annotations

import struct
import tracemalloc
import uuid
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.limits import (
    ARRAY_ELEMENTS_MAX,
    REQUEST_ELEMENTS_MAX,
    TAGGED_FIELDS_MAX,
    UNCOUNTED_MESSAGE_BYTES_MAX,
)
from headrace.wire.apis import DecodeError, EncodeError, api
from headrace.wire.codec import check_count, read_uuids, split_tags
from headrace.wire.messages import describe_groups, fetch, metadata, offset_fetch, produce
from headrace.wire.varint import encode_unsigned_varint
from tests.tiers import examples
from tests.wire.schema import Case, cases, random_instance, slow_encode

CASES = list(cases())
HUGE_CLASSIC = struct.pack(">i", 0x7FFFFFFF)
HUGE_COMPACT = b"\xff\xff\xff\xff\x07"
a_case = st.sampled_from(CASES)
chance = st.randoms(use_true_random=False)


def decodes(case: Case, data: bytes) -> Any:
    """The message, or None where the bytes are refused. Any other exception is a failure."""
    try:
        return case.decode(memoryview(data))
    except DecodeError:
        return None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_writes_what_the_slow_codec_writes_and_reads_it_back(case: Case) -> None:
    random = Random(str(case))
    for _ in range(5):
        item = random_instance(case, random)
        raw = case.encode(item)
        assert raw == slow_encode(case, item)
        assert case.decode(memoryview(raw)) == item


@pytest.mark.parametrize("case", [case for case in CASES if case.flexible], ids=str)
def test_passes_over_tagged_fields_from_the_future(case: Case) -> None:
    item = random_instance(case, Random(str(case)))
    assert case.decode(memoryview(slow_encode(case, item, unknown_tags=True))) == item


@pytest.mark.parametrize("case", CASES, ids=str)
def test_refuses_every_truncation_and_any_byte_left_over(case: Case) -> None:
    raw = case.encode(random_instance(case, Random(str(case)), elements_max=2))
    step = max(1, len(raw) // 300)
    for size in range(0, len(raw), step):
        assert decodes(case, raw[:size]) is None, f"{size} of {len(raw)} bytes are taken for the whole"
    assert decodes(case, raw + b"\0") is None


@settings(max_examples=examples(400))
@given(case=a_case, data=st.binary(max_size=120))
def test_random_bytes_are_a_message_or_refused(case: Case, data: bytes) -> None:
    decodes(case, data)


@settings(max_examples=examples(400))
@given(case=a_case, random=chance)
def test_damaged_bytes_are_a_message_or_refused(case: Case, random: Random) -> None:
    raw = bytearray(case.encode(random_instance(case, random)))
    for _ in range(random.randint(1, 4)):
        if raw:
            raw[random.randrange(len(raw))] = random.choice((0, 1, 127, 128, 255, random.getrandbits(8)))
    decodes(case, bytes(raw))


@settings(max_examples=examples(150))
@given(case=a_case, random=chance)
def test_a_huge_claim_sets_nothing_aside(case: Case, random: Random) -> None:
    """For any claimed length or count, decoding takes memory in proportion to the bytes that are there."""
    raw = case.encode(random_instance(case, random))
    at = random.randint(0, len(raw))
    claim = random.choice((HUGE_CLASSIC, HUGE_COMPACT, b"\x00\x0f\xff\xff", b"\xff\xff\x3f"))
    damaged = memoryview(raw[:at] + claim + raw[at + random.choice((0, len(claim))) :])
    tracemalloc.start()
    try:
        case.decode(damaged)
    except DecodeError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 100_000 + 400 * len(damaged)


def test_a_count_is_refused_by_the_bytes_that_follow_and_by_the_limit() -> None:
    metadata_api = api(3)
    assert metadata_api is not None
    assert decodes_request(3, 1, struct.pack(">i", 3) + b"\0\1a\0\1b") is None
    just_enough = struct.pack(">i", ARRAY_ELEMENTS_MAX + 1) + bytes(2 * ARRAY_ELEMENTS_MAX + 2)
    with pytest.raises(DecodeError, match="claims 1000001 elements"):
        metadata_api.decode_request(1, memoryview(just_enough))


def decodes_request(key: int, version: int, data: bytes) -> Any:
    known = api(key)
    assert known is not None
    try:
        return known.decode_request(version, memoryview(data))
    except DecodeError:
        return None


def test_a_decode_error_names_the_message() -> None:
    known = api(0)
    assert known is not None
    with pytest.raises(DecodeError, match="Produce request v9"):
        known.decode_request(9, memoryview(b"\0\0"))
    with pytest.raises(DecodeError, match="Produce has no version 99"):
        known.decode_request(99, memoryview(b""))


@pytest.mark.parametrize("version", [4, 12, 13, 18])
def test_records_are_never_copied(version: int) -> None:
    known = api(1)
    assert known is not None
    records = bytes(range(256)) * 64
    partitions = tuple(fetch.PartitionData(partition_index=n, records=records) for n in range(2))
    response = fetch.FetchResponse(responses=(fetch.FetchableTopicResponse(topic="t", partitions=partitions),))
    buffers = known.encode_response(version, response)
    assert sum(buffer is records for buffer in buffers) == 2
    frame = b"".join(buffers)
    decoded = known.decode_response(version, memoryview(frame))
    for partition in decoded.responses[0].partitions:
        assert isinstance(partition.records, memoryview)
        assert partition.records.obj is frame
        assert partition.records == records


def test_a_request_never_loses_a_field_without_a_word() -> None:
    known = api(3)
    assert known is not None
    by_id = metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(topic_id=uuid.uuid4()),))
    no_creation = metadata.MetadataRequest(allow_auto_topic_creation=False)
    known.encode_request(12, by_id._replace(topics=(by_id.topics or ())[:1]))
    with pytest.raises(EncodeError, match="allow_auto_topic_creation=False"):
        known.encode_request(3, no_creation)
    with pytest.raises(EncodeError, match="cannot carry topics=None"):
        known.encode_request(0, metadata.MetadataRequest(topics=None))


def test_a_value_that_does_not_fit_is_an_encode_error() -> None:
    known = api(0)
    assert known is not None
    for request in (
        produce.ProduceRequest(acks=70_000),
        produce.ProduceRequest(transactional_id="x" * 40_000),
        produce.ProduceRequest(transactional_id="\ud800"),
        produce.ProduceRequest(topic_data=(produce.TopicProduceData(name=None),)),  # type: ignore[arg-type]  # on purpose
    ):
        with pytest.raises(EncodeError):
            known.encode_request(3, request)


def test_all_arrays_of_a_large_message_together_are_bounded() -> None:
    """Each array fits its bytes and its limit; together they are too many. Small messages are not counted."""
    fetch_api = api(1)
    assert fetch_api is not None

    def fetch_of(topics: int, partitions: int) -> bytes:
        one = fetch.FetchTopic(topic="t", partitions=(fetch.FetchPartition(),) * partitions)
        return b"".join(map(bytes, fetch_api.encode_request(4, fetch.FetchRequest(topics=(one,) * topics))))

    most = REQUEST_ELEMENTS_MAX // 2500
    assert len(fetch_api.decode_request(4, memoryview(fetch_of(most - 1, 2500))).topics) == most - 1
    with pytest.raises(DecodeError, match="its message may have only"):
        fetch_api.decode_request(4, memoryview(fetch_of(most, 2500)))
    assert len(fetch_api.decode_request(4, memoryview(fetch_of(most, 50))).topics) == most
    small = b"".join(map(bytes, fetch_api.encode_request(4, fetch.FetchRequest())))
    assert len(small) < UNCOUNTED_MESSAGE_BYTES_MAX < REQUEST_ELEMENTS_MAX, "those that are not counted have fewer"


@pytest.mark.parametrize("size", [32_767, 32_768])
def test_a_string_is_no_longer_than_one_with_a_length_of_two_bytes(size: int) -> None:
    """Also where its length is a varint, as in Kafka, and in an array."""
    for key, version, request in (
        (3, 9, metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(name="x" * size),))),
        (15, 5, describe_groups.DescribeGroupsRequest(groups=("x" * size,))),
    ):
        known = api(key)
        assert known is not None
        raw = memoryview(b"".join(map(bytes, known.encode_request(version, request))))
        if size <= 32_767:
            assert known.decode_request(version, raw) == request
        else:
            with pytest.raises(DecodeError, match="a string claims 32768 bytes"):
                known.decode_request(version, raw)


def test_numbers_count_like_any_other_elements() -> None:
    fetch_api = api(9)
    assert fetch_api is not None
    one = offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=tuple(range(REQUEST_ELEMENTS_MAX // 4)))
    raw = b"".join(map(bytes, fetch_api.encode_request(1, offset_fetch.OffsetFetchRequest(topics=(one,) * 4))))
    with pytest.raises(DecodeError, match="its message may have only"):
        fetch_api.decode_request(1, memoryview(raw))


def test_an_array_is_held_against_the_bytes_that_are_left_before_any_of_it_is_made() -> None:
    data = memoryview(bytes(ARRAY_ELEMENTS_MAX + 100))
    check_count(data, 100, ARRAY_ELEMENTS_MAX, 1)
    for at, count, element_bytes_min in (
        (100, ARRAY_ELEMENTS_MAX + 1, 1),
        (101, ARRAY_ELEMENTS_MAX, 1),
        (100, 2**31, 0),
    ):
        with pytest.raises(DecodeError, match="claims"):
            check_count(data, at, count, element_bytes_min)
    with pytest.raises(DecodeError, match="claims 3 elements"):
        read_uuids(memoryview(bytes(47)), 0, 3)


def test_there_are_only_so_many_tagged_fields() -> None:
    def tags(count: int) -> memoryview:
        return memoryview(b"".join(encode_unsigned_varint(at) + b"\0" for at in range(count)))

    most = encode_unsigned_varint(TAGGED_FIELDS_MAX)
    assert len(split_tags(memoryview(most[1:] + bytes(tags(TAGGED_FIELDS_MAX))), 0, most[0])) == TAGGED_FIELDS_MAX
    more = encode_unsigned_varint(TAGGED_FIELDS_MAX + 1)
    with pytest.raises(DecodeError, match="tagged fields"):
        split_tags(memoryview(more[1:] + bytes(tags(TAGGED_FIELDS_MAX + 1))), 0, more[0])
