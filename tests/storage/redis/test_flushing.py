"""Flush rounds on a real server that refuses, forgets, or has other records than the leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import NoRoom, StorageFailure
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex
from headrace.storage.engine.faults import Abandoned, Diverged
from headrace.storage.engine.flushing import Outcome
from headrace.storage.engine.identity import LogConfig
from headrace.storage.redis import engine as redis_engine
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.flushing import Ticket
from headrace.storage.redis.links import connection as redis_connection
from headrace.storage.redis.links.watching import Servers
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.server_side.functions import LIBRARY
from tests.broker.group_broker import until
from tests.storage.log.log_world import IDENTITY, SMALL
from tests.storage.redis.conftest import Start
from tests.storage.redis.redis_world import (
    SAFE,
    append,
    engine_of,
    flush,
    follow,
    offsets,
    opened,
    refuse_once,
    restart,
    unstarted,
)
from tools.servers.redis_servers import RedisServer


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


@pytest.mark.parametrize("function", ["append", "claim"])
async def test_records_of_an_epoch_that_was_over_meanwhile_lie_below_the_next_ones(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Its leader is elected again while they wait for Redis, and a call has to be sent again."""
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    log.assign_epoch(LeaderEpoch(3))
    append(log, 3, seed=1)
    if function == "claim":
        refuse_once(monkeypatch, "append", "TRYAGAIN Multiple keys request during rehashing of slot")
        assert isinstance(await flush(engine, log), Diverged), "the next epoch has begun without them"
        return
    refuse_once(monkeypatch, "claim", "LOADING Redis is loading the dataset in memory")
    assert await flush(engine, log) is None
    assert await offsets(log) == [(0, 0), (2, 3)]
    begun = engine.blocking.call("ZRANGE", log.keys.epochs, 0, -1, "WITHSCORES")
    assert [(int(epoch), int(at)) for epoch, at in begun] == [(0, 0), (3, 2)]


@pytest.mark.usefixtures("engines")
async def test_a_server_that_restarts_empty_has_lost_what_was_acknowledged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Servers, "look_soon", lambda _: None)  # the flush is to notice it
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
    async with asyncio.timeout(150):
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


@pytest.mark.parametrize("at_first", [True, False])
async def test_a_mistake_of_ours_is_told_with_the_outcomes_and_the_connection_goes_on(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, at_first: bool
) -> None:
    engine = engine_of(server)
    log = opened(engine)
    if not at_first:
        refuse_once(monkeypatch, "append", "LOADING Redis is loading")

    def mistaken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Ticket, "outcome_of", mistaken)
    append(log)
    async with asyncio.timeout(150):
        with pytest.raises(ZeroDivisionError):
            await flush(engine, log)
        assert await engine.link.call("PING") == b"PONG"


async def test_a_key_of_another_type_fails_its_log_alone(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    engine.blocking.call("SET", log.keys.stream, "mine")
    append(log)
    async with asyncio.timeout(150):
        outcome = await flush(engine, log)
    assert type(outcome) is StorageFailure
    assert "WRONGTYPE" in str(outcome)


@pytest.mark.usefixtures("engines")
async def test_records_are_stored_before_they_are_durable(start: Start) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "everysec")
    engine = engine_of(server)
    assert engine.servers.of("").waits_for_aof
    log = opened(engine)
    append(log)
    seen = []
    log.on_stored = lambda: seen.append((log.stored_end, log.flushed_end))
    assert await flush(engine, log) is None
    assert seen == [(2, 0)]
    assert (log.stored_end, log.flushed_end) == (2, 2)


@pytest.mark.usefixtures("engines")
async def test_a_server_that_was_restarted_with_other_settings_is_waited_for_as_these_need_it(start: Start) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "everysec")
    unstarted(server).blocking.call("CONFIG", "SET", "appendfsync", "always")  # and not written to its file
    engine = engine_of(server)
    assert not engine.servers.of("").waits_for_aof
    await restart(server)
    await until(lambda: engine.servers.of("").waits_for_aof)


@pytest.mark.usefixtures("engines")
async def test_what_an_earlier_leader_left_counts_once_it_is_durable(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "everysec")
    first, second = engine_of(server), engine_of(server)
    log = opened(first)
    append(log)
    assert await flush(first, log) is None
    next_one = opened(second, 1)
    assert (next_one.flushed_end, next_one.stored_end, next_one.log_end_offset) == (0, 2, 2)
    assert next_one.needs_flush
    called = refuse_once(monkeypatch, "", "")
    assert await flush(second, next_one) is None
    assert called[0] == "claim", "a write, which the wait behind it waits for"
    assert (next_one.flushed_end, next_one.needs_flush) == (2, False)


@pytest.mark.usefixtures("engines")
async def test_a_loss_before_the_first_flush_is_told(server: RedisServer) -> None:
    first, second = engine_of(server), engine_of(server)
    log = opened(first)
    append(log)
    assert await flush(first, log) is None
    next_one = opened(second, 1)
    first.blocking.call("HSET", log.keys.state, "end", 0)
    assert isinstance(await flush(second, next_one), Diverged)


@pytest.mark.usefixtures("engines")
async def test_a_flush_waits_for_the_replicas_that_are_asked_for_and_tells_how_many_have_it(start: Start) -> None:
    server = start(*SAFE, "--repl-diskless-sync-delay", "0", tcp=True)
    replica = start(*SAFE, tcp=True)
    await follow(replica, server)
    engine = engine_of(server)
    log = opened(engine, config=LogConfig(min_insync_replicas=2))
    append(log)
    assert (log.copies, log.copies_wanted) == (2, 1)
    assert await flush(engine, log) is None
    assert log.flushed_copies == 2
    another = opened(engine, 1, LogConfig(min_insync_replicas=3))
    assert another.copies_wanted == 1, "nobody waits for a replica that there is not"
    replica.kill()
    await until(lambda: bool(engine.space()) and not engine.servers.of("").look.replicas)
    assert log.copies == 1


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("kill", [True, False])
async def test_a_round_that_gets_no_answer_is_given_up_when_the_broker_stops(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    monkeypatch.setattr(redis_engine, "REDIS_STOP_MS_MAX", 50)
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    if kill:
        server.kill()
    else:
        server.pause()
    flushing = asyncio.ensure_future(flush(engine, log))
    engine.begin_stop()
    outcome = await flushing  # without a stop the round goes on for ever
    await asyncio.to_thread(log.close)
    assert isinstance(outcome, Abandoned)
    assert not isinstance(outcome, Diverged)
    assert log.flushed_end == 0
    if not kill:
        server.resume()


@pytest.mark.usefixtures("engines")
async def test_a_log_that_is_not_closed_cleanly_gives_up_no_other_one_unless_the_broker_stops(
    server: RedisServer,
) -> None:
    """It is closed because another broker leads, while Redis is away."""
    engine = engine_of(server)
    log = opened(engine)
    others = [replace(IDENTITY, partition=PartitionIndex(number)) for number in (1, 2)]
    moved, left = (engine.begin_open(each, SMALL, leader_epoch=LeaderEpoch(0)).finish() for each in others)
    append(log)
    append(moved)
    server.kill()
    flushing = asyncio.ensure_future(flush(engine, log))
    with pytest.raises(StorageFailure, match="cleanly"):
        await asyncio.to_thread(moved.close)
    await asyncio.to_thread(server.start)
    assert await flushing is None
    append(log)
    append(left)
    server.kill()
    flushing = asyncio.ensure_future(flush(engine, log))
    engine.begin_stop()
    with pytest.raises(StorageFailure, match="cleanly"):
        await asyncio.to_thread(left.close)
    assert isinstance(await flushing, Abandoned), "a stop closes many, and waits for none of the others"


@pytest.mark.usefixtures("engines")
async def test_an_idle_leader_hears_of_a_loss_without_an_append(start: Start) -> None:
    server = start()
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    heard: asyncio.Future[StorageFailure] = asyncio.get_running_loop().create_future()
    log.on_failed = heard.set_result
    with capture_logs() as lines:
        await restart(server)
        assert isinstance(await heard, Diverged)
    assert log.failed
    assert [line["next_offset"] for line in lines if line["log_level"] == "error"] == [2]


async def test_an_idle_leader_whose_redis_restarts_with_all_that_it_had_goes_on(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    await restart(server)
    await asyncio.to_thread(engine.space)
    await asyncio.sleep(0)
    assert engine._looking is not None
    await engine._looking
    assert not log.failed


async def flush_with_more(engine: RedisEngine, log: RedisLog, *seeds: int) -> Outcome:
    """Flush it, and append a batch of each seed while that is under way."""
    ticket = log.begin_flush()
    assert ticket is not None
    done = asyncio.get_running_loop().create_future()
    flushing = engine.begin_round([ticket])
    flushing.begin(done.set_result)
    for seed in seeds:
        append(log, seed=seed)
    outcome: Outcome
    (outcome,) = (await done)()
    flushing.end()
    (log.finish_flush if outcome is None else log.fail_flush)(ticket)
    return outcome


async def test_appends_leave_while_a_round_is_under_way(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    called = refuse_once(monkeypatch, "none", "")
    append(log, seed=1)
    assert await flush_with_more(engine, log, 2, 3) is None
    assert called.count("append") == 2, "those that came meanwhile left by one call"
    assert (log.flushed_end, log.log_end_offset) == (4, 8), "and nobody has judged its answer"
    append(log, seed=4)
    assert await flush(engine, log) is None
    assert called.count("append") == 3, "the next round sends what has not left"
    assert [base for base, _ in await offsets(opened(engine_of(server), 1))] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("error", ["OOM command not allowed", "NOPERM no permissions"])
async def test_what_left_ahead_of_a_round_that_sends_again_is_sent_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Redis refuses the round's append, and so the one behind it is no continuation."""
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    refuse_once(monkeypatch, "append", error)
    append(log, seed=1)
    assert await flush_with_more(engine, log, 2) is None
    assert await flush(engine, log) is None
    assert [base for base, _ in await offsets(opened(engine_of(server), 1))] == [0, 2, 4]


@pytest.mark.parametrize("later", [0, 1, 3])
async def test_a_round_whose_answers_are_lost_takes_what_left_ahead_for_its_own(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """Redis has what left ahead, and lacks what came later: one call for both would repeat nothing."""
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    connection = engine.link.node_of("").connection
    assert connection is not None
    monkeypatch.setattr(connection, "data_received", lambda _: None)
    append(log, seed=1)
    flushing = asyncio.ensure_future(flush_with_more(engine, log, 2))
    await until(lambda: engine.blocking.call("HGET", log.keys.state, "end") == b"6")
    connection.abort()
    assert await flushing is None
    for seed in range(later):
        append(log, seed=3 + seed)
    assert await flush(engine, log) is None
    assert [base for base, _ in await offsets(opened(engine_of(server), 1))] == list(range(0, 6 + 2 * later, 2))


async def test_no_more_leaves_ahead_than_a_round_can_send_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    monkeypatch.setattr(redis_connection, "REDIS_COMMANDS_IN_FLIGHT_MAX", 20)
    append(log, seed=1)
    server.pause()
    flushing = asyncio.ensure_future(flush_with_more(engine, log, 2))
    for seed in range(3, 50):
        await asyncio.sleep(0)
        append(log, seed=seed)
    connection = engine.link.node_of("").connection
    assert connection is not None
    connection.abort()
    server.resume()
    assert await flushing is None
    async with asyncio.timeout(150):
        assert await flush(engine, log) is None
    assert [base for base, _ in await offsets(opened(engine_of(server), 1))] == list(range(0, 100, 2))


async def test_a_log_whose_appends_are_on_their_way_gives_way_later(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    append(log, seed=1)
    server.pause()
    flushing = asyncio.ensure_future(flush_with_more(engine, log, 2))
    await until(lambda: bool(log._ahead))
    monkeypatch.setattr(log, "_ticket", None)
    with pytest.raises(NoRoom, match="not answered"):
        await asyncio.to_thread(log.give_way, Offset(100))
    monkeypatch.undo()
    server.resume()
    assert await flushing is None


@pytest.mark.usefixtures("engines")
async def test_nothing_leaves_ahead_where_an_answer_does_not_say_that_it_is_durable(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(start("--appendonly", "yes", "--appendfsync", "everysec"))
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    called = refuse_once(monkeypatch, "none", "")
    append(log, seed=1)
    assert await flush_with_more(engine, log, 2) is None
    assert called.count("append") == 1
