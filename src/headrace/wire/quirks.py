"""Repairs requests of known clients that differ slightly from the protocol, before they are decoded.

Decoders are strict: they end exactly at a request's end. Apache Kafka's are not, so clients get away with more. Each
case here names the client and repairs only bytes that no correct client could have sent.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.apis import ApiKey, DecodeError, api

METADATA_COMPACT_SINCE: Final = 9
NULL_IN_FOUR_BYTES: Final = b"\x00\x00\x00\x00"


def repaired(api_key: int, version: int, body: memoryview) -> memoryview:
    """The body of a request as its client meant it. Nothing is copied where nothing is wrong."""
    if api_key == ApiKey.METADATA and version >= METADATA_COMPACT_SINCE:
        return _metadata(body, flags=3 if version <= 10 else 2)
    if api_key in (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
        return _scram(api_key, version, body)
    return body


def _scram(api_key: int, version: int, body: memoryview) -> memoryview:
    """librdkafka (seen in 2.16.1) ends these requests with two empty tag sections, where they have one."""
    known = api(api_key)
    if known is None or bytes(body[-1:]) != b"\0":
        return body
    try:
        known.decode_request(version, body[:-1])
    except DecodeError:
        return body
    return body[:-1]


def _metadata(body: memoryview, flags: int) -> memoryview:
    """librdkafka (seen in 2.16.1) asks for all topics with a null list of four bytes, where flexible versions have one.

    A correct request that begins with a null list is that byte, the flags and an empty tag section: three bytes
    shorter.
    """
    padded = len(NULL_IN_FOUR_BYTES) + flags + 1
    if len(body) == padded and bytes(body[:4]) == NULL_IN_FOUR_BYTES:
        return body[3:]
    return body
