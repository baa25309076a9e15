"""TLS listeners, on sockets: who comes in, who does not, and that certificates change under open connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.base import limits
from headrace.base.errors import UsageError
from headrace.net.pem import PemStores
from headrace.net.server import handshakes
from headrace.net.server.listener import Answer, Connection, Crowd, Door, Later, Listener
from headrace.net.server.tls import ClientAuth, Tls, TlsSettings
from tests.broker.group_broker import until
from tests.certificates import NOT_YET, OVER, Authority
from tests.loops import run
from tests.net.test_listener import framed, read_frame

HOST: Final = "127.0.0.1"
REFUSED: Final = (ssl.SSLError, ConnectionError)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("theirs"))


def settings(authority: Authority, client_auth: ClientAuth = ClientAuth.NONE, **rest: Any) -> TlsSettings:
    stores = PemStores(chain_file=str(authority.issue(HOST)), trust_file=str(authority.trust))
    return TlsSettings(listener="SSL", stores=stores, client_auth=client_auth, **rest)


def echo(frame: memoryview, _: Connection) -> Answer | Later | None:
    return [framed(bytes(frame))]


class Place:
    def __init__(self, listener: Listener, tls: Tls, port: int) -> None:
        self.listener = listener
        self.tls = tls
        self.port = port

    async def connect(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, ssl=context)

    async def asked(self, context: ssl.SSLContext, text: bytes = b"hello") -> bytes:
        """The answer to one frame, on a connection of its own. Raises OSError where it has none."""
        reader, writer = await self.connect(context)
        try:
            writer.write(framed(text))
            return await read_frame(reader)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("it was closed") from error
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    made: TlsSettings, serve: Any = echo, greet: Callable[[Connection], None] | None = None
) -> AsyncIterator[Place]:
    tls = Tls(made)
    listener = Listener(serve)
    port = await listener.bind(HOST, 0, Door(name="SSL", tls=tls, greet=greet))
    await listener.accept()
    try:
        yield Place(listener, tls, port)
    finally:
        await listener.stop(grace_s=0.1)
        await until(lambda: not len(listener.handshakes))


def trusting(authority: Authority, identity: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.trust))
    if identity is not None:
        context.load_cert_chain(identity)
    return context


def test_frames_are_answered_whatever_their_size(ours: Authority) -> None:
    async def work() -> None:
        async with serving(settings(ours)) as place:
            for size in (1, 16_384, 3_000_000):
                assert await place.asked(trusting(ours), b"x" * size) == b"x" * size

    run(work())


@pytest.mark.parametrize("host", ["localhost", "", "::"])
def test_every_address_of_a_host_is_served(ours: Authority, host: str) -> None:
    """Also IPv6, where the machine has it; a free port is the same for all."""

    async def work() -> None:
        listener = Listener(echo)
        port = await listener.bind(host, 0, Door(name="SSL", tls=Tls(settings(ours))))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)
        await listener.accept()
        assert await Place(listener, Tls(settings(ours)), port).asked(trusting(ours)) == b"hello"
        await listener.stop()

    run(work())


def test_a_taken_port_is_an_error(ours: Authority) -> None:
    async def work() -> None:
        async with serving(settings(ours)) as place:
            for host in (HOST, "localhost"):
                with pytest.raises(OSError, match="in use"):
                    await place.listener.bind(host, place.port, Door(name="OTHER", tls=place.tls))

    run(work())


def test_a_frame_right_behind_the_handshake_is_not_lost(ours: Authority) -> None:
    """A client of TLS 1.3 sends its first request with the end of its handshake: both come in one read."""

    async def work() -> None:
        async with serving(settings(ours)) as place:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = trusting(ours).wrap_bio(incoming, outgoing, server_hostname=HOST)
            reader, writer = await asyncio.open_connection(HOST, place.port)
            while True:
                try:
                    session.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))
            for number in range(3):
                session.write(framed(b"%d" % number))
            writer.write(outgoing.read())  # the end of the handshake, and all three
            answers = b""
            while len(answers) < 3 * len(framed(b"0")):
                incoming.write(await reader.read(65_536))
                while True:
                    try:
                        answers += session.read(65_536)
                    except ssl.SSLWantReadError:
                        break
            assert answers == b"".join(framed(b"%d" % number) for number in range(3))
            writer.close()

    run(work())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_two_versions_are_spoken(ours: Authority, version: ssl.TLSVersion) -> None:
    async def work() -> None:
        async with serving(settings(ours)) as place:
            context = trusting(ours)
            context.minimum_version = context.maximum_version = version
            assert await place.asked(context) == b"hello"
            context.options |= ssl.OP_NO_TICKET

    run(work())


@pytest.mark.filterwarnings("ignore:.*TLSv1_1.*:DeprecationWarning")
def test_no_older_version_and_no_plain_text(ours: Authority) -> None:
    async def work() -> None:
        async with serving(settings(ours)) as place:
            old = trusting(ours)
            old.set_ciphers("ALL:@SECLEVEL=0")
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(REFUSED):
                await place.asked(old)
            reader, writer = await asyncio.open_connection(HOST, place.port)
            writer.write(framed(b"hello"))
            assert b"hello" not in await reader.read()
            writer.close()
            assert await place.asked(trusting(ours)) == b"hello"

    run(work())


def test_who_is_asked_for_a_certificate(ours: Authority, theirs: Authority) -> None:
    shown: list[bool] = []

    def greet(connection: Connection) -> None:
        shown.append(connection.certificate() is not None)

    async def work() -> None:
        good, foreign = ours.issue(common_name="good"), theirs.issue(common_name="foreign")
        over, not_yet = (ours.issue(common_name=f"{valid}", valid=valid) for valid in (OVER, NOT_YET))
        for auth, identity, comes_in in (
            (ClientAuth.NONE, good, False),
            (ClientAuth.REQUESTED, None, False),
            (ClientAuth.REQUESTED, good, True),
            (ClientAuth.REQUIRED, good, True),
        ):
            async with serving(settings(ours, auth), greet=greet) as place:
                assert await place.asked(trusting(ours, identity)) == b"hello"
                assert shown.pop() is comes_in
        for auth, identity in (
            (ClientAuth.REQUESTED, foreign),
            (ClientAuth.REQUIRED, foreign),
            (ClientAuth.REQUIRED, None),
            (ClientAuth.REQUESTED, over),
            (ClientAuth.REQUIRED, over),
            (ClientAuth.REQUIRED, not_yet),
        ):
            async with serving(settings(ours, auth), greet=greet) as place:
                with pytest.raises(REFUSED):
                    await place.asked(trusting(ours, identity))
                assert not shown, "no connection was made"
                assert not place.listener.gauge.connections

    run(work())


def test_certificates_change_under_open_connections(tmp_path: Path) -> None:
    """Also the CA: who has the new one's certificate comes in, who has the old one's does not any more."""
    old, new = Authority.made(tmp_path / "old"), Authority.made(tmp_path / "new")
    chain, trust = tmp_path / "chain.pem", tmp_path / "trust.pem"
    chain.write_bytes(old.issue(HOST).read_bytes())
    trust.write_bytes(old.trust.read_bytes())
    stores = PemStores(chain_file=str(chain), trust_file=str(trust))
    made = TlsSettings(listener="SSL", stores=stores, client_auth=ClientAuth.REQUIRED)
    his, hers = (each.issue(common_name="client") for each in (old, new))

    async def work() -> None:
        async with serving(made) as place:
            before = trusting(old, his)
            reader, writer = await place.connect(before)
            writer.write(framed(b"1"))
            assert await read_frame(reader) == b"1"
            assert not place.tls.refresh(), "nothing has changed"
            chain.write_bytes(b"half a")
            assert not place.tls.refresh()
            assert await place.asked(before) == b"hello", "the old ones stay"
            chain.write_bytes(new.issue(HOST).read_bytes())
            trust.write_bytes(new.trust.read_bytes())
            assert place.tls.refresh()
            with pytest.raises(REFUSED):
                await place.asked(before)
            both = trusting(new, his)
            with pytest.raises(REFUSED):
                await place.asked(both)
            assert await place.asked(trusting(new, hers)) == b"hello"
            writer.write(framed(b"2"))
            assert await read_frame(reader) == b"2", "it goes on"
            writer.close()

    run(work())


class Vanishing(PemStores):
    """A key that is taken away between two reads of it, as `rm` in the middle of a change does."""

    def load_identity(self, context: ssl.SSLContext) -> None:
        Path(self.chain_file).unlink()
        context.load_cert_chain(self.chain_file)


def test_a_key_that_goes_while_it_is_read_stops_nothing(ours: Authority, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(ours.issue(HOST).read_bytes())
    tls = Tls(TlsSettings(listener="SSL", stores=PemStores(chain_file=str(chain))))
    tls._settings = replace(tls._settings, stores=Vanishing(chain_file=str(chain)))
    known = tls.context
    chain.write_bytes(ours.issue(HOST).read_bytes())
    assert not tls.refresh()
    assert tls.context is known


def test_slow_handshakes_are_bounded_and_hold_up_nobody(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "TLS_HANDSHAKES_MAX", 20)

    async def work() -> None:
        async with serving(settings(ours)) as place:
            silent = [await asyncio.open_connection(HOST, place.port) for _ in range(100)]
            assert await place.asked(trusting(ours)) == b"hello"
            for reader, _ in silent[:80]:
                assert await reader.read() == b"", "the oldest are closed"
            assert len(place.listener.handshakes) <= 20
            for _, writer in silent:
                writer.close()

    run(work())


def test_who_would_be_refused_anyway_costs_no_handshake(ours: Authority) -> None:
    """By the number of connections, and by their rate, which is asked once for each."""
    asked: list[str] = []

    def counted(host: str) -> int:
        asked.append(host)
        return 0

    async def work() -> None:
        async with serving(settings(ours)) as place:
            place.listener.newcomer_waits_ms = counted
            place.listener.crowd_max = Crowd(all=10, of_one_address=1)
            reader, writer = await place.connect(trusting(ours))
            writer.write(framed(b"1"))
            assert await read_frame(reader) == b"1"
            for _ in range(3):
                with pytest.raises(REFUSED):
                    await place.asked(trusting(ours))
            assert asked == [HOST]
            writer.close()
            await until(lambda: not place.listener.gauge.connections)
            assert await place.asked(trusting(ours)) == b"hello"
            place.listener.newcomer_waits_ms = lambda _: 1_000
            with pytest.raises(REFUSED):
                await place.asked(trusting(ours))

    run(work())


def test_a_handshake_that_takes_too_long_is_ended(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "TLS_HANDSHAKE_MS_MAX", 50)

    async def work() -> None:
        async with serving(settings(ours)) as place:
            reader, writer = await asyncio.open_connection(HOST, place.port)
            writer.write(b"\x16\x03\x01\x02\x00")  # a hello that never comes
            assert await reader.read() == b""
            writer.close()
            await until(lambda: not len(place.listener.handshakes))

    run(work())


@pytest.mark.parametrize(
    "hello",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(300),
        b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000,
        b"\x15\x03\x01\x00\x02\x02\x28",
    ],
)
def test_what_is_no_handshake_is_closed(ours: Authority, hello: bytes) -> None:
    async def work() -> None:
        async with serving(settings(ours)) as place:
            reader, writer = await asyncio.open_connection(HOST, place.port)
            writer.write(hello)
            if not hello:
                writer.write_eof()
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
            reset = socket.create_connection((HOST, place.port))
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            reset.close()
            assert await place.asked(trusting(ours)) == b"hello"

    run(work())


def test_a_reader_that_takes_nothing_is_held_up(ours: Authority) -> None:
    """The bound of unsent answers holds, and the rest of them comes once it reads."""
    served = 0

    def serve(frame: memoryview, _: Connection) -> Answer:
        nonlocal served
        served += 1
        return [framed(bytes(100_000))]

    async def work() -> None:
        async with serving(settings(ours), serve) as place:
            reader, writer = await place.connect(trusting(ours))
            writer.write(framed(b"x") * 1_000)
            known = -1
            while known != served or not served:
                known = served
                await asyncio.sleep(0.05)
            (connection,) = place.listener._connections
            assert connection.unsent_bytes >= limits.RESPONSE_QUEUE_BYTES_MAX
            assert served < 200
            for _ in range(1_000):
                assert len(await read_frame(reader)) == 100_000
            assert served == 1_000
            writer.close()

    run(work())


def test_a_stop_answers_what_it_has_and_says_goodbye(ours: Authority) -> None:
    async def work() -> None:
        async with serving(settings(ours)) as place:
            reader, writer = await place.connect(trusting(ours))
            writer.write(framed(b"1"))
            assert await read_frame(reader) == b"1"
            stopping = asyncio.ensure_future(place.listener.stop())
            assert await reader.read() == b"", "by close_notify, else this raises"
            writer.close()
            await stopping

    run(work())


def test_what_cannot_be_is_told_in_one_sentence(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    good = settings(ours)
    chain = Path(good.stores.chain_file)
    mixed = tmp_path / "mixed.pem"
    mixed.write_bytes(chain.read_bytes().partition(b"-----BEGIN CERT")[0] + theirs.trust.read_bytes())
    nobody = PemStores()
    for bad, words in (
        (replace(good, stores=nobody), "has TLS and no certificate"),
        (replace(good, stores=PemStores(chain_file=str(tmp_path / "none"))), "cannot be read"),
        (replace(good, stores=PemStores(chain_file=str(mixed))), "key values mismatch"),
        (replace(good, stores=replace(good.stores, trust_file=""), client_auth=ClientAuth.REQUIRED), "truststore"),
        (replace(good, versions=()), "no version of TLS"),
        (replace(good, suites=("TLS_AES_128_GCM_SHA256",)), "all suites of TLS 1.3"),
        (replace(good, suites=("NONE_SUCH",)), "names NONE_SUCH"),
        (replace(good, versions=("TLSv1.3",), suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)), "no version of TLS"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            Tls(bad)
        assert "\n" not in str(refused.value)
        assert "PRIVATE" not in repr(bad)


def test_suites_have_the_names_of_java(ours: Authority) -> None:
    only = settings(ours, suites=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",))
    context = Tls(only).context
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    names = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert names == {"ECDHE-ECDSA-AES128-GCM-SHA256"}
