"""The listening side: it holds the connections, bounds their total, and closes those that exceed the bounds.

Promises:
- It accepts connections only after `accept`.
- It closes connections that are idle, too slow or in the way (`net.server.connection`, `net.server.request_budget`).
- A stop answers the requests that it received, and sends the answers.

Never does: know the meaning of a frame (`serve` does), or hold more than `net.server.request_budget` allows.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.base.limits import CONNECTIONS_MAX, SWEPT_PER_TURN_MAX
from headrace.net.server.connection import PLAIN_DOOR
from headrace.net.server.connection import Answer as Answer
from headrace.net.server.connection import Connection as Connection
from headrace.net.server.connection import Door as Door
from headrace.net.server.connection import Later as Later
from headrace.net.server.connection import Serve as Serve
from headrace.net.server.handshakes import BACKLOG, Handshakes, TlsServer, bound_sockets
from headrace.net.server.loglimit import LogLimit
from headrace.net.server.request_budget import Bounds, Gauge, RequestBudget

TURNS_OF_AN_ACCEPT: Final = 2
"""Of asyncio's loop, from the accepted socket to the connection that is made."""


class Crowd(NamedTuple):
    """Maximum numbers of connections. Further ones are closed at once."""

    all: int = CONNECTIONS_MAX
    of_one_address: int = CONNECTIONS_MAX


class Listener:
    """Accepts connections and serves their frames with `serve`. It may have several doors, one for each address that is
    bound. All bounds hold for all doors together.
    """

    def __init__(self, serve: Serve, bounds: Bounds | None = None) -> None:
        self.serve = serve
        self.room = RequestBudget(bounds or Bounds())
        loop = asyncio.get_running_loop()
        self.log = LogLimit(loop.time)
        self.crowd_max = Crowd()
        """May be changed at any time. It applies to connections accepted from then on."""
        self.newcomer_waits_ms: Callable[[str], int] | None = None
        """Counts a connection of an address, and returns 0 where it may stay (connection_creation_rate)."""
        self._connections: dict[Connection, None] = {}
        self._of_address: Counter[str] = Counter()
        self._servers: list[asyncio.AbstractServer | TlsServer] = []
        self.handshakes: Final = Handshakes(self.log)
        self._sweeps: asyncio.TimerHandle | None = None

    @property
    def gauge(self) -> Gauge:
        """The amounts held at this moment."""
        return self.room.gauge

    async def bind(self, host: str, port: int, door: Door = PLAIN_DOOR) -> int:
        """Listen on `host:port` (0: any free port) without accepting yet; return the port. Clients that come there come
        in by `door`. `::`, and no host, also include every IPv4 address of the machine, as in Java servers. Raises
        OSError.
        """
        is_both = host == "::" or (host == "" and socket.has_ipv6)
        bound: dict[str, Any] = {"sock": _for_both(port)} if is_both else {"host": host or "0.0.0.0", "port": port}
        connect = partial(Connection, self, door)
        server: asyncio.AbstractServer | TlsServer
        sockets: Sequence[socket.socket]
        if door.tls is not None:
            sockets = [bound["sock"]] if is_both else await bound_sockets(**bound)
            server = TlsServer(sockets, door.tls, self.handshakes, connect, welcomes=self.welcomes)
        else:
            made = await asyncio.get_running_loop().create_server(
                connect, **bound, backlog=BACKLOG, start_serving=False
            )
            server, sockets = made, made.sockets
        self._servers.append(server)
        return int(sockets[0].getsockname()[1])

    async def accept(self) -> None:
        """Begin to accept connections."""
        assert self._servers, "bound first"
        for server in self._servers:
            await server.start_serving()
        self._sweep()

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """Accept no more, let requests that are being answered be answered and written, then close."""
        if not self._servers:
            return
        await self._let_in_whom_asyncio_accepted()
        for server in self._servers:
            server.close()
        if self._sweeps is not None:
            self._sweeps.cancel()
        await self.handshakes.stop()
        draining = [connection.drain() for connection in list(self._connections)]
        if draining:
            await asyncio.wait([asyncio.ensure_future(each) for each in draining], timeout=grace_s)
        for connection in list(self._connections):
            connection.abort()
        self._servers.clear()

    async def _let_in_whom_asyncio_accepted(self) -> None:
        """Have asyncio's servers accept no more, and make the connections that they have accepted. One that is closed
        in between loses these, and their sockets stay open.
        """
        servers = [each for each in self._servers if isinstance(each, asyncio.Server)]
        for each in servers:
            for bound in each.sockets:
                asyncio.get_running_loop().remove_reader(bound.fileno())
        for _ in range(TURNS_OF_AN_ACCEPT if servers else 0):
            await asyncio.sleep(0)

    def admit(self, connection: Connection) -> bool:
        """Admit the connection, unless there are too many, or it was accepted just before the stop. Returns whether it
        was admitted.
        """
        if not self._servers or not self._has_room_for(connection.peer_host):
            return False
        if not connection.is_encrypted and self._comes_too_soon(connection.peer_host):
            return False
        self._connections[connection] = None
        self._of_address[connection.peer_host] += 1
        self.gauge.connections += 1
        return True

    def welcomes(self, host: str) -> bool:
        """Whether a client at this address is worth a TLS handshake."""
        return self._has_room_for(host) and not self._comes_too_soon(host)

    def _has_room_for(self, host: str) -> bool:
        if len(self._connections) >= (most := min(self.crowd_max.all, CONNECTIONS_MAX)):
            self.log.warning("connection refused: too many", connections_max=most)
            return False
        if self._of_address[host] >= (most := self.crowd_max.of_one_address):
            self.log.warning("connection refused: too many of its address", peer=host, most=most)
            return False
        return True

    def _comes_too_soon(self, host: str) -> bool:
        """Count one more connection of the address. Returns whether it makes too many."""
        wait_ms = 0 if self.newcomer_waits_ms is None else self.newcomer_waits_ms(host)
        if wait_ms:
            self.log.warning("connection refused: its address makes too many", peer=host, ms=wait_ms)
        return wait_ms > 0

    def forget(self, connection: Connection) -> None:
        """Called when the connection is gone."""
        self.room.forget(connection)
        if connection in self._connections:
            del self._connections[connection]
            self._of_address[connection.peer_host] -= 1
            if not self._of_address[connection.peer_host]:
                del self._of_address[connection.peer_host]
            self.gauge.connections -= 1

    def _sweep(self) -> None:
        """Close connections that are idle or too slow, and, where others wait for room, those in their way."""
        self.room.now = asyncio.get_running_loop().time()
        self._sweep_on(deque(self._connections))

    def _sweep_on(self, rest: deque[Connection]) -> None:
        """Check some of the rest, then let other work have the event loop."""
        loop = asyncio.get_running_loop()
        for _ in range(min(len(rest), SWEPT_PER_TURN_MAX)):
            rest.popleft().check_pace()
        if rest:
            self._sweeps = loop.call_later(0, self._sweep_on, rest)
            return
        self.room.relieve_of_unsent()
        if self.room.is_pressed:
            self.room.relieve(list(self._connections))
        self._sweeps = loop.call_later(self.room.bounds.sweep_seconds, self._sweep)


def _for_both(port: int) -> socket.socket:
    """A socket for IPv4 and IPv6. Event loops make theirs for IPv6 alone."""
    both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        both.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        both.bind(("::", port))
    except OSError:
        both.close()
        raise
    return both
