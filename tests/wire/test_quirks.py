"""Requests as clients really sent them, and what they meant by them."""

from __future__ import annotations

import pytest

from headrace.wire.apis import DecodeError, api
from headrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.wire.messages.catalog import ApiKey
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.quirks import repaired


def decode(version: int, body: bytes) -> MetadataRequest:
    metadata = api(ApiKey.METADATA)
    assert metadata is not None
    request: MetadataRequest = metadata.decode_request(version, repaired(ApiKey.METADATA, version, memoryview(body)))
    return request


def test_librdkafka_asks_for_all_topics() -> None:
    """`AdminClient.list_topics()` of confluent-kafka 2.16.1, Metadata v13."""
    request = decode(13, bytes.fromhex("00000000010000"))
    assert request.topics is None
    assert request.allow_auto_topic_creation


@pytest.mark.parametrize(("version", "body"), [(13, "00010000"), (13, "01010000"), (9, "0001000000"), (12, "00000000")])
def test_correct_requests_are_left_alone(version: int, body: str) -> None:
    view = memoryview(bytes.fromhex(body))
    assert repaired(ApiKey.METADATA, version, view) is view
    decode(version, bytes(view))


def test_librdkafka_ends_a_change_of_credentials_twice() -> None:
    """`AdminClient.alter_user_scram_credentials()` of confluent-kafka 2.16.1."""
    request = AlterUserScramCredentialsRequest(upsertions=(ScramCredentialUpsertion("a", 1, 4096, b"s", bytes(32)),))
    known = api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    assert known is not None
    body = b"".join(map(bytes, known.encode_request(0, request)))
    for sent in (body, body + b"\0"):
        assert repaired(known.key, 0, memoryview(sent)) == body
    for sent in (body[:-1], body + b"\0\0", body + b"\1"):
        assert repaired(known.key, 0, memoryview(sent)) == sent


def test_other_bytes_left_over_are_still_refused() -> None:
    with pytest.raises(DecodeError):
        decode(13, bytes.fromhex("00010000000000"))
