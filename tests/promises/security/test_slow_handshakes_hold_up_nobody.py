"""Strangers begin 2,000 TLS handshakes and end none of them. Others are served meanwhile, and memory is bounded."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from headrace.base.limits import TLS_HANDSHAKES_MAX
from tests.certificates import Authority
from tools.servers.broker_process import BrokerProcess

HANDSHAKES: Final = 2_000
GROWTH_BYTES_MAX: Final = 100 * 1024 * 1024
API_VERSIONS: Final = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
BEGINNINGS: Final = (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400))


def test_slow_handshakes_hold_up_nobody(tmp_path: Path) -> None:
    authority = Authority.made(tmp_path / "ca")
    options = (
        *("--config", "listener.security.protocol.map=PLAINTEXT:SSL"),
        *("--config", f"ssl.keystore.location={authority.issue('127.0.0.1')}"),
    )
    context = ssl.create_default_context(cafile=str(authority.trust))
    with BrokerProcess(tmp_path, *options) as broker, ExitStack() as held:
        host, _, port = broker.bootstrap.partition(":")
        process = psutil.Process(broker.pid)

        def served() -> None:
            plain = socket.create_connection((host, int(port)), 60)
            with plain, context.wrap_socket(plain, server_hostname=host) as own:
                own.sendall(API_VERSIONS)
                assert len(own.recv(4)) == 4

        served()
        before = process.memory_info().rss
        strangers = []
        for number in range(HANDSHAKES):
            stranger = held.enter_context(socket.create_connection((host, int(port)), 60))
            stranger.sendall(BEGINNINGS[number % len(BEGINNINGS)])
            strangers.append(stranger)
            if number % 100 == 99:
                served()
        for stranger in strangers[: HANDSHAKES - 2 * TLS_HANDSHAKES_MAX]:
            assert ended(stranger), "the oldest are ended"
        served()
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX


def ended(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except ConnectionError:
        return True
