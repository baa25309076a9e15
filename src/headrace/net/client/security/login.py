"""Logs a connection in: SaslHandshake, then SaslAuthenticate until both sides are content (KIP-152), and again before
the session ends (KIP-368).

Promises: a refusal is an error of its own, and nothing is tried twice. No error shows a password or a token, whatever
the broker says.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Any, Final, Protocol

from headrace.base.addresses import Address
from headrace.base.limits import CLIENT_DETAIL_CHARS_MAX
from headrace.net.client.errors import AuthenticationError, ClientError, WrongCredentialsError
from headrace.net.client.security.settings import ClientSasl
from headrace.security.sasl_client import (
    OAUTHBEARER,
    PLAIN,
    SCRAM,
    BearerExchange,
    Exchange,
    PlainExchange,
    ScramExchange,
)
from headrace.security.scram_client import Distrusted
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest

HANDSHAKE_VERSION: Final = 1
"""Version 0 is followed by bytes without frames, which this side does not speak."""
EARLIEST: Final = 0.85
LATEST: Final = 0.95
"""The part of a session's life after which it is renewed, by chance between these, as in Kafka's clients."""


class Asks(Protocol):
    """A connection, before its other requests."""

    address: Address

    def version(self, key: ApiKey) -> int: ...

    async def ask_ahead(self, key: ApiKey, message: Any, *, version: int) -> Any:
        """Send a request now, whatever else waits. Raises ConnectionLostError."""


async def log_in(connection: Asks, sasl: ClientSasl) -> int:
    """Log in; return for how many milliseconds it holds, 0: for ever. Raises WrongCredentialsError where the broker
    refuses, AuthenticationError where the two cannot come together, ClientError."""
    address = connection.address
    handshake = SaslHandshakeRequest(mechanism=sasl.mechanism)
    offered = await connection.ask_ahead(ApiKey.SASL_HANDSHAKE, handshake, version=HANDSHAKE_VERSION)
    if offered.error_code != ErrorCode.NONE:
        raise _no_handshake(address, sasl, offered.error_code, offered.mechanisms)
    version = connection.version(ApiKey.SASL_AUTHENTICATE)
    try:
        exchange, secret = await _exchange(sasl)
        message: bytes | None = exchange.first()
        while message is not None:
            request = SaslAuthenticateRequest(auth_bytes=message)
            answer = await connection.ask_ahead(ApiKey.SASL_AUTHENTICATE, request, version=version)
            if answer.error_code != ErrorCode.NONE:
                said = _printable(answer.error_message or "", secret)
                raise _refused(address, sasl, answer.error_code, said)
            # in a thread: a SCRAM proof takes thousands of hashes
            message = await asyncio.get_running_loop().run_in_executor(None, exchange.after, answer.auth_bytes)
    except Distrusted as error:
        raise AuthenticationError(f"{address} is not trusted: {error}.") from error
    return int(answer.session_lifetime_ms)


async def _exchange(sasl: ClientSasl) -> tuple[Exchange, str]:
    """The exchange, and the secret in it."""
    if sasl.mechanism == PLAIN:
        return PlainExchange(sasl.user, sasl.password), sasl.password
    if sasl.mechanism == OAUTHBEARER:
        assert sasl.token is not None, "settings see to it"
        token = await asyncio.get_running_loop().run_in_executor(None, sasl.token)
        return BearerExchange(token, dict(sasl.extensions)), token
    exchange = ScramExchange(SCRAM[sasl.mechanism], sasl.user, sasl.password, nonce=secrets.token_urlsafe(24))
    return exchange, sasl.password


def _no_handshake(address: Address, sasl: ClientSasl, code: int, mechanisms: tuple[str, ...]) -> AuthenticationError:
    error = error_of(code)
    if error is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        theirs = _printable(", ".join(mechanisms), "")
        return AuthenticationError(f"{address} does not offer {sasl.mechanism}, only {theirs or 'nothing'}.")
    if error is ErrorCode.ILLEGAL_SASL_STATE:
        return AuthenticationError(f"{address} asks nobody to log in there: leave SASL out of security.protocol.")
    return AuthenticationError(f"{address} refuses to begin a login: {error.message} ({error.name}).")


def _refused(address: Address, sasl: ClientSasl, code: int, detail: str) -> ClientError:
    error = error_of(code)
    said = detail or error.message
    who = f"user '{sasl.user}'" if sasl.user else "the bearer of this token"
    if error is ErrorCode.SASL_AUTHENTICATION_FAILED:
        return WrongCredentialsError(f"{address} does not let {who} in: {said.rstrip('.')}.")
    return AuthenticationError(f"The login of {who} at {address} failed: {said.rstrip('.')} ({error.name}).")


def _printable(text: str, secret: str) -> str:
    """The words of a broker, fit for one line. They are dropped where they repeat the secret."""
    if secret and secret in text:
        return ""
    return "".join(one if one.isprintable() else " " for one in text[:CLIENT_DETAIL_CHARS_MAX]).strip()


def renewal_s(lifetime_ms: int) -> float:
    """After how many seconds a session of this length is renewed."""
    return lifetime_ms / 1000 * random.uniform(EARLIEST, LATEST)
