"""Logging in, against a scripted broker: each mechanism, refusals, hostile answers, and sessions that are renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.metadata.access.scram import ITERATIONS_MIN, ScramMechanism
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import connect
from headrace.net.client.errors import AuthenticationError, ConnectionLostError, WrongCredentialsError
from headrace.net.client.security.dialing import dial
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.security.scram import AuthenticationFailed, ScramServer, credential_of
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.net.scripted_broker import ScriptedBroker, scripted_broker

REFUSED = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="No.")


def as_alice(mechanism: str, password: str = "s3cret") -> ClientSecurity:
    return ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }
    )


def named(name: str) -> MetadataRequest:
    return MetadataRequest(topics=(MetadataRequestTopic(name=name),))


class Gate:
    """Lets in who says what `believes` believes."""

    def __init__(
        self, believes: Callable[[bytes], SaslAuthenticateResponse], mechanisms: tuple[str, ...], code: int = 0
    ) -> None:
        self._believes = believes
        self._mechanisms = mechanisms
        self._code = code
        self.handshakes: list[str] = []

    @property
    def answers(self) -> dict[int, Any]:
        return {
            ApiKey.SASL_HANDSHAKE: self.handshake,
            ApiKey.SASL_AUTHENTICATE: self.authenticate,
            ApiKey.METADATA: lambda _, request: MetadataResponse(cluster_id=request.topics[0].name),
        }

    def handshake(self, _: RequestHeader, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        self.handshakes.append(request.mechanism)
        known = request.mechanism in self._mechanisms
        code = self._code or (ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        return SaslHandshakeResponse(error_code=code, mechanisms=self._mechanisms)

    def authenticate(self, _: RequestHeader, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        return self._believes(request.auth_bytes)


def plain_gate(password: str = "s3cret", lifetime_ms: int = 0) -> Gate:
    let_in = SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms)
    return Gate(lambda said: let_in if said == f"\0alice\0{password}".encode() else REFUSED, ("PLAIN",))


def scram_gate(mechanism: ScramMechanism) -> Gate:
    credential = credential_of(mechanism, "s3cret", salt=b"salt", iterations=ITERATIONS_MIN)
    servers: list[ScramServer] = []

    def believes(said: bytes) -> SaslAuthenticateResponse:
        try:
            if said.startswith(b"n,"):
                servers.append(ScramServer(mechanism, {"alice": credential}.get, nonce="theirs", secret=b"x"))
                return SaslAuthenticateResponse(auth_bytes=servers[-1].first(said))
            return SaslAuthenticateResponse(auth_bytes=servers[-1].final(said))
        except AuthenticationFailed as error:
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error))

    return Gate(believes, (mechanism.title,))


def order(broker: ScriptedBroker) -> list[int]:
    return [header.api_key for header, _ in broker.requests]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_password_lets_in_and_a_wrong_one_is_an_error_of_its_own(mechanism: str) -> None:
    gate = plain_gate() if mechanism == "PLAIN" else scram_gate(ScramMechanism[mechanism.replace("-", "_")])
    async with scripted_broker(gate.answers) as broker:
        connection = await connect(broker.address, security=as_alice(mechanism))
        assert (await connection.request(ApiKey.METADATA, named("x"))).cluster_id == "x"
        await connection.close()
        assert order(broker)[:3] == [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
        with pytest.raises(WrongCredentialsError, match=r"127.0.0.1:\d+ does not let user 'alice' in: ") as refused:
            await connect(broker.address, security=as_alice(mechanism, "s3cre7"))
        assert not refused.value.retriable
        assert "s3cre7" not in str(refused.value)


async def test_a_wrong_password_is_tried_once() -> None:
    gate = plain_gate()
    async with (
        scripted_broker(gate.answers) as broker,
        Cluster([broker.address] * 3, security=as_alice("PLAIN", "wrong")) as cluster,
    ):
        with pytest.raises(WrongCredentialsError):
            await cluster.retried(lambda: cluster.metadata(()))
    assert gate.handshakes == ["PLAIN"]


async def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are() -> None:
    async with scripted_broker(plain_gate().answers) as broker:
        with pytest.raises(AuthenticationError, match="does not offer SCRAM-SHA-256, only PLAIN"):
            await connect(broker.address, security=as_alice("SCRAM-SHA-256"))
    async with scripted_broker(Gate(lambda _: REFUSED, (), ErrorCode.ILLEGAL_SASL_STATE).answers) as broker:
        with pytest.raises(AuthenticationError, match="asks nobody to log in"):
            await connect(broker.address, security=as_alice("PLAIN"))


async def test_a_broker_that_repeats_the_password_or_speaks_to_the_terminal_is_not_repeated() -> None:
    for said in ("wrong: s3cret", "\x1b[2Jgone\nforged line " + "x" * 1000):
        answer = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=said)
        async with scripted_broker(Gate(lambda _, it=answer: it, ("PLAIN",)).answers) as broker:  # type: ignore[misc]
            with pytest.raises(WrongCredentialsError) as refused:
                await connect(broker.address, security=as_alice("PLAIN"))
        text = str(refused.value)
        assert "s3cret" not in text
        assert text.isprintable()
        assert len(text) < 300


async def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    def forges(said: bytes) -> SaslAuthenticateResponse:
        if said.startswith(b"n,"):
            nonce = said.rpartition(b"r=")[2]
            return SaslAuthenticateResponse(auth_bytes=b"r=" + nonce + b"theirs,s=c2FsdA==,i=4096")
        return SaslAuthenticateResponse(auth_bytes=b"v=" + b"A" * 43 + b"=")

    async with scripted_broker(Gate(forges, ("SCRAM-SHA-256",)).answers) as broker:
        with pytest.raises(AuthenticationError, match="is not trusted: it does not prove"):
            await connect(broker.address, security=as_alice("SCRAM-SHA-256"))


async def test_a_broker_that_never_ends_a_login_is_left() -> None:
    gate = plain_gate()
    async with scripted_broker({**gate.answers, ApiKey.SASL_AUTHENTICATE: lambda *_: None}) as broker:
        with pytest.raises(ConnectionLostError, match="did not end a login within 100 ms"):
            await connect(broker.address, security=as_alice("PLAIN"), timeout_ms=100)


async def test_each_login_asks_for_a_token() -> None:
    tokens = iter(("first", "second"))
    said: list[bytes] = []

    def believes(message: bytes) -> SaslAuthenticateResponse:
        said.append(message)
        return SaslAuthenticateResponse()

    security = ClientSecurity.bearer(lambda: next(tokens))
    async with scripted_broker(Gate(believes, ("OAUTHBEARER",)).answers) as broker:
        for _ in range(2):
            await (await connect(broker.address, security=security)).close()
    assert said == [b"n,,\x01auth=Bearer first\x01\x01", b"n,,\x01auth=Bearer second\x01\x01"]


async def test_a_refused_token_is_an_error_that_does_not_show_it() -> None:
    def believes(message: bytes) -> SaslAuthenticateResponse:
        if message == b"\x01":
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="bad token secret.token"
            )
        return SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}')

    async with scripted_broker(Gate(believes, ("OAUTHBEARER",)).answers) as broker:
        with pytest.raises(WrongCredentialsError, match="the bearer of this token") as refused:
            await connect(broker.address, security=ClientSecurity.bearer("secret.token"))
    assert "secret.token" not in str(refused.value)


# sessions


async def test_a_session_is_renewed_and_requests_wait_for_it() -> None:
    """KIP-368. Requests that come meanwhile are sent behind the login, in their order."""
    gate, renewing, go_on = plain_gate(lifetime_ms=200), asyncio.Event(), asyncio.Event()

    async def authenticate(header: RequestHeader, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        if len(gate.handshakes) == 2:
            renewing.set()
            await go_on.wait()
        return gate.authenticate(header, request)

    async with scripted_broker({**gate.answers, ApiKey.SASL_AUTHENTICATE: authenticate}) as broker:
        connection = await connect(broker.address, security=as_alice("PLAIN"))
        await renewing.wait()
        version = connection.version(ApiKey.METADATA)
        asked = [connection.post(ApiKey.METADATA, named(name), version=version) for name in "abc"]
        last = asyncio.create_task(connection.request(ApiKey.METADATA, named("d")))
        await asyncio.sleep(0)
        assert ApiKey.METADATA not in order(broker)
        go_on.set()
        assert [answer.cluster_id for answer in await asyncio.gather(*asked, last)] == ["a", "b", "c", "d"]
        await connection.close()
    sent = [request for _, request in broker.requests]
    assert [one for one in sent if isinstance(one, MetadataRequest)] == [named(name) for name in "abcd"]
    first = order(broker).index(ApiKey.METADATA)
    assert order(broker)[:first].count(ApiKey.SASL_AUTHENTICATE) == 2


async def test_requests_that_waited_for_a_refused_renewal_were_not_sent() -> None:
    passwords, renewing, go_on = ["s3cret"], asyncio.Event(), asyncio.Event()
    gate = Gate(lambda _: SaslAuthenticateResponse(session_lifetime_ms=100) if passwords else REFUSED, ("PLAIN",))

    async def authenticate(header: RequestHeader, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        if len(gate.handshakes) == 2:
            passwords.clear()
            renewing.set()
            await go_on.wait()
        return gate.authenticate(header, request)

    async with scripted_broker({**gate.answers, ApiKey.SASL_AUTHENTICATE: authenticate}) as broker:
        connection = await connect(broker.address, security=as_alice("PLAIN"))
        await renewing.wait()
        posted = connection.post(ApiKey.METADATA, named("d"), version=connection.version(ApiKey.METADATA))
        go_on.set()
        with pytest.raises(ConnectionLostError, match="was not renewed") as lost:
            await posted
        assert type(lost.value) is ConnectionLostError  # it was surely not carried out
        assert not connection.is_open
        await connection.close()
    assert ApiKey.METADATA not in order(broker)


async def test_closing_ends_the_renewal() -> None:
    gate = plain_gate(lifetime_ms=20)
    async with scripted_broker(gate.answers) as broker:
        connection = await connect(broker.address, security=as_alice("PLAIN"))
        await connection.close()
        before = len(asyncio.all_tasks())
        assert before <= 2  # this one, and perhaps the broker's


# other protocols


class Other(asyncio.Protocol):
    def __init__(self) -> None:
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.received.set_result(data)


@pytest.mark.parametrize("security", [PLAIN, as_alice("PLAIN")], ids=["plain", "sasl"])
async def test_another_protocol_takes_the_connection_once_it_is_let_in(security: ClientSecurity) -> None:
    from headrace.wire.apis import api
    from headrace.wire.headers import encode_request_frame

    async with scripted_broker(plain_gate().answers) as broker:
        other, lasts_s = await dial(broker.address, Other, security=security, timeout_ms=5_000)
        assert lasts_s == 0, "this broker gave the session no end"
        known = api(ApiKey.METADATA)
        assert known is not None
        other.transport.writelines(encode_request_frame(known, known.max_version, 7, "x", named("theirs")))
        assert b"theirs" in await other.received
        other.transport.abort()


async def test_a_refused_connection_is_told_as_such() -> None:
    async with scripted_broker({}) as broker:
        address = broker.address
    for security in (PLAIN, as_alice("PLAIN")):
        with pytest.raises(ConnectionRefusedError):
            await dial(address, Other, security=security, timeout_ms=5_000)
