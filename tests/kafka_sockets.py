"""Closes sockets that kafka-python leaves open: those that it was connecting when its client was closed, or refused.

The interpreter tells of an open socket whenever it finds it, and so fails another test than the one that made it.
"""

from __future__ import annotations

import socket
import sys
from typing import Any
from weakref import WeakKeyDictionary

opened: WeakKeyDictionary[Any, list[socket.socket]] = WeakKeyDictionary()
"""By the network of each client."""


def close_with_clients() -> None:
    """Have kafka-python close all sockets of a client with it, where it is imported."""
    if "kafka.net.selector" not in sys.modules or hasattr(close_with_clients, "is_done"):
        return
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.selector import NetworkSelector

    connect, close = KafkaNetSocket.sock_connect, NetworkSelector.close

    async def noted(self: Any, net: Any, sock: socket.socket, *rest: Any, **more: Any) -> Any:
        opened.setdefault(net, []).append(sock)
        return await connect(self, net, sock, *rest, **more)

    def closed(self: Any) -> None:
        close(self)
        for each in opened.pop(self, ()):
            each.close()

    KafkaNetSocket.sock_connect, NetworkSelector.close = noted, closed
    vars(close_with_clients).update(is_done=True)
