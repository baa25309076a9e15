"""Plain produce requests, read and answered without the general codec. Nearly all of them are plain.

A plain request has no transaction and no tags, and a batch for each of its partitions. The slow twin is the generated
`headrace.wire.messages.produce`; tests/wire/test_plain_produce.py compares the two. Every other request, above all a
malformed one, is left to the twin. Flexible versions only (9 to 13). Up to 12 a topic goes by its name, from 13 on by
its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from headrace.base.ports import Buffer
from headrace.native import ROAD
from headrace.wire.codec import DecodeError, long_varint, new, varint

VERSIONS: Final = range(9, 14)
TOPIC_ID_VERSION: Final = 13

_HEADER: Final = Struct(">2xhih").unpack_from
"""Version, correlation id, length of the client id."""
_HEADER_BYTES: Final = 10
_FRONT: Final = Struct(">BBhiB").unpack_from
"""Header's tags, transactional id, acks, timeout, count of topics plus one."""
_FRONT_BYTES: Final = 9
_PARTITION: Final = Struct(">iB").unpack_from
"""Index, first byte of the records' size plus one."""
_PARTITION_BYTES: Final = 5
_UUID_BYTES: Final = 16
_LONG: Final = 128
"""The first length whose compact form takes more than one byte."""
_NO_TAGS: Final = b"\0"

_ANSWER_FRONT: Final = Struct(">iiBB").pack
"""Length, correlation id, header's tags, count of topics plus one."""
_ANSWER_FRONT_BYTES: Final = 6
"""Bytes of `_ANSWER_FRONT` after the length."""
_ANSWER_PARTITION: Final = Struct(">ihqqqBBB").pack
"""Index, error, offset, log append time, log start, no record errors, no message, tags."""
_ANSWER_TOLD: Final = Struct(">ihqqqB").pack
"""`_ANSWER_PARTITION` up to the message."""
_SINGLE_ANSWER: Final = Struct(">BihqqqBBBBiB").pack
"""Count of partitions plus one, the partition, the topic's tags, throttle time, tags."""
_SINGLE_ANSWER_BYTES: Final = _ANSWER_FRONT_BYTES + Struct(">BihqqqBBBBiB").size
_ONE: Final = 2
"""The compact count of one element."""
_ANSWER_END: Final = b"\0" * 5
"""Throttle time, tags."""

Batches: TypeAlias = list[tuple[int, memoryview]]
"""Partition and batch, of one topic."""


class PlainProduce(NamedTuple):
    """The request. Topics are bytes as in the frame, which is their form in the answer, too."""

    correlation_id: int
    acks: int
    timeout_ms: int
    topics: list[tuple[bytes, Batches]]


class PlainAnswer(NamedTuple):
    """The result of one partition's batch."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    message: str | None = None


def read_in_python(frame: memoryview) -> PlainProduce | None:
    """The produce request in a frame without its length; None where the twin must read it."""
    try:
        version, correlation_id, client_id_bytes = _HEADER(frame)
        at = _HEADER_BYTES
        if client_id_bytes > 0:
            at += client_id_bytes
            if not bytes(frame[_HEADER_BYTES:at]).isascii():
                return None
        tags, transactional, acks, timeout_ms, topic_count = _FRONT(frame, at)
        if tags or transactional or not 1 < topic_count < _LONG:
            return None
        at += _FRONT_BYTES
        topics = []
        for _ in range(topic_count - 1):
            topic_bytes = _UUID_BYTES if version >= TOPIC_ID_VERSION else frame[at]
            end = at + topic_bytes
            count = frame[end]
            if not 0 < topic_bytes < _LONG or not 1 < count < _LONG:
                return None
            topic, at, batches = bytes(frame[at:end]), end + 1, []
            for _ in range(count - 1):
                index, size = _PARTITION(frame, at)
                at += _PARTITION_BYTES
                if size >= _LONG:
                    size, at = long_varint(frame, at, size)
                end = at + size - 1
                if not size or frame[end]:
                    return None
                batches.append((index, frame[at:end]))
                at = end + 1
            if frame[at]:
                return None
            topics.append((topic, batches))
            at += 1
        if frame[at] or at + 1 != len(frame):
            return None
    except (error, IndexError, DecodeError):
        return None
    return new(PlainProduce, (correlation_id, acks, timeout_ms, topics))


def _read_natively(frame: memoryview) -> PlainProduce | None:
    found = _native_read(frame)
    return None if found is None else new(PlainProduce, found)


if ROAD.native is not None:
    _native_read = ROAD.native.read_plain_produce
read_plain_produce: Final = read_in_python if ROAD.native is None else _read_natively
"""`read_in_python`, by the road that is taken."""


def topic_of(topic: bytes, *, by_id: bool) -> bytes:
    """The topic's id (from version 13 on), or its name as UTF-8."""
    return topic if by_id else topic[1:]


def write_single_answer(
    correlation_id: int, topic: bytes, index: int, error_code: int, offset: int, time_ms: int, start: int
) -> Buffer:
    """`write_plain_answer` for a single partition, with its error code and no message."""
    return b"".join(
        (
            _ANSWER_FRONT(_SINGLE_ANSWER_BYTES + len(topic), correlation_id, 0, _ONE),
            topic,
            _SINGLE_ANSWER(_ONE, index, error_code, offset, time_ms, start, 1, 0, 0, 0, 0, 0),
        )
    )


def write_plain_answer(correlation_id: int, topics: Sequence[tuple[bytes, Iterable[PlainAnswer]]]) -> Buffer:
    """The whole frame of the answer with its length: at most 126 topics, and as many partitions of each."""
    parts = [b""]
    for topic, answers in topics:
        parts += (topic, b"")
        counted_at, count = len(parts) - 1, 1
        for index, error_code, offset, time_ms, start, message in answers:
            count += 1
            if message is None:
                parts.append(_ANSWER_PARTITION(index, error_code, offset, time_ms, start, 1, 0, 0))
            else:
                text = message.encode()
                parts.append(_ANSWER_TOLD(index, error_code, offset, time_ms, start, 1))
                parts += (varint(len(text) + 1), text, _NO_TAGS)
        parts[counted_at] = bytes((count,))
        parts.append(_NO_TAGS)
    parts.append(_ANSWER_END)
    parts[0] = _ANSWER_FRONT(_ANSWER_FRONT_BYTES + sum(map(len, parts)), correlation_id, 0, len(topics) + 1)
    return b"".join(parts)
