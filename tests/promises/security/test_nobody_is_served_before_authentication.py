"""Promise 8, for listeners with SASL: a client that is not authenticated learns, changes and holds next to nothing.

Attackers here speak on the wire by hand, to a whole broker.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from headrace.base.limits import UNAUTHENTICATED_BYTES_MAX
from headrace.broker.boot import Broker
from headrace.controller.access.scram import ScramAlteration
from headrace.controller.asks.access import AlterScram
from headrace.metadata.access.scram import ScramMechanism
from headrace.net.peer.peerframes import API_KEY as PEERS_API
from headrace.security.scram import credential_of
from headrace.wire.ailments import API_KEY as AILMENTS_API
from headrace.wire.apis import ApiKey, api
from headrace.wire.durable import API_KEY as DURABLE_API
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.api_versions import ApiVersionsRequest
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest
from headrace.wire.moves import API_KEY as MOVES_API
from headrace.wire.replica_fetch import API_KEY as REPLICA_API
from tests.broker.group_broker import RawClient, until
from tests.sasl_broker import SASL, sasl_broker
from tools.servers.broker_process import BrokerProcess

PRIVATE: Final = (PEERS_API, AILMENTS_API, DURABLE_API, MOVES_API, REPLICA_API)
KEYS: Final = (-1, *range(96), *PRIVATE, 32_767)
ANSWERED: Final = {(int(ApiKey.SASL_HANDSHAKE), 0), (int(ApiKey.SASL_HANDSHAKE), 1)}
AT_ONCE: Final = 50
SECRET: Final = "wonder;land"
MEMORY_GROWTH_BYTES_MAX: Final = 64 * 1024 * 1024
STRANGERS: Final = 200


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with asyncio.timeout(150), sasl_broker(tmp_path) as broker:
        mechanism = ScramMechanism.SCRAM_SHA_256
        credential = credential_of(mechanism, SECRET, salt=b"salt of alice", iterations=4_096)
        wanted = (ScramAlteration("alice", mechanism, credential),)
        assert await broker.parts.control.submit(AlterScram(alterations=wanted)) == (None,)
        yield broker


async def sent(broker: Broker, data: bytes) -> bytes:
    """All that is answered until the broker hangs up, which it does, or the client has said all."""
    reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def requests() -> list[tuple[int, int, bytes]]:
    """A frame for each API and version, known or not: as its client would send it, and with an empty body."""
    made = []
    for key in KEYS:
        known = api(key)
        for version in range(-1, 4 if known is None else known.max_version + 3):
            bare = (
                key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + bytes(4) + b"\xff\xff"
            )
            made.append((key, version, bare))
            if known is not None and known.min_version <= version <= known.max_version:
                made.append((key, version, bare + bytes(40)))
    return [(key, version, len(frame).to_bytes(4, "big") + frame) for key, version, frame in made]


async def test_no_api_is_answered(broker: Broker) -> None:
    before = list(broker.image.snapshot())
    handshake = b"".join(map(bytes, encode_request_frame(_codec(17), 1, 7, "x", SaslHandshakeRequest("PLAIN"))))
    told = await sent(broker, handshake)
    limit = asyncio.Semaphore(AT_ONCE)

    async def tried(key: int, version: int, frame: bytes) -> None:
        async with limit:
            answer, later = await sent(broker, frame), await sent(broker, handshake + frame)
            if key == ApiKey.API_VERSIONS:
                assert len(answer) < 2_000, "it lists APIs, and nothing of the cluster"
            elif (key, version) not in ANSWERED:
                assert answer == b"", (key, version)
            if (key, version) not in {(36, 0), (36, 1), (36, 2)}:
                assert later in (b"", told), (key, version)

    await asyncio.gather(*(tried(*each) for each in requests()))
    assert list(broker.image.snapshot()) == before
    assert broker.parts.requests.authentication.counts.succeeded == 0
    await until(lambda: broker.parts.requests.listener.gauge.connections == 0)
    async with RawClient(str(broker.address)) as client:
        assert (await authenticated(client)).error_code == 0
        answer = await client.ask(12, MetadataRequest())
        assert (answer.topics, len(answer.brokers)) == ((), 1)


def _codec(key: int) -> Any:
    known = api(key)
    assert known is not None
    return known


async def authenticated(client: RawClient, message: bytes = f"\0alice\0{SECRET}".encode()) -> Any:
    assert (await client.ask(1, SaslHandshakeRequest(mechanism="PLAIN"))).error_code == 0
    return await client.ask(2, SaslAuthenticateRequest(auth_bytes=message))


class Scram:
    """A client's side, which gives its messages away."""

    def __init__(self, user: str = "alice", password: str = SECRET, nonce: str = "of-the-client") -> None:
        self.first = f"n,,n={user},r={nonce}".encode()
        self._password = password
        self.final = b""

    def answer(self, challenge: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salt, iterations = base64.b64decode(parts["s"]), int(parts["i"])
        key = hmac.digest(
            hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, iterations), b"Client Key", "sha256"
        )
        unproven = f"c=biws,r={parts['r']}"
        said = b",".join((self.first[3:], challenge, unproven.encode()))
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.final = f"{unproven},p={base64.b64encode(proof).decode()}".encode()
        return self.final


async def exchanged(broker: Broker, first: bytes, final: Any) -> tuple[int, int]:
    """The error codes of both steps; `final` makes the second message from the challenge."""
    async with RawClient(str(broker.address)) as client:
        await client.ask(1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        challenge = await client.ask(2, SaslAuthenticateRequest(auth_bytes=first))
        if challenge.error_code:
            return challenge.error_code, -1
        told = await client.ask(2, SaslAuthenticateRequest(auth_bytes=final(challenge.auth_bytes)))
        return 0, told.error_code


async def test_scram_that_is_replayed_or_cut_off(broker: Broker) -> None:
    failed = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
    counts = broker.parts.requests.authentication.counts
    scram = Scram()
    assert await exchanged(broker, scram.first, scram.answer) == (0, 0)
    assert await exchanged(broker, scram.first, lambda _: scram.final) == (0, failed), "its nonce is spent"
    for end in range(len(scram.first)):
        assert failed in await exchanged(broker, scram.first[:end], lambda _: scram.final)
    for missing in (1, 2, *range(3, len(scram.final), 7)):
        fresh = Scram()
        cut = await exchanged(
            broker, fresh.first, lambda challenge, by=missing, fresh=fresh: fresh.answer(challenge)[:-by]
        )
        assert cut == (0, failed), missing
    assert await exchanged(broker, Scram("mallory").first, Scram("mallory").answer) == (0, failed)
    assert counts.succeeded == 1


async def test_a_hundred_wrong_passwords_hold_up_nobody(broker: Broker) -> None:
    counts = broker.parts.requests.authentication.counts
    async with RawClient(str(broker.address)) as known:
        assert (await authenticated(known)).error_code == 0

        async def guess(number: int) -> int:
            async with RawClient(str(broker.address)) as client:
                told = await authenticated(client, f"\0alice\0guess {number}".encode())
                assert await client._reader.read() == b"", "it is closed"
                return int(told.error_code)

        guesses = asyncio.gather(*(guess(number) for number in range(100)))
        served = 0
        while not guesses.done():
            await known.ask(12, MetadataRequest())
            served += 1
        assert set(await guesses) == {ErrorCode.SASL_AUTHENTICATION_FAILED}
        assert served > 0
    assert counts.failures == {"127.0.0.1": 100}
    assert (counts.succeeded, counts.failed) == (1, 100)
    await until(lambda: counts.unauthenticated == 0)


def test_large_frames_of_strangers_take_no_memory(tmp_path: Path) -> None:
    """Each announces as much as is allowed, and sends nearly all of it."""
    configs = [part for item in SASL.items() for part in ("--config", "=".join(item))]
    with BrokerProcess(tmp_path, *configs) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        before = psutil.Process(broker.pid).memory_info().rss
        with ExitStack() as stack:
            strangers = [
                stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=60)))
                for _ in range(STRANGERS)
            ]
            for stranger in strangers:
                try:
                    stranger.sendall((524_288).to_bytes(4, "big") + bytes(524_287))
                except ConnectionError:
                    continue
            for stranger in strangers[-10:]:
                assert hung_up(stranger), "there was no room for it"
            for size in (524_289, 100 * 1024 * 1024, 2**31 - 1):
                large = stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=60)))
                large.sendall(size.to_bytes(4, "big"))
                assert hung_up(large)
            grown = psutil.Process(broker.pid).memory_info().rss - before
            assert grown < MEMORY_GROWTH_BYTES_MAX + UNAUTHENTICATED_BYTES_MAX
        text = broker.log.read_text()
        assert "clients that are not authenticated hold too much" in text
        assert "bug" not in text


def hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


async def test_names_break_no_line_of_the_log(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    async with RawClient(str(broker.address)) as client:
        await authenticated(client, b"\0eve\nready evil=1\x1b[2J\0guess of eve")
    async with RawClient(str(broker.address)) as client:
        await client.ask(1, SaslHandshakeRequest(mechanism="\nready evil=1"))
    async with RawClient(str(broker.address)) as client:
        await client.ask(3, ApiVersionsRequest("kafka", "1"))
    said = capsys.readouterr().out
    assert "\nready evil" not in said
    assert "\x1b[2J" not in said
    assert "guess of eve" not in said
