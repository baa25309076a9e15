"""The client for requests about durable history notices that the broker is gone, whenever that is."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from headrace.base.addresses import Address
from headrace.net.client.durable import DurableLink
from headrace.net.client.errors import ConnectionLostError
from headrace.wire.durable import encode_answer


async def test_a_broker_that_dies_between_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(encode_answer({"done": False}))
        await writer.drain()
        writer.close()
        gone.set()

    class Late(DurableLink):
        def _on_lost(self, reason: str) -> None:
            super()._on_lost(reason)
            lost.set()

    lost = asyncio.Event()

    async def until_gone(_: float) -> None:
        await lost.wait()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with Late(Address(host, port)) as link:
            monkeypatch.setattr("headrace.net.client.durable.asyncio.sleep", until_gone)
            with pytest.raises(ConnectionLostError, match="does not answer about durable history"):
                await link.merge(UUID(int=1), None, execute=True)
            assert gone.is_set()
