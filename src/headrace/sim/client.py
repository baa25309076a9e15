"""A small Kafka client for the workload: one connection, requests pipelined in order, no automatic retries.

It reports and decides nothing: it gives an answer, or a ConnectionError (also for a timeout), after which the request's
outcome is unknown.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.sim.network import Address, Transport
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import decode_response_header, encode_request_frame

REQUEST_SECONDS_MAX: Final = 5.0
"""Virtual seconds after which a request without an answer breaks its connection."""


class Lost(ConnectionError):  # noqa: N818 - a state of the connection
    """The connection is gone, and so are all awaited answers."""


class _Awaited:
    """A request whose answer has not arrived."""

    def __init__(self, known: Api, version: int, future: asyncio.Future[Any]) -> None:
        self.api = known
        self.version = version
        self.future = future


class _Connection(asyncio.Protocol):
    """One connection's requests in flight, by correlation id."""

    def __init__(self) -> None:
        self.transport: Transport
        self.awaited: dict[int, _Awaited] = {}
        self.lost = False
        self._splitter = FrameSplitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        for frame in self._splitter.feed(data):
            view = memoryview(frame)
            first = next(iter(self.awaited))
            awaited = self.awaited.pop(first)
            correlation_id, at = decode_response_header(int(awaited.api.key), awaited.version, view)
            assert correlation_id == first, "answers leave in the order of their requests"
            if not awaited.future.done():
                awaited.future.set_result(awaited.api.decode_response(awaited.version, view[at:]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        awaited, self.awaited = self.awaited, {}
        for each in awaited.values():
            if not each.future.done():
                each.future.set_exception(Lost("the connection broke"))
                each.future.exception()


class Client:
    """One client of the broker at `address`. It connects when it has a request to send."""

    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.address = address
        self._connection: _Connection | None = None
        self._correlation_id = 0

    async def connect(self) -> None:
        """Connect unless connected. Raises ConnectionError."""
        if self._connection is not None and not self._connection.lost:
            return
        loop = asyncio.get_running_loop()
        self._connection = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                _, self._connection = await loop.create_connection(_Connection, *self.address)
        except OSError as error:
            raise Lost(str(error)) from error

    def send(self, key: ApiKey, version: int, message: Any) -> asyncio.Future[Any]:
        """Send the request now, behind all others. The future gets the answer or `Lost`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection = self._connection
        if connection is None or connection.lost:
            future.set_exception(Lost("not connected"))
            future.exception()
            return future
        known = api(key)
        assert known is not None
        self._correlation_id += 1
        connection.awaited[self._correlation_id] = _Awaited(known, version, future)
        frame = encode_request_frame(known, version, self._correlation_id, self.name, message)
        connection.transport.write(b"".join(frame))
        return future

    async def answer(self, future: asyncio.Future[Any]) -> Any:
        """Await one answer. Raises Lost, also when it takes too long; then the connection is broken."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                return await future
        except TimeoutError as error:
            self.reset()
            raise Lost("no answer in time") from error

    async def call(self, key: ApiKey, version: int, message: Any) -> Any:
        """Connect, ask and await the answer. Raises Lost."""
        await self.connect()
        return await self.answer(self.send(key, version, message))

    def reset(self) -> None:
        """Break the connection in the middle, as a network may."""
        if self._connection is not None and not self._connection.lost:
            self._connection.transport.network.reset(self._connection.transport)
            self._connection.connection_lost(None)

    def close(self) -> None:
        if self._connection is not None and not self._connection.lost:
            self._connection.transport.close()
