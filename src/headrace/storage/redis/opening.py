"""The client that fits an address."""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.base.limits import REDIS_OPEN_MS_MAX, REDIS_SENTINEL_LOOK_MS
from headrace.base.ports import Random
from headrace.storage.redis.address import RedisAddress, Topology
from headrace.storage.redis.client import Redis, RedisNode, fixed, place_of
from headrace.storage.redis.sentinel import Sentinels


async def open_redis(address: RedisAddress, random: Random, *, timeout_ms: int = REDIS_OPEN_MS_MAX) -> Redis:
    """Connect as the address says, and load the functions.

    Raises RedisFailure where nothing serves in time, or UsageError where the server is too old.
    """
    if address.topology is Topology.CLUSTER:
        raise UsageError("A Redis Cluster is not supported yet: name one server, or Sentinels.")
    node = _sentinel_node(address, random) if address.topology is Topology.SENTINEL else _server_node(address, random)
    try:
        await node.ready(timeout_ms)
        await node.load_functions()
    except BaseException:
        await node.close()
        raise
    return node


def _server_node(address: RedisAddress, random: Random) -> RedisNode:
    return RedisNode(fixed(place_of(address)), address.credentials, random, database=address.database)


def _sentinel_node(address: RedisAddress, random: Random) -> RedisNode:
    return RedisNode(
        Sentinels(address).master,
        address.credentials,
        random,
        database=address.database,
        look_ms=REDIS_SENTINEL_LOOK_MS,
    )
