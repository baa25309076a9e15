"""The client that fits an address."""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.base.limits import REDIS_OPEN_MS_MAX
from headrace.base.ports import Random
from headrace.storage.redis.address import RedisAddress, Topology
from headrace.storage.redis.client import Redis, RedisNode, fixed, place_of


async def open_redis(address: RedisAddress, random: Random, *, timeout_ms: int = REDIS_OPEN_MS_MAX) -> Redis:
    """Connect as the address says, and load the functions.

    Raises RedisFailure where nothing serves in time, or UsageError where the server is too old.
    """
    if address.topology is not Topology.SERVER:
        raise UsageError("A Redis Cluster or Sentinels are not supported yet: name one server.")
    node = RedisNode(fixed(place_of(address)), address.credentials, random, database=address.database)
    try:
        await node.ready(timeout_ms)
        await node.load_functions()
    except BaseException:
        await node.close()
        raise
    return node
