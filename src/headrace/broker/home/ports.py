"""Ports of brokers that are still to start, held so that no other program takes them meanwhile.

A held port has a socket that is bound and never listens. The broker may listen beside it, for both sockets allow that
their address is used again (SO_REUSEADDR). A program that looks for a free port without it finds this one taken,
also while its broker is down.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ports import Random

PORTS: Final = range(20_000, 32_000)
"""The range in which free ports are looked for. It lies below the ports that the system gives to clients, so a killed
broker finds its own still free."""


class HeldPorts:
    """Ports at one host, until they are released."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        """`sockets`: bound ones, which are closed at the release."""
        self._sockets = list(sockets)

    @property
    def numbers(self) -> list[int]:
        return [each.getsockname()[1] for each in self._sockets]

    def release(self) -> None:
        """Let others have them. A broker that listens there is not disturbed."""
        while self._sockets:
            self._sockets.pop().close()

    @classmethod
    def free(cls, host: str, count: int, random: Random) -> Self:
        """Hold `count` ports that nobody else has. Raises UsageError where they cannot be found."""
        held = cls(())
        for _ in range(100 * count):
            trial = socket.socket(_family(host))
            try:
                trial.bind((host, random.randrange(PORTS.start, PORTS.stop)))
            except OSError:
                trial.close()
                continue
            _share(trial)  # after the bind, which nobody else can have done then
            held._sockets.append(trial)
            if len(held._sockets) == count:
                return held
        held.release()
        raise UsageError(f"No free ports were found at {host}: name one with --listen HOST:PORT.")

    @classmethod
    def of(cls, addresses: Iterable[Address]) -> Self:
        """Hold those of `addresses` where nobody listens now."""
        held = cls(())
        for address in addresses:
            trial = socket.socket(_family(address.host))
            _share(trial)
            with suppress(OSError):
                trial.bind((address.host, address.port))
                held._sockets.append(trial)
                continue
            trial.close()
        return held


def _share(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
