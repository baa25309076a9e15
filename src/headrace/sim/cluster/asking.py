"""Sends one of our own requests to a simulated broker, as the commands do, on a connection of its own."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.sim.client import Lost
from headrace.sim.cluster.world import PORT
from headrace.sim.network import Transport
from headrace.wire.frames import FrameSplitter

ANSWER_SECONDS_MAX: Final = 3.0


async def asked(address: str, request: bytes) -> memoryview | None:
    """The frame of the answer, without its length; None: the outcome is unknown. `request` is a whole frame."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[memoryview] = loop.create_future()
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            transport, _ = await loop.create_connection(lambda: _Asking(request, answer), address, PORT)
            try:
                return await answer
            finally:
                transport.close()
    except (OSError, Lost):
        return None


class _Asking(asyncio.Protocol):
    def __init__(self, request: bytes, answer: asyncio.Future[memoryview]) -> None:
        self._request = request
        self._answer = answer
        self._splitter = FrameSplitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            if not self._answer.done():
                self._answer.set_result(memoryview(bytes(frame)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(Lost("the connection broke"))
            self._answer.exception()
