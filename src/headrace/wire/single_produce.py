"""A produce request of one batch for one partition, read and answered in one look each: nearly all of them are that.

The slow twin is `headrace.wire.messages.produce`, generated; tests/wire/test_single_produce.py holds this one to it.
What is not exactly of the common form is left to the twin, the malformed above all. Flexible versions only (9 to 13);
up to 12 a topic is named, from 13 on it goes by its id.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from headrace.base.ports import Buffer
from headrace.wire.codec import DecodeError, long_varint, new

VERSIONS: Final = range(9, 14)
TOPIC_ID_VERSION: Final = 13

_HEADER: Final = Struct(">2xhih").unpack_from
"""Version, correlation id, length of the client id."""
_HEADER_BYTES: Final = 10
_FRONT: Final = Struct(">BBhiBB").unpack_from
"""Header's tags, transactional id, acks, timeout, count of topics plus one, first byte of the topic."""
_TOPIC_AT: Final = 9
_ONE: Final = 2
"""The compact count of one element."""
_INDEX_BYTES: Final = 5
"""Count of partitions, index."""
_NO_TAGS: Final = b"\0\0\0"
"""Of the partition, the topic and the request."""
_UUID_BYTES: Final = 16

_ANSWER_FRONT: Final = Struct(">iiBB").pack
"""Length, correlation id, header's tags, count of topics plus one."""
_ANSWER_BACK: Final = Struct(">hqqqBBBBiB").pack
"""Error, offset, log append time, log start, no record errors, no message, tags twice, throttle time, tags."""
_ANSWER_BYTES: Final = 6 + Struct(">hqqqBBBBiB").size


class SingleProduce(NamedTuple):
    """The request. `place` is topic and partition as they stand in the frame, which is how they stand in the answer."""

    correlation_id: int
    acks: int
    timeout_ms: int
    place: bytes
    records: memoryview


def read_single_produce(frame: memoryview) -> SingleProduce | None:
    """What a frame (without its length) of a produce request asks for; None where it is to be read by the twin."""
    try:
        version, correlation_id, client_id_bytes = _HEADER(frame)
        at = _HEADER_BYTES
        if client_id_bytes > 0:
            at += client_id_bytes
            if not bytes(frame[_HEADER_BYTES:at]).isascii():
                return None
        tags, transactional, acks, timeout_ms, topics, topic_bytes = _FRONT(frame, at)
        at += _TOPIC_AT
        if version >= TOPIC_ID_VERSION:
            topic_bytes = _UUID_BYTES
        if tags or transactional or topics != _ONE or not 0 < topic_bytes < 128:
            return None
        end = at + topic_bytes
        if frame[end] != _ONE:
            return None
        end += _INDEX_BYTES
        place = bytes(frame[at:end])
        size = frame[end]
        at = end + 1
        if size > 127:
            size, at = long_varint(frame, at, size)
        end = at + size - 1
        if not size or bytes(frame[end:]) != _NO_TAGS:
            return None
    except (error, IndexError, DecodeError):
        return None
    return new(SingleProduce, (correlation_id, acks, timeout_ms, place, frame[at:end]))


def place_of(place: bytes, *, by_id: bool) -> tuple[bytes, int]:
    """Topic id (from version 13 on), or name as UTF-8, and index of the partition."""
    index = int.from_bytes(place[-4:], "big", signed=True)
    return (place[:_UUID_BYTES] if by_id else place[1:-_INDEX_BYTES]), index


def write_single_answer(
    correlation_id: int, place: bytes, error_code: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
) -> Buffer:
    """The whole frame of the answer, its length first."""
    return b"".join(
        (
            _ANSWER_FRONT(_ANSWER_BYTES + len(place), correlation_id, 0, _ONE),
            place,
            _ANSWER_BACK(error_code, base_offset, log_append_time_ms, log_start_offset, 1, 0, 0, 0, 0, 0),
        )
    )
