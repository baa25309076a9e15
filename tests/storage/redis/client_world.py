"""Servers for tests of the client, and ways to wait for what happens in them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

from headrace.base.ids import LeaderEpoch, PartitionIndex, TopicId
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.connection import Argument, Reply
from headrace.storage.redis.server_side.functions import PartitionFunctions
from headrace.storage.redis.server_side.keys import Keys
from tools.servers.redis_servers import Certificates, Program, RedisServer, valkey

Start: TypeAlias = Callable[..., RedisServer]
Open: TypeAlias = Callable[[str], Awaitable[Redis]]
LONG_MS: Final = 30_000
TOPIC: Final = TopicId(uuid.UUID(int=7))


class Servers:
    """Starts servers in directories of their own below one, and kills them at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[RedisServer] = []

    def start(
        self,
        *options: str,
        tcp: bool = False,
        sentinel: bool = False,
        program: Program | None = None,
        tls: Certificates | None = None,
    ) -> RedisServer:
        """Start a server with these options, of Valkey where no other program is named."""
        directory = self._directory / str(len(self._started))
        directory.mkdir()
        program = program or valkey()
        self._started.append(RedisServer(program, directory, options, tcp=tcp, sentinel=sentinel, tls=tls))
        self._started[-1].start()
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._started:
            server.__exit__(None, None, None)


def leader(topic: str, partition: int, *, clustered: bool = False) -> PartitionFunctions:
    keys = Keys(clustered=clustered).partition(topic, PartitionIndex(partition))
    return PartitionFunctions(keys, TOPIC, LeaderEpoch(0))


class Caller(Protocol):
    """A connection, or a client."""

    async def call(self, *command: Argument) -> Reply: ...


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so in a server."""
    while not await look():  # noqa: ASYNC110 - a server tells nobody when it changes
        await asyncio.sleep(0.01)


async def says(caller: Caller, words: bytes, *command: str) -> bool:
    """Whether these words are in the answer to a command."""
    return words in await caller.call(*command)


async def done(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """The first result that is no failure that passes."""
    while True:
        try:
            return await attempt()
        except RedisFailure as error:
            if not error.is_retriable:
                raise
        await asyncio.sleep(0.01)  # between two looks at another process
