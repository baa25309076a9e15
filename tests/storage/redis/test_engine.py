"""The engine on a real server: what the local log promises, and what becomes of it when Redis goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headrace.base.errors import UsageError
from headrace.base.ids import LeaderEpoch, Offset
from headrace.broker import boot
from headrace.broker.system import system_random
from headrace.storage.engine.faults import Fenced, NotAtHand
from headrace.storage.engine.flushing import Outcome
from headrace.storage.engine.identity import LogConfig
from headrace.storage.engine.reading import read_or_fetch
from headrace.storage.redis.address import parse_redis_address
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.log import RedisLog
from headrace.wire.batches import check_batches, iterate_headers
from tests.broker.group_broker import running, until
from tests.storage.log.log_world import IDENTITY, NOW_MS, SMALL, batch
from tests.storage.redis.conftest import Start
from tools.redis_servers import RedisServer

SAFE = ("--appendonly", "yes", "--appendfsync", "always")


MADE: list[RedisEngine] = []


def engine_of(server: RedisServer) -> RedisEngine:
    engine = unstarted(server)
    engine.start()
    return engine


@pytest.fixture
async def server(start: Start) -> AsyncIterator[RedisServer]:
    yield start(*SAFE)
    while MADE:
        await MADE.pop().disconnect()


def opened(engine: RedisEngine, epoch: int = 0, config: LogConfig = SMALL) -> RedisLog:
    return engine.begin_open(IDENTITY, config, leader_epoch=LeaderEpoch(epoch)).finish()


def append(log: RedisLog, epoch: int = 0, *, count: int = 2, seed: int = 0) -> None:
    data = batch(count, seed=seed)
    log.append(data, check_batches(data), leader_epoch=LeaderEpoch(epoch), now_ms=NOW_MS)


async def flush(engine: RedisEngine, log: RedisLog) -> Outcome:
    ticket = log.begin_flush()
    assert ticket is not None
    done = asyncio.get_running_loop().create_future()
    flushing = engine.begin_round([ticket])
    flushing.begin(done.set_result)
    outcome: Outcome = (await done)()[0]
    flushing.end()
    if outcome is None:
        log.finish_flush(ticket)
    else:
        log.fail_flush(ticket)
    return outcome


async def offsets(log: RedisLog) -> list[tuple[int, int]]:
    """Base offset and epoch of every batch, however it is read."""
    found, at = [], log.log_start_offset
    while at < log.flushed_end:
        data = await read_or_fetch(log, at, 1 << 20, log.flushed_end, at_least_one=True)
        headers = [header for _, header in iterate_headers(data)]
        found += [(header.base_offset, header.leader_epoch) for header in headers]
        at = Offset(headers[-1].next_offset)
    return found


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
    assert [header.base_offset for header in taken.batches_from(Offset(3))] == [2, 4, 6]


async def test_a_stale_leader_stores_nothing(server: RedisServer) -> None:
    old, new = engine_of(server), engine_of(server)
    stale = opened(old)
    opened(new, 1)
    append(stale)
    assert isinstance(await flush(old, stale), Fenced)
    assert stale.failed
    assert opened(new, 1).log_end_offset == 0


async def test_a_killed_server_loses_nothing_and_the_round_goes_on(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    server.kill()
    append(log, seed=1)
    flushing = asyncio.ensure_future(flush(engine, log))
    await until(lambda: bool(list(engine.states())))
    await asyncio.get_running_loop().run_in_executor(None, server.start)
    assert await flushing is None
    assert not list(engine.states())
    assert await offsets(opened(engine_of(server), 1)) == [(0, 0), (2, 0)]


async def test_retention_deleted_records_and_times(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    for seed in range(30):
        append(log, seed=100 * seed)
    assert await flush(engine, log) is None
    found = log.offset_for_timestamp(1000)
    assert found is not None
    assert (found.offset, found.timestamp) == (20, 1000)
    newest = log.max_timestamp()
    assert newest is not None
    assert newest.offset == 59
    log.delete_records_before(Offset(5))
    log.reconfigure(LogConfig(segment_bytes=600, retention_ms=NOW_MS - 1000))
    start = log.apply_retention(NOW_MS, Offset(60))
    assert 5 < start <= 20
    assert await flush(engine, log) is None
    again = opened(engine_of(server), 1)
    assert (again.log_start_offset, again.size_bytes) == (start, log.size_bytes)
    assert [base for base, _ in await offsets(again)] == list(range(start, 60, 2))


async def test_a_server_that_evicts_is_refused(start: Start) -> None:
    with pytest.raises(UsageError, match="allkeys-lru"):
        engine_of(start("--maxmemory-policy", "allkeys-lru"))


async def test_a_broker_runs_on_it(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata on Raft, logs in Redis: what a client writes and commits is there after a restart of the broker."""
    monkeypatch.setattr(boot, "LocalLogEngine", lambda *_, **__: unstarted(server))
    where = TopicPartition("orders", 0)
    async with asyncio.timeout(60):
        async with running(tmp_path) as bootstrap, AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as out:
            sent = [await out.send("orders", b"%d" % number, partition=0) for number in range(100)]
            assert [(await each).offset for each in sent] == list(range(100))
        async with (
            running(tmp_path) as bootstrap,
            AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest") as reader,
        ):
            reader.assign([where])
            values = [(await reader.getone()).value for _ in range(100)]
            assert values == [b"%d" % number for number in range(100)]
            await reader.commit()
            assert await reader.committed(where) == 100


def unstarted(server: RedisServer) -> RedisEngine:
    MADE.append(RedisEngine(parse_redis_address(server.url), birth=lambda _: 1, random=system_random()))
    return MADE[-1]
