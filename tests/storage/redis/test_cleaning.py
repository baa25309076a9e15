"""Compaction of a log in Redis: the last record of each key stays, and all that is counted stays right."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.engine.faults import Diverged, Unreachable
from headrace.storage.engine.identity import LogConfig
from headrace.storage.redis import cleaning as redis_cleaning
from headrace.storage.redis.cleaning_child import decode_cleaned
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.errors import RedisOutcomeUnknown, RedisUnreachable
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.server_side.functions import Answer, Call
from headrace.wire.batches import check_batch, check_batches, encode_batch, small_records
from headrace.wire.records import Record
from tests.broker.group_broker import until
from tests.storage.log.log_world import NOW_MS
from tests.storage.redis.redis_world import disconnect_all, engine_of, flush, offsets, opened, serves
from tests.tiers import examples
from tools.servers.redis_servers import RedisServer

COMPACT = LogConfig(segment_bytes=300, compact=True, min_cleanable_dirty_ratio=0.1, retention_ms=-1)
QUICK = 1e12
Pairs = list[tuple[bytes, bytes | None]]


def append(log: RedisLog, pairs: Pairs, epoch: int = 0) -> None:
    data = encode_batch([Record(at, NOW_MS, key, value, ()) for at, (key, value) in enumerate(pairs)])
    log.append(data, check_batches(data), leader_epoch=LeaderEpoch(epoch), now_ms=NOW_MS)


async def clean(log: RedisLog, now_ms: int = NOW_MS, remembered: frozenset[int] = frozenset()) -> Offset:
    cleaning = log.cleaning.begin_cleaning(now_ms, log.flushed_end, remembered, "token")
    assert cleaning is not None
    try:
        return await cleaning.carry_out(asyncio.Event(), QUICK)
    finally:
        cleaning.end()


def stored(engine: RedisEngine, log: RedisLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Every record by its offset; each batch is whole, and ends where its entry says."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for end, raw in engine.entries(log.keys.stream, 0, 2**60):
        header = check_batch(raw, compacted=True)
        assert header.last_offset + 1 == end
        found |= {record.offset: (record.key, record.value) for record in small_records(raw) or ()}
    return found


def check_counts(engine: RedisEngine, log: RedisLog) -> None:
    """Sizes are the bytes that are there, also as the next leader finds them."""
    sizes = [(end, len(raw)) for end, raw in engine.entries(log.keys.stream, 0, 2**60)]
    assert log.size_bytes == sum(size for _, size in sizes)
    for each in log.ranges():
        assert each.size == sum(size for end, size in sizes if each.base_offset < end <= each.next_offset)
    again = opened(engine, log.claimed_epoch, COMPACT)
    assert (again.size_bytes, again.gaps_below, again.log_end_offset) == (
        log.size_bytes,
        log.gaps_below,
        log.log_end_offset,
    )
    again.close(clean=False)


async def test_the_last_record_of_each_key_stays(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine, 0, COMPACT)
    for number in range(40):
        append(log, [(b"a", b"%d" % number), (b"b%d" % (number % 3), b"x"), (b"c", None)])
    assert await flush(engine, log) is None
    before = log.size_bytes
    assert log.cleaning.dirtiness(NOW_MS, log.flushed_end) == 1.0
    clean_to = await clean(log)
    assert clean_to == log.gaps_below
    assert log.size_bytes < before / 5
    check_counts(engine, log)
    left = stored(engine, log)
    assert len(await offsets(log)) < 40, "readers get what is left, and not what was in memory"
    assert left == {
        offset: pair
        for offset, pair in left.items()
        if offset >= clean_to or not any(left[other][0] == pair[0] for other in left if offset < other < clean_to)
    }
    assert log.cleaning.dirtiness(NOW_MS, log.flushed_end) == 0.0
    append(log, [(b"d", b"after")])
    assert await flush(engine, log) is None
    check_counts(engine, log)
    late = NOW_MS + COMPACT.delete_retention_ms + 1
    log.roll()
    assert await clean(log, late) == log.log_end_offset
    assert (b"c", None) not in stored(engine, log).values()
    check_counts(engine, log)


pairs = st.lists(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=40)), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=12,
)


@given(rounds=st.lists(st.tuples(pairs, st.sampled_from([2, 3, 1000]), st.integers(0, 5)), min_size=1, max_size=3))
@settings(max_examples=examples(40))
def test_nothing_but_replaced_records_goes(any_server: RedisServer, rounds: list[tuple[list[Pairs], int, int]]) -> None:
    async def work() -> None:
        try:
            await check(engine_of(any_server), rounds)
        finally:
            await disconnect_all()

    asyncio.run(work())


async def check(engine: RedisEngine, rounds: list[tuple[list[Pairs], int, int]]) -> None:
    engine.blocking.call("FLUSHALL")
    log = opened(engine, 0, COMPACT)
    for batches, keys_max, deleted in rounds:
        for each in batches:
            append(log, each)
        assert await flush(engine, log) is None
        log.delete_records_before(min(Offset(log.log_start_offset + deleted), log.flushed_end))
        before = stored(engine, log)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(redis_cleaning, "COMPACTION_KEYS_MAX", keys_max)
            cleaning = log.cleaning.begin_cleaning(NOW_MS, log.flushed_end, frozenset(), "")
        if cleaning is not None:
            clean_to = await cleaning.carry_out(asyncio.Event(), QUICK)
            cleaning.end()
            after, start = stored(engine, log), log.log_start_offset
            assert after.items() <= before.items()
            for offset in before.keys() - after.keys():
                assert offset < clean_to
                later = (before[other][0] for other in before if offset < other < clean_to)
                assert offset < start or before[offset][0] in later, "only what a later record replaces goes"
        if log.needs_flush:
            assert await flush(engine, log) is None
        if not log.log_start_offset:
            check_counts(engine, log)


async def test_a_leader_that_another_has_followed_changes_nothing(server: RedisServer) -> None:
    engine, other = engine_of(server), engine_of(server)
    log = opened(engine, 0, COMPACT)
    for number in range(40):
        append(log, [(b"a", b"%d" % number)])
    assert await flush(engine, log) is None
    before = stored(engine, log)
    run, followed = log.cleaning._run, list[RedisLog]()

    def follow(call: Call) -> Answer:
        if call.function == "replace" and not followed:
            followed.append(opened(other, 1, COMPACT))
        return run(call)

    log.cleaning._run = follow
    with pytest.raises(Stopped):
        await clean(log)
    assert stored(engine, log) == before
    assert engine.blocking.call("EXISTS", log.keys.next) == 0
    assert await flush(other, followed[0]) is None  # before that, it may not take what it found for durable
    assert await clean(followed[0]) > 0
    check_counts(other, followed[0])


async def test_what_is_appended_and_deleted_meanwhile_is_there_and_counted(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine, 0, COMPACT)
    for number in range(40):
        append(log, [(b"a", b"%d" % number), (b"k%d" % number, b"x")])
    assert await flush(engine, log) is None
    loop, run, seen = asyncio.get_running_loop(), log.cleaning._run, list[str]()

    async def more() -> None:
        append(log, [(b"a", b"later")])
        log.delete_records_before(Offset(21))
        assert await flush(engine, log) is None

    def between(call: Call) -> Answer:
        if call.function == "replace" and not seen:
            seen.append(call.function)
            asyncio.run_coroutine_threadsafe(more(), loop).result()
        return run(call)

    log.cleaning._run = between
    await clean(log)
    assert log.log_start_offset == 21
    assert await flush(engine, log) is None
    left = stored(engine, log)
    assert left[80] == (b"a", b"later")
    assert min(left) == 21 or min(left) == 20, "the batch that the start lies in may stay whole"
    again = opened(engine, 1, COMPACT)
    assert [each[:3] for each in again.ranges()] == [each[:3] for each in log.ranges()]


async def test_a_cleaning_that_stops_or_loses_redis_is_done_anew_later(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(server)
    log = opened(engine, 0, COMPACT)
    for number in range(40):
        append(log, [(b"a", b"%d" % number), (b"k%d" % number, b"x")])
    assert await flush(engine, log) is None
    before = stored(engine, log)
    stopping = asyncio.Event()
    stopping.set()
    cleaning = log.cleaning.begin_cleaning(NOW_MS, log.flushed_end, frozenset(), "")
    assert cleaning is not None
    with pytest.raises(Stopped):
        await cleaning.carry_out(stopping, QUICK)
    cleaning.end()
    monkeypatch.setattr(redis_cleaning, "REDIS_APPEND_BYTES_MAX", 100)
    run, calls = log.cleaning._run, list[str]()

    def kill(call: Call) -> Answer:
        calls.append(call.function)
        if len(calls) == 4:
            server.kill()
        return run(call)

    log.cleaning._run = kill
    with pytest.raises(Unreachable):
        await clean(log)
    await asyncio.to_thread(server.start)
    await until(lambda: serves(engine))
    assert stored(engine, log) == before
    await clean(log)
    assert len(stored(engine, log)) < len(before)
    check_counts(engine, log)


async def test_a_log_whose_cleaning_has_an_unknown_outcome_is_opened_again(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine, 0, COMPACT)
    for number in range(40):
        append(log, [(b"a", b"%d" % number)])
    assert await flush(engine, log) is None
    run, stopping, heard = log.cleaning._run, asyncio.Event(), list[Any]()
    log.on_failed = heard.append

    def lose(call: Call) -> Answer:
        if call.function != "replace":
            return run(call)
        if not stopping.is_set():
            run(call)
            stopping.set()
            server.kill()
        raise RedisOutcomeUnknown("the answer is lost")

    log.cleaning._run = lose
    cleaning = log.cleaning.begin_cleaning(NOW_MS, log.flushed_end, frozenset(), "")
    assert cleaning is not None
    with pytest.raises(Stopped):
        await cleaning.carry_out(stopping, QUICK)
    cleaning.end()
    assert [type(each) for each in heard] == [Diverged]
    await asyncio.to_thread(server.start)
    await until(lambda: serves(engine))
    again = opened(engine, 1, COMPACT)
    assert again.gaps_below > 0
    check_counts(engine, again)


async def test_a_range_that_is_cleaned_seldom_is_late_once_its_first_record_is_old(server: RedisServer) -> None:
    config = replace(COMPACT, segment_bytes=10_000, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1_000)
    log = opened(engine := engine_of(server), 0, config)
    for now_ms in range(NOW_MS, NOW_MS + 3_000, 300):
        data = encode_batch([Record(0, now_ms, b"k", b"v", ())])
        log.append(data, check_batches(data), leader_epoch=LeaderEpoch(0), now_ms=now_ms)
    log.roll()
    assert await flush(engine, log) is None
    (first, _), *_ = log.marked.closed()
    assert first.timestamp == NOW_MS + 2_700
    assert log.cleaning.dirtiness(NOW_MS + 1_000, first.end) == 0
    assert log.cleaning.dirtiness(NOW_MS + 1_001, first.end) > 0
    found = opened(engine, 1, config)
    found.roll()
    assert await flush(engine, found) is None
    assert found.cleaning.dirtiness(NOW_MS + 4_000, first.end) > 0, "as far as the next leader knows"


async def test_a_process_of_its_own_leaves_the_same(server: RedisServer) -> None:
    found = []
    for in_child in (False, True):
        engine = engine_of(server, cleans_in_child=in_child)
        engine.blocking.call("FLUSHALL")
        log = opened(engine, 0, COMPACT)
        for number in range(60):
            append(log, [(b"a", b"%d" % number), (b"b%d" % (number % 3), b"x"), (b"c", None)])
        assert await flush(engine, log) is None
        clean_to = await clean(log, remembered=frozenset({5}))
        check_counts(engine, log)
        found.append((clean_to, list(engine.entries(log.keys.stream, 0, 2**60)), log.ranges()))
    assert found[0] == found[1]


async def test_a_process_that_is_to_stop_or_finds_no_server_changes_nothing(server: RedisServer) -> None:
    engine = engine_of(server, cleans_in_child=True)
    log = opened(engine, 0, COMPACT)
    for number in range(60):
        append(log, [(b"a", b"%d" % number)])
    assert await flush(engine, log) is None
    before = stored(engine, log)
    stopping = asyncio.Event()
    stopping.set()
    for expected, prepare in ((Stopped, stopping.set), (Unreachable, server.kill)):
        prepare()
        cleaning = log.cleaning.begin_cleaning(NOW_MS, log.flushed_end, frozenset(), "")
        assert cleaning is not None
        with pytest.raises(expected):
            await cleaning.carry_out(stopping, QUICK)
        cleaning.end()
        stopping = asyncio.Event()
    await asyncio.to_thread(server.start)
    await until(lambda: serves(engine))
    assert stored(engine, log) == before


def test_what_the_process_met_is_raised_here() -> None:
    with pytest.raises(RedisUnreachable, match="ended before"):
        decode_cleaned(b'{"clean_to"')
    for problem, error in (("stopped", Stopped), ("corrupt", CorruptData), ("failed", StorageFailure)):
        with pytest.raises(error):
            decode_cleaned(b'{"problem": "%s", "text": "why"}\n' % problem.encode())
