"""Worker threads reach the server of a key, wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import pytest

from headrace.base.ids import Offset
from headrace.storage.redis.errors import RedisUnreachable
from headrace.storage.redis.links.address import parse_redis_address
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.threads import ThreadsRedis
from headrace.storage.redis.server_side.functions import Answer, Batch, Status
from tests.storage.redis.client_world import LONG_MS, Open, Start, done, leader
from tests.storage.redis.topologies import append, first, log_of, move_keys, move_slot, replicated
from tools.servers.redis_servers import RedisServer

T = TypeVar("T")
Threads: TypeAlias = Callable[[Redis, str], ThreadsRedis]


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Makes what threads call; closed after the test."""
    made: list[ThreadsRedis] = []

    def make(client: Redis, url: str) -> ThreadsRedis:
        made.append(ThreadsRedis(client, parse_redis_address(url)))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def in_thread(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    return await asyncio.to_thread(work, *arguments, **named)


async def test_threads_follow_a_partition_in_a_cluster(
    cluster: list[RedisServer], open_: Open, threads: Threads
) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    client = await open_(url)
    redis = threads(client, url)
    for partition in range(6):
        claim = leader("threads", partition, clustered=True).claim(1, "a")
        assert (await in_thread(redis.run, claim)).status is Status.DONE
    assert len(await in_thread(redis.servers)) == 3
    log = log_of("threads")
    await append(client, log, 0)
    stream, target = log.keys.stream, (first(log) + 1) % 3
    await move_keys(cluster, log, target)
    assert len(await in_thread(redis.call, "XRANGE", stream, "-", "+", key=stream)) == 1  # ASK
    await move_slot(cluster, log, target)
    assert len(await in_thread(redis.call, "XRANGE", stream, "-", "+", key=stream)) == 1  # MOVED
    await client.ready(LONG_MS)
    assert client.place_of(stream).port == cluster[target].port


async def test_threads_follow_the_master_of_sentinels(start: Start, open_: Open, threads: Threads) -> None:
    servers = await replicated(start)
    client = await open_(servers.url)
    redis = threads(client, servers.url)
    log = leader("orders", 0)
    await in_thread(redis.run, log.claim(1, "a"))
    call = log.append(Offset(0), [Batch(Offset(1), b"batch")], 0)
    await asyncio.gather(client.run(call), client.call("WAIT", 1, 3000))
    servers.primary.kill()
    assert await done(lambda: in_thread(redis.run, call)) == Answer(Status.DONE, (1,))
    assert client.place_of("").port == servers.replica.port


async def test_a_library_that_went_is_loaded_again_by_threads_too(start: Start, open_: Open, threads: Threads) -> None:
    server = start()
    client = await open_(server.url)
    redis = threads(client, server.url)
    await client.call("FUNCTION", "FLUSH")
    assert (await in_thread(redis.run, leader("orders", 0).claim(1, "a"))).status is Status.DONE
    server.kill()
    with pytest.raises(RedisUnreachable):
        await in_thread(redis.call, "PING")


async def test_a_reply_of_false_ends_a_command(start: Start, open_: Open, threads: Threads) -> None:
    server = start()
    redis = threads(await open_(server.url), server.url)
    assert await in_thread(redis.call, "EVAL", "redis.setresp(3) return false", 0) is False
    await in_thread(redis.call, "CLIENT", "TRACKING", "ON", "BCAST")
    assert [await in_thread(redis.call, "INCR", "n") for _ in range(3)] == [1, 2, 3]
