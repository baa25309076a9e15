"""Promises 1 to 5 where Redis is several servers, of which one dies for good: under Sentinels, and in a Cluster.

Records count as acknowledged once a replica of Redis has them (`min.insync.replicas=2`). The load and the oracle are
those of one Redis, with two brokers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.connection import Connection
from tests import loops
from tests.promises.support import insiders
from tests.promises.support.records import IDEMPOTENT, OPTIONS, PLAIN, Shape, under_records
from tests.storage.redis.client_world import Servers, says, until
from tests.storage.redis.topologies import AT_ONCE, cluster_of, replica_in, replicated, to
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.redis_servers import RedisServer

pytestmark = pytest.mark.long

SAFE: Final = ("--appendonly", "yes", "--appendfsync", "always")
IN_CLUSTER: Final = (*SAFE, "--cluster-node-timeout", "1000")
SHAPES: Final = {name: Shape(replicas=1, in_sync=2) for name in (IDEMPOTENT, PLAIN, insiders.TOPIC)}
BEFORE_A_FAULT: Final = 500


@pytest.fixture
def servers() -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="hr") as name, Servers(Path(name)) as started:
        yield started


async def has_replica(server: RedisServer) -> None:
    """Wait until a server has a replica that is up to date."""
    await until(partial(told_by, server, b"state=online"))


async def knows(sentinel: Connection, replica: int) -> bool:
    found = await sentinel.call("SENTINEL", "REPLICAS", "queue")
    return any(int(each[b"port"]) == replica and each[b"flags"] == b"slave" for each in found)


async def is_primary(server: RedisServer) -> None:
    """Wait until a replica is the primary."""
    await until(partial(told_by, server, b"role:master"))


async def told_by(server: RedisServer, words: bytes) -> bool:
    with suppress(RedisFailure):  # connections end where a server gets another role
        async with to(server) as at:
            return await says(at, words, "INFO", "replication")
    return False


def test_kill_9_of_primaries_under_a_sentinel_loses_nothing_acknowledged(
    tmp_path: Path, servers: Servers, rounds: int
) -> None:
    async def work() -> None:
        redis = await replicated(servers.start, *SAFE)
        primary, replica = redis.primary, redis.replica
        cluster = BrokerCluster(tmp_path, 2, *OPTIONS, redis=redis.url)
        async with cluster, under_records(cluster, SHAPES) as records:
            for number in range(rounds):
                await records.acknowledged(BEFORE_A_FAULT)
                print(f"round {number + 1} of {rounds}", flush=True)
                primary.kill()
                await is_primary(replica)
                follows = ("--replicaof", "127.0.0.1", str(replica.port))
                primary, replica = replica, servers.start(*SAFE, *AT_ONCE, *follows, tcp=True)
                await has_replica(primary)
                async with to(redis.sentinels[0]) as sentinel:  # it does not know yet, and could elect nobody
                    await until(partial(knows, sentinel, replica.port))
            await records.acknowledged(BEFORE_A_FAULT)

    loops.run(work())


def test_kill_9_of_primaries_of_a_cluster_loses_nothing_acknowledged(
    tmp_path: Path, servers: Servers, rounds: int
) -> None:
    async def work() -> None:
        primaries = await cluster_of(servers.start, 3, *IN_CLUSTER)
        replicas = [await replica_in(servers.start, each, *IN_CLUSTER) for each in primaries]

        def url() -> str:
            hosts = ",".join(f"127.0.0.1:{each.port}" for each in (*primaries, *replicas))
            return f"redis+cluster://{hosts}"

        cluster = BrokerCluster(tmp_path, 2, *OPTIONS, redis=url())
        async with cluster, under_records(cluster, SHAPES) as records:
            for number in range(rounds):
                await records.acknowledged(BEFORE_A_FAULT)
                print(f"round {number + 1} of {rounds}", flush=True)
                at = number % 3
                primaries[at].kill()
                await is_primary(replicas[at])
                primaries[at], replicas[at] = replicas[at], await replica_in(servers.start, replicas[at], *IN_CLUSTER)
                await has_replica(primaries[at])
            await records.acknowledged(BEFORE_A_FAULT)
            cluster.redis = url()  # of the first servers none is left, and the judge reads there

    loops.run(work())
