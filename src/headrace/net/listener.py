"""The listening side: Kafka frames in, answers out, in the order of the requests of each connection.

Promises: answers leave in request order under any pipelining; a connection that does not read its answers, or asks
for too much at a time, is read no further until it does; a malformed frame closes its connection with one log line.
Never does: know what a frame means (that is `serve`'s), or hold more than the limits in `base.limits`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import structlog

from headrace.base.errors import CorruptData
from headrace.base.limits import (
    CONNECTIONS_MAX,
    QUEUED_REQUEST_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX,
    RESPONSE_QUEUE_BYTES_MAX,
)
from headrace.base.ports import Buffer
from headrace.wire.frames import FrameSplitter

log = structlog.get_logger(__name__)

Answer: TypeAlias = Sequence[Buffer]
"""A whole response frame, length prefix included, as buffers to be written one after the other."""


class Later(Protocol):
    """An answer that is not there yet."""

    @property
    def future(self) -> asyncio.Future[Any]: ...

    @property
    def pipelined(self) -> bool:
        """Whether further frames of the connection are served while this one waits."""

    def answer(self) -> Answer | None:
        """Called once `future` is done: the frame to write, or None for no answer at all."""


Serve: TypeAlias = Callable[[memoryview, "Connection"], Answer | Later | None]
"""Serve one frame (without its length): the answer, a promise of one, or None for none. Raises CorruptData where the
frame is not one that the protocol can answer; the connection is then closed."""


@dataclass(slots=True)
class Gauge:
    """What the listener holds at this moment, over all connections."""

    connections: int = 0
    queued_bytes: int = 0
    """Bytes of frames received and not yet answered."""


class Listener:
    """Accepts connections and serves their frames with `serve`. One per advertised address."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.gauge = Gauge()
        self._connections: dict[Connection, None] = {}
        self._starved: dict[Connection, None] = {}
        self._server: asyncio.AbstractServer | None = None

    async def bind(self, host: str, port: int) -> int:
        """Listen on `host:port` (0: any free port) without accepting yet; return the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024, start_serving=False)
        return int(self._server.sockets[0].getsockname()[1])

    async def accept(self) -> None:
        """Begin to accept connections."""
        assert self._server is not None, "bound first"
        await self._server.start_serving()

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """Accept no more, let what is being answered be answered and written, then close."""
        if self._server is None:
            return
        self._server.close()
        draining = [connection.drain() for connection in list(self._connections)]
        if draining:
            await asyncio.wait([asyncio.ensure_future(each) for each in draining], timeout=grace_s)
        for connection in list(self._connections):
            connection.abort()
        self._server = None

    def admit(self, connection: Connection) -> bool:
        """Take the connection in, unless there are too many."""
        if len(self._connections) >= CONNECTIONS_MAX:
            log.warning("connection refused: too many", connections_max=CONNECTIONS_MAX)
            return False
        self._connections[connection] = None
        self.gauge.connections += 1
        return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection in self._connections:
            del self._connections[connection]
            self._starved.pop(connection, None)
            self.gauge.connections -= 1

    def hold(self, size: int) -> None:
        """A frame of `size` bytes was received."""
        self.gauge.queued_bytes += size

    def release(self, size: int) -> None:
        """A frame was answered or dropped: those that waited for room go on."""
        self.gauge.queued_bytes -= size
        if self._starved and not self.is_full:
            starved, self._starved = self._starved, {}
            for connection in starved:
                connection.proceed()

    @property
    def is_full(self) -> bool:
        """Whether no further frame is read until one is answered."""
        return self.gauge.queued_bytes >= QUEUED_REQUEST_BYTES_MAX

    def starve(self, connection: Connection) -> None:
        """Remember to wake the connection once there is room again."""
        self._starved[connection] = None


@dataclass(slots=True)
class _Slot:
    """One request's place in the order of answers."""

    size: int
    answer: Answer | None = None
    answer_bytes: int = 0
    """Of an answer that was there at once."""
    later: Later | None = None


class Connection(asyncio.Protocol):
    """One client's connection. Runs on the event loop alone."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._splitter = FrameSplitter(REQUEST_BYTES_MAX)
        self._frames: deque[memoryview] = deque()
        self._slots: deque[_Slot] = deque()
        self._transport: asyncio.Transport | None = None
        self._muted = False
        self._unwritable = False
        self._reading = True
        self._working = False
        self._answered_bytes = 0
        """Of answers that were there at once and wait for their turn to be written."""
        self._draining: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        self.peer_host = ""
        self.session: dict[str, Any] = {}
        """Facts that live as long as the connection (client software name, later its principal)."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type
        self._transport = transport
        transport.set_write_buffer_limits(high=RESPONSE_QUEUE_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]) if peer else ""
        if (own := transport.get_extra_info("socket")) is not None:  # a peer that lost its power never says goodbye
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._listener.admit(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.forget(self)
        held = sum(map(len, self._frames))
        for slot in self._slots:
            held += slot.size
            if slot.later is not None:
                slot.later.future.cancel()
        self._frames.clear()
        self._slots.clear()
        self._answered_bytes = 0
        self._listener.release(held)
        self._finish_draining()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._unwritable = True

    def resume_writing(self) -> None:
        self._unwritable = False
        self.proceed()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
        except CorruptData as error:
            self._close_for(error)
            return
        for frame in frames:
            self._listener.hold(len(frame))
            self._frames.append(memoryview(frame))
        if frames:
            self.proceed()

    # serving

    def proceed(self) -> None:
        """Serve what waits, as far as limits and order allow, then write what is ready."""
        if self._working:
            return
        self._working = True
        try:
            while self._frames and self._may_serve():
                self._serve_one(self._frames.popleft())
            self._write_ready()
        finally:
            self._working = False
        self._pace_reading()

    def _may_serve(self) -> bool:
        return (
            self._is_open
            and not self._muted
            and not self._unwritable
            and len(self._slots) < REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
            and self._answered_bytes < RESPONSE_QUEUE_BYTES_MAX
        )

    @property
    def _is_open(self) -> bool:
        """False also once it is being closed: nothing that came behind a malformed frame is carried out."""
        return self._transport is not None and not self._transport.is_closing()

    def _serve_one(self, frame: memoryview) -> None:
        slot = _Slot(len(frame))
        self._slots.append(slot)
        try:
            result = self._listener.serve(frame, self)
        except CorruptData as error:
            self._close_for(error)
            return
        if result is None or isinstance(result, Sequence):
            slot.answer = result
            slot.answer_bytes = 0 if result is None else sum(map(len, result))
            self._answered_bytes += slot.answer_bytes
            return
        slot.later = result
        self._muted = not result.pipelined
        result.future.add_done_callback(self._answered)

    def _answered(self, _: asyncio.Future[Any]) -> None:
        if self._transport is not None:
            self.proceed()

    def _write_ready(self) -> None:
        buffers: list[Buffer] = []
        released = 0
        while self._slots:
            slot = self._slots[0]
            if slot.later is not None:
                if not slot.later.future.done():
                    break
                if not slot.later.pipelined:
                    self._muted = False
                slot.answer = slot.later.answer()
            self._slots.popleft()
            released += slot.size
            self._answered_bytes -= slot.answer_bytes
            if slot.answer is not None:
                buffers.extend(slot.answer)
        if buffers and self._transport is not None and self._is_open:
            self._transport.writelines(buffers)
        if released:
            self._listener.release(released)
        if not self._slots and not self._frames:
            self._finish_draining()
        elif self._frames and self._may_serve():
            asyncio.get_running_loop().call_soon(self.proceed)

    def _pace_reading(self) -> None:
        """Read on only while what was read is being served and there is room for more."""
        if self._transport is None or not self._is_open:
            return
        full = self._listener.is_full
        wanted = not self._frames and not full and self._draining is None
        if full:
            self._listener.starve(self)
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif not wanted and self._reading:
            self._transport.pause_reading()
        self._reading = wanted

    # ending

    def _close_for(self, error: CorruptData) -> None:
        log.warning("connection closed: malformed request", peer=self.peer_host, reason=str(error))
        self.abort()

    def abort(self) -> None:
        """Close at once; what was not written is dropped."""
        if self._transport is not None:
            self._transport.abort()

    async def drain(self) -> None:
        """Read no more, wait until all that was received is answered and written, and close."""
        if self._transport is None:
            return
        self._draining = asyncio.get_running_loop().create_future()
        self._pace_reading()
        if not self._slots and not self._frames:
            self._finish_draining()
        await self._draining
        if self._transport is not None:
            self._gone = asyncio.get_running_loop().create_future()
            self._transport.close()  # it sends what it holds first
            await self._gone

    def _finish_draining(self) -> None:
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
