"""Sees, sets and deletes SCRAM credentials of users (KIP-554). A password never leaves this side: it is sent salted."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from headrace.metadata.access.scram import ScramMechanism
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_user_scram_credentials as alter
from headrace.wire.messages import describe_user_scram_credentials as describe

SALT_BYTES: Final = 24
Credentials: TypeAlias = Mapping[ScramMechanism, int]
"""The mechanisms that a user has a credential for, and the iterations of each."""


async def users(cluster: Cluster, names: Sequence[str] | None = None) -> dict[str, Credentials]:
    """The users that have credentials, by name; of `names`, if any are given. Raises RefusedError, ClientError."""
    named = None if names is None else tuple(describe.UserName(name=name) for name in names)
    request = describe.DescribeUserScramCredentialsRequest(users=named)

    async def ask() -> dict[str, Credentials]:
        response = await cluster.ask_any(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)
        check(response.error_code, "Users", response.error_message)
        known: dict[str, Credentials] = {}
        for result in response.results:
            if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            check(result.error_code, f"User '{result.user}'", result.error_message)
            known[result.user] = {ScramMechanism(each.mechanism): each.iterations for each in result.credential_infos}
        return dict(sorted(known.items()))

    return await cluster.retried(ask)


async def set_password(
    cluster: Cluster, user: str, password: str, mechanisms: Sequence[ScramMechanism], *, iterations: int
) -> None:
    """Set the password of a user for these mechanisms. Raises RefusedError, ClientError."""
    loop = asyncio.get_running_loop()
    upsertions = []
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        salted = await loop.run_in_executor(
            None, hashlib.pbkdf2_hmac, mechanism.digest, password.encode(), salt, iterations
        )
        upsertions.append(
            alter.ScramCredentialUpsertion(
                name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
            )
        )
    for each in upsertions:  # a request has one change of a user
        await _change(cluster, user, alter.AlterUserScramCredentialsRequest(upsertions=(each,)))


async def delete(cluster: Cluster, user: str, mechanisms: Sequence[ScramMechanism]) -> None:
    """Delete a user's credentials for these mechanisms; one that is gone is no error. Raises ClientError."""
    for mechanism in mechanisms:
        deletion = alter.ScramCredentialDeletion(name=user, mechanism=mechanism)
        await _change(cluster, user, alter.AlterUserScramCredentialsRequest(deletions=(deletion,)))


async def _change(cluster: Cluster, user: str, request: alter.AlterUserScramCredentialsRequest) -> None:
    async def ask() -> None:
        response = await cluster.ask_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)
        for result in response.results:
            if result.error_code != ErrorCode.RESOURCE_NOT_FOUND or request.upsertions:
                check(result.error_code, f"User '{user}'", result.error_message)

    await cluster.retried(ask)
