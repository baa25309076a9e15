"""Ports that are held for brokers."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.home import ports
from headrace.broker.home.ports import PORTS, HeldPorts

HOST = "127.0.0.1"


def test_free_ports_are_free_and_below_those_that_clients_get() -> None:
    with released(HeldPorts.free(HOST, 5, random.Random())) as held:
        assert len(set(held.numbers)) == 5
        assert all(port in PORTS for port in held.numbers)


def test_whoever_looks_does_not_find_a_port_that_is_held_and_its_broker_listens_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with released(HeldPorts.free(HOST, 1, random.Random())) as held:
        (port,) = held.numbers
        monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
        for _ in range(2):  # it may be killed, and start again
            with pytest.raises(UsageError, match="name one with --listen"):
                HeldPorts.free(HOST, 1, random.Random())
            with socket.create_server((HOST, port)), pytest.raises(OSError, match="in use"):
                socket.create_server((HOST, port))
            with socket.socket() as client:
                assert client.connect_ex((HOST, port)) != 0, "nobody listens on a port that is only held"


def test_a_port_that_is_released_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldPorts.free(HOST, 1, random.Random())
    (port,) = held.numbers
    held.release()
    assert held.numbers == []
    monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
    with released(HeldPorts.free(HOST, 1, random.Random())) as again:
        assert again.numbers == [port]


def test_known_addresses_are_held_where_nobody_listens() -> None:
    with released(HeldPorts.free(HOST, 2, random.Random())) as held:
        first, second = held.numbers
        held.release()
        with (
            socket.create_server((HOST, first)),
            released(HeldPorts.of([Address(HOST, first), Address(HOST, second)])) as again,
        ):
            assert again.numbers == [second]


@contextmanager
def released(held: HeldPorts) -> Iterator[HeldPorts]:
    try:
        yield held
    finally:
        held.release()
