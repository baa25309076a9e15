"""Sentinels: the client follows the master that they name."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.ids import Offset
from headrace.storage.redis.errors import RedisFailure, RedisUnreachable
from headrace.storage.redis.links import opening
from headrace.storage.redis.links.address import RedisAddress, parse_redis_address
from headrace.storage.redis.links.client import RedisNode
from headrace.storage.redis.links.sentinel import Sentinels
from headrace.storage.redis.server_side.functions import Answer, Batch, Status
from tests.storage.redis.client_world import LONG_MS, Open, Start, done, leader
from tests.storage.redis.topologies import Replicated, replicated, to
from tools.servers.redis_servers import RedisServer


async def test_sentinels_name_the_new_master_after_a_failover(start: Start, open_: Open) -> None:
    servers = await replicated(start)
    client = await open_(servers.url)
    assert isinstance(client, RedisNode)
    assert client.connection is not None
    assert client.connection.place.port == servers.primary.port
    await client.run(leader("orders", 0).claim(1, "a"))
    append = leader("orders", 0).append(Offset(0), [Batch(Offset(3), b"batch")], 0)
    *_, copies = await asyncio.gather(client.run(append), client.call("WAIT", 1, 3000))
    assert copies == 1
    servers.primary.kill()
    assert await done(lambda: client.run(append)) == Answer(Status.DONE, (3,))
    await the_newest_failover_counts(start, servers)


async def the_newest_failover_counts(start: Start, servers: Replicated) -> None:
    (newer,) = servers.sentinels
    older = start(f"sentinel monitor queue 127.0.0.1 {servers.primary.port} 1", tcp=True, sentinel=True)
    named = Sentinels(named_by("127.0.0.1:1", at(older), at(newer)))
    assert (await named.master()).port == servers.replica.port
    newer.kill()
    with pytest.raises(RedisUnreachable, match="a master of the past"):
        await named.master()
    assert (await Sentinels(named_by(at(older))).master()).port == servers.primary.port


async def test_a_master_that_serves_on_is_left_where_sentinels_name_another(
    start: Start, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(tcp=True), start(tcp=True)
    sentinel = start(f"sentinel monitor queue 127.0.0.1 {first.port} 1", tcp=True, sentinel=True)
    monkeypatch.setattr(opening, "REDIS_SENTINEL_LOOK_MS", 20)
    client = await open_(f"redis+sentinel://{at(sentinel)}/queue")
    assert isinstance(client, RedisNode)
    changed = asyncio.Event()
    client.on_change = changed.set
    async with to(sentinel) as operator:
        await operator.call("SENTINEL", "REMOVE", "queue")
        await operator.call("SENTINEL", "MONITOR", "queue", "127.0.0.1", second.port, 1)
    await changed.wait()
    assert "The master is at" in str(client.failure)
    await client.ready(LONG_MS)
    assert client.connection is not None
    assert client.connection.place.port == second.port


async def test_sentinels_that_do_not_help_are_told(start: Start) -> None:
    sentinel = start("sentinel monitor queue 127.0.0.1 1 1", tcp=True, sentinel=True)
    with pytest.raises(RedisUnreachable, match="knows no master 'other'"):
        await Sentinels(parse_redis_address(f"redis+sentinel://{at(sentinel)}/other")).master()
    server = start(tcp=True)
    with pytest.raises(RedisFailure, match="Redis refused a command: ERR unknown command"):
        await Sentinels(named_by(at(server))).master()


def at(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


def named_by(*sentinels: str) -> RedisAddress:
    return parse_redis_address(f"redis+sentinel://{','.join(sentinels)}/queue")
