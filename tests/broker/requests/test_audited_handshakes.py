"""Clients that TLS refuses are in the audit log, as those are that could not log in."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization

from headrace.base.limits import AUDIT_LINES_OF_A_CLIENT_BURST_MAX
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.metadata.config_table import STANDARD_AUTHORIZER
from headrace.storage.disk import LocalDisk
from tests import loops
from tests.broker.group_broker import until
from tests.certificates import Authority

NAME: Final = "ssl.principal.mapping.rules"


def configs(ours: Authority, **more: str) -> Mapping[str, str]:
    return {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(ours.issue("127.0.0.1")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ours.trust),
        "ssl.client.auth": "required",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        **more,
    }


def client(trusted: Authority, identity: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(trusted.trust))
    if identity is not None:
        made.load_cert_chain(identity)
    return made


def expired(ours: Authority) -> Path:
    """A certificate whose time is over."""
    import datetime

    issued = ours.ca.issue_cert(common_name="old", not_after=datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC))
    path = ours.directory / "old.pem"
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + issued.cert_chain_pems[0].bytes())
    return path


async def comes(broker: Broker, context: ssl.SSLContext) -> None:
    """Connect, and wait for the end."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(*broker.address, ssl=context)
        with suppress(OSError):
            await reader.read()
        writer.close()


def lines(broker: Broker) -> list[dict[str, Any]]:
    text = (broker._config.data / "audit.log").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["event"] == "authentication"]


def test_each_refusal_has_a_line_with_its_reason(tmp_path: Path) -> None:
    ours, theirs = Authority.made(tmp_path / "ours"), Authority.made(tmp_path / "theirs")

    async def work() -> None:
        config = BrokerConfig(data=tmp_path / "data", configs=configs(ours, **{NAME: "RULE:^CN=alice.*$/alice/"}))
        async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
            await comes(broker, client(ours))
            await comes(broker, client(ours, theirs.issue(common_name="mallory")))
            await comes(broker, client(ours, expired(ours)))
            await comes(broker, client(ours, ours.issue(common_name="bob")))
        said = lines(broker)
        assert {(line["event"], line["mechanism"], line["listener"], line["allowed"]) for line in said} == {
            ("authentication", "TLS", "SSL", False)
        }
        assert {(line["principal"], line["address"]) for line in said} == {("User:ANONYMOUS", "127.0.0.1")}
        reasons = [line["reason"] for line in said]
        wanted = ("did not return a certificate", "unable to get", "expired", "no rule of ssl.principal.mapping.rules")
        assert len(reasons) == len(wanted)
        for reason, words in zip(reasons, wanted, strict=True):
            assert words in reason, reasons

    loops.run(work())


def hello() -> bytes:
    """The first words of a client."""
    sent, nothing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(nothing, sent, server_hostname="broker").do_handshake()
    return sent.read()


@pytest.mark.parametrize("words", [b"", hello()[:50], hello()], ids=["nothing", "half a hello", "a hello"])
def test_one_that_goes_in_the_midst_of_its_handshake_has_no_line(tmp_path: Path, words: bytes) -> None:
    ours = Authority.made(tmp_path / "ours")

    async def work() -> None:
        config = BrokerConfig(data=tmp_path / "data", configs=configs(ours))
        async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
            under_way = broker.parts.requests.listener.handshakes
            reader, writer = await asyncio.open_connection(*broker.address)
            writer.write(words)
            if len(words) > 100:
                await reader.read(1)  # the broker's answer: its turn is over
            await until(lambda: len(under_way) == 1)
            writer.close()
            await until(lambda: len(under_way) == 0)
            await comes(broker, client(ours))
        (line,) = lines(broker)
        assert "did not return a certificate" in line["reason"], "of the one that came after it"

    loops.run(work())


def test_one_address_cannot_fill_the_log_with_handshakes(tmp_path: Path) -> None:
    ours = Authority.made(tmp_path / "ours")

    async def work() -> None:
        config = BrokerConfig(data=tmp_path / "data", configs=configs(ours))
        async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
            refused = broker.parts.requests.listener.handshakes.on_refused
            assert refused is not None
            for _ in range(10 * AUDIT_LINES_OF_A_CLIENT_BURST_MAX):
                refused("10.0.0.1", "SSL", "a reason")
            refused("10.0.0.2", "SSL", "another address has its own rate")
        said = [line.get("address") for line in lines(broker)]
        assert said.count("10.0.0.2") == 1
        assert said.count("10.0.0.1") < 2 * AUDIT_LINES_OF_A_CLIENT_BURST_MAX

    loops.run(work())


def test_grants_are_written_where_that_is_asked_for(tmp_path: Path) -> None:
    ours = Authority.made(tmp_path / "ours")

    async def work() -> None:
        config = BrokerConfig(
            data=tmp_path / "data",
            configs=configs(ours, **{"audit.log.grants": "true", NAME: "RULE:^CN=alice.*$/alice/,DEFAULT"}),
        )
        async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
            context = client(ours, ours.issue(common_name="alice"))
            reader, writer = await asyncio.open_connection(*broker.address, ssl=context)
            writer.write(b"\0\0\0\1x")
            with suppress(OSError):
                await reader.read()
            writer.close()
        (line,) = lines(broker)
        assert line["allowed"]
        assert line["principal"] == "User:alice"

    loops.run(work())
