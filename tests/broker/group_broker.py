"""A broker in this process, and a client that speaks bare requests to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from headrace.base.ports import Objects
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.storage.redis.links.address import RedisAddress
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_response_header, encode_request_frame
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

QUICK = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}


@asynccontextmanager
async def running(
    directory: Path,
    configs: Mapping[str, str] | None = None,
    *,
    objects: Objects | None = None,
    redis: RedisAddress | None = None,
) -> AsyncIterator[str]:
    """A broker over this directory (and durable store, and Redis), from ready to stopped; its address."""
    config = BrokerConfig(data=directory, port=0, configs={**QUICK, **(configs or {})}, redis=redis)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk(), objects=objects) as broker:
        yield f"{broker.host}:{broker.port}"


LATE: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Answers to what the controller was asked, where it did not answer in time."""
SPINS: Final = 200
REST_S: Final = 0.001


async def until(true: Callable[[], bool]) -> None:
    """The test's own timeout ends a wait in vain. After a while the loop is let rest between two looks: where both
    processors are busy, one that spins keeps worker threads from the interpreter."""
    for looks in count():
        if true():
            return
        await asyncio.sleep(0 if looks < SPINS else REST_S)


class RawClient:
    """One connection; one request at a time, in any version."""

    def __init__(self, bootstrap: str, client_id: str = "raw", *, host: str | None = None) -> None:
        """`host`: the address that it comes from; None: any."""
        self.address = bootstrap
        self._client_id = client_id
        self._from = None if host is None else (host, 0)
        self._sent = 0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*_parted(self.address), local_addr=self._from)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def ask(self, version: int, request: Any) -> Any:
        """The response to a request message, whose class names the API."""
        return _codec(request).decode_response(version, await self.ask_undecoded(version, request))

    async def ask_undecoded(self, version: int, request: Any) -> memoryview:
        """The body of the response."""
        return await self.receive(version, self.send(version, request))

    async def receive(self, version: int, codec: Api) -> memoryview:
        """The body of the response to what was sent last."""
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        answer = memoryview(await self._reader.readexactly(size))
        correlation, at = decode_response_header(codec.key, version, answer)
        assert correlation == self._sent
        return answer[at:]

    def send(self, version: int, request: Any) -> Api:
        """Ask and await nothing."""
        codec = _codec(request)
        self._sent += 1
        frame = encode_request_frame(codec, version, self._sent, self._client_id, request)
        self._writer.writelines([bytes(buffer) for buffer in frame])
        return codec

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        await self.create(CreatableTopic(name=name, num_partitions=partitions, replication_factor=1))

    async def create(self, topic: CreatableTopic) -> Any:
        """Create a topic that is not there; the result for it. On a busy machine the controller may answer so late
        that nobody knows whether it was done: then it is asked again."""
        was_late = False
        while True:
            (made,) = (await self.ask(7, CreateTopicsRequest(topics=(topic,), timeout_ms=120_000))).topics
            if not made.error_code or (was_late and made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
                return made
            assert made.error_code in LATE, made.error_message
            was_late = True


def _parted(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _codec(request: Any) -> Api:
    name = type(request).__name__.removesuffix("Request")
    return next(found for key in ApiKey if (found := api(key)) is not None and found.name == name)
