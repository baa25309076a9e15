"""Plain fetch requests, read and answered without the general codec: those of consumers that keep no session.

They name all of their partitions each time, so that one request has many small parts. The slow twin is the generated
`headrace.wire.messages.fetch`; tests/wire/test_plain_fetch.py compares the two. Every other request (sessions,
replicas, tags, large requests), above all a malformed one, is left to the twin. Versions 9 to 17: flexible from 12 on,
without a replica id from 15 on. Up to 12 a topic goes by its name, from 13 on by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from headrace.base.limits import PLAIN_FETCH_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.native import ROAD
from headrace.wire.codec import DecodeError, long_varint, new, varint
from headrace.wire.transactions import AbortedTransaction

VERSIONS: Final = range(9, 18)
RACK_VERSION: Final = 11
FLEXIBLE_VERSION: Final = 12
TOPIC_ID_VERSION: Final = 13
NO_REPLICA_ID_VERSION: Final = 15

_HEADER: Final = Struct(">2xhih").unpack_from
"""Version, correlation id, length of the client id."""
_HEADER_BYTES: Final = 10
_FRONT: Final = Struct(">iiiibiii").unpack_from
"""Replica id, longest wait, minimum and maximum bytes, isolation level, session id and epoch, count of topics."""
_FRONT_BYTES: Final = 29
_FLEXIBLE_FRONT: Final = Struct(">Biiiibii").unpack_from
"""`_FRONT` with the header's tags before it and without the count."""
_FLEXIBLE_FRONT_BYTES: Final = 26
_LATE_FRONT: Final = Struct(">Biiibii").unpack_from
"""`_FLEXIBLE_FRONT` without the replica id."""
_LATE_FRONT_BYTES: Final = 22
_LENGTH: Final = Struct(">h").unpack_from
_COUNT: Final = Struct(">i").unpack_from
_PARTITION: Final = Struct(">iiq8xi")
"""Index, leader epoch, offset, maximum bytes."""
_FLEXIBLE_PARTITION: Final = Struct(">iiq12xiB")
"""`_PARTITION` and its tags."""
_UUID_BYTES: Final = 16
_LONG: Final = 128
"""The first length whose compact form takes more than one byte."""
_CONSUMER: Final = -1
_NO_SESSION: Final = (0, -1)

_ANSWER_FRONT: Final = Struct(">iiihii").pack
"""Length, correlation id, throttle time, error, session, count of topics."""
_ANSWER_FRONT_BYTES: Final = 18
"""Bytes of `_ANSWER_FRONT` after the length."""
_FLEXIBLE_ANSWER_FRONT: Final = Struct(">iiBihi").pack
"""Length, correlation id, header's tags, throttle time, error, session."""
_FLEXIBLE_ANSWER_FRONT_BYTES: Final = 15
_ANSWER_COUNT: Final = Struct(">i").pack
_ANSWER_PARTITION: Final = Struct(">ihqqqii").pack
"""Index, error, high watermark, last stable offset, log start, number of aborted transactions, bytes of records."""
_RACK_ANSWER_PARTITION: Final = Struct(">ihqqqiii").pack
"""`_ANSWER_PARTITION` with no preferred replica before the bytes."""
_FLEXIBLE_ANSWER_PARTITION: Final = Struct(">ihqqqBi").pack
"""`_RACK_ANSWER_PARTITION` without the bytes."""
_ANSWER_MARKS: Final = Struct(">ihqqq").pack
"""`_ANSWER_PARTITION` up to the aborted transactions."""
_ABORTED: Final = Struct(">qq").pack
"""Producer id and first offset."""
_NO_REPLICA: Final = b"\xff\xff\xff\xff"
_NO_TAGS: Final = b"\0"
_JOINED_BYTES_MAX: Final = 64 * 1024
"""Answers up to this size are joined into one buffer: a copy costs less than many pieces."""


Asked: TypeAlias = tuple[int, int, int, int]
"""The part of a fetch request for one partition: its index, leader epoch, offset and maximum of bytes."""


class PlainFetch(NamedTuple):
    """The request. Topics are bytes as in the frame, which is their form in the answer, too."""

    version: int
    correlation_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    rack: bytes
    """In ASCII; empty: the request names none."""
    topics: list[tuple[bytes, list[Asked]]]


PlainFound: TypeAlias = tuple[int, int, int, int, Buffer, Sequence[AbortedTransaction]]
"""Partition, high watermark, last stable offset, log start, records, aborted transactions."""


def read_in_python(frame: memoryview) -> PlainFetch | None:
    """The fetch request in a frame without its length; None where the twin must read it."""
    if len(frame) > PLAIN_FETCH_BYTES_MAX:
        return None
    try:
        version, correlation_id, client_id_bytes = _HEADER(frame)
        at = _HEADER_BYTES
        if client_id_bytes > 0:
            at += client_id_bytes
            if not bytes(frame[_HEADER_BYTES:at]).isascii():
                return None
        if version < FLEXIBLE_VERSION:
            return _read_rest(frame, at, version, correlation_id)
        return _read_flexible_rest(frame, at, version, correlation_id)
    except (error, IndexError, DecodeError):
        return None


def _read_rest(frame: memoryview, at: int, version: int, correlation_id: int) -> PlainFetch | None:
    replica, wait_ms_max, bytes_min, bytes_max, isolation_level, session, epoch, count = _FRONT(frame, at)
    if replica != _CONSUMER or (session, epoch) != _NO_SESSION:
        return None
    at += _FRONT_BYTES
    topics = []
    for _ in range(count):
        (name_bytes,) = _LENGTH(frame, at)
        names_end = at + 2 + name_bytes
        (partitions,) = _COUNT(frame, names_end)
        end = names_end + 4 + partitions * _PARTITION.size
        if name_bytes <= 0 or partitions <= 0 or end > len(frame):
            return None
        entries = _PARTITION.iter_unpack(frame[names_end + 4 : end])
        topics.append((bytes(frame[at:names_end]), list(entries)))
        at = end
    if _COUNT(frame, at) != (0,):  # forgotten topics
        return None
    at += 4
    rack = b""
    if version >= RACK_VERSION:
        (rack_bytes,) = _LENGTH(frame, at)
        rack = bytes(frame[at + 2 : at + 2 + rack_bytes])
        if rack_bytes < 0 or not rack.isascii():
            return None
        at += 2 + rack_bytes
    if at != len(frame) or not topics:
        return None
    about = (version, correlation_id, wait_ms_max, bytes_min, bytes_max, isolation_level, rack, topics)
    return new(PlainFetch, about)


def _read_flexible_rest(frame: memoryview, at: int, version: int, correlation_id: int) -> PlainFetch | None:
    if version >= NO_REPLICA_ID_VERSION:
        tags, wait_ms_max, bytes_min, bytes_max, isolation_level, session, epoch = _LATE_FRONT(frame, at)
        replica = _CONSUMER
        at += _LATE_FRONT_BYTES
    else:
        tags, replica, wait_ms_max, bytes_min, bytes_max, isolation_level, session, epoch = _FLEXIBLE_FRONT(frame, at)
        at += _FLEXIBLE_FRONT_BYTES
    count = frame[at]
    if tags or replica != _CONSUMER or (session, epoch) != _NO_SESSION or not 1 < count < _LONG:
        return None
    at += 1
    topics = []
    for _ in range(count - 1):
        topic_bytes = _UUID_BYTES if version >= TOPIC_ID_VERSION else frame[at]
        if not 0 < topic_bytes < _LONG:
            return None
        topic = bytes(frame[at : at + topic_bytes])
        at += topic_bytes + 1
        partitions = frame[at - 1]
        if partitions >= _LONG:
            partitions, at = long_varint(frame, at, partitions)
        end = at + (partitions - 1) * _FLEXIBLE_PARTITION.size
        if partitions < 2 or end >= len(frame) or frame[end]:  # the topic's tags
            return None
        entries = list(_FLEXIBLE_PARTITION.iter_unpack(frame[at:end]))
        if any(entry[4] for entry in entries):  # tags
            return None
        topics.append((topic, [entry[:4] for entry in entries]))
        at = end + 1
    rack_at = at + 1
    rack_end = rack_at + frame[rack_at]
    if frame[at] != 1 or not 0 < frame[rack_at] < _LONG or rack_end + 1 != len(frame) or frame[rack_end]:
        return None  # there are forgotten topics, or more
    rack = bytes(frame[rack_at + 1 : rack_end])
    if not rack.isascii():
        return None
    about = (version, correlation_id, wait_ms_max, bytes_min, bytes_max, isolation_level, rack, topics)
    return new(PlainFetch, about)


def _read_natively(frame: memoryview) -> PlainFetch | None:
    found = _native_read(frame) if len(frame) <= PLAIN_FETCH_BYTES_MAX else None
    return None if found is None else new(PlainFetch, found)


def topic_of(topic: bytes, version: int) -> bytes:
    """The topic's id (from version 13 on), or its name as UTF-8."""
    if version >= TOPIC_ID_VERSION:
        return topic
    return topic[1 if version >= FLEXIBLE_VERSION else 2 :]


def write_in_python(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PlainFound]]],
    *,
    committed_only: bool = False,
) -> list[Buffer]:
    """The whole frame of an answer without errors, with its length. Aborted transactions are an empty array, or null
    under read_uncommitted (not `committed_only`)."""
    parts: list[Buffer] = [b""]
    flexible = version >= FLEXIBLE_VERSION
    aborted = (1 if committed_only else 0) if flexible else (0 if committed_only else -1)
    if flexible:
        parts.append(varint(len(topics) + 1))
    for topic, found in topics:
        parts += (topic, varint(len(found) + 1) if flexible else _ANSWER_COUNT(len(found)))
        for index, high_watermark, stable, start, records, aborted_ones in found:
            if aborted_ones:
                front = _ANSWER_MARKS(index, 0, high_watermark, stable, start)
                parts += (front, *_written_aborted(version, aborted_ones, len(records)), records)
                if flexible:
                    parts.append(_NO_TAGS)
            elif flexible:
                parts.append(_FLEXIBLE_ANSWER_PARTITION(index, 0, high_watermark, stable, start, aborted, -1))
                parts += (varint(len(records) + 1), records, _NO_TAGS)
            else:
                if version >= RACK_VERSION:
                    front = _RACK_ANSWER_PARTITION(index, 0, high_watermark, stable, start, aborted, -1, len(records))
                else:
                    front = _ANSWER_PARTITION(index, 0, high_watermark, stable, start, aborted, len(records))
                parts.append(front)
                if records:
                    parts.append(records)
        if flexible:
            parts.append(_NO_TAGS)
    if flexible:
        parts.append(_NO_TAGS)
    size = sum(map(len, parts))
    if flexible:
        parts[0] = _FLEXIBLE_ANSWER_FRONT(_FLEXIBLE_ANSWER_FRONT_BYTES + size, correlation_id, 0, 0, 0, 0)
    else:
        parts[0] = _ANSWER_FRONT(_ANSWER_FRONT_BYTES + size, correlation_id, 0, 0, 0, len(topics))
    return [b"".join(parts)] if size <= _JOINED_BYTES_MAX else parts


def _write_natively(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PlainFound]]],
    *,
    committed_only: bool = False,
) -> list[Buffer]:
    made = _native_write(version, correlation_id, topics, committed_only, _JOINED_BYTES_MAX)
    if made is None:
        return write_in_python(version, correlation_id, topics, committed_only=committed_only)
    return [made]


if ROAD.native is not None:
    _native_read, _native_write = ROAD.native.read_plain_fetch, ROAD.native.write_plain_found
read_plain_fetch: Final = read_in_python if ROAD.native is None else _read_natively
"""`read_in_python`, by the road that is taken."""
write_plain_found: Final = write_in_python if ROAD.native is None else _write_natively
"""`write_in_python`, by the road that is taken."""


def _written_aborted(
    version: int, aborted: Sequence[AbortedTransaction], records_bytes: int
) -> tuple[bytes, bytes, bytes, bytes]:
    """The part of a partition's answer from its aborted transactions to the length of its records."""
    flexible = version >= FLEXIBLE_VERSION
    end = _NO_TAGS if flexible else b""
    return (
        varint(len(aborted) + 1) if flexible else _ANSWER_COUNT(len(aborted)),
        b"".join(_ABORTED(each.producer_id, each.first_offset) + end for each in aborted),
        _NO_REPLICA if version >= RACK_VERSION else b"",
        varint(records_bytes + 1) if flexible else _ANSWER_COUNT(records_bytes),
    )
