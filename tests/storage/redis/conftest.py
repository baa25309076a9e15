"""Real servers for the tests of Redis: Valkey from pip always, the others where this machine has them."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

import pytest

from headrace.base.ids import LeaderEpoch, PartitionIndex, TopicId
from headrace.storage.redis.address import Credentials, parse_redis_address
from headrace.storage.redis.client import Redis
from headrace.storage.redis.connection import Argument, Connection, Place, Reply, connect
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.functions import PartitionFunctions
from headrace.storage.redis.keys import Keys
from headrace.storage.redis.opening import open_redis
from tests.storage.redis.redis_world import SAFE, disconnect_all
from tools.redis_servers import Program, RedisServer, programs, valkey

PROGRAMS: Final = {program.name: program for program in programs()}
Start: TypeAlias = Callable[..., RedisServer]
Open: TypeAlias = Callable[[str], Awaitable[Redis]]
LONG_MS: Final = 30_000
TOPIC: Final = TopicId(uuid.UUID(int=7))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="hr") as name:
        yield Path(name)


class Servers:
    """Starts servers in directories of their own below one, and kills them at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[RedisServer] = []

    def start(
        self, *options: str, tcp: bool = False, sentinel: bool = False, program: Program | None = None
    ) -> RedisServer:
        """Start a server with these options, of Valkey where no other program is named."""
        directory = self._directory / str(len(self._started))
        directory.mkdir()
        self._started.append(RedisServer(program or valkey(), directory, options, tcp=tcp, sentinel=sentinel))
        self._started[-1].start()
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._started:
            server.__exit__(None, None, None)


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    """Starts servers, which are killed after the test."""
    with Servers(place) as servers:
        yield servers.start


@pytest.fixture
async def engines() -> AsyncIterator[None]:
    """Closes the connections of all engines that a test made."""
    yield
    await disconnect_all()


@pytest.fixture
def server(start: Start, engines: None) -> RedisServer:
    """A server that keeps what it has acknowledged, whatever becomes of it."""
    return start(*SAFE)


@pytest.fixture(scope="session", params=PROGRAMS)
def any_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of each kind for all tests of a run, which clear it as they need."""
    program = PROGRAMS[request.param]
    if program.missing:
        pytest.skip(f"there is no {program.name}: {program.missing}")
    with tempfile.TemporaryDirectory(prefix="hr") as name, RedisServer(program, Path(name)) as server:
        yield server


@pytest.fixture
async def connection(any_server: RedisServer) -> AsyncIterator[Connection]:
    """A connection to an empty server of each kind."""
    opened = await connect(Place(path=str(any_server.socket)), Credentials())
    await opened.call("FLUSHALL")
    yield opened
    await opened.close()


@pytest.fixture
async def clients() -> AsyncIterator[list[Redis]]:
    """Clients that are closed after the test."""
    made: list[Redis] = []
    yield made
    for client in made:
        await client.close()


@pytest.fixture
def open_(clients: list[Redis]) -> Open:
    """Opens clients."""

    async def opened(url: str) -> Redis:
        clients.append(await open_redis(parse_redis_address(url), Random(1), timeout_ms=LONG_MS))
        return clients[-1]

    return opened


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
