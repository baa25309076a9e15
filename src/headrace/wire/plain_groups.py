"""Plain JoinGroup, SyncGroup and Heartbeat, read and answered without the general codec. Nearly all of them are plain.

A plain request has no tags, a group with a name, and no name of 127 bytes or more. Readers return the generated
message, and writers make the frame that its codec makes. The slow twin is `headrace.wire.messages`;
tests/wire/test_plain_groups.py compares the two. Every other request, above all a malformed one, is left to the twin.
Flexible versions only. Any answer can be written here.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.limits import GROUP_SUBSCRIPTION_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.wire.codec import DecodeError, long_varint, new, varint
from headrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

JOIN_VERSIONS: Final = range(7, 10)
SYNC_VERSIONS: Final = range(5, 6)
HEARTBEAT_VERSIONS: Final = range(4, 5)
PLAIN_NAME_BYTES_MAX: Final = 126
"""The longest name whose compact length is one byte."""

_REASON_VERSION: Final = 8
_SKIP_ASSIGNMENT_VERSION: Final = 9
_HEADER: Final = Struct(">2xhih").unpack_from
"""Version, correlation id, length of the client id."""
_HEADER_BYTES: Final = 10
_INT: Final = Struct(">i").unpack_from
_INT_BYTES: Final = 4
_TWO: Final = Struct(">ii").unpack_from
_TWO_BYTES: Final = 8
_LONG: Final = 128
"""The first length whose compact form takes more than one byte."""

_FRONT: Final = Struct(">iiBih").pack
"""Length, correlation id, header's tags, throttle time, error."""
_FRONT_BYTES: Final = 11
"""Bytes of `_FRONT` after the length."""
_HEARTBEAT_ANSWER: Final = Struct(">iiBihB").pack
"""`_FRONT`, and tags."""
_GENERATION: Final = Struct(">i").pack
_NO_TAGS: Final = b"\0"
_NULL: Final = b"\0"
_FLAGS: Final = (b"\0", b"\1")
"""False and true."""


class _NotPlainError(Exception):
    """The twin must read this request."""


_LEFT: Final = (_NotPlainError, error, IndexError, UnicodeDecodeError, DecodeError)
"""Errors that mean that a frame is not plain, or ends too early."""


class PlainHeader(NamedTuple):
    """Version, correlation and client of a request."""

    version: int
    correlation_id: int
    client_id: str
    """Empty where the request has none."""


PlainRequest: TypeAlias = tuple[PlainHeader, Any]
"""A header and its generated request."""
_Read: TypeAlias = Callable[[bytes], PlainRequest]


def read_plain_heartbeat(frame: memoryview) -> PlainRequest | None:
    """The Heartbeat request in a frame (without its length) of HEARTBEAT_VERSIONS; None where the twin must read it."""
    return _read(_heartbeat, frame)


def read_plain_join(frame: memoryview) -> PlainRequest | None:
    """Like `read_plain_heartbeat`, for JoinGroup in JOIN_VERSIONS. None also where a subscription might be too
    large."""
    return _read(_join, frame) if len(frame) <= GROUP_SUBSCRIPTION_BYTES_MAX else None


def read_plain_sync(frame: memoryview) -> PlainRequest | None:
    """Like `read_plain_heartbeat`, for SyncGroup in SYNC_VERSIONS."""
    return _read(_sync, frame)


def _read(read: _Read, frame: memoryview) -> PlainRequest | None:
    try:
        return read(bytes(frame))
    except _LEFT:
        return None


def _heartbeat(data: bytes) -> PlainRequest:
    header, group_id, at = _opened(data)
    (generation,) = _INT(data, at)
    member_id, at = _name(data, at + _INT_BYTES)
    instance_id, at = _nullable(data, at)
    _end(data, at)
    return header, new(HeartbeatRequest, (group_id, generation, member_id, instance_id))


def _join(data: bytes) -> PlainRequest:
    header, group_id, at = _opened(data)
    session_ms, rebalance_ms = _TWO(data, at)
    member_id, at = _name(data, at + _TWO_BYTES)
    instance_id, at = _nullable(data, at)
    protocol_type, at = _name(data, at)
    protocols, at = _pairs(data, at, JoinGroupRequestProtocol)
    reason = None
    if header.version >= _REASON_VERSION:
        reason, at = _nullable(data, at)
    _end(data, at)
    asked = (group_id, session_ms, rebalance_ms, member_id, instance_id, protocol_type, protocols, reason)
    return header, new(JoinGroupRequest, asked)


def _sync(data: bytes) -> PlainRequest:
    header, group_id, at = _opened(data)
    (generation,) = _INT(data, at)
    member_id, at = _name(data, at + _INT_BYTES)
    instance_id, at = _nullable(data, at)
    protocol_type, at = _nullable(data, at)
    protocol, at = _nullable(data, at)
    if protocol_type is None or protocol is None:
        raise _NotPlainError
    shares, at = _pairs(data, at, SyncGroupRequestAssignment)
    _end(data, at)
    asked = (group_id, generation, member_id, instance_id, protocol_type, protocol, shares)
    return header, new(SyncGroupRequest, asked)


def _opened(data: bytes) -> tuple[PlainHeader, str, int]:
    """The header, the group's name, and where the rest begins."""
    version, correlation_id, size = _HEADER(data)
    at, client_id = _HEADER_BYTES, ""
    if size > 0:
        at += size
        raw = data[_HEADER_BYTES:at]
        if not raw.isascii():
            raise _NotPlainError
        client_id = raw.decode()
    elif size < -1:
        raise _NotPlainError
    size = data[at + 1]
    if data[at] or not 1 < size < _LONG:
        raise _NotPlainError
    end = at + 1 + size
    return new(PlainHeader, (version, correlation_id, client_id)), data[at + 2 : end].decode(), end


def _end(data: bytes, at: int) -> None:
    """Check that the frame ends here, after an empty tag section."""
    if data[at] or at + 1 != len(data):
        raise _NotPlainError


def _name(data: bytes, at: int) -> tuple[str, int]:
    """A name, and where it ends."""
    size = data[at]
    if not 0 < size < _LONG:
        raise _NotPlainError
    end = at + size
    return data[at + 1 : end].decode(), end


def _nullable(data: bytes, at: int) -> tuple[str | None, int]:
    """A name or None, and where it ends."""
    return _name(data, at) if data[at] else (None, at + 1)


def _pairs(data: bytes, at: int, kind: type[Any]) -> tuple[tuple[Any, ...], int]:
    """An array of `kind`, each a name and bytes, and where it ends."""
    count, pairs = data[at], []
    if not 0 < count < _LONG:
        raise _NotPlainError
    at += 1
    for _ in range(count - 1):
        name, at = _name(data, at)
        size, at = data[at], at + 1
        if size >= _LONG:
            size, at = long_varint(memoryview(data), at, size)
        end = at + size - 1
        if not size or data[end]:
            raise _NotPlainError
        pairs.append(new(kind, (name, data[at:end])))
        at = end + 1
    return tuple(pairs), at


def write_plain_heartbeat(header: PlainHeader, response: HeartbeatResponse) -> Buffer:
    """The whole frame of the answer, its length first."""
    throttle_ms, error_code = response
    return _HEARTBEAT_ANSWER(_FRONT_BYTES + 1, header.correlation_id, 0, throttle_ms, error_code, 0)


def write_plain_join(header: PlainHeader, response: JoinGroupResponse) -> Buffer:
    """The whole frame of the answer, its length first."""
    throttle_ms, error_code, generation, protocol_type, protocol, leader, skips, member_id, members = response
    parts = [
        _GENERATION(generation),
        _text(protocol_type),
        _text(protocol),
        _text(leader),
        _FLAGS[skips] if header.version >= _SKIP_ASSIGNMENT_VERSION else b"",
        _text(member_id),
        _size(len(members)),
    ]
    for member_id, instance_id, metadata in members:
        parts += (_text(member_id), _text(instance_id), _size(len(metadata)), metadata, _NO_TAGS)
    return _framed(header, throttle_ms, error_code, parts)


def write_plain_sync(header: PlainHeader, response: SyncGroupResponse) -> Buffer:
    """The whole frame of the answer, its length first."""
    throttle_ms, error_code, protocol_type, protocol, assignment = response
    parts = [_text(protocol_type), _text(protocol), _size(len(assignment)), assignment]
    return _framed(header, throttle_ms, error_code, parts)


def _framed(header: PlainHeader, throttle_ms: int, error_code: int, parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    size = _FRONT_BYTES + len(body) + len(_NO_TAGS)
    return b"".join((_FRONT(size, header.correlation_id, 0, throttle_ms, error_code), body, _NO_TAGS))


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    raw = text.encode()
    return _size(len(raw)) + raw


def _size(count: int) -> bytes:
    """A compact length of `count` bytes or elements."""
    return bytes((count + 1,)) if count + 1 < _LONG else varint(count + 1)
