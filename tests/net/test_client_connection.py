"""One client connection against a scripted broker: every request ends, and with its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.base.addresses import Address
from headrace.net.client.connection import connect
from headrace.net.client.errors import AnswerLostError, ConnectionLostError, UnsupportedError
from headrace.wire.apis import ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader, encode_response_frame
from headrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.net.scripted_broker import scripted_broker


def named(name: str) -> MetadataRequest:
    return MetadataRequest(topics=(MetadataRequestTopic(name=name),))


def echo(_: RequestHeader, request: Any) -> MetadataResponse:
    """The asked topic's name comes back as the cluster's id."""
    return MetadataResponse(cluster_id=request.topics[0].name)


async def test_pipelined_requests_get_their_own_answers() -> None:
    async with scripted_broker({ApiKey.METADATA: echo}) as broker:
        connection = await connect(broker.address)
        names = [f"t{number}" for number in range(200)]
        answers = await asyncio.gather(*(connection.request(ApiKey.METADATA, named(name)) for name in names))
        assert [answer.cluster_id for answer in answers] == names
        await connection.close()


async def test_an_older_broker_is_asked_again_in_its_own_version() -> None:
    """KIP-511: a broker that does not know our ApiVersions version answers in version 0, with what it knows."""

    def answer(header: RequestHeader, _: Any) -> Any:
        known = api(ApiKey.API_VERSIONS)
        assert known is not None
        keys = (ApiVersion(ApiKey.API_VERSIONS, 0, 2), ApiVersion(ApiKey.METADATA, 0, 4))
        if header.api_version <= 2:
            return ApiVersionsResponse(api_keys=keys)
        refused = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
        return b"".join(encode_response_frame(known, 0, header.correlation_id, refused))

    async with scripted_broker({ApiKey.API_VERSIONS: answer, ApiKey.METADATA: echo}) as broker:
        connection = await connect(broker.address)
        assert [header.api_version for header, _ in broker.requests] == [4, 2]
        assert connection.version(ApiKey.METADATA) == 4
        assert (await connection.request(ApiKey.METADATA, named("x"))).cluster_id == "x"
        with pytest.raises(UnsupportedError, match="does not offer PRODUCE"):
            connection.version(ApiKey.PRODUCE)
        await connection.close()


async def test_no_version_in_common_is_said_with_both_ranges() -> None:
    def answer(_: RequestHeader, __: Any) -> Any:
        return ApiVersionsResponse(api_keys=(ApiVersion(ApiKey.METADATA, 90, 99),))

    async with scripted_broker({ApiKey.API_VERSIONS: answer}) as broker:
        connection = await connect(broker.address)
        with pytest.raises(UnsupportedError, match="versions 90 to 99"):
            await connection.request(ApiKey.METADATA, named("x"))
        await connection.close()


async def test_an_answer_that_does_not_come_ends_the_connection() -> None:
    async with scripted_broker({ApiKey.METADATA: lambda *_: None}) as broker:
        connection = await connect(broker.address)
        patient = asyncio.create_task(connection.request(ApiKey.METADATA, named("a")))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionLostError, match="did not answer METADATA within 20 ms"):
            await connection.request(ApiKey.METADATA, named("b"), timeout_ms=20)
        with pytest.raises(ConnectionLostError):
            await patient
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            await connection.request(ApiKey.METADATA, named("c"))
        await connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\x06\x7f\x7f\x7f\x7f\0\0",  # another correlation id
        b"\xff\xff\xff\xff",  # a negative length
        b"\x7f\xff\xff\xff",  # a length beyond all bounds
        b"\0\0\0\x05\0\0\0\x01\0",  # the right correlation id and half a body
        b"\0\0\0\0",  # nothing at all
    ],
)
async def test_bytes_that_are_no_answer_end_the_connection_and_every_request(garbage: bytes) -> None:
    async with scripted_broker({ApiKey.METADATA: lambda *_: garbage}) as broker:
        connection = await connect(broker.address)
        results = await asyncio.gather(
            *(connection.request(ApiKey.METADATA, named("a")) for _ in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [AnswerLostError] * 3
        assert not connection.is_open
        await connection.close()


async def test_an_answer_to_nothing_ends_the_connection() -> None:
    twice = []

    def answer(header: RequestHeader, request: Any) -> Any:
        known = api(ApiKey.METADATA)
        assert known is not None
        frame = encode_response_frame(known, header.api_version, header.correlation_id, echo(header, request))
        twice.append(b"".join(frame) * 2)
        return twice[-1]

    async with scripted_broker({ApiKey.METADATA: answer}) as broker:
        connection = await connect(broker.address)
        assert (await connection.request(ApiKey.METADATA, named("a"))).cluster_id == "a"
        with pytest.raises(ConnectionLostError):
            await connection.request(ApiKey.METADATA, named("b"))
        await connection.close()


async def test_closing_fails_what_waits_and_is_idempotent() -> None:
    async with scripted_broker({ApiKey.METADATA: lambda *_: None}) as broker:
        connection = await connect(broker.address)
        waiting = asyncio.create_task(connection.request(ApiKey.METADATA, named("a")))
        await asyncio.sleep(0)
        await connection.close()
        await connection.close()
        with pytest.raises(ConnectionLostError, match="closed by this client"):
            await waiting


async def test_a_cancelled_request_leaves_the_connection_in_order() -> None:
    gate = asyncio.Event()

    async def answer(header: RequestHeader, request: Any) -> Any:
        await gate.wait()
        return echo(header, request)

    async with scripted_broker({ApiKey.METADATA: answer}) as broker:
        connection = await connect(broker.address)
        first = asyncio.create_task(connection.request(ApiKey.METADATA, named("a")))
        second = asyncio.create_task(connection.request(ApiKey.METADATA, named("b")))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        assert (await second).cluster_id == "b"
        await connection.close()


async def test_nobody_there_is_one_sentence() -> None:
    async with scripted_broker({}) as broker:
        pass
    with pytest.raises(ConnectionLostError, match=rf"Cannot connect to {broker.address}: Connection refused\."):
        await connect(Address("127.0.0.1", broker.address.port))
