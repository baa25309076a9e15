"""The client that fits an address."""

from __future__ import annotations

from headrace.base.limits import REDIS_OPEN_MS_MAX, REDIS_SENTINEL_LOOK_MS
from headrace.base.ports import Random
from headrace.storage.redis.address import RedisAddress, Topology
from headrace.storage.redis.client import Redis, RedisNode, fixed, place_of
from headrace.storage.redis.cluster import RedisCluster
from headrace.storage.redis.sentinel import Sentinels


async def open_redis(address: RedisAddress, random: Random, *, timeout_ms: int = REDIS_OPEN_MS_MAX) -> Redis:
    """Connect as the address says, and load the functions.

    Raises RedisFailure where nothing serves in time, or UsageError where the server is too old.
    """
    client: Redis
    if address.topology is Topology.CLUSTER:
        client = RedisCluster(address, random)
    elif address.topology is Topology.SENTINEL:
        client = _sentinel_node(address, random)
    else:
        client = await _server(address, random, timeout_ms)
    return await _opened(client, timeout_ms)


async def _server(address: RedisAddress, random: Random, timeout_ms: int) -> Redis:
    """The server that is named; or, where it belongs to a Cluster, all of that."""
    node = RedisNode(fixed(place_of(address)), address.credentials, random, database=address.database)
    await _ready(node, timeout_ms)
    if node.connection is None or node.connection.server.get("mode") != "cluster":
        return node
    await node.close()
    return RedisCluster(address, random)


async def _opened(client: Redis, timeout_ms: int) -> Redis:
    await _ready(client, timeout_ms)
    try:
        await client.load_functions()
    except BaseException:
        await client.close()
        raise
    return client


async def _ready(client: Redis, timeout_ms: int) -> None:
    try:
        await client.ready(timeout_ms)
    except BaseException:
        await client.close()
        raise


def _sentinel_node(address: RedisAddress, random: Random) -> RedisNode:
    return RedisNode(
        Sentinels(address).master,
        address.credentials,
        random,
        database=address.database,
        look_ms=REDIS_SENTINEL_LOOK_MS,
    )
