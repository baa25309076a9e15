"""Frames between brokers that copy: what is written is read, and what is damaged is told as that, whatever it is."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.wire.apis import ApiKey
from headrace.wire.replica_fetch import (
    API_KEY,
    HEADER,
    Copied,
    Flushed,
    Placed,
    ReplicaFetch,
    Who,
    decode_answer,
    decode_request,
    decode_who,
    encode_answer,
    encode_request,
    encode_who,
)

NEVER = LeaderEpoch(-1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
offsets = st.integers(0, 2**63 - 1)
keys = st.builds(TopicPartition, st.uuids(), int32)
rows_placed = st.builds(
    lambda key, generation, epoch, ends, last: Placed(key, generation, epoch, max(ends), last, *sorted(ends)[:2]),
    keys,
    int32,
    st.integers(0, 2**31 - 1),
    st.tuples(offsets, offsets, offsets),
    int32,
)
rows_flushed = st.builds(Flushed, int32, int64, int64)
whos = st.builds(Who, st.text(st.characters(codec="utf-8"), max_size=30), int32, int64, int32)
requests = st.builds(
    lambda wants, bytes_max, *rows: ReplicaFetch(wants, bytes_max, *(each or () for each in rows)),
    st.booleans(),
    int32,
    st.lists(rows_placed, max_size=3),
    st.lists(rows_flushed, max_size=3),
    st.lists(int32, max_size=3),
)
damages = st.tuples(int64, int64)
copied = st.builds(
    lambda first, epoch, damaged, rest: Copied._make(
        (*first, NEVER if damaged else epoch, *rest[:-1], damaged, rest[-1])
    ),
    st.tuples(int32, st.integers(-(2**15), 2**15 - 1), int64, int64),
    st.integers(-2, 2**31 - 1),
    st.none() | damages,
    st.tuples(int64, int64, int64, st.binary(max_size=200)),
)


def framed(*buffers: Any) -> memoryview:
    """A frame without its length, which has to be right."""
    whole = b"".join(map(bytes, buffers))
    assert struct.unpack_from(">i", whole) == (len(whole) - 4,)
    return memoryview(whole)[4:]


def read_request(frame: memoryview) -> tuple[Who, ReplicaFetch]:
    who, begins = decode_who(frame)
    assert frame[: len(begins)] == begins == encode_who(who)
    return who, decode_request(frame, len(begins))


@given(whos, requests)
def test_what_a_follower_says_is_read_as_it_was_said(who: Who, request: ReplicaFetch) -> None:
    assert read_request(framed(encode_request(encode_who(who), request))) == (who, request)


@given(st.lists(copied, min_size=1, max_size=6))
def test_what_a_leader_answers_is_read_as_it_was_said(rows: list[Copied]) -> None:
    found = decode_answer(framed(*encode_answer(rows)))
    assert [row._replace(records=bytes(row.records)) for row in found] == rows


def test_records_are_not_copied_on_either_side() -> None:
    records = memoryview(bytes(100_000))
    row = answered(records)
    assert any(buffer is records for buffer in encode_answer([row]))
    frame = framed(*encode_answer([row]))
    (found,) = decode_answer(frame)
    assert isinstance(found.records, memoryview)
    assert found.records.obj is frame.obj


KEY = TopicPartition(TopicId(UUID(int=7)), PartitionIndex(3))


def answered(records: Any = b"records", damaged: tuple[Offset, Offset] | None = None) -> Copied:
    return Copied(5, 0, Offset(9), Offset(2), NEVER, Offset(-1), Offset(0), Offset(-1), damaged, records)


WHO = encode_who(Who(ClusterId("c" * 22), BrokerId(2), BrokerEpoch(17), BrokerId(1)))
SAID = ReplicaFetch(
    True,
    1 << 20,
    [Placed(KEY, 5, LeaderEpoch(2), Offset(9), LeaderEpoch(1), Offset(8), Offset(3))],
    [Flushed(5, Offset(9), Offset(3)), Flushed(6, Offset(9), Offset(3))],
    [4],
)
READERS: list[tuple[Callable[[memoryview], object], bytes]] = [
    (read_request, bytes(framed(encode_request(WHO, SAID)))),
    (decode_answer, bytes(framed(*encode_answer([answered(), answered(b"")])))),
]


@pytest.mark.parametrize(("read", "frame"), READERS)
def test_what_is_cut_or_goes_on_is_told_as_corrupt(read: Callable[[memoryview], object], frame: bytes) -> None:
    whole_rows = {0, len(frame) - struct.calcsize(">ihqqiqqqi")} if read is decode_answer else set()
    for size in range(len(frame)):
        if size not in whole_rows:
            with pytest.raises(CorruptData):
                read(memoryview(frame[:size]))
    with pytest.raises(CorruptData):
        read(memoryview(frame + b"\0"))


@given(st.sampled_from(READERS), st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), min_size=1, max_size=4))
def test_what_is_damaged_is_read_or_told_as_corrupt_and_nothing_else(
    what: tuple[Callable[[memoryview], object], bytes], damage: list[tuple[int, int]]
) -> None:
    read, frame = what
    damaged = bytearray(frame)
    for at, byte in damage:
        damaged[at % len(damaged)] = byte
    try:
        read(memoryview(damaged))
    except CorruptData:
        return


@given(st.binary(max_size=300), st.booleans())
def test_garbage_is_no_frame(garbage: bytes, headed: bool) -> None:
    frame = memoryview(HEADER + garbage if headed else garbage)
    for read in (read_request, decode_answer):
        try:
            read(frame)
        except CorruptData:
            continue


@pytest.mark.parametrize("counts", [(2**31 - 1, 0, 0), (0, 2**31 - 1, 0), (0, 0, 2**31 - 1), (-1, 0, 0), (1, -1, 0)])
def test_counts_are_believed_only_where_the_rows_are_there(counts: tuple[int, int, int]) -> None:
    frame = bytearray(framed(encode_request(WHO, SAID._replace(placed=(), flushed=(), forgotten=()))))
    struct.pack_into(">iii", frame, len(frame) - 12, *counts)
    with pytest.raises(CorruptData, match="do not agree"):
        read_request(memoryview(frame))


@pytest.mark.parametrize(("log_end", "flushed_end"), [(8, 9), (5, -1), (-1, -1), (-5, -9)])
def test_nobody_has_flushed_what_it_does_not_have(log_end: int, flushed_end: int) -> None:
    placed = Placed(KEY, 1, LeaderEpoch(1), Offset(log_end), LeaderEpoch(1), Offset(flushed_end), Offset(0))
    with pytest.raises(CorruptData, match="cannot be flushed"):
        read_request(framed(encode_request(WHO, SAID._replace(placed=[placed]))))


@pytest.mark.parametrize("readable_from", [-1, 9])
def test_nobody_can_be_read_beyond_its_end(readable_from: int) -> None:
    placed = Placed(KEY, 1, LeaderEpoch(1), Offset(8), LeaderEpoch(1), Offset(8), Offset(readable_from))
    with pytest.raises(CorruptData, match="cannot be read"):
        read_request(framed(encode_request(WHO, SAID._replace(placed=[placed]))))


def test_the_key_is_none_of_kafkas() -> None:
    assert API_KEY not in set(ApiKey)
    assert 2 * max(ApiKey) < API_KEY
    assert HEADER[:2] == API_KEY.to_bytes(2, "big")
