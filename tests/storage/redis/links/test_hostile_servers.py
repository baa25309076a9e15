"""Servers that stop, stumble, or talk nonsense: every command ends, and the client comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from headrace.base.ids import Offset
from headrace.base.limits import REDIS_COMMANDS_IN_FLIGHT_MAX
from headrace.storage.redis.errors import (
    RedisBusy,
    RedisGarbled,
    RedisOutcomeUnknown,
    RedisRefused,
    RedisUnreachable,
)
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.blocking import BlockingConnection
from headrace.storage.redis.links.client import Fixed, Redis, RedisNode
from headrace.storage.redis.links.connection import Place, connect
from headrace.storage.redis.server_side.functions import Answer, Batch, Status
from tests.storage.redis.client_world import LONG_MS, Open, Start, done, leader, says, until
from tests.storage.redis.redis_world import SAFE

GREETING = b"%1\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n"
GARBAGE = (
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\xff" * 10,
    b":twelve\r\n",
    b"*99999999999\r\n",
    b"$-7\r\n",
    b"%1\r\n*0\r\n:1\r\n",
    b"%1\r\n%0\r\n:1\r\n",
    b"+one\r\n+two\r\n",
)


Speak: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def other(place: Path, speak: Speak) -> AsyncIterator[Place]:
    """A server of a wrong kind, which greets as a right one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"headrace\r\n")
        writer.write(GREETING)
        await speak(reader, writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(place / "other"))
    yield Place(path=str(place / "other"))
    server.close()


def kept(place: Place, clients: list[Redis], timeout_ms: int = LONG_MS) -> RedisNode:
    client = RedisNode(Fixed(place), Credentials(), Random(1), timeout_ms=timeout_ms)
    clients.append(client)
    return client


@pytest.mark.parametrize("answer", GARBAGE)
async def test_nonsense_ends_the_connection_and_the_client_comes_back(
    place: Path, clients: list[Redis], answer: bytes
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        await reader.readuntil(b"GET")
        writer.write(answer)

    async with other(place, speak) as at:
        client = kept(at, clients)
        await client.ready(LONG_MS)
        first = client.connection
        got, *_ = await asyncio.gather(client.call("GET"), return_exceptions=True)
        assert isinstance(got, RedisGarbled | RedisOutcomeUnknown) or got == b"one"
        assert first is not None
        assert isinstance(first.lost, RedisGarbled)
        await client.ready(LONG_MS)


@pytest.mark.parametrize("answer", GARBAGE[:-1])
async def test_nonsense_ends_a_threads_command(place: Path, answer: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"GET")
        writer.write(answer)

    async with other(place, speak) as at:
        connection = BlockingConnection(at, Credentials())
        with pytest.raises(RedisGarbled, match="not Redis's protocol"):
            await asyncio.to_thread(connection.call, "GET")
        connection.close()


async def test_no_password_is_repeated_from_a_servers_words(place: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readuntil(b"headrace\r\n")
        writer.write(b"-ERR no idea of '" + b" ".join(said.split()) + b"'\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(place / "proxy"))
    at, credentials = Place(path=str(place / "proxy")), Credentials(password="swordfish")
    with pytest.raises(RedisRefused, match="no idea") as seen:
        await connect(at, credentials)
    assert "swordfish" not in str(seen.value) + seen.value.text
    with pytest.raises(RedisRefused, match="no idea") as seen:
        await asyncio.to_thread(BlockingConnection(at, credentials).call, "PING")
    assert "swordfish" not in str(seen.value) + seen.value.text
    server.close()


async def test_a_server_that_takes_bytes_slowly_is_not_silent(place: Path) -> None:
    size = 8 << 20

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        taken = 0
        while taken < size:
            taken += len(await reader.read(1 << 18))
            await asyncio.sleep(0.01)  # all of it takes much longer than the time-out
        writer.write(b"+OK\r\n")

    async with other(place, speak) as at:
        connection = await connect(at, Credentials(), timeout_ms=100)
        assert await connection.call("SET", "a", payload=(bytes(size),)) == b"OK"
        await connection.close()


async def test_an_answer_that_came_while_the_process_stood_still_counts(start: Start) -> None:
    connection = await connect(Place(path=str(start().socket)), Credentials(), timeout_ms=50)
    asked = asyncio.ensure_future(connection.call("ECHO", "a"))
    for _ in range(3):
        await asyncio.sleep(0)  # it is written
    time.sleep(0.1)  # noqa: ASYNC251 - as a process that was stopped
    assert await asked == b"a"
    await connection.close()


async def test_a_server_that_stands_still_is_left_and_found_again(start: Start, clients: list[Redis]) -> None:
    server = start()
    client = kept(Place(path=str(server.socket)), clients, timeout_ms=50)
    await client.ready(LONG_MS)
    server.pause()
    ends = await asyncio.gather(*(client.call("INCR", "n") for _ in range(10)), return_exceptions=True)
    assert [type(end) for end in ends] == [RedisOutcomeUnknown] * 10
    with pytest.raises(RedisUnreachable):
        await client.call("INCR", "n")
    server.resume()
    await client.ready(LONG_MS)
    assert await done(lambda: client.call("INCR", "n")) in (1, 11)  # those that were sent may be executed


async def test_closing_does_not_wait_for_a_server_that_stands_still(start: Start) -> None:
    server = start()
    connection = BlockingConnection(Place(path=str(server.socket)), Credentials())
    await asyncio.to_thread(connection.call, "PING")
    waiting = asyncio.ensure_future(asyncio.to_thread(connection.call, "BLPOP", "none", 0))
    other = await connect(Place(path=str(server.socket)), Credentials())
    await until(lambda: says(other, b"blocked_clients:1", "INFO", "clients"))
    await other.close()
    connection.close()  # on the loop
    with pytest.raises(RedisOutcomeUnknown):
        await waiting
    with pytest.raises(RedisUnreachable, match="closed by this side"):
        connection.call("PING")


async def test_a_port_that_is_none_is_unreachable() -> None:
    place = Place(host="127.0.0.1", port=70_000)  # as a server of a Cluster may tell one
    with pytest.raises(RedisUnreachable, match="Cannot connect"):
        await connect(place, Credentials())
    with pytest.raises(RedisUnreachable, match="Cannot connect"):
        await asyncio.to_thread(BlockingConnection(place, Credentials()).call, "PING")


async def test_a_value_of_a_hundred_megabytes_goes_and_comes(start: Start, open_: Open) -> None:
    client = await open_(start().url)
    value = bytes(100_000_000)
    assert await client.call("SET", "large", payload=(value,)) == b"OK"
    found, beside = await asyncio.gather(client.call("GET", "large"), client.call("ECHO", "small"))
    assert found == value
    assert beside == b"small"


async def test_ten_thousand_commands_end_with_their_server(start: Start, open_: Open) -> None:
    server = start()
    client = await open_(server.url)
    lost = asyncio.Event()
    client.on_change = lost.set
    ends: list[object] = []
    client.post(("BLPOP", "none", 0), ends.append)
    for _ in range(REDIS_COMMANDS_IN_FLIGHT_MAX - 1):
        client.post(("INCR", "n"), ends.append)
    with pytest.raises(RedisBusy):
        client.post(("INCR", "n"), ends.append)
    await asyncio.sleep(0)  # they are written
    server.kill()
    await lost.wait()
    assert len(ends) == REDIS_COMMANDS_IN_FLIGHT_MAX
    assert {type(end) for end in ends} <= {RedisOutcomeUnknown, RedisUnreachable}


async def test_what_is_acknowledged_outlives_a_storm_of_restarts(start: Start, open_: Open) -> None:
    server = start(*SAFE)
    client = await open_(server.url)
    wrote, is_over = asyncio.Event(), asyncio.Event()

    async def write(partition: int) -> int:
        log, end = leader("orders", partition), 0
        await done(lambda: client.run(log.claim(1, "a")))
        while not is_over.is_set():
            call = log.append(Offset(end), [Batch(Offset(end + 1), b"batch")], 0)
            assert await done(partial(client.run, call)) == Answer(Status.DONE, (end + 1,))
            end += 1
            wrote.set()
        return end

    writing = [asyncio.ensure_future(write(partition)) for partition in range(20)]
    for _ in range(3):
        wrote.clear()
        await wrote.wait()
        server.kill()
        await asyncio.to_thread(server.start)
    is_over.set()
    ends = await asyncio.gather(*writing)
    assert min(ends) > 0
    for partition, end in enumerate(ends):
        entries = await client.call("XRANGE", leader("orders", partition).keys.stream, "-", "+")
        assert [entry for entry, _ in entries] == [b"%d-0" % (at + 1) for at in range(end)]
