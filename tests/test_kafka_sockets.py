"""kafka-python leaves no socket open that another test would be blamed for."""

from __future__ import annotations

import socket

from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector

from tests.kafka_sockets import close_with_clients, opened


def test_a_socket_that_was_being_connected_is_closed_with_its_client() -> None:
    close_with_clients()
    net = NetworkSelector()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", server.getsockname())
        net.call_soon_with_future(KafkaNetSocket().connect, net, address)
        net.poll(timeout_ms=0)
        (connecting,) = opened[net]
        assert connecting.fileno() >= 0
        net.close()
        assert connecting.fileno() == -1
