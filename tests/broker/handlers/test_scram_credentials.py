"""SCRAM credentials are set, listed and deleted over the wire, and a bad one is refused alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_user_scram_credentials as alter
from headrace.wire.messages import describe_user_scram_credentials as describe
from tests.broker.group_broker import RawClient, running

SHA_256, SHA_512 = 1, 2


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        yield client


def wish(user: str, mechanism: int = SHA_256, *, iterations: int = 4096, password: bytes = bytes(32)) -> Any:
    return alter.ScramCredentialUpsertion(user, mechanism, iterations, b"salt", password)


async def altered(client: RawClient, *wishes: Any, gone: tuple[tuple[str, int], ...] = ()) -> dict[str, int]:
    deletions = tuple(alter.ScramCredentialDeletion(*each) for each in gone)
    told = await client.ask(0, alter.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=wishes))
    assert all((one.error_message is None) == (one.error_code == 0) for one in told.results)
    assert len({one.user for one in told.results}) == len(told.results), "one for each user"
    return {one.user: one.error_code for one in told.results}


async def described(client: RawClient, *users: str) -> dict[str, Any]:
    named = tuple(map(describe.UserName, users)) or None
    told = await client.ask(0, describe.DescribeUserScramCredentialsRequest(users=named))
    assert told.error_code == 0
    return {one.user: one.error_code or [tuple(info) for info in one.credential_infos] for one in told.results}


async def test_credentials_are_set_listed_and_deleted(client: RawClient) -> None:
    assert await described(client) == {}
    assert await altered(client, wish("a"), wish("b", SHA_512, iterations=8192, password=bytes(64))) == {"a": 0, "b": 0}
    assert await altered(client, wish("a", SHA_512, password=bytes(64))) == {"a": 0}
    all_of_them = {"a": [(SHA_256, 4096), (SHA_512, 4096)], "b": [(SHA_512, 8192)]}
    assert await described(client) == all_of_them
    assert await altered(client, wish("a", iterations=5000), gone=(("b", SHA_512),)) == {"a": 0, "b": 0}
    assert await described(client, "b", "a") == {
        "a": [(SHA_256, 5000), (SHA_512, 4096)],
        "b": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert await described(client, "a", "a") == {"a": ErrorCode.DUPLICATE_RESOURCE}


async def test_a_bad_credential_is_refused_alone(client: RawClient) -> None:
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    answers = await altered(
        client,
        wish("good"),
        wish("short", password=bytes(31)),
        wish("long", password=bytes(64)),
        wish("none", password=b""),
        wish("quick", iterations=4095),
        wish("slow", iterations=2**31 - 1),
        wish("", iterations=4096),
        wish("what", 3),
        wish("twice"),
        wish("twice", SHA_512, password=bytes(64)),
        gone=(("absent", SHA_256), ("odd", -1)),
    )
    assert answers == {
        "good": 0,
        "short": unacceptable,
        "long": unacceptable,
        "none": unacceptable,
        "quick": unacceptable,
        "slow": unacceptable,
        "": unacceptable,
        "what": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "absent": ErrorCode.RESOURCE_NOT_FOUND,
        "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert set(await described(client)) == {"good"}


async def test_a_request_changes_a_bounded_number(client: RawClient) -> None:
    answers = await altered(client, *(wish(f"u{number}") for number in range(1_001)))
    assert set(answers.values()) == {ErrorCode.POLICY_VIOLATION}
    assert await described(client) == {}
