"""The native road: what its functions take is what their twins in Python take, and gives the same.

They may leave bytes to the twin, which takes more time. So they have to take all usual ones.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.limits import RECORD_HEADERS_MAX
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.batches import CRC_START, HEADER, HEADER_BYTES, check_in_python, encode_batch, parse_header
from headrace.wire.compression import Compression
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.plain_fetch import read_in_python as fetch_in_python
from headrace.wire.plain_fetch import write_in_python
from headrace.wire.plain_produce import VERSIONS, read_in_python
from headrace.wire.records import Record, pack_records
from headrace.wire.walking import UNLIMITED, walk_in_python
from tests.wire.test_batches import codecs, record_lists
from tests.wire.test_plain_fetch import clients, found_ones, frame_of
from tests.wire.test_plain_fetch import requests as fetches
from tests.wire.test_plain_fetch import versions as fetch_versions
from tests.wire.test_walking import BASE, batches

native = pytest.importorskip("headrace_native", reason="`make native` has not compiled it")


def walked_alike(data: bytes, count: int, base: int = BASE, headers_max: int = UNLIMITED) -> bool:
    """Whether it was taken, and the twin has said the same."""
    found = native.walk_records(data, count, base, headers_max, RECORD_HEADERS_MAX)
    if found is None:
        return False
    twin = walk_in_python(data, count, base, headers_max)
    assert found[1:] == twin[1:]
    assert found[0] >= twin.oldest_timestamp, "the twin's may be too low"
    return True


@given(batches())
def test_sound_records_are_taken(batch: tuple[bytes, int]) -> None:
    assert walked_alike(*batch)


@given(batches(), st.data())
def test_what_the_twin_refuses_is_not_taken(batch: tuple[bytes, int], data: st.DataObject) -> None:
    raw, count = bytearray(batch[0]), batch[1]
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    taken = walked_alike(bytes(raw), count)
    try:
        walk_in_python(bytes(raw), count, BASE)
    except CorruptData:
        assert not taken
    else:
        assert taken


@given(batches(), st.integers(0, 5), st.sampled_from([-(2**63), -1, 0, 2**63 - 1]))
def test_bounds_are_the_same(batch: tuple[bytes, int], headers_max: int, base: int) -> None:
    try:
        walk_in_python(*batch, base, headers_max)
    except CorruptData:
        assert not walked_alike(*batch, base, headers_max)
    else:
        assert walked_alike(*batch, base, headers_max)


@given(batches(), st.data())
def test_cut_and_lengthened_records_are_left_to_the_twin(batch: tuple[bytes, int], data: st.DataObject) -> None:
    raw, count = batch
    assert not walked_alike(raw[: data.draw(st.integers(0, len(raw) - 1))], count)
    assert not walked_alike(raw + b"\0", count)
    assert not walked_alike(raw, count + 1)


def codec() -> Api:
    found = api(ApiKey.PRODUCE)
    assert found is not None
    return found


NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=140)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A frame without its length: plain in most cases, and in some not quite."""
    version = draw(st.sampled_from(VERSIONS))
    topics = tuple(
        TopicProduceData(
            name=draw(NAMES),
            topic_id=draw(st.uuids()),
            partition_data=tuple(
                PartitionProduceData(
                    index=draw(st.integers(0, 1 << 30)), records=memoryview(draw(st.binary(max_size=300)))
                )
                for _ in range(draw(st.integers(0, 3)))
            ),
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    request = ProduceRequest(
        transactional_id=draw(st.sampled_from([None, None, None, "t"])),
        acks=draw(st.sampled_from([-1, 0, 1])),
        timeout_ms=draw(st.integers(0, 1 << 30)),
        topic_data=topics,
    )
    client = draw(st.sampled_from([None, "", "c", "client-1", "ü"]))
    parts = encode_request_frame(codec(), version, draw(st.integers(0, 1 << 30)), client, request)
    return b"".join(bytes(part) for part in parts)[4:]


def plain(found: Any) -> Any:
    """With bytes instead of views."""
    if found is None:
        return None
    *front, topics = found
    return *front, [(topic, [(index, bytes(batch)) for index, batch in parts]) for topic, parts in topics]


def read_alike(frame: bytes) -> None:
    view = memoryview(frame)
    assert plain(native.read_plain_produce(view)) == plain(read_in_python(view))


@given(requests())
def test_requests_are_read_alike(frame: bytes) -> None:
    read_alike(frame)


@given(requests(), st.data())
def test_so_are_changed_and_cut_ones(frame: bytes, data: st.DataObject) -> None:
    raw = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(2, len(raw) - 1))] = data.draw(st.integers(0, 255))
    read_alike(bytes(raw))
    read_alike(bytes(raw[: data.draw(st.integers(2, len(raw)))]))


def checked_alike(buffer: bytes, at: int = 0, end: int | None = None, *, compacted: bool = False) -> None:
    found = native.check_batch(buffer, at, len(buffer) if end is None else end, compacted)
    try:
        twin = check_in_python(buffer, at, end, compacted=compacted)
    except CorruptData:
        assert found is None
    else:
        assert found == twin


@given(record_lists(), codecs, st.booleans(), st.data())
def test_batches_are_checked_alike(
    records: list[Record], codec: Compression, compacted: bool, data: st.DataObject
) -> None:
    sound = encode_batch(records, compression=codec)
    before, behind = data.draw(st.binary(max_size=20)), data.draw(st.binary(max_size=20))
    checked_alike(before + sound + behind, len(before), compacted=compacted)
    assert native.check_batch(sound, 0, len(sound), compacted) is not None
    checked_alike(sound, 0, data.draw(st.integers(0, len(sound))), compacted=compacted)
    raw = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    checked_alike(bytes(raw), compacted=compacted)


@given(record_lists(), st.integers(-2, 4), st.integers(-2, 4), st.integers(0, 7), st.booleans(), st.integers(0, 3))
def test_headers_with_a_right_crc_are_checked_alike(
    records: list[Record], count: int, delta: int, attributes: int, compacted: bool, magic: int
) -> None:
    """A right CRC makes no header sound."""
    sound = encode_batch(records)
    header = parse_header(sound)._replace(
        count=count, last_offset_delta=delta, attributes=attributes, magic=magic, crc=0
    )
    raw = bytearray(HEADER.pack(*header) + sound[HEADER_BYTES:])
    raw[CRC_START - 4 : CRC_START] = crc32c(raw[CRC_START:]).to_bytes(4, "big")
    checked_alike(bytes(raw), compacted=compacted)


def fetch_alike(frame: bytes) -> None:
    view = memoryview(frame)
    assert native.read_plain_fetch(view) == fetch_in_python(view)


@given(fetch_versions, clients, fetches, st.data())
def test_fetches_are_read_alike(version: int, client: str | None, request: FetchRequest, data: st.DataObject) -> None:
    request = request._replace(
        replica_id=-1 if version >= 15 else request.replica_id, rack_id=request.rack_id if version >= 11 else ""
    )
    frame = frame_of(version, client, request)
    fetch_alike(frame)
    raw = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(2, len(raw) - 1))] = data.draw(st.integers(0, 255))
    fetch_alike(bytes(raw))
    fetch_alike(frame[: data.draw(st.integers(2, len(frame)))])


@given(fetch_versions, st.lists(st.tuples(st.binary(max_size=20), found_ones), max_size=3), st.booleans())
def test_answers_are_written_alike(version: int, topics: list[Any], committed_only: bool) -> None:
    """Where all is one buffer, and nothing was aborted."""
    written = native.write_plain_found(version, 8, topics, committed_only, 64 * 1024)
    twin = write_in_python(version, 8, topics, committed_only=committed_only)
    if any(aborted for _, found in topics for *_, aborted in found):
        assert written is None
    else:
        assert written == (bytes(twin[0]) if len(twin) == 1 else None)


def test_any_bytes_are_read_alike() -> None:
    chance = random.Random(35)
    for size in range(2, 400):
        read_alike(chance.randbytes(size))
        fetch_alike(chance.randbytes(size))
        checked_alike(chance.randbytes(size))
        walked_alike(chance.randbytes(size), chance.randrange(3))


def test_bytes_that_lie_apart_are_refused() -> None:
    records = memoryview(pack_records([], 0, 0) + bytes(8))[::2]
    with pytest.raises(BufferError):
        native.walk_records(records, 1, 0, 0, 0)
