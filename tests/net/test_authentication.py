"""The gatekeeper: nothing is served before a client is authenticated, and what it may hold until then is little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from headrace.net.server import authentication
from headrace.net.server.authentication import AuthenticationCounts, Gatekeeper, Rules, shown
from headrace.net.server.listener import Answer, Connection, Listener
from headrace.security.sasl import PlainExchange
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.api_versions import ApiVersionsRequest
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.group_broker import RawClient, until

RIGHT: Final = b"\0alice\0secret"
SERVED: Final = b"\0\0\0\4done"


class OfToken(PlainExchange):
    """As PLAIN, by something that is valid for a while."""

    def __init__(self, passwords: Mapping[str, str], expires_at_ms: int) -> None:
        super().__init__(passwords)
        self.expires_at_ms = expires_at_ms


class Place:
    """A listener that has a gatekeeper, and what came of it."""

    def __init__(self, **rules: Any) -> None:
        passwords = {"alice": "secret", "bob": "secret"}
        mechanisms = {
            "PLAIN": partial(PlainExchange, passwords),
            "OTHER": partial(PlainExchange, passwords),
            "TOKEN": partial(OfToken, passwords, 5_000),
        }
        self.counts = AuthenticationCounts()
        self.served: list[tuple[str, int]] = []
        given: dict[str, Any] = {"listener": "SASL", "mechanisms": mechanisms, "failure_delay_ms": 0, **rules}
        self.gatekeeper = Gatekeeper(Rules(**given), self.counts, lambda: 1_000)
        self.address = ""
        self.listener: Listener

    def serve(self, frame: memoryview, connection: Connection) -> Answer:
        self.served.append((connection.principal, int.from_bytes(frame[:2], "big")))
        return [SERVED]


class Greeting(Listener):
    """Greets everybody whom it admits."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.serve)
        self._greet = place.gatekeeper.greet

    def admit(self, connection: Connection) -> bool:
        is_admitted = super().admit(connection)
        if is_admitted:
            self._greet(connection)
        return is_admitted


@asynccontextmanager
async def a_place(**rules: Any) -> AsyncIterator[Place]:
    place = Place(**rules)
    place.listener = Greeting(place)
    place.address = f"127.0.0.1:{await place.listener.bind('127.0.0.1', 0)}"
    await place.listener.accept()
    try:
        async with asyncio.timeout(150):
            yield place
    finally:
        await place.listener.stop()


async def authenticated(client: RawClient, message: bytes = RIGHT, mechanism: str = "PLAIN") -> Any:
    told = await client.ask(1, SaslHandshakeRequest(mechanism=mechanism))
    assert (told.error_code, told.mechanisms) == (0, ("PLAIN", "OTHER", "TOKEN"))
    return await client.ask(2, SaslAuthenticateRequest(auth_bytes=message))


async def ends(client: RawClient) -> bytes:
    """All that comes until the broker closes the connection."""
    try:
        return await client._reader.read()
    except ConnectionError:
        return b""


async def test_a_client_is_served_once_it_is_authenticated() -> None:
    async with a_place() as place, RawClient(place.address) as client:
        client.send(3, ApiVersionsRequest())
        assert await client._reader.readexactly(8) == SERVED
        told = await authenticated(client)
        assert (told.error_code, told.error_message, told.auth_bytes, told.session_lifetime_ms) == (0, None, b"", 0)
        client.send(12, MetadataRequest())
        assert await client._reader.readexactly(8) == SERVED
        assert place.served == [("User:ANONYMOUS", 18), ("User:alice", 3)]
        assert (place.counts.succeeded, place.counts.failed, place.counts.unauthenticated) == (1, 0, 0)


async def test_bare_messages_follow_a_handshake_of_version_0() -> None:
    async with a_place() as place, RawClient(place.address) as client:
        assert (await client.ask(0, SaslHandshakeRequest(mechanism="PLAIN"))).error_code == 0
        client._writer.write(len(RIGHT).to_bytes(4, "big") + RIGHT)
        assert await client._reader.readexactly(4) == bytes(4)
        client.send(12, MetadataRequest())
        assert await client._reader.readexactly(8) == SERVED
        assert place.served == [("User:alice", 3)]


async def test_all_of_it_may_come_at_once() -> None:
    """The broker drops all that is behind a wrong password, also where it came along with it."""
    async with a_place() as place:
        for message, served in ((RIGHT, [("User:alice", 3)]), (b"\0alice\0wrong", [])):
            place.served.clear()
            async with RawClient(place.address) as client:
                client.send(1, SaslHandshakeRequest(mechanism="PLAIN"))
                client.send(2, SaslAuthenticateRequest(auth_bytes=message))
                client.send(12, MetadataRequest())
                client._writer.write_eof()
                answers = await ends(client)
                assert place.served == served
                assert answers.endswith(SERVED) == bool(served)
        await until(lambda: place.listener.gauge.connections == 0)
        assert (place.listener.gauge.queued_bytes, place.listener.gauge.reserved_bytes) == (0, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_wrong_password_is_told_and_the_connection_closed(version: int) -> None:
    async with a_place(failure_delay_ms=5) as place, RawClient(place.address) as client:
        await client.ask(1, SaslHandshakeRequest(mechanism="PLAIN"))
        with capture_logs() as lines:
            told = await client.ask(version, SaslAuthenticateRequest(auth_bytes=b"\0alice\nINFO in\0hush"))
        assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert told.error_message == "Authentication failed: Invalid username or password"
        assert await ends(client) == b""
        (line,) = lines
        assert (line["user"], line["mechanism"], line["listener"]) == ("alice\\nINFO in", "PLAIN", "SASL")
        assert "hush" not in str(line)
        assert place.counts.failures == {"127.0.0.1": 1}
        await until(lambda: place.counts.unauthenticated == 0)


async def test_a_failure_holds_nothing_while_it_waits() -> None:
    async with a_place(failure_delay_ms=3_600_000) as place, RawClient(place.address) as client:
        await client.ask(1, SaslHandshakeRequest(mechanism="PLAIN"))
        client.send(2, SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong" + b"x" * 400_000))
        await until(lambda: place.counts.failed == 1)
        gauge = place.listener.gauge
        assert (gauge.queued_bytes, gauge.reserved_bytes, gauge.waiting_bytes, place.counts.held_bytes) == (0, 0, 0, 0)
        assert gauge.connections == 1


async def test_a_bare_failure_closes_the_connection_alone() -> None:
    async with a_place() as place, RawClient(place.address) as client:
        await client.ask(0, SaslHandshakeRequest(mechanism="PLAIN"))
        client._writer.write(b"\0\0\0\2no")
        assert await ends(client) == b""
        assert place.counts.failed == 1


async def test_a_mechanism_that_is_not_enabled_is_told_so() -> None:
    async with a_place() as place, RawClient(place.address) as client:
        told = await client.ask(1, SaslHandshakeRequest(mechanism="GSSAPI\x1b[31m"))
        assert told.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert told.mechanisms == ("PLAIN", "OTHER", "TOKEN")
        assert await ends(client) == b""
        assert place.counts.failed == 1


async def closed(place: Place, *sent: tuple[int, Any] | bytes) -> dict[str, Any]:
    """The one log line of a connection that is closed without an answer, but to the first requests."""
    with capture_logs() as lines:
        async with RawClient(place.address) as client:
            for each in sent:
                if isinstance(each, bytes):
                    client._writer.write(each)
                else:
                    client.send(*each)
            await ends(client)
    assert place.served == []
    await until(lambda: place.listener.gauge.connections == 0)
    assert (place.listener.gauge.queued_bytes, place.counts.held_bytes, place.counts.unauthenticated) == (0, 0, 0)
    (line,) = lines
    return dict(line)


HANDSHAKE: Final = (1, SaslHandshakeRequest(mechanism="PLAIN"))


@pytest.mark.parametrize(
    "sent",
    [
        [(12, MetadataRequest())],
        [HANDSHAKE, (12, MetadataRequest())],
        [(2, SaslAuthenticateRequest(auth_bytes=RIGHT))],
        [HANDSHAKE, HANDSHAKE],
        [HANDSHAKE, (3, ApiVersionsRequest())],
        [b"\0\0\0\2\0\3"],
        [b"\0\0\0\x0e\0\x11\0\x07\0\0\0\0\xff\xff\0\0\0\0"],
        [b"GET / HTTP/1.1\r\n\r\n"],
    ],
)
async def test_anything_else_closes_the_connection_with_one_line(sent: list[Any]) -> None:
    async with a_place() as place:
        assert str((await closed(place, *sent))["event"]).startswith("connection closed")


async def test_a_frame_that_is_too_large_is_refused_by_its_length() -> None:
    async with a_place(frame_bytes_max=2_000) as place:
        line = await closed(place, (2_001).to_bytes(4, "big"))
        assert "2001" in line["reason"]
        async with RawClient(place.address) as client:
            await authenticated(client)
            client.send(12, MetadataRequest(topics=()))
            client._writer.write((3_000).to_bytes(4, "big") + bytes(3_000))
            assert await client._reader.readexactly(16) == SERVED * 2


async def test_unfinished_frames_of_strangers_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "UNAUTHENTICATED_BYTES_MAX", 250_000)
    async with a_place() as place, RawClient(place.address) as first, RawClient(place.address) as second:
        for client in (first, second):
            client._writer.write((100_000).to_bytes(4, "big") + b"x")
        await until(lambda: place.counts.held_bytes == 200_000)
        async with RawClient(place.address) as third:
            third._writer.write((100_000).to_bytes(4, "big") + b"x")
            assert await ends(third) == b""
        assert place.counts.held_bytes == 200_000
        await authenticated(second_one := await _another(place))
        second_one._writer.close()
    await until(lambda: place.counts.unauthenticated == 0)
    assert place.counts.held_bytes == 0


async def _another(place: Place) -> RawClient:
    return await RawClient(place.address).__aenter__()


async def test_requests_before_the_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "AUTHENTICATION_REQUESTS_MAX", 3)
    async with a_place() as place, RawClient(place.address) as client:
        for _ in range(3):
            client.send(3, ApiVersionsRequest())
        assert await client._reader.readexactly(24) == SERVED * 3
        client.send(3, ApiVersionsRequest())
        assert await ends(client) == b""


async def test_a_client_that_takes_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "AUTHENTICATION_MS_MAX", 1)
    async with a_place() as place, RawClient(place.address) as client:
        assert await ends(client) == b""
        assert place.served == []


async def test_a_session_ends_unless_the_client_authenticates_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "REAUTHENTICATION_PAUSE_MS", 0)
    now = asyncio.get_running_loop().time
    ahead = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now() + ahead, raising=False)
    async with a_place(session_ms_max={"PLAIN": 60_000}) as place, RawClient(place.address) as client:
        assert (await authenticated(client)).session_lifetime_ms == 60_000
        ahead = 50.0
        assert (await authenticated(client)).session_lifetime_ms == 60_000
        ahead = 100.0
        client.send(12, MetadataRequest())
        assert await client._reader.readexactly(8) == SERVED
        ahead = 200.0
        client.send(12, MetadataRequest())
        assert await ends(client) == b""
        assert place.served == [("User:alice", 3)]
        counts = place.counts
        assert (counts.succeeded, counts.succeeded_again, counts.expired, counts.failed) == (1, 1, 1, 0)
        assert counts.unauthenticated == 0


@pytest.mark.parametrize(
    ("mechanism", "message"), [("PLAIN", b"\0bob\0secret"), ("OTHER", RIGHT), ("PLAIN", b"\0alice\0wrong")]
)
async def test_nobody_becomes_somebody_else(mechanism: str, message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "REAUTHENTICATION_PAUSE_MS", 0)
    async with a_place(session_ms_max={"PLAIN": 60_000}) as place, RawClient(place.address) as client:
        await authenticated(client)
        client.send(1, SaslHandshakeRequest(mechanism=mechanism))
        client.send(2, SaslAuthenticateRequest(auth_bytes=message))
        client.send(12, MetadataRequest())
        await ends(client)
        assert place.served == []
        assert (place.counts.failed, place.counts.failed_again) == (0, 1)


async def test_a_session_is_no_longer_than_what_proved_the_client() -> None:
    async with a_place(session_ms_max={"TOKEN": 60_000, "PLAIN": 1}) as place:
        async with RawClient(place.address) as client:
            assert (await authenticated(client, mechanism="TOKEN")).session_lifetime_ms == 4_000
        async with RawClient(place.address) as client:
            assert (await authenticated(client)).session_lifetime_ms == 1


def test_a_name_in_a_log_breaks_no_line() -> None:
    assert shown("a\nb\r\x1b[31m\u2028\u202e\0") == "a\\nb\\r\\x1b[31m\\u2028\\u202e\\x00"
    assert shown("ünal") == "ünal"
    assert shown("x" * 101) == "x" * 100 + "..."
