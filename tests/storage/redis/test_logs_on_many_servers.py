"""Logs in a Cluster, and in a primary with a replica under a Sentinel.

Records that a replica has acknowledged outlive the kill of the primary. The loss of others is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import StorageFailure
from headrace.base.ids import LeaderEpoch, PartitionIndex
from headrace.storage.engine.faults import Diverged
from headrace.storage.engine.identity import LogConfig
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.server_side.functions import PartitionFunctions
from tests.storage.log.log_world import IDENTITY, SMALL
from tests.storage.redis.client_world import Start, until
from tests.storage.redis.redis_world import SAFE, append, engine_at, flush, flush_all, offsets, opened
from tests.storage.redis.topologies import AT_ONCE, first, move_slot_whole, replicated, to
from tools.servers.redis_servers import RedisServer

pytestmark = pytest.mark.usefixtures("engines")


async def many(engine: RedisEngine, topic: str, count: int, epoch: int = 0) -> list[RedisLog]:
    """Logs of this many partitions, opened by the leader of an epoch."""

    def open_all() -> list[RedisLog]:
        identities = [replace(IDENTITY, topic_name=topic, partition=PartitionIndex(at)) for at in range(count)]
        return [engine.begin_open(each, SMALL, leader_epoch=LeaderEpoch(epoch)).finish() for each in identities]

    return await asyncio.to_thread(open_all)


async def test_logs_spread_over_a_cluster_and_go_on_where_a_slot_moves(cluster: Sequence[RedisServer]) -> None:
    engine = await engine_at(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    logs = await many(engine, "spread", 9)
    assert {first(PartitionFunctions(log.keys, log.identity.topic_id, LeaderEpoch(0))) for log in logs} == {0, 1, 2}
    for seed in range(3):
        for log in logs:
            append(log, seed=seed)
        assert await flush_all(engine, logs) == [None] * 9
    moved = PartitionFunctions(logs[0].keys, logs[0].identity.topic_id, LeaderEpoch(0))
    await move_slot_whole(cluster, moved, (first(moved) + 1) % 3)
    for log in logs:
        append(log, seed=3)
    assert await flush_all(engine, logs) == [None] * 9
    other = await engine_at(f"redis+cluster://127.0.0.1:{cluster[1].port}")
    for log in await many(other, "spread", 9, epoch=1):
        assert await offsets(log) == [(0, 0), (2, 0), (4, 0), (6, 0)]
    append(logs[0])
    assert await flush(engine, logs[0]) is not None, "it is fenced"


async def test_what_a_replica_has_acknowledged_outlives_the_kill_of_the_primary(start: Start) -> None:
    servers = await replicated(start, *SAFE)
    engine = await engine_at(servers.url)
    log = await asyncio.to_thread(opened, engine, 0, LogConfig(min_insync_replicas=2))
    for seed in range(5):
        append(log, seed=seed)
        assert await flush(engine, log) is None
        assert log.flushed_copies == 2
    servers.primary.kill()
    append(log, seed=5)
    assert await flush(engine, log) is None
    assert log.flushed_copies == 1, "nobody copies it now"
    start(*SAFE, *AT_ONCE, "--replicaof", "127.0.0.1", str(servers.replica.port), tcp=True)
    async with asyncio.timeout(150):
        await until(lambda: has_copies(log, 2))
    other = await engine_at(servers.url)
    again = await asyncio.to_thread(opened, other, 1)
    assert await offsets(again) == [(2 * at, 0) for at in range(6)]


async def has_copies(log: RedisLog, count: int) -> bool:
    return log.copies >= count


async def test_what_no_replica_had_is_lost_with_the_primary_and_told(start: Start) -> None:
    servers = await replicated(start, *SAFE)
    engine = await engine_at(servers.url)
    log = await asyncio.to_thread(opened, engine, 0, LogConfig(min_insync_replicas=2))
    append(log)
    assert await flush(engine, log) is None
    log.reconfigure(SMALL)
    async with to(servers.primary) as at:
        servers.replica.pause()
        await at.call("CLIENT", "KILL", "TYPE", "replica")
    append(log, seed=1)
    assert await flush(engine, log) is None
    heard: asyncio.Future[StorageFailure] = asyncio.get_running_loop().create_future()
    log.on_failed = heard.set_result
    with capture_logs() as lines:
        servers.primary.kill()
        servers.replica.resume()
        assert isinstance(await heard, Diverged)
    told = [(line["first_offset"], line["next_offset"]) for line in lines if line["log_level"] == "error"]
    assert told == [(2, 4)]
    again = await asyncio.to_thread(opened, engine, 1)
    append(again, 1, seed=2)
    assert await flush(engine, again) is None
    assert await offsets(again) == [(0, 0), (2, 1)]
