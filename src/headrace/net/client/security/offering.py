"""Asks a broker by which mechanisms its users log in, without logging in."""

from __future__ import annotations

from typing import Final

from headrace.base.addresses import Address
from headrace.base.limits import CLIENT_CONNECT_TIMEOUT_MS
from headrace.net.client.connection import connect
from headrace.net.client.errors import AuthenticationError
from headrace.net.client.security.login import HANDSHAKE_VERSION
from headrace.net.client.security.settings import ClientSecurity
from headrace.net.client.security.tls import ClientTls
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest

NO_MECHANISM: Final = "NONE"
"""The name of no mechanism: a broker answers with those that it has."""


async def offered(
    address: Address, tls: ClientTls | None, *, timeout_ms: int = CLIENT_CONNECT_TIMEOUT_MS
) -> tuple[str, ...]:
    """The mechanisms. Raises AuthenticationError where it asks nobody to log in, ClientError."""
    connection = await connect(address, timeout_ms=timeout_ms, security=ClientSecurity(tls=tls))
    try:
        request = SaslHandshakeRequest(mechanism=NO_MECHANISM)
        answer = await connection.request(
            ApiKey.SASL_HANDSHAKE, request, version=HANDSHAKE_VERSION, timeout_ms=timeout_ms
        )
    finally:
        connection.abort()
    if error_of(answer.error_code) is not ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationError(f"{address} asks nobody to log in there: leave SASL out of security.protocol.")
    return tuple(answer.mechanisms)
