"""Plain offset commits, read and answered without the general codec. Nearly all commits are plain.

A plain request has no tags, and no lengths of more than a byte. The slow twin is the generated
`headrace.wire.messages.offset_commit`; tests/wire/test_plain_commit.py compares the two. Every other request, above all
a malformed one, is left to the twin. Flexible versions only (8 to 10). Up to 9 a topic goes by its name, from 10 on by
its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from headrace.base.ports import Buffer
from headrace.wire.codec import new

VERSIONS: Final = range(8, 11)
TOPIC_ID_VERSION: Final = 10

_HEADER: Final = Struct(">2xhih").unpack_from
"""Version, correlation id, length of the client id."""
_HEADER_BYTES: Final = 10
_EPOCH: Final = Struct(">iB").unpack_from
"""Generation or member epoch, length of the member's id plus one."""
_EPOCH_BYTES: Final = 5
_PARTITION: Final = Struct(">iqiB").unpack_from
"""Index, offset, leader epoch, length of the metadata plus one, or 0 for none."""
_PARTITION_BYTES: Final = 17
_UUID_BYTES: Final = 16
_LONG: Final = 128
"""The first length whose compact form takes more than one byte."""

_ANSWER_FRONT: Final = Struct(">iiBiB").pack
"""Length, correlation id, header's tags, throttle time, count of topics plus one."""
_ANSWER_FRONT_BYTES: Final = 10
"""Bytes of `_ANSWER_FRONT` after the length."""
_ANSWER_PARTITION: Final = Struct(">ihB").pack
"""Index, error, tags."""
_SINGLE_ANSWER: Final = Struct(">BihBBB").pack
"""Count of partitions plus one, the partition, the topic's tags, the answer's."""
_SINGLE_ANSWER_BYTES: Final = _ANSWER_FRONT_BYTES + Struct(">BihBBB").size
_ONE: Final = 2
"""The compact count of one element."""
_NO_TAGS: Final = b"\0"

Positions: TypeAlias = list[tuple[int, int, int, str]]
"""Partition, offset, leader epoch and metadata, of one topic."""


class PlainCommit(NamedTuple):
    """The request. Topics are bytes as in the frame, which is their form in the answer, too."""

    correlation_id: int
    group_id: str
    epoch: int
    """Generation, or member epoch."""
    member_id: str
    instance_id: str | None
    topics: list[tuple[bytes, Positions]]


def read_plain_commit(frame: memoryview) -> PlainCommit | None:
    """The OffsetCommit request in a frame without its length; None where the twin must read it."""
    data = bytes(frame)
    try:
        version, correlation_id, client_id_bytes = _HEADER(data)
        at = _HEADER_BYTES
        if client_id_bytes > 0:
            at += client_id_bytes
            if not data[_HEADER_BYTES:at].isascii():
                return None
        elif client_id_bytes < -1:
            return None
        size = data[at + 1]
        if data[at] or not 0 < size < _LONG:
            return None
        end = at + 1 + size
        group_id = data[at + 2 : end].decode()
        epoch, size = _EPOCH(data, end)
        at = end + _EPOCH_BYTES
        end = at + size - 1
        instance_bytes, count = data[end], data[end + 1]
        if not 0 < size < _LONG:
            return None
        member_id, instance_id = data[at:end].decode(), None
        at = end + 2
        if instance_bytes:
            at = end + instance_bytes
            count = data[at]
            instance_id, at = data[end + 1 : at].decode(), at + 1
        if instance_bytes >= _LONG or not 1 < count < _LONG:
            return None
        topics = []
        for _ in range(count - 1):
            topic_bytes = _UUID_BYTES if version >= TOPIC_ID_VERSION else data[at]
            end = at + topic_bytes
            partitions = data[end]
            if not 0 < topic_bytes < _LONG or not 1 < partitions < _LONG:
                return None
            topic, at, positions = data[at:end], end + 1, []
            for _ in range(partitions - 1):
                index, offset, leader_epoch, size = _PARTITION(data, at)
                at += _PARTITION_BYTES
                metadata = ""
                if size > 1:
                    end = at + size - 1
                    metadata, at = data[at:end].decode(), end
                if size >= _LONG or data[at]:
                    return None
                at += 1
                positions.append((index, offset, leader_epoch, metadata))
            if data[at]:
                return None
            at += 1
            topics.append((topic, positions))
        if data[at] or at + 1 != len(data):
            return None
    except (error, IndexError, UnicodeDecodeError):
        return None
    return new(PlainCommit, (correlation_id, group_id, epoch, member_id, instance_id, topics))


def topic_of(topic: bytes, *, by_id: bool) -> bytes:
    """The topic's id (from version 10 on), or its name as UTF-8."""
    return topic if by_id else topic[1:]


def write_plain_answer(correlation_id: int, topics: Sequence[tuple[bytes, Positions]], errors: Sequence[int]) -> Buffer:
    """The whole frame of the answer with its length: one error for each partition, in their order."""
    if len(errors) == 1:
        ((topic, ((index, *_),)),) = topics
        front = _ANSWER_FRONT(_SINGLE_ANSWER_BYTES + len(topic), correlation_id, 0, 0, _ONE)
        return b"".join((front, topic, _SINGLE_ANSWER(_ONE, index, errors[0], 0, 0, 0)))
    left = iter(errors)
    parts = [b""]
    for topic, positions in topics:
        parts += (topic, bytes((len(positions) + 1,)), *_partitions(positions, left), _NO_TAGS)
    parts.append(_NO_TAGS)
    parts[0] = _ANSWER_FRONT(_ANSWER_FRONT_BYTES + sum(map(len, parts)), correlation_id, 0, 0, len(topics) + 1)
    return b"".join(parts)


def _partitions(positions: Positions, errors: Iterator[int]) -> Iterator[bytes]:
    for index, *_ in positions:
        yield _ANSWER_PARTITION(index, next(errors), 0)
