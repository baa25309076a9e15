"""The engine on a real server: what the local log promises, and what becomes of it when Redis goes away."""

from __future__ import annotations

import asyncio
import gc
import random
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from structlog.testing import capture_logs

from headrace.base.errors import UsageError
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex
from headrace.base.limits import REDIS_STOP_MS_MAX
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.loop import VirtualLoop
from headrace.sim.redis.brokers import ADDRESS
from headrace.sim.run import close
from headrace.storage.engine.faults import Fenced, NotAtHand
from headrace.storage.engine.identity import LogConfig
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.links.address import Credentials, parse_redis_address
from headrace.storage.redis.links.connection import Place, connect
from headrace.storage.redis.server_side.keys import Keys
from headrace.wire.batches import iterate_headers
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.data_path import batch, create, fetch, produce
from tests.broker.group_broker import RawClient, running, until
from tests.storage.log.log_world import NOW_MS
from tests.storage.redis.conftest import PROGRAMS, Start
from tests.storage.redis.redis_world import append, engine_of, flush, offsets, opened
from tools.servers.redis_servers import RedisServer


async def test_what_is_flushed_is_there_for_the_next_leader(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    for seed in range(3):
        append(log, seed=seed)
    assert (log.flushed_end, log.log_end_offset) == (0, 6)
    assert await flush(engine, log) is None
    assert await offsets(log) == [(0, 0), (2, 0), (4, 0)]
    other = engine_of(server)
    taken = opened(other, 3)
    assert (taken.log_start_offset, taken.log_end_offset, taken.size_bytes) == (0, 6, log.size_bytes)
    with pytest.raises(NotAtHand):
        taken.read(Offset(0), 100, Offset(6), at_least_one=True)
    append(taken, 3)
    assert await flush(other, taken) is None
    assert await offsets(taken) == [(0, 0), (2, 0), (4, 0), (6, 3)]
    assert taken.epochs == ((0, 0), (3, 6))
    assert [header.base_offset for header, _ in taken.batches_from(Offset(3))] == [2, 4, 6]


async def test_a_stale_leader_stores_nothing(server: RedisServer) -> None:
    old, new = engine_of(server), engine_of(server)
    stale = opened(old)
    opened(new, 1)
    append(stale)
    assert isinstance(await flush(old, stale), Fenced)
    assert stale.failed
    assert opened(new, 1).log_end_offset == 0


def kinds(engine: RedisEngine) -> list[str]:
    return [state.kind for state in engine.states()]


async def test_a_killed_server_loses_nothing_and_the_round_goes_on(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    server.kill()
    append(log, seed=1)
    flushing = asyncio.ensure_future(flush(engine, log))
    await until(lambda: "store unreachable" in kinds(engine))
    await asyncio.get_running_loop().run_in_executor(None, server.start)
    assert await flushing is None
    assert kinds(engine) == ["logs in redis"]
    assert await offsets(opened(engine_of(server), 1)) == [(0, 0), (2, 0)]


async def test_retention_and_deleted_records(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    for seed in range(30):
        append(log, seed=100 * seed)
    assert await flush(engine, log) is None
    log.delete_records_before(Offset(5))
    log.reconfigure(LogConfig(segment_bytes=600, retention_ms=NOW_MS - 1000))
    start = log.apply_retention(NOW_MS, Offset(60))
    assert 5 < start <= 20
    assert await flush(engine, log) is None
    again = opened(engine_of(server), 1)
    assert (again.log_start_offset, again.size_bytes) == (start, log.size_bytes)
    assert [base for base, _ in await offsets(again)] == list(range(start, 60, 2))


async def test_a_log_that_is_opened_again_knows_the_newest_time_of_its_open_range(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log, times=(NOW_MS, NOW_MS))
    append(log, times=(5, 5))
    assert await flush(engine, log) is None
    next_one = engine_of(server)
    again = opened(next_one, 1, LogConfig(segment_bytes=600, retention_ms=1000))
    assert await flush(next_one, again) is None
    assert again.apply_retention(NOW_MS, Offset(4)) == 0, "a record of this moment is in the range"
    assert again.apply_retention(NOW_MS + 1001, Offset(4)) == 4


@pytest.mark.usefixtures("engines")
async def test_where_redis_cannot_wait_for_its_disk_that_is_told_and_nothing_waits(start: Start) -> None:
    if (program := PROGRAMS["redis-server"]).missing:
        pytest.skip(f"there is no {program.name}: {program.missing}")
    server = start("--appendonly", "yes", "--appendfsync", "everysec", program=program)
    with capture_logs() as lines:
        engine = engine_of(server)
    worth = [line["acknowledged"] for line in lines if "acknowledged" in line]
    (connection,) = engine.blocking.servers().values()
    if connection.server["version"].startswith("7.0."):
        assert worth == ["a crash of its machine or process may lose the last second: this Redis has no WAITAOF"]
    log = opened(engine)
    append(log)
    async with asyncio.timeout(150):
        assert await flush(engine, log) is None


@pytest.mark.usefixtures("engines")
async def test_a_server_that_evicts_is_refused(start: Start) -> None:
    with pytest.raises(UsageError, match="allkeys-lru"):
        engine_of(start("--maxmemory-policy", "allkeys-lru"))


async def test_a_broker_runs_on_it(server: RedisServer, tmp_path: Path) -> None:
    """A client's records and commits are there after a restart, for a broker with an empty directory too."""
    redis = parse_redis_address(server.url)
    where = TopicPartition("orders", 0)
    async with asyncio.timeout(150):
        async with (
            running(tmp_path / "1", redis=redis) as bootstrap,
            AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as out,
        ):
            sent = [await out.send("orders", b"%d" % number, partition=0) for number in range(100)]
            assert [(await each).offset for each in sent] == list(range(100))
        async with (
            running(tmp_path / "2", redis=redis) as bootstrap,
            AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest") as reader,
        ):
            reader.assign([where])
            values = [(await reader.getone()).value for _ in range(100)]
            assert values == [b"%d" % number for number in range(100)]
            await reader.commit()
            assert await reader.committed(where) == 100


async def test_a_leader_whose_redis_has_lost_records_goes_on_in_a_later_epoch(
    server: RedisServer, tmp_path: Path
) -> None:
    """The broker is alone, so it is the one that opens the log again."""
    redis = parse_redis_address(server.url)
    keys = Keys().partition("t", PartitionIndex(0))
    async with asyncio.timeout(150), running(tmp_path, redis=redis) as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t")
        for value in (b"one", b"two"):
            assert (await produce(client, "t", batch(value))).error_code == 0
        connection = await connect(Place(path=str(server.socket)), Credentials())
        await connection.call("UNLINK", keys.stream, keys.state, keys.times, keys.epochs, keys.producers)
        await connection.close()
        refused = await produce(client, "t", batch(b"three"))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        while (again := await produce(client, "t", batch(b"four"))).error_code:
            assert again.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert again.base_offset == 0
        (header,) = [each for _, each in iterate_headers((await fetch(client, "t", 0)).records)]
        assert header.leader_epoch > 0
        assert (await epoch_end(client, "t", 0)) == (0, 0), "a consumer at offset 2 is told to go back to 0"


async def epoch_end(client: RawClient, topic: str, epoch: int) -> tuple[int, int]:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(-1, (OffsetForLeaderTopic(topic=topic, partitions=(wanted,)),))
    (answer,) = (await client.ask(4, request)).topics[0].partitions
    return answer.leader_epoch, answer.end_offset


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("durability", ["", "aof", "none"])
async def test_the_configured_durability_is_kept_or_refused(start: Start, durability: str) -> None:
    weak = start("--appendonly", "no")
    if durability == "aof":
        with pytest.raises(UsageError, match="has no append-only file: set appendonly yes"):
            engine_of(weak, durability)
    else:
        engine_of(weak, durability)
    with capture_logs() as lines:
        engine = engine_of(start("--appendonly", "yes", "--appendfsync", "everysec"), durability)
    (line,) = [line for line in lines if "acknowledged" in line]
    assert ("redis.durability is none" in line["acknowledged"]) == (durability == "none")
    log = opened(engine)
    assert engine.servers.of(log.keys.stream).waits_for_aof == (durability != "none")
    append(log)
    assert await flush(engine, log) is None


async def test_a_log_gives_way_to_history_and_goes_on_behind_it_with_its_producers(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine, 3)
    append(log, 3)
    assert await flush(engine, log) is None
    kept = engine.blocking.call("XRANGE", log.keys.stream, "-", "+")
    aside = await asyncio.to_thread(partial(log.give_way, Offset(50), epoch=LeaderEpoch(2), producers=b"producers"))
    assert aside == log.keys.aside(LeaderEpoch(3))
    assert engine.blocking.call("XRANGE", aside, "-", "+") == kept
    log.assign_epoch(LeaderEpoch(3))
    append(log, 3, seed=1)
    assert await flush(engine, log) is None
    again = opened(engine_of(server), 4)
    for each in (log, again):
        assert (each.log_start_offset, each.log_end_offset) == (50, 52)
        assert await offsets(each) == [(50, 3)]
        assert each.epoch_at(Offset(49)) == 2
        assert each.epochs[1] == (3, 50)
        assert each.latest_producer_snapshot(Offset(50)) == (50, b"producers")
    assert again.size_bytes == log.size_bytes
    empty = opened(engine_of(server), 5)
    assert empty.end_offset_for_epoch(LeaderEpoch(2)) == (2, 50)


@pytest.mark.parametrize("failed", [False, True])
async def test_batches_of_a_closed_log_are_not_in_memory_any_more(server: RedisServer, failed: bool) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    batch = log.read(Offset(0), 1000, Offset(2), at_least_one=True).obj
    if failed:
        opened(engine_of(server), 1)
        append(log, seed=1)
        assert isinstance(await flush(engine, log), Fenced)
        await asyncio.sleep(0)
        assert is_kept(batch)  # readers of a failed log go on
    assert is_kept(batch)
    await asyncio.to_thread(log.close)
    await asyncio.sleep(0)
    assert not is_kept(batch)


def is_kept(batch: object) -> bool:
    """Whether a list of batches has it."""
    return any(isinstance(each, list) and any(batch is one for one in each) for each in gc.get_referrers(batch))


def test_a_stop_waits_for_a_round_as_long_as_it_may_whenever_that_began() -> None:
    loop, chance = VirtualLoop(random.Random(1)), random.Random(2)
    ClusterWorld(loop, 1)

    async def stopped() -> bool:
        engine = RedisEngine(ADDRESS, random=random.Random(3))
        await asyncio.sleep(chance.random())
        engine.begin_waiting()
        engine.begin_stop()
        await asyncio.sleep(REDIS_STOP_MS_MAX / 1000 - 0.1)
        was = engine.is_given_up
        await asyncio.sleep(0.2)
        await engine.disconnect()
        return engine.is_given_up and not was

    async def whole() -> bool:
        return all([await stopped() for _ in range(50)])

    try:
        assert loop.run_until_complete(whole())
    finally:
        close(loop)
