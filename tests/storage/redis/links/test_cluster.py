"""A Redis Cluster: commands find the server of their key, wherever its slot goes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TypeAlias

import pytest

from headrace.base.ids import Offset
from headrace.storage.redis.errors import RedisFailure, RedisMoved, RedisTryAgain, RedisUnreachable
from headrace.storage.redis.links.address import parse_redis_address
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.cluster import RedisCluster
from headrace.storage.redis.links.opening import open_redis
from headrace.storage.redis.server_side.functions import Batch
from tests.storage.redis.client_world import LONG_MS, Open, Start, leader, says, until
from tests.storage.redis.topologies import (
    append,
    claimed,
    cluster_of,
    first,
    log_of,
    move_keys,
    move_slot,
    replica_in,
    slot,
    to,
)
from tools.servers.redis_servers import RedisServer

Cluster: TypeAlias = list[RedisServer]


async def test_partitions_spread_and_are_followed_where_they_move(cluster: Cluster, open_: Open) -> None:
    client = await open_(f"redis://127.0.0.1:{cluster[0].port}/0")
    assert isinstance(client, RedisCluster)
    for partition in range(12):
        log = leader("orders", partition, clustered=True)
        await claimed(client, log)
        await append(client, log, 0)
    for server in cluster:
        async with to(server) as each:
            assert await each.call("DBSIZE")
    log = log_of("orders")
    target = (first(log) + 1) % 3
    await move_keys(cluster, log, target)
    found = await client.call("XRANGE", log.keys.stream, "-", "+", key=log.keys.stream)  # ASK
    assert [entry for entry, _ in found] == [b"1-0"]
    with pytest.raises(RedisTryAgain):  # its time index has no entry yet, so that a key of it is missing
        await client.run(log.append(Offset(1), [Batch(Offset(2), b"batch")], 0))
    appending = asyncio.ensure_future(append(client, log, 1))
    await move_slot(cluster, log, target)
    await appending
    await append(client, log, 2)
    found = await client.call("XRANGE", log.keys.stream, "-", "+", key=log.keys.stream)
    assert [entry for entry, _ in found] == [b"1-0", b"2-0", b"3-0"]
    assert await is_at(client.node_of(log.keys.stream), cluster[target].port)


async def test_servers_that_send_a_command_round_and_round_are_told(cluster: Cluster, open_: Open) -> None:
    log = log_of("round")
    client = await open_(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    one, two = cluster[first(log)], cluster[(first(log) + 1) % 3]
    async with to(one) as old, to(two) as new:
        names = [(await each.call("CLUSTER", "MYID")).decode() for each in (old, new)]
        await old.call("CLUSTER", "SETSLOT", slot(log), "NODE", names[1])
        await new.call("CLUSTER", "SETSLOT", slot(log), "NODE", names[0])
    with pytest.raises(RedisMoved):
        await client.call("GET", log.keys.state, key=log.keys.state)


async def test_a_blocked_command_is_told_that_its_slot_has_moved(cluster: Cluster, open_: Open) -> None:
    log = log_of("blocked")
    client = await open_(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    beside = client.beside(log.keys.stream, timeout_ms=LONG_MS)
    try:
        await beside.ready(LONG_MS)
        blocked = asyncio.ensure_future(beside.call("XREAD", "BLOCK", 0, "STREAMS", log.keys.stream, "$"))
        async with to(cluster[first(log)]) as at:
            await until(lambda: says(at, b"blocked_clients:1", "INFO", "clients"))
        target = (first(log) + 1) % 3
        await move_slot(cluster, log, target)
        with pytest.raises(RedisMoved):
            await blocked
        await until(lambda: is_at(beside, cluster[target].port))
    finally:
        await beside.close()


async def test_a_failover_in_a_cluster_is_followed(start: Start, open_: Open) -> None:
    log = log_of("orders")
    servers = await cluster_of(start, 3, "--cluster-node-timeout", "500")
    primary = servers[first(log)]
    replica = await replica_in(start, primary)
    client = await open_(f"redis://127.0.0.1:{replica.port}")  # any of its servers stands for the Cluster
    await claimed(client, log)
    await append(client, log, 0)
    beside = client.beside(log.keys.stream, timeout_ms=LONG_MS)
    try:
        await beside.ready(LONG_MS)
        blocked = asyncio.ensure_future(beside.call("XREAD", "BLOCK", 0, "STREAMS", log.keys.stream, "$"))
        async with to(primary) as at:
            await until(lambda: says(at, b"blocked_clients:1", "INFO", "clients"))
            await at.call("WAIT", 1, 1000)
        primary.kill()
        with pytest.raises(RedisFailure):
            await blocked
        await append(client, log, 1)
        await until(lambda: is_at(beside, replica.port))
    finally:
        await beside.close()


async def is_at(client: Redis, port: int) -> bool:
    (node,) = client.nodes
    return node.connection is not None and node.connection.place.port == port


async def test_a_cluster_without_slots_is_down(start: Start) -> None:
    server = start("--cluster-enabled", "yes", tcp=True)
    with pytest.raises(RedisFailure, match="no slot of the Redis Cluster has a server"):
        await open_redis(parse_redis_address(f"redis+cluster://127.0.0.1:{server.port}"), Random(1), timeout_ms=300)
    server.kill()
    with pytest.raises(RedisUnreachable, match="Cannot connect to Redis at"):
        await open_redis(parse_redis_address(f"redis+cluster://127.0.0.1:{server.port}"), Random(1), timeout_ms=300)
