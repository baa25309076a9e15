"""The client on real servers: a kept connection, functions that are loaded again, and the way a command ends."""

from __future__ import annotations

import asyncio
import socket
from random import Random

import pytest

from headrace.base.ids import Offset
from headrace.storage.redis.errors import (
    RedisDenied,
    RedisLoading,
    RedisOutcomeUnknown,
    RedisReadOnly,
    RedisUnreachable,
)
from headrace.storage.redis.links.address import Credentials, parse_redis_address
from headrace.storage.redis.links.client import Fixed, Redis, RedisNode, settling
from headrace.storage.redis.links.connection import Place
from headrace.storage.redis.links.opening import open_redis
from headrace.storage.redis.server_side.functions import Answer, Batch, Status
from tests.storage.redis.client_world import LONG_MS, Open, Start, leader, says, until


async def test_a_connection_comes_back_after_the_server_does(start: Start, open_: Open) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    client = await open_(server.url)
    changed = asyncio.Event()
    client.on_change = changed.set
    assert await client.run(leader("orders", 0).claim(1, "a")) == Answer(Status.DONE, (0, 0, 0, 0, 0))
    append = leader("orders", 0).append(Offset(0), [Batch(Offset(3), b"batch")], -1)
    assert await client.run(append) == Answer(Status.DONE, (3,))
    server.kill()
    await changed.wait()
    with pytest.raises(RedisUnreachable):
        await client.call("PING")
    await asyncio.to_thread(server.start)
    await client.ready(LONG_MS)
    assert await client.run(append) == Answer(Status.DONE, (3,))


async def test_a_server_that_loads_its_data_is_waited_for(start: Start, open_: Open, clients: list[Redis]) -> None:
    server = start("--appendonly", "yes", "--key-load-delay", "200")  # microseconds: 10 seconds for all keys
    writer = await open_(server.url)
    await writer.call("EVAL", "for key = 1, 50000 do redis.call('SET', key, key) end", 0)
    server.kill()
    await asyncio.to_thread(server.start)
    client = RedisNode(Fixed(Place(path=str(server.socket))), Credentials(), Random(1))
    clients.append(client)
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client.on_change = lambda: isinstance(client.failure, RedisLoading) and settling(refused)(None)
    await refused
    with socket.socket(socket.AF_UNIX) as operator:
        operator.connect(str(server.socket))
        operator.sendall(b"CONFIG SET key-load-delay 0\r\n")
        await client.ready(LONG_MS)
    assert await client.call("DBSIZE") == 50_000


async def test_a_library_that_went_is_loaded_again_for_all_that_wait(start: Start, open_: Open) -> None:
    client = await open_(start().url)
    await client.call("FUNCTION", "FLUSH")
    answers = await asyncio.gather(*(client.run(leader("orders", number).claim(1, "a")) for number in range(20)))
    assert {answer.status for answer in answers} == {Status.DONE}


async def test_a_library_of_another_version_may_stand_beside(start: Start, open_: Open) -> None:
    client = await open_(start().url)
    other = "#!lua name=headrace_00000000\nredis.register_function('headrace_00000000_append', function() return 1 end)"
    await client.call("FUNCTION", "LOAD", other)
    await client.load_functions()
    assert len(await client.call("FUNCTION", "LIST")) == 2


async def test_nobody_there_is_told_in_one_sentence(start: Start, open_: Open) -> None:
    server = start()
    server.kill()
    with pytest.raises(RedisUnreachable, match="Cannot connect to Redis at"):
        await open_redis(parse_redis_address(server.url), Random(1), timeout_ms=50)
    with pytest.raises(RedisUnreachable, match="Cannot connect to Redis at"):
        await open_redis(parse_redis_address(f"redis://{'a' * 64}.example:1"), Random(1), timeout_ms=50)
    locked = start("--requirepass", "secret")
    with pytest.raises(RedisDenied, match="set a right user and password"):
        await open_(locked.url)


async def test_a_replica_is_no_place_to_write(start: Start) -> None:
    replica = start("--replicaof", "127.0.0.1", "1")
    with pytest.raises(RedisReadOnly, match="is a replica"):
        await open_redis(parse_redis_address(replica.url), Random(1), timeout_ms=50)


async def test_a_demoted_server_is_left(start: Start, open_: Open) -> None:
    client = await open_(start().url)
    assert isinstance(client, RedisNode)
    first = client.connection
    left = asyncio.Event()
    client.on_change = left.set
    await client.call("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(RedisReadOnly):
        await client.call("SET", "a", "b")
    await left.wait()
    with pytest.raises(RedisUnreachable):
        await client.call("GET", "a")
    assert first is not None
    assert first.lost is not None


async def test_a_client_moves_to_where_the_server_is_now(start: Start, clients: list[Redis]) -> None:
    places = [Place(path=str(server.socket)) for server in (start(), start())]
    at = 0

    async def locate() -> Place:
        return places[at]

    client = RedisNode(locate, Credentials(), Random(1))
    clients.append(client)
    for number in range(2):
        await client.ready(LONG_MS)
        await client.call("SET", "number", number)
        at = 1
        client.leave(RedisUnreachable("The master is elsewhere."))
        assert client.connection is None
    await client.ready(LONG_MS)
    assert await client.call("GET", "number") == b"1"


async def test_a_blocking_command_has_its_own_connection(start: Start, open_: Open, clients: list[Redis]) -> None:
    client = await open_(start().url)
    assert isinstance(client, RedisNode)
    beside = client.beside("log", timeout_ms=LONG_MS)
    clients.append(beside)
    await beside.ready(LONG_MS)
    reading = asyncio.ensure_future(beside.call("XREAD", "BLOCK", 0, "STREAMS", "log", "$", key="log"))
    await until(lambda: says(client, b"blocked_clients:1", "INFO", "clients"))
    await client.call("XADD", "log", "7-0", "events", "x")
    assert await reading == {b"log": [[b"7-0", [b"events", b"x"]]]}


async def test_closing_ends_every_command(start: Start, open_: Open) -> None:
    client = await open_(start().url)
    waiting = asyncio.ensure_future(client.call("BLPOP", "none", 0))
    await asyncio.sleep(0)  # it is posted
    await asyncio.sleep(0)  # and written
    await client.close()
    with pytest.raises(RedisOutcomeUnknown):
        await waiting
    with pytest.raises(RedisUnreachable):
        await client.call("PING")
    await client.close()
