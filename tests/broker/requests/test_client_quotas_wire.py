"""DescribeClientQuotas, AlterClientQuotas, ListConfigResources and DescribeUserScramCredentials over the wire, in every
version that is advertised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from headrace.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from headrace.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from headrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.broker.data_path import create
from tests.broker.group_broker import RawClient, running

EXACT, DEFAULT, ANY = 0, 1, 2
Entity = dict[str, str | None]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        yield client


async def alter(client: RawClient, entity: Entity, *, version: int = 1, dry: bool = False, **quotas: Any) -> Any:
    parts = tuple(RequestEntityData(kind, name) for kind, name in entity.items())
    ops = tuple(OpData(key, value or 0.0, value is None) for key, value in quotas.items())
    request = AlterClientQuotasRequest(entries=(RequestEntryData(parts, ops),), validate_only=dry)
    (result,) = (await client.ask(version, request)).entries
    assert {part.entity_type: part.entity_name for part in result.entity} == entity
    return result


async def described(client: RawClient, *wanted: Any, strict: bool = False, version: int = 1) -> list[Any]:
    request = DescribeClientQuotasRequest(components=tuple(ComponentData(*each) for each in wanted), strict=strict)
    answer = await client.ask(version, request)
    assert answer.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_kept_and_told(client: RawClient, version: int) -> None:
    for entity in ({"user": None}, {"client-id": "a"}, {"user": "u", "client-id": None}):
        result = await alter(client, entity, version=version, producer_byte_rate=1024.0)  # type: ignore[arg-type]  # a dict of some
        assert (result.error_code, result.error_message) == (0, None)
    rate = {"producer_byte_rate": 1024.0}
    both, own, default = ({"user": "u", "client-id": None}, rate), ({"client-id": "a"}, rate), ({"user": None}, rate)
    assert await described(client, version=version) == [both, own, default]
    assert await described(client, strict=True) == []
    assert await described(client, ("user", ANY, None)) == [both, default]
    assert await described(client, ("user", ANY, None), strict=True) == [default]
    assert await described(client, ("user", DEFAULT, None)) == [default]
    assert await described(client, ("user", EXACT, "u")) == [both]
    assert await described(client, ("user", EXACT, "u"), ("client-id", DEFAULT, None), strict=True) == [both]
    assert await described(client, ("client-id", EXACT, "b")) == []
    assert await described(client, ("ip", ANY, None)) == []
    await alter(client, {"client-id": "a"}, dry=True, producer_byte_rate=None)
    assert own in await described(client)
    await alter(client, {"client-id": "a"}, producer_byte_rate=None)
    assert await described(client) == [both, default]


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ([("group", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "u")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, "u")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("ip", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_filter_that_cannot_be_is_refused(client: RawClient, filters: list[Any], error: ErrorCode) -> None:
    request = DescribeClientQuotasRequest(components=tuple(ComponentData(*each) for each in filters))
    answer = await client.ask(1, request)
    assert (answer.error_code, answer.entries) == (error, None)
    assert answer.error_message


async def test_a_quota_that_cannot_be_is_refused_by_name(client: RawClient) -> None:
    result = await alter(client, {"ip": "host.example"}, connection_creation_rate=5.0)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert "is no address" in result.error_message


async def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await alter(client, {"user": None}, request_percentage=12.5)
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        assert await described(client) == [({"user": None}, {"request_percentage": 12.5})]


async def test_what_has_configs_is_listed_by_type(client: RawClient) -> None:
    await create(client, "t")

    async def listed(*types: int, version: int = 1) -> list[tuple[str, int]]:
        answer = await client.ask(version, ListConfigResourcesRequest(resource_types=types))
        assert answer.error_code == 0
        return [(resource.resource_name, resource.resource_type) for resource in answer.config_resources]

    assert await listed(2) == [("t", 2)]
    assert await listed() == [("t", 2), ("1", 4)]
    assert await listed(4, 4) == [("1", 4)]
    assert await listed(8, 16, 32) == []
    assert await listed(version=0) == [], "client metrics alone"
    unknown = await client.ask(1, ListConfigResourcesRequest(resource_types=(2, 3)))
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_nobody_has_scram_credentials(client: RawClient) -> None:
    everybody = await client.ask(0, DescribeUserScramCredentialsRequest(users=None))
    assert (everybody.error_code, everybody.results) == (0, ())
    named = await client.ask(0, DescribeUserScramCredentialsRequest(users=(UserName("u"),)))
    assert [(each.user, each.error_code) for each in named.results] == [("u", ErrorCode.RESOURCE_NOT_FOUND)]
