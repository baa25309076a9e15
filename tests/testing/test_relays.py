"""Relays before brokers leave no connection behind, whenever they are ended."""

from __future__ import annotations

import asyncio
import socket

from headrace.base.addresses import Address
from headrace.testing.relays import Relay, Relays

LIMIT_S = 60.0


def test_a_link_that_is_ended_while_it_cleans_up_breaks_on_both_sides() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker, socket.create_server(("127.0.0.1", 0)) as other:
        door = other.getsockname()
        other.close()
        relays = Relays({1: Relay(Address(*door), Address(*broker.getsockname()))}, lambda _: None)

        async def end_twice() -> None:
            links = list(relays._links)
            for _ in range(2):
                for link in links:
                    link.cancel()
                await asyncio.sleep(0)
            await asyncio.gather(*links, return_exceptions=True)

        relays.open(1)
        try:
            with socket.create_connection(door, timeout=LIMIT_S) as client:
                accepted, _ = broker.accept()
                with accepted:
                    accepted.settimeout(LIMIT_S)
                    client.sendall(b"through")
                    assert accepted.recv(100) == b"through"
                    relays._do(end_twice())
                    for end in (accepted, client):
                        assert _is_broken(end)
        finally:
            relays.close()


def _is_broken(end: socket.socket) -> bool:
    try:
        return end.recv(100) == b""
    except ConnectionResetError:
        return True
