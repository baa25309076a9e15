"""The client that fits an address."""

from __future__ import annotations

from headrace.base.limits import REDIS_OPEN_MS_MAX, REDIS_SENTINEL_LOOK_MS
from headrace.base.ports import Random
from headrace.storage.redis.links.address import RedisAddress, Topology
from headrace.storage.redis.links.client import Fixed, Redis, RedisNode, place_of
from headrace.storage.redis.links.cluster import RedisCluster
from headrace.storage.redis.links.sentinel import Sentinels


async def open_redis(address: RedisAddress, random: Random, *, timeout_ms: int = REDIS_OPEN_MS_MAX) -> Redis:
    """Connect as the address says, and load the functions.

    Raises RedisFailure where nothing serves in time, or where a single server does not listen. Raises UsageError where
    the server is too old.
    """
    client = client_of(address, random)
    try:
        if isinstance(client, RedisNode):
            await client.ready(timeout_ms, is_patient=address.topology is not Topology.SERVER)
            if client.is_in_cluster:
                await client.close()
                client = RedisCluster(address, random)
        await client.ready(timeout_ms)
        await client.load_functions()
    except BaseException:
        await client.close()
        raise
    return client


def client_of(address: RedisAddress, random: Random) -> Redis:
    """The client of an address, which connects from now on. A server of a Cluster stands for itself alone here. Raises
    UsageError where TLS files cannot be read."""
    if address.topology is Topology.CLUSTER:
        return RedisCluster(address, random)
    is_sentinel = address.topology is Topology.SENTINEL
    return RedisNode(
        Sentinels(address).master if is_sentinel else Fixed(place_of(address)),
        address.credentials,
        random,
        database=address.database,
        look_ms=REDIS_SENTINEL_LOOK_MS if is_sentinel else 0,
    )
