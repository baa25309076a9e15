"""Asks clients of a listener who they are, by SASL, before anything is served. Sources: KIP-43, KIP-152, KIP-368.

Promises:
- Before a client is authenticated, only ApiVersions, SaslHandshake and SaslAuthenticate are answered. After a
  SaslHandshake of version 0, bare SASL messages are. Anything else closes the connection, with one log line.
- All of that is bounded: the size of a frame, the requests, the time, and the memory of all such clients together.
- A failure is answered after a delay, for which nothing is held but the answer.
- A session that has an end is closed by the first request after it, unless the client authenticates again. It does so
  as the same user and with the same mechanism.
- An authenticated client without such an end costs nothing.

Never does: log a message, a password, or a name as the client sent it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headrace.base.limits import (
    AUTHENTICATION_FAILURE_ADDRESSES_MAX,
    AUTHENTICATION_MS_MAX,
    AUTHENTICATION_REQUESTS_MAX,
    REAUTHENTICATION_PAUSE_MS,
    REQUEST_BYTES_MAX,
    SHOWN_NAME_CHARACTERS_MAX,
    UNAUTHENTICATED_BYTES_MAX,
)
from headrace.net.server.connection import Answer, Connection, Later, Serve
from headrace.net.server.greeting import Witness
from headrace.net.server.loglimit import LogLimit
from headrace.security.sasl import Begin, Exchange
from headrace.security.scram import AuthenticationFailed
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.codec import DecodeError
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader, decode_request_header, encode_response_frame
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

HANDSHAKE_KEY: Final = int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big")
HANDSHAKE_VERSIONS: Final = range(2)
AUTHENTICATE_VERSIONS: Final = range(3)


@dataclass(slots=True)
class AuthenticationCounts:
    """Counts the results of exchanges, on all listeners of a broker."""

    succeeded: int = 0
    failed: int = 0
    succeeded_again: int = 0
    failed_again: int = 0
    expired: int = 0
    """Connections that were closed because their session had ended."""
    unauthenticated: int = 0
    """Open connections of clients that are not known yet."""
    held_bytes: int = 0
    """Unfinished frames of these."""
    failures: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """By address: those that failed last."""

    def fail(self, address: str) -> int:
        """Count a failure. Returns the failures of that address that are remembered."""
        self.failures[address] = count = self.failures.pop(address, 0) + 1
        if len(self.failures) > AUTHENTICATION_FAILURE_ADDRESSES_MAX:
            self.failures.popitem(last=False)
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How clients of one listener are authenticated."""

    listener: str
    mechanisms: Mapping[str, Begin]
    """By Kafka's names, in the order in which clients are told them."""
    session_ms_max: Mapping[str, int] = field(default_factory=dict)
    """The longest session by mechanism; 0, or none: it has no end (connections.max.reauth.ms)."""
    frame_bytes_max: int = 524_288
    """sasl.server.max.receive.size."""
    failure_delay_ms: int = 100
    """connection.failed.authentication.delay.ms."""


class Gatekeeper:
    """Authenticates the clients of one listener. `greet` is called with each connection."""

    def __init__(
        self,
        rules: Rules,
        counts: AuthenticationCounts,
        now_ms: Callable[[], int],
        log: LogLimit | None = None,
        witness: Witness | None = None,
    ) -> None:
        """`now_ms`: the wall clock. `witness`: None: nobody hears of clients."""
        self.witness: Final = witness
        self.rules = rules
        """May be changed at any time. They apply to clients that come, or authenticate again, from then on."""
        self.counts: Final = counts
        self.now_ms: Final = now_ms
        self.log: Final = log or LogLimit(asyncio.get_running_loop().time)

    def greet(self, connection: Connection) -> None:
        """Serve nothing but the exchange, until the client is authenticated."""
        admission = _Admission(self, connection, connection.serve)
        connection.limit_frames(self.rules.frame_bytes_max)
        connection.guard = admission
        connection.serve = admission.serve


class _State(Enum):
    HANDSHAKE = auto()
    """A SaslHandshake is due. ApiVersions may come before it."""
    EXCHANGE = auto()
    BARE_EXCHANGE = auto()
    """As after a SaslHandshake of version 0: messages without a header."""
    OVER = auto()


class _Admission:
    """One client's way in, from its first frame to the end of its exchange; or its way to a longer session."""

    def __init__(
        self, gatekeeper: Gatekeeper, connection: Connection, inner: Serve, again: _Session | None = None
    ) -> None:
        """`inner` serves an authenticated client. `again`: the session that is to be renewed; None: a new client."""
        self._gatekeeper = gatekeeper
        self._rules = gatekeeper.rules
        self._counts = gatekeeper.counts
        self._connection = connection
        self._inner = inner
        self._again = again
        self._state = _State.HANDSHAKE
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._requests = 0
        self._held = 0
        if again is None:
            self._counts.unauthenticated += 1
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(AUTHENTICATION_MS_MAX / 1000, self._is_late)

    # as the guard of the connection

    def hold(self, size: int) -> bool:
        self._held += size
        self._counts.held_bytes += size
        return self._counts.held_bytes <= UNAUTHENTICATED_BYTES_MAX

    def release(self) -> None:
        self._counts.held_bytes -= self._held
        self._held = 0

    def leave(self) -> None:
        """The connection is gone, or its client is known."""
        self.release()
        self._timer.cancel()
        if self._again is None and self._connection.guard is self:
            self._counts.unauthenticated -= 1
        self._connection.guard = None

    def _is_late(self) -> None:
        self._close(f"it was not authenticated in {AUTHENTICATION_MS_MAX} ms")

    # as what serves its frames

    def serve(self, frame: memoryview, connection: Connection) -> Answer | Later | None:
        self._requests += 1
        if self._requests > AUTHENTICATION_REQUESTS_MAX:
            return self._close(f"it was not authenticated in {AUTHENTICATION_REQUESTS_MAX} requests")
        if len(frame) > self._rules.frame_bytes_max:
            return self._close(f"a frame of {len(frame)} bytes; sasl.server.max.receive.size allows fewer")
        if self._state is _State.BARE_EXCHANGE:
            return self._step_bare(bytes(frame))
        try:
            header, body_at = decode_request_header(frame)
            return self._serve(header, frame, body_at)
        except DecodeError as error:
            return self._close(f"its request is malformed: {error}")

    def _serve(self, header: RequestHeader, frame: memoryview, body_at: int) -> Answer | Later | None:
        key, version, body = header.api_key, header.api_version, frame[body_at:]
        if key == ApiKey.API_VERSIONS and self._state is _State.HANDSHAKE and self._again is None:
            return self._inner(frame, self._connection)
        if key == ApiKey.SASL_HANDSHAKE and self._state is _State.HANDSHAKE and version in HANDSHAKE_VERSIONS:
            handshake: SaslHandshakeRequest = _HANDSHAKE.decode_request(version, body)
            return self._begin(header, handshake.mechanism)
        if key == ApiKey.SASL_AUTHENTICATE and self._state is _State.EXCHANGE and version in AUTHENTICATE_VERSIONS:
            request: SaslAuthenticateRequest = _AUTHENTICATE.decode_request(version, body)
            return self._step(header, request.auth_bytes)
        return self._close(f"API {key} version {version} is not answered before the client is authenticated")

    def _begin(self, header: RequestHeader, mechanism: str) -> Answer | None:
        begin = self._rules.mechanisms.get(mechanism)
        names = tuple(self._rules.mechanisms)
        if begin is None:
            response = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=names)
            answer = _encoded(_HANDSHAKE, header, response)
            return self._fail(answer, f"mechanism {shown(mechanism)} is not enabled: {', '.join(names)}")
        if self._again is not None and mechanism != self._again.mechanism:
            response = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=names)
            reason = f"it began with mechanism {self._again.mechanism}, and cannot go on with {mechanism}"
            return self._fail(_encoded(_HANDSHAKE, header, response), reason)
        self._mechanism, self._exchange = mechanism, begin()
        self._state = _State.EXCHANGE if header.api_version else _State.BARE_EXCHANGE
        return _encoded(_HANDSHAKE, header, SaslHandshakeResponse(mechanisms=names))

    def _step(self, header: RequestHeader, message: bytes) -> Answer | None:
        try:
            answer, session_ms = self._advance(message)
        except AuthenticationFailed as error:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            response = SaslAuthenticateResponse(error_code=code, error_message=str(error))
            return self._fail(_encoded(_AUTHENTICATE, header, response), str(error))
        response = SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=session_ms)
        return _encoded(_AUTHENTICATE, header, response)

    def _step_bare(self, message: bytes) -> Answer | None:
        try:
            answer, _ = self._advance(message)
        except AuthenticationFailed as error:
            return self._fail([], str(error))
        return [len(answer).to_bytes(4, "big"), answer]

    def _advance(self, message: bytes) -> tuple[bytes, int]:
        """Return the answer to the message, and the length of the session that begins with it; 0: none does, or it has
        no end. Raises AuthenticationFailed."""
        exchange = self._exchange
        assert exchange is not None, "an exchange is under way"
        answer = exchange.step(message)
        if exchange.user is None:
            return answer, 0
        principal = f"User:{exchange.user}"
        if self._again is not None and principal != self._connection.principal:
            raise AuthenticationFailed("Authentication failed: a client cannot become another one.")
        session_ms = self._session_ms(exchange)
        self._admit(principal, session_ms)
        return answer, session_ms

    def _session_ms(self, exchange: Exchange) -> int:
        """The length of the session in milliseconds; 0: it has no end."""
        bounds = [each for each in (self._rules.session_ms_max.get(self._mechanism, 0),) if each > 0]
        if exchange.expires_at_ms is not None:
            bounds.append(max(exchange.expires_at_ms - self._gatekeeper.now_ms(), 1))
        return min(bounds, default=0)

    def _admit(self, principal: str, session_ms: int) -> None:
        connection = self._connection
        self._state = _State.OVER
        self.leave()
        if self._again is None:
            self._counts.succeeded += 1
            connection.limit_frames(REQUEST_BYTES_MAX)
        else:
            self._counts.succeeded_again += 1
        connection.principal = principal
        connection.serve = self._inner
        self._bear_witness(principal, None)
        if session_ms:
            session = _Session(self._gatekeeper, self._inner, self._mechanism, session_ms)
            connection.serve = session.serve

    # failures

    def _fail(self, answer: Answer, reason: str) -> Answer | None:
        """Close the connection after a delay, with this answer. Returns no other answer."""
        self._state = _State.OVER
        failures = self._counts.fail(self._connection.peer_host)
        if self._again is None:
            self._counts.failed += 1
        else:
            self._counts.failed_again += 1
        self._gatekeeper.log.warning(
            "authentication failed",
            peer=self._connection.peer_host,
            listener=self._rules.listener,
            mechanism=self._mechanism,
            user=shown("" if self._exchange is None else self._exchange.claimed),
            reason=reason,
            failures=failures,
        )
        self._bear_witness(f"User:{'' if self._exchange is None else self._exchange.claimed}", reason)
        self._timer.cancel()
        self._connection.dismiss(answer, self._rules.failure_delay_ms)
        return None

    def _bear_witness(self, principal: str, problem: str | None) -> None:
        if self._gatekeeper.witness is not None:
            host, listener = self._connection.peer_host, self._rules.listener
            self._gatekeeper.witness.authenticated(principal, host, listener, self._mechanism, problem)

    def _close(self, reason: str) -> Answer | None:
        """Close the connection at once. Returns no answer."""
        self._state = _State.OVER
        self._connection.end(reason, "connection closed: its client is not authenticated")
        return None


class _Session:
    """Serves an authenticated client until the session ends."""

    def __init__(self, gatekeeper: Gatekeeper, inner: Serve, mechanism: str, length_ms: int) -> None:
        self._gatekeeper = gatekeeper
        self._inner = inner
        self.mechanism = mechanism
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._began_at = self._now()
        self._ends_at = self._began_at + length_ms / 1000

    def serve(self, frame: memoryview, connection: Connection) -> Answer | Later | None:
        now = self._now()
        if frame[:2] == HANDSHAKE_KEY and (now - self._began_at) * 1000 >= REAUTHENTICATION_PAUSE_MS:
            admission = _Admission(self._gatekeeper, connection, self._inner, self)
            connection.guard = admission
            connection.serve = admission.serve
            return admission.serve(frame, connection)
        if now >= self._ends_at:
            self._gatekeeper.counts.expired += 1
            connection.end("its session has ended, and it did not authenticate again", "connection closed: expired")
            return None
        return self._inner(frame, connection)


def shown(name: str) -> str:
    """The name as it may stand in a log: short, and without signs that would break a line or colour it."""
    short = name[:SHOWN_NAME_CHARACTERS_MAX] + ("..." if len(name) > SHOWN_NAME_CHARACTERS_MAX else "")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short)


def _known(key: ApiKey) -> Api:
    found = api(key)
    assert found is not None
    return found


_HANDSHAKE: Final = _known(ApiKey.SASL_HANDSHAKE)
_AUTHENTICATE: Final = _known(ApiKey.SASL_AUTHENTICATE)


def _encoded(which: Api, header: RequestHeader, response: object) -> Answer:
    return encode_response_frame(which, header.api_version, header.correlation_id, response)
