"""A broker that says what a test tells it to, and a proxy that cuts connections: the client's adversaries."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.base.addresses import Address
from headrace.wire.apis import APIS_BY_KEY, ApiKey, api
from headrace.wire.headers import RequestHeader, decode_request_header, encode_response_frame
from headrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

NOWHERE = Address("127.0.0.1", 0)

Answer = Callable[[RequestHeader, Any], Any]
"""(header, request) -> response message, bytes to send as they are, an awaitable of either, or None for silence."""


def versions_response() -> ApiVersionsResponse:
    """An ApiVersions response that offers all that can be coded."""
    known = [api(key) for key in APIS_BY_KEY]
    return ApiVersionsResponse(
        api_keys=tuple(ApiVersion(one.key, one.min_version, one.max_version) for one in known if one is not None)
    )


@dataclass
class ScriptedBroker:
    """Answers by API; ApiVersions is answered rightly unless the script has an answer of its own."""

    answers: dict[int, Answer]
    address: Address = NOWHERE
    requests: list[tuple[RequestHeader, Any]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                if (sent := await self._answer(frame)) is not None:
                    writer.write(sent)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, frame: memoryview) -> bytes | None:
        header, body_at = decode_request_header(frame)
        known = api(header.api_key)
        assert known is not None
        readable = known.min_version <= header.api_version <= known.max_version
        request = known.decode_request(header.api_version, frame[body_at:]) if readable else None
        self.requests.append((header, request))
        script = self.answers.get(header.api_key)
        if script is None:
            assert header.api_key == ApiKey.API_VERSIONS, f"no script for {known.name}"
            answer: Any = versions_response()
        else:
            answer = script(header, request)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer is None or isinstance(answer, bytes):
            return answer
        return b"".join(encode_response_frame(known, header.api_version, header.correlation_id, answer))


@asynccontextmanager
async def scripted_broker(
    answers: dict[int, Answer], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker(answers)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, ssl=tls)
    broker.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield broker
    finally:
        server.close()


@dataclass
class CuttingProxy:
    """Passes bytes on between clients and a target, and cuts each connection after so many bytes of answers."""

    target: Address = NOWHERE
    cut_after_bytes: int = 1 << 60
    cuts: int = 0
    address: Address = NOWHERE
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, far_writer, 1 << 60))
                group.create_task(self._pass(far_reader, writer, self.cut_after_bytes))
        except* (ConnectionError, EOFError):
            pass
        finally:
            writer.close()
            far_writer.close()
            self.tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int) -> None:
        while data := await reader.read(65536):
            writer.write(data[:budget])
            budget -= len(data)
            if budget <= 0:
                self.cuts += 1
                raise ConnectionResetError("cut, as the test wants it")
            await writer.drain()
        raise EOFError


@asynccontextmanager
async def cutting_proxy() -> AsyncIterator[CuttingProxy]:
    """Set `target` (and `cut_after_bytes`) once it is known."""
    proxy = CuttingProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield proxy
    finally:
        server.close()
        for task in list(proxy.tasks):
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
