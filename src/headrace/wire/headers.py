"""Request and response headers, and whole frames (length, header, body) ready to be sent.

The header's form follows from key and version (KIP-482): flexible versions carry tagged fields, which are skipped. The
client id is a classic string in both. The response to ApiVersions never has a flexible header. So a client that asked
in a version unknown to the broker can read the answer (KIP-511).
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from headrace.base.ports import Buffer
from headrace.wire.apis import Api, ApiKey, flexible_since
from headrace.wire.codec import DecodeError, EncodeError, skip_tags

_FIXED: Final = struct.Struct(">hhih")
FIXED_BYTES: Final = _FIXED.size
"""The shortest header: key, version, correlation id, and no client id."""
_KEY: Final = struct.Struct(">hh")
_LENGTH: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
_FLEXIBLE_SINCE: Final[dict[int, int]] = {
    key.value: since for key in ApiKey if (since := flexible_since(key.value)) is not None
}
_NEVER: Final = 1 << 15
API_VERSIONS: Final = ApiKey.API_VERSIONS.value


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header of a frame (without its length), and where the body begins. Raises DecodeError.

    A version that is too new is treated as flexible where the API is, so that ApiVersions can always be answered.
    """
    try:
        key, version, correlation_id, length = _FIXED.unpack_from(frame)
        at = 10
        client_id = None
        if length >= 0:
            at += length
            if at > len(frame):
                raise DecodeError("a request header's client id is cut off")
            client_id = str(frame[10:at], "utf-8")
        if version >= _FLEXIBLE_SINCE.get(key, _NEVER):
            tags = frame[at]
            at += 1
            if tags:
                at = skip_tags(frame, at, tags)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"a request header is cut off or malformed: {error}") from error
    return RequestHeader(key, version, correlation_id, client_id), at


def encode_key(api_key: int, version: int) -> bytes:
    """The bytes at the start of a request frame."""
    return _KEY.pack(api_key, version)


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    raw = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(raw)
    try:
        head = _FIXED.pack(api_key, version, correlation_id, length)
    except struct.error as error:
        raise EncodeError(f"a request header does not fit: {error}") from error
    return head + raw + (b"\0" if version >= _FLEXIBLE_SINCE.get(api_key, _NEVER) else b"")


def is_flexible_response_header(api_key: int, version: int) -> bool:
    return api_key != API_VERSIONS and version >= _FLEXIBLE_SINCE.get(api_key, _NEVER)


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    tags = b"\0" if is_flexible_response_header(api_key, version) else b""
    return _CORRELATION.pack(correlation_id) + tags


def decode_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id of a frame (without its length), and where the body begins. Raises DecodeError."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        at = 4
        if is_flexible_response_header(api_key, version):
            tags = frame[at]
            at += 1
            if tags:
                at = skip_tags(frame, at, tags)
    except (struct.error, IndexError) as error:
        raise DecodeError(f"a response header is cut off: {error}") from error
    return correlation_id, at


def encode_request_frame(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Any
) -> list[Buffer]:
    """A whole frame, its length first, as buffers to send in order. Raises EncodeError."""
    out = bytearray(4)
    out += encode_request_header(api.key, version, correlation_id, client_id)
    return _with_length(api.append_request(version, message, out), out)


def encode_response_frame(api: Api, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """A whole frame, its length first, as buffers to send in order. Raises EncodeError."""
    out = bytearray(4)
    out += encode_response_header(api.key, version, correlation_id)
    return _with_length(api.append_response(version, message, out), out)


def _with_length(buffers: list[Buffer], first: bytearray) -> list[Buffer]:
    assert buffers[0] is first
    size = len(first) if len(buffers) == 1 else sum(map(len, buffers))
    _LENGTH.pack_into(first, 0, size - 4)
    return buffers
