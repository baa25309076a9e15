"""Flush rounds on a real server that refuses, forgets, or has other records than the leader."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import LeaderEpoch
from headrace.storage.engine.faults import Diverged
from headrace.storage.redis.functions import LIBRARY
from tests.storage.redis.conftest import Start
from tests.storage.redis.redis_world import append, engine_of, flush, offsets, opened, refuse_once, restart
from tools.redis_servers import RedisServer


@pytest.mark.parametrize("error", ["OOM command not allowed", "LOADING Redis is loading", "MISCONF Errors writing"])
async def test_answers_behind_a_call_that_is_sent_again_do_not_count(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    engine = engine_of(server)
    log = opened(engine)
    for seed in range(6):  # three ranges, and so three calls
        append(log, seed=seed, count=10)
    called = refuse_once(monkeypatch, "append", error)
    assert await flush(engine, log) is None
    assert called.count("append") > 3
    assert [base for base, _ in await offsets(opened(engine_of(server), 1))] == list(range(0, 60, 10))


@pytest.mark.usefixtures("engines")
async def test_a_server_that_restarts_empty_has_lost_what_was_acknowledged(start: Start) -> None:
    server = start()
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    await restart(server)
    append(log, seed=1)
    with capture_logs() as lines:
        outcome = await flush(engine, log)
    assert isinstance(outcome, Diverged)
    (told,) = [line for line in lines if line["log_level"] == "error"]
    assert (told["topic"], told["partition"], told["first_offset"], told["next_offset"]) == ("orders", 0, 0, 2)
    again = opened(engine, 1)
    assert (again.log_end_offset, again.end_offset_for_epoch(LeaderEpoch(1))) == (0, (1, 0))
    append(again, 1)
    assert await flush(engine, again) is None
    assert await offsets(again) == [(0, 1)]


@pytest.mark.usefixtures("engines")
async def test_a_server_that_restarts_empty_below_an_empty_log_has_lost_nothing(start: Start) -> None:
    server = start()
    engine = engine_of(server)
    log = opened(engine)
    await restart(server)
    append(log)
    assert await flush(engine, log) is None
    assert await offsets(log) == [(0, 0)]


async def test_a_library_that_was_flushed_is_loaded_again(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    engine.blocking.call("FUNCTION", "FLUSH")
    append(log, seed=1)
    async with asyncio.timeout(30):
        assert await flush(engine, log) is None
    engine.blocking.call("FUNCTION", "FLUSH")
    append(log, seed=2)
    await asyncio.to_thread(log.close)
    engine.blocking.call("FUNCTION", "FLUSH")
    assert [base for base, _ in await offsets(opened(engine, 1))] == [0, 2, 4]
    assert engine.blocking.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY)


async def test_records_of_others_above_the_leaders_end_are_not_taken_for_its_own(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    engine.blocking.call("HSET", log.keys.state, "end", 7)
    log.assign_epoch(LeaderEpoch(1))
    assert isinstance(await flush(engine, log), Diverged)
    assert log.failed
    assert opened(engine, 2).log_end_offset == 7
