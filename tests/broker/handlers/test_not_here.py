"""Requests that need security are answered, and nothing of them is kept."""

from __future__ import annotations

from pathlib import Path

from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_user_scram_credentials as alter
from headrace.wire.messages import describe_user_scram_credentials as describe
from tests.broker.group_broker import RawClient, running


async def test_credentials_are_not_set(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        wish = alter.ScramCredentialUpsertion("a", 1, 4096, b"salt", b"password")
        gone = tuple(alter.ScramCredentialDeletion(name, 1) for name in ("a", "b"))
        told = await client.ask(0, alter.AlterUserScramCredentialsRequest(deletions=gone, upsertions=(wish,)))
        assert {one.user: one.error_code for one in told.results} == {
            "a": ErrorCode.SECURITY_DISABLED,
            "b": ErrorCode.RESOURCE_NOT_FOUND,
        }
        assert (await client.ask(0, describe.DescribeUserScramCredentialsRequest(users=None))).results == ()
