"""A network in memory, for asyncio protocols: delays, pieces, back-pressure, resets; in order within a connection.

It keeps TCP's promises: bytes arrive in order, once, unchanged, or the connection is lost. It may do everything else.
It cuts a write in pieces, delays it for long, resets a connection in the middle, or refuses one. Between hosts
`headrace.sim.links` applies, too. It never calls a protocol from within that protocol's own call.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.base.ports import Buffer, Random
from headrace.sim.links import Links
from headrace.sim.process import LOOPBACK, Process, owner

if TYPE_CHECKING:
    from headrace.sim.loop import VirtualLoop

WINDOW_BYTES: Final = 64 * 1024
"""Bytes of one direction of a connection that are on the wire or unread; the rest waits in the sender's transport."""
HIGH_WATER_BYTES: Final = 64 * 1024
"""Default write buffer above which a protocol is asked to pause (asyncio's)."""
DELAY_SECONDS_MIN: Final = 0.000_05
DELAY_SECONDS_MAX: Final = 0.001
SLOW_DELAY_SECONDS_MAX: Final = 0.08
SLOW_PROBABILITY: Final = 0.01
SPLIT_PROBABILITY: Final = 0.1
PORTS_FROM: Final = 40_000
KNOCK_SECONDS: Final = 0.25
"""Time from the first attempt to reach a host to the second; it doubles for each further one."""
CONNECT_SECONDS_MAX: Final = 10.0

Address = tuple[str, int]


class Transport(asyncio.Transport):
    """One end of a connection. `context` is that of the process that has this end."""

    def __init__(self, network: Network, context: contextvars.Context, local: Address, remote: Address) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.network = network
        self.context = context
        self.process = owner(context)
        self.host = LOOPBACK if self.process is None else self.process.host
        self.vanished = False
        """This end is gone, and the other end may not know: it learns of it when it sends something."""
        self.forgotten = False
        """Unacknowledged data of this end is not sent again."""
        self.peer: Transport
        self._protocol: asyncio.Protocol
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._on_the_wire = 0
        self._last_arrival = 0.0
        self._inbox: deque[bytes | None] = deque()
        self._reading = True
        self._closing = False
        self._eof_queued = False
        self._lost = False
        self.is_shown = True
        """Whether its protocol has seen it; only then is it told of the end."""
        self._writing_paused = False
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4

    # calls by a protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if isinstance(protocol, asyncio.BufferedProtocol):
            raise TypeError("the simulated network knows plain protocols only")
        self._protocol = cast("asyncio.Protocol", protocol)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.network.loop.call_soon(self._drain_inbox, context=self.context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else (HIGH_WATER_BYTES if low is None else 4 * low)
        self._low = low if low is not None else self._high // 4
        self._update_pause()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def write(self, data: Buffer) -> None:
        if self._closing or self._lost or not len(data):
            return
        if self._eof_queued:
            raise RuntimeError("write after write_eof")
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(self._unsent[-1])
        self._pump()
        self._update_pause()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_queued:
            self._eof_queued = True
            self._pump()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._inbox.clear()
        self._eof_queued = True
        self._pump()

    def abort(self) -> None:
        self.lose(None)
        self.network.after_delay(self, self.peer.lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))

    # calls by the network

    def lose(self, error: Exception | None) -> None:
        """The connection is gone for this end. Its protocol is told soon, once."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._unsent.clear()
        self._inbox.clear()
        self._unsent_bytes = 0
        self.network.transports.pop(self, None)
        if self.is_shown:
            self.network.loop.call_soon(self._protocol.connection_lost, error, context=self.context)

    def drop(self) -> None:
        """This end is no longer wanted, and its protocol has never seen it."""
        self._lost = self._closing = True
        self.network.transports.pop(self, None)
        self.network.after_delay(self, self.peer.lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))

    def vanish(self, error: Exception) -> None:
        """Like `lose`, without notice to the other end."""
        if not self._lost:
            self.vanished = self.forgotten = True
            self.lose(error)

    def _pump(self) -> None:
        """Send as much as the window allows; then the end, if it is queued."""
        while self._unsent and self._on_the_wire < WINDOW_BYTES:
            data = self._unsent.popleft()
            size = self.network.piece(min(len(data), WINDOW_BYTES - self._on_the_wire))
            if size < len(data):
                self._unsent.appendleft(data[size:])
                data = data[:size]
            self._unsent_bytes -= size
            self._on_the_wire += size
            self.network.after_delay(self, self.peer.arrive, data)
        if self._eof_queued and not self._unsent and not self._lost:
            self.network.after_delay(self, self.peer.arrive, None)
            if self._closing:
                self.lose(None)

    def _update_pause(self) -> None:
        if not self._writing_paused and self._unsent_bytes > self._high:
            self._writing_paused = True
            self.network.loop.call_soon(self._protocol.pause_writing, context=self.context)
        elif self._writing_paused and self._unsent_bytes <= self._low:
            self._writing_paused = False
            self.network.loop.call_soon(self._protocol.resume_writing, context=self.context)

    def arrive(self, data: bytes | None) -> None:
        """The next piece (None: the end) arrives. It waits while this end does not read."""
        if self.vanished:
            self.network.after_delay(self, self.peer.lose, ConnectionResetError(errno.ECONNRESET, "unknown here"))
            return
        if self._closing:
            return
        self._inbox.append(data)
        self._drain_inbox()

    def _drain_inbox(self) -> None:
        while self._inbox and self._reading and not self._closing:
            data = self._inbox.popleft()
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self._acknowledge(len(data))
            self._protocol.data_received(data)

    def _acknowledge(self, size: int) -> None:
        links = self.network.links
        if links.blocks(self.host, self.peer.host):
            links.hold(self, self.peer, lambda: self.peer.taken(size))
        else:
            self.peer.taken(size)

    def taken(self, size: int) -> None:
        """The other end read `size` bytes, so more may be sent."""
        self._on_the_wire -= size
        if self._unsent:
            self.network.loop.call_soon(self._send_more, context=self.context)

    def _send_more(self) -> None:
        if not self._lost:
            self._pump()
            self._update_pause()

    def next_arrival(self, delay: float) -> float:
        """The arrival time of a piece sent now: after everything sent before it."""
        self._last_arrival = max(self._last_arrival + 1e-6, self.network.loop.time() + delay)
        return self._last_arrival


class _Socket:
    """The socket that a server shows: it has its name, nothing else."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class Server(asyncio.AbstractServer):
    """A listening address of one process."""

    def __init__(self, network: Network, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> None:
        self.network = network
        self.factory = factory
        self.address = address
        self.context = contextvars.copy_context()
        self.connecting: dict[asyncio.Future[Any], None] = {}
        self.sockets = (_Socket(address),)
        self._closed = network.loop.create_future()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.network.loop

    def is_serving(self) -> bool:
        return self.network.servers.get(self.address) is self

    async def start_serving(self) -> None:
        self.network.listen(self)

    async def serve_forever(self) -> None:
        await self.start_serving()
        await self.wait_closed()

    def close(self) -> None:
        self.network.stop_listening(self)
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    def died(self) -> None:
        """Its process is dead: nobody listens, and connections about to be accepted are refused."""
        self.network.stop_listening(self)
        for future in self.connecting:
            if not future.done() and not self.network.links.is_down(self.address[0]):
                future.set_exception(ConnectionResetError(errno.ECONNRESET, "reset while connecting"))
                future.exception()  # the client may be gone


class Network:
    """All listening addresses and connections of one simulation."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.servers: dict[Address, Server] = {}
        self.transports: dict[Transport, None] = {}
        self.links = Links(loop, random)
        self._next_port = PORTS_FROM

    def delay(self) -> float:
        """Seconds for one piece on the wire: mostly short, now and then long."""
        longest = SLOW_DELAY_SECONDS_MAX if self.random.random() < SLOW_PROBABILITY else DELAY_SECONDS_MAX
        return DELAY_SECONDS_MIN + self.random.random() * longest

    def piece(self, size: int) -> int:
        """The number of bytes of a write of `size` bytes that are sent at once."""
        if size > 1 and self.random.random() < SPLIT_PROBABILITY:
            return self.random.randrange(1, size)
        return size

    def after_delay(self, sender: Transport, callback: Callable[..., object], *args: object) -> None:
        """Call the other end, in its own process, after everything sent before."""
        source, target = sender.host, sender.peer.host
        if self.links.blocks(source, target) or self.links.holds(source, target):
            self.links.hold(sender, sender, lambda: self.after_delay(sender, callback, *args))
            return
        delay = self.delay() * self.links.slowness(source, target)
        context = self.loop.no_process if sender.peer.vanished else sender.peer.context
        self.loop.call_at(sender.next_arrival(delay), callback, *args, context=context)

    def reset(self, transport: Transport) -> None:
        """Break a connection in the middle. Both ends learn of it, each at its own time."""
        for end in (transport, transport.peer):
            error = ConnectionResetError(errno.ECONNRESET, "connection reset")
            self.loop.call_later(self.delay(), end.lose, error, context=end.context)

    # servers

    async def create_server(self, factory: Any, host: Any, port: Any, options: dict[str, Any]) -> Server:
        """Listen at once. Raises OSError (EADDRINUSE)."""
        if options.get("sock") is not None or options.get("ssl") is not None:
            raise RuntimeError("the simulated network has no real sockets and no TLS")
        host = host if isinstance(host, str) and host not in ("", "0.0.0.0", "::") else "127.0.0.1"
        if not port:
            self._next_port += 1
            port = self._next_port
        server = Server(self, factory, (host, int(port)))
        process = owner(None)
        if process is not None:
            process.at_death.append(server.died)
        if options.get("start_serving", True):
            self.listen(server)
        return server

    def listen(self, server: Server) -> None:
        if self.servers.setdefault(server.address, server) is not server:
            raise OSError(errno.EADDRINUSE, f"address {server.address} is taken")

    def stop_listening(self, server: Server) -> None:
        if self.servers.get(server.address) is server:
            del self.servers[server.address]

    # connections

    async def create_connection(
        self, factory: Any, host: Any, port: Any, options: dict[str, Any]
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Connect. Raises ConnectionRefusedError, ConnectionResetError or TimeoutError."""
        if options.get("sock") is not None or options.get("ssl") is not None:
            raise RuntimeError("the simulated network has no real sockets and no TLS")
        await asyncio.sleep(self.delay())
        await self._shake_hands(str(host))
        server = self.servers.get((str(host), int(port)))
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {host}:{port}")
        made: asyncio.Future[tuple[Transport, asyncio.BaseProtocol]] = self.loop.create_future()
        server.connecting[made] = None
        self._next_port += 1
        context = contextvars.copy_context()
        near = Transport(self, context, (_host_of(context), self._next_port), server.address)
        self.loop.call_soon(self._accept, server, near, factory, made, context=server.context)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                return await made
        finally:
            server.connecting.pop(made, None)

    async def _shake_hands(self, target: str) -> None:
        """Return once both directions are open; retry until then. Raises TimeoutError."""
        source, wait, waited = _host_of(None), KNOCK_SECONDS, 0.0
        while self.links.blocks(source, target) or self.links.blocks(target, source):
            if waited > CONNECT_SECONDS_MAX:
                raise TimeoutError(errno.ETIMEDOUT, f"{target} does not answer")
            await asyncio.sleep(wait)
            waited, wait = waited + wait, 2 * wait

    def _accept(self, server: Server, near: Transport, factory: Callable[[], Any], made: asyncio.Future[Any]) -> None:
        if made.done():
            return  # the client is gone
        context = server.context.copy()
        far = Transport(self, context, server.address, near.get_extra_info("sockname"))
        near.peer, far.peer = far, near
        protocol = server.factory()
        far.set_protocol(protocol)
        near_protocol = near.context.copy().run(factory)
        near.set_protocol(near_protocol)
        near.is_shown = False
        for end in (near, far):
            self.transports[end] = None
            if end.process is not None:
                end.process.at_death.append(lambda end=end: self._end_died(end))  # type: ignore[misc]
        self.loop.call_soon(protocol.connection_made, far, context=context)
        self.loop.call_at(near.next_arrival(self.delay()), self._connected, near, made, context=near.context)

    def _connected(self, near: Transport, made: asyncio.Future[Any]) -> None:
        if made.done():
            near.drop()
            return
        if near.is_closing():
            made.set_exception(ConnectionResetError(errno.ECONNRESET, "reset while connecting"))
            return
        near.is_shown = True
        protocol = cast("asyncio.Protocol", near.get_protocol())
        protocol.connection_made(near)
        made.set_result((near, protocol))

    def power_off(self, host: str) -> None:
        """Cut the power of a host, without notice to anybody. Call this before its processes are killed."""
        self.links.power_off(host)
        for end in [each for each in self.transports if each.host == host]:
            end.vanish(ConnectionAbortedError(errno.ECONNABORTED, "no power"))

    def power_on(self, host: str) -> None:
        """Restore the power of a host. From now on, senders to its old connections are told that these are gone."""
        self.links.power_on(host)

    def _end_died(self, end: Transport) -> None:
        """A killed process sends nothing more. Data on the wire still arrives, and then the other end is told."""
        if end in self.transports:
            self.transports.pop(end)
            end.vanished = end.host != LOOPBACK  # within loopback, the news always arrives
            error = ConnectionResetError(errno.ECONNRESET, "the other process died")
            self.after_delay(end, end.peer.lose, error)


def _host_of(context: contextvars.Context | None) -> str:
    process = owner(context)
    return LOOPBACK if process is None else process.host


def connections_of(network: Network, process: Process) -> list[Transport]:
    """The ends that a process holds, oldest first."""
    return [end for end in network.transports if end.process is process]
