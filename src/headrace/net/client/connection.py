"""One client connection: requests are pipelined, answers are matched by correlation id, versions are negotiated.

Promises:
- Every request ends, with its answer or with a ConnectionLostError, which is an AnswerLostError once it was sent.
- Answers come in the order of the requests (Kafka's promise, checked).
- With security, nothing is sent before TLS and login but ApiVersions, and requests wait while a session is renewed.

Never retries, never reconnects, never guesses a version.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from typing import Any, NamedTuple, cast

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.base.limits import (
    CLIENT_CONNECT_TIMEOUT_MS,
    CLIENT_REQUEST_TIMEOUT_MS,
    CLIENT_REQUESTS_IN_FLIGHT_MAX,
    REQUEST_BYTES_MAX,
    TLS_CLOSE_MS_MAX,
)
from headrace.base.ports import Buffer
from headrace.net.client.errors import (
    AnswerLostError,
    ClientError,
    ConnectionLostError,
    TlsError,
    UnsupportedError,
    check,
)
from headrace.net.client.security.login import log_in, renewal_s
from headrace.net.client.security.settings import PLAIN, ClientSasl, ClientSecurity
from headrace.net.client.security.tls import context_of
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.codec import DecodeError
from headrace.wire.errors import ErrorCode
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import decode_response_header, encode_request_frame

CLIENT_SOFTWARE_NAME = "headrace"
CORRELATION_IDS = 1 << 31
UNKNOWN_CA = (18, 19, 20, 21)
"""OpenSSL's codes of a certificate that is its own authority, or whose authority is not trusted."""


class _Waiting(NamedTuple):
    """A request that was sent and is not yet answered."""

    api: Api
    version: int
    correlation_id: int
    answer: asyncio.Future[Any]


class _Held(NamedTuple):
    """A request that waits until the session is renewed."""

    frame: list[Buffer]
    waiting: _Waiting | None


class Connection(asyncio.Protocol):
    """A connection to one broker. Make it with `connect`."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self._client_id = client_id
        self._splitter = FrameSplitter(REQUEST_BYTES_MAX)
        self._waiting: deque[_Waiting] = deque()
        self._slots = asyncio.Semaphore(CLIENT_REQUESTS_IN_FLIGHT_MAX)
        self._next_correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: ClientError | None = None
        self._held: list[_Held] | None = None
        """Requests that wait while the session is renewed; None: it is not being renewed."""
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_retired = False
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.versions: dict[int, tuple[int, int]] = {}
        self.session_ms = 0
        """The length of the session; 0: it has no end."""

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self._on_frame(memoryview(frame))
        except DecodeError as error:
            self._fail(ConnectionLostError(f"{self.address} sent bytes that are not Kafka's protocol: {error}"))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):  # with TLS 1.3, a client's certificate is refused after the handshake
            self._fail(_tls_error(self.address, exc))
        else:
            reason = f"broke ({exc})" if exc is not None else "was closed by the broker"
            self._fail(ConnectionLostError(f"The connection to {self.address} {reason}."))
        if not self._closed.done():
            self._closed.set_result(None)

    # called by the owner

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._lost is None and not self._is_retired and self._transport is not None

    @property
    def lost(self) -> ClientError | None:
        """Why the connection ended; None: it has not."""
        return self._lost

    def version(self, key: ApiKey, highest: int | None = None, *, lowest: int = 0) -> int:
        """The highest version that both sides speak, from `lowest` to `highest`. Raises UnsupportedError."""
        known = api(key)
        theirs = self.versions.get(key)
        if known is None or theirs is None:
            raise UnsupportedError(f"The broker at {self.address} does not offer {key.name}.")
        lowest = max(known.min_version, lowest)
        highest = known.max_version if highest is None else min(known.max_version, highest)
        if min(highest, theirs[1]) < max(lowest, theirs[0]):
            raise UnsupportedError(
                f"The broker at {self.address} offers {key.name} in versions {theirs[0]} to {theirs[1]}, "
                f"but this side speaks {lowest} to {highest}."
            )
        return min(highest, theirs[1])

    async def request(
        self,
        key: ApiKey,
        message: Any,
        *,
        version: int | None = None,
        timeout_ms: int = CLIENT_REQUEST_TIMEOUT_MS,
        answered: bool = True,
        shared: bool = False,
    ) -> Any:
        """Send one request and return its decoded answer (None at once where not `answered`, as for acks=0).

        `version` defaults to the highest in common. An answer that does not come in `timeout_ms` ends the connection.
        Where it is `shared`, others may have more time: it takes no more requests then, and they still get their
        answers. Its owner closes it after the last of them. Raises ConnectionLostError (AnswerLostError once it was
        sent), UnsupportedError.
        """
        known = api(key)
        assert known is not None, key
        chosen = self.version(key) if version is None else version
        answer: asyncio.Future[Any] | None = None
        async with self._slots:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._may_write.wait()
                    answer = self._send(known, chosen, message, answered)
                    return None if answer is None else await answer
            except TimeoutError:
                text = f"{self.address} did not answer {key.name} within {timeout_ms} ms."
                self._is_retired = True
                if not shared:
                    self._fail(ConnectionLostError(text))
                raise (ConnectionLostError if answer is None else AnswerLostError)(text) from None

    async def writable(self) -> None:
        """Wait until the sent bytes are on their way, as far as can be known here, or the connection is lost."""
        await self._may_write.wait()

    def post(self, key: ApiKey, message: Any, *, version: int) -> asyncio.Future[Any]:
        """Send one request at once, so that requests leave in the order of the calls. The future has its decoded
        answer, or fails with AnswerLostError. Bounds nothing: see `writable`. Raises ConnectionLostError.
        """
        known = api(key)
        assert known is not None, key
        answer = self._send(known, version, message, answered=True)
        assert answer is not None
        return answer

    async def close(self) -> None:
        """Close the connection and wait until it is closed. Waiting requests fail. Idempotent."""
        self.begin_close()
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def begin_close(self) -> None:
        """As `close`, without the wait: the connection closes also where nobody goes on."""
        self._fail(ConnectionLostError(f"The connection to {self.address} was closed by this client."), flush=True)

    def abort(self) -> None:
        """End the connection at once. Waiting requests fail."""
        self._fail(ConnectionLostError(f"The connection to {self.address} was closed by this client."))

    # inner

    def _send(
        self, known: Api, version: int, message: Any, answered: bool, *, ahead: bool = False
    ) -> asyncio.Future[Any] | None:
        """`ahead`: even while the session is renewed."""
        if self._lost is not None:
            raise ConnectionLostError(str(self._lost)) from self._lost
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_IDS
        frame = encode_request_frame(known, version, correlation_id, self._client_id, message)
        waiting = None
        if answered:
            waiting = _Waiting(known, version, correlation_id, asyncio.get_running_loop().create_future())
        if self._held is not None and not ahead:
            self._held.append(_Held(frame, waiting))
        else:
            self._put(frame, waiting)
        return None if waiting is None else waiting.answer

    def _put(self, frame: list[Buffer], waiting: _Waiting | None) -> None:
        assert self._transport is not None
        self._transport.writelines(frame)
        if waiting is not None:
            self._waiting.append(waiting)

    def _on_frame(self, frame: memoryview) -> None:
        if not self._waiting:
            raise DecodeError("an answer to no request.")
        waiting = self._waiting[0]
        correlation_id, body_at = decode_response_header(waiting.api.key, waiting.version, frame)
        if correlation_id != waiting.correlation_id:
            raise DecodeError(f"answer {correlation_id} came where {waiting.correlation_id} was due.")
        body = frame[body_at:]
        if waiting.api.key == ApiKey.API_VERSIONS and int.from_bytes(body[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:
            message = waiting.api.decode_response(0, body)  # KIP-511: this refusal is always in version 0
        else:
            message = waiting.api.decode_response(waiting.version, body)
        self._waiting.popleft()
        if not waiting.answer.done():
            waiting.answer.set_result(message)

    def _fail(self, error: ClientError, *, flush: bool = False) -> None:
        """End the connection. The first reason stands. With `flush`, sent bytes still go out (acks=0)."""
        if self._lost is not None:
            return
        self._lost = error
        self._may_write.set()
        if self._renewal is not None:
            self._renewal.cancel()
        if self._transport is not None:
            if flush and not self._waiting:
                self._transport.close()
            else:
                self._transport.abort()
        for held in self._held or ():
            if held.waiting is not None:
                _end(held.waiting.answer, ConnectionLostError(str(error)))
        self._held = None
        while self._waiting:
            _end(self._waiting.popleft().answer, AnswerLostError(str(error)))

    # the session

    async def log_in(self, sasl: ClientSasl) -> None:
        """Log in, and do so again before the session ends, for as long as the connection lasts. Raises
        AuthenticationError, ClientError."""
        self._renew_after(await log_in(self, sasl), sasl)

    def _renew_after(self, lifetime_ms: int, sasl: ClientSasl) -> None:
        def begin() -> None:
            self._renewal = loop.create_task(self._renew(sasl), name=f"renew the session at {self.address}")

        loop = asyncio.get_running_loop()
        self.session_ms = max(0, lifetime_ms)
        if lifetime_ms > 0 and self._lost is None:
            self._renewal = loop.call_later(renewal_s(lifetime_ms), begin)

    async def _renew(self, sasl: ClientSasl) -> None:
        """Log in again, while other requests wait (KIP-368). The connection ends where the broker refuses."""
        self._held = []
        try:
            async with asyncio.timeout(CLIENT_REQUEST_TIMEOUT_MS / 1000):
                lifetime_ms = await log_in(self, sasl)
        except (HeadraceError, TimeoutError) as error:
            self._renewal = None
            self._fail(ConnectionLostError(f"The session at {self.address} was not renewed: {error}"))
            return
        held, self._held = self._held or [], None
        for each in held:
            self._put(*each)
        self._renew_after(lifetime_ms, sasl)

    async def ask_ahead(self, key: ApiKey, message: Any, *, version: int) -> Any:
        """As `request`, even while others wait for a login; without a bound of its own in time."""
        known = api(key)
        assert known is not None, key
        answer = self._send(known, version, message, answered=True, ahead=True)
        assert answer is not None
        return await answer

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Have another protocol go on with this connection, on which nothing waits. This object is then of no use.
        Raises ConnectionLostError where it was lost meanwhile: the other protocol would never hear of it.
        """
        if self._lost is not None:
            raise ConnectionLostError(str(self._lost)) from self._lost
        transport, self._transport = self._transport, None
        assert transport is not None, "open"
        assert not self._waiting, "nothing waits"
        if self._renewal is not None:
            self._renewal.cancel()
        self._lost = ConnectionLostError(f"The connection to {self.address} was given away.")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _end(answer: asyncio.Future[Any], error: ClientError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # marked as seen: not every caller is still there


async def connect(
    address: Address,
    *,
    client_id: str = "headrace",
    timeout_ms: int = CLIENT_CONNECT_TIMEOUT_MS,
    security: ClientSecurity = PLAIN,
) -> Connection:
    """Open a connection, negotiate versions, and log in where `security` says so. Raises ConnectionLostError,
    AuthenticationError, UnsupportedError, UsageError.
    """
    loop = asyncio.get_running_loop()
    over_tls = _tls_arguments(address, security, timeout_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(lambda: Connection(address, client_id), *address, **over_tls)
    except TimeoutError:
        raise ConnectionLostError(f"No answer from {address} within {timeout_ms} ms.") from None
    except ssl.SSLError as error:
        raise _tls_error(address, error) from error
    except OSError as error:
        if over_tls and isinstance(error, (ConnectionResetError, ConnectionAbortedError)):
            raise _broken_off(address) from error
        raise ConnectionLostError(f"Cannot connect to {address}: {_reason(error)}.") from error
    try:
        await _negotiate(connection, timeout_ms)
        if security.sasl is not None:
            async with asyncio.timeout(timeout_ms / 1000):
                await connection.log_in(security.sasl)
    except TimeoutError:
        connection.abort()
        raise ConnectionLostError(f"{address} did not end a login within {timeout_ms} ms.") from None
    except BaseException as error:
        await connection.close()
        if isinstance(error, ConnectionLostError) and isinstance(connection.lost, TlsError):
            raise connection.lost from error
        if isinstance(error, AnswerLostError) and security.is_plain and not connection.versions:
            raise AnswerLostError(
                f"{address} hung up at the first request: does it ask for TLS, or a login? --command-config FILE has "
                "the settings for that"
            ) from error
        raise
    return connection


def _tls_arguments(address: Address, security: ClientSecurity, timeout_ms: int) -> dict[str, Any]:
    if security.tls is None:
        return {}
    return {
        "ssl": context_of(security.tls),
        "server_hostname": address.host,
        "ssl_handshake_timeout": timeout_ms / 1000,
        "ssl_shutdown_timeout": TLS_CLOSE_MS_MAX / 1000,
    }


def _tls_error(address: Address, error: ssl.SSLError) -> ClientError:
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = "; ssl.truststore.location names the file of the CA to trust" if _is_of_no_known_ca(error) else ""
        return TlsError(f"The certificate of {address} is not accepted: {error.verify_message.rstrip('.')}{trust}.")
    if isinstance(error, ssl.SSLEOFError):
        return _broken_off(address)
    reason = (error.reason or "no reason is known").replace("_", " ").lower()
    return TlsError(
        f"No TLS with {address}: {reason}; it may speak none there, or want a certificate (ssl.keystore.*)."
    )


def _is_of_no_known_ca(error: ssl.SSLCertVerificationError) -> bool:
    return error.verify_code in UNKNOWN_CA


def _broken_off(address: Address) -> ConnectionLostError:
    text = f"{address} broke off a handshake of TLS: does it speak TLS there, and a version that this side takes?"
    return ConnectionLostError(text)


def _reason(error: OSError) -> str:
    """The system's own words where there are some: event loops word one failure differently."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def _negotiate(connection: Connection, timeout_ms: int) -> None:
    """Ask for the broker's versions with our highest version, and with a lower one where the broker does not know it
    (KIP-511).
    """
    from headrace import __version__
    from headrace.wire.messages.api_versions import ApiVersionsRequest

    known = api(ApiKey.API_VERSIONS)
    assert known is not None
    request = ApiVersionsRequest(client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__)
    version = known.max_version
    while True:
        response = await connection.request(ApiKey.API_VERSIONS, request, version=version, timeout_ms=timeout_ms)
        offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        if response.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
            break
        theirs = offered.get(ApiKey.API_VERSIONS, (0, 0))[1]
        version = theirs if 0 <= theirs < version else 0
    check(response.error_code, f"ApiVersions at {connection.address}")
    connection.versions = offered
