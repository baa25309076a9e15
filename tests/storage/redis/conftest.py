"""Real servers for the tests of Redis: Valkey from pip always, the others where this machine has them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from headrace.storage.redis.links.address import Credentials, parse_redis_address
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.connection import Connection, Place, connect
from headrace.storage.redis.links.opening import open_redis
from tests.storage.redis.client_world import LONG_MS, Open, Servers
from tests.storage.redis.client_world import Start as Start
from tests.storage.redis.redis_world import SAFE, disconnect_all
from tests.storage.redis.topologies import cluster_of
from tools.servers.redis_servers import RedisServer, programs

PROGRAMS: Final = {program.name: program for program in programs()}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="hr") as name:
        yield Path(name)


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


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[RedisServer]]:
    """A Cluster of three for several tests, each with topics of its own."""
    with tempfile.TemporaryDirectory(prefix="hr") as name, Servers(Path(name)) as servers:
        yield asyncio.run(cluster_of(servers.start, 3))
