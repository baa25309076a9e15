"""Aborted transactions of a log in Redis: the next leader knows them, and they leave it with their markers."""

from __future__ import annotations

from headrace.base.ids import LeaderEpoch, Offset
from headrace.broker.partitions.logs.opening import recover_producers
from headrace.storage.redis.log import RedisLog
from headrace.wire.batches import check_batches, encode_batch
from headrace.wire.records import Record
from headrace.wire.transactions import AbortedTransaction, EndMarker, encode_marker
from tests.storage.log.log_world import NOW_MS
from tests.storage.redis.redis_world import engine_of, flush, opened
from tests.storage.redis.test_cleaning import COMPACT, append, check_counts, clean, stored
from tools.servers.redis_servers import RedisServer

PRODUCERS = (7, 8)


def add(log: RedisLog, data: bytes) -> Offset:
    return log.append(data, check_batches(data), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS).base_offset


def send(log: RedisLog, producer: int, sequence: int = 0) -> Offset:
    records = [Record(0, NOW_MS, b"key", b"value"), Record(1, NOW_MS, b"key", b"value")]
    data = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
    return add(log, data)


def end(log: RedisLog, producer: int, *, committed: bool = False) -> Offset:
    return add(log, encode_marker(producer, 0, EndMarker(committed, 0), timestamp=NOW_MS))


async def test_the_next_leader_knows_what_was_aborted_before_and_behind_the_snapshot(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    first, second = PRODUCERS
    begun = send(log, first), send(log, second)
    markers = end(log, first), end(log, second, committed=True)
    assert await flush(engine, log) is None
    producers = recover_producers(log, NOW_MS)
    found = AbortedTransaction(first, begun[0], markers[0], begun[1])
    assert list(log.aborted.between(Offset(0), log.log_end_offset)) == [found]
    log.write_producer_snapshot(producers.snapshot(), log.log_end_offset)
    later = send(log, first, 2)
    marker = end(log, first)
    opens = send(log, second, 2)
    assert await flush(engine, log) is None

    again = opened(engine_of(server), 1)
    assert list(again.aborted.between(Offset(0), again.log_end_offset)) == [found], "it is in Redis"
    known = recover_producers(again, NOW_MS)
    behind = AbortedTransaction(first, later, marker, marker + 1)
    assert list(again.aborted.between(Offset(0), again.log_end_offset)) == [found, behind]
    assert [each.first_offset for each in known.open_below(again.log_end_offset)] == [opens]
    again.write_producer_snapshot(known.snapshot(), again.log_end_offset)
    again.delete_records_before(Offset(markers[0] + 1))
    assert await flush(engine, again) is None

    third = opened(engine_of(server), 2)
    assert [each.first_offset for each in recover_producers(third, NOW_MS).open_below(third.log_end_offset)] == [opens]
    assert list(third.aborted.between(Offset(0), third.log_end_offset)) == [behind]


async def test_compaction_removes_what_was_aborted_and_then_its_marker_and_its_entry(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine, 0, COMPACT)
    append(log, [(b"key", b"stays"), (b"other", b"x")])
    send(log, PRODUCERS[0])
    marker = end(log, PRODUCERS[0])
    send(log, PRODUCERS[1])
    committed = end(log, PRODUCERS[1], committed=True)
    log.roll()
    append(log, [(b"later", b"x")])
    assert await flush(engine, log) is None
    recover_producers(log, NOW_MS)
    await clean(log)
    left = stored(engine, log)
    assert [value for key, value in left.values() if key == b"key"] == [b"value"], "the committed one took its place"
    assert {marker, committed} <= left.keys(), "markers have their time"
    assert 2 not in left
    assert log.aborted.between(Offset(0), log.log_end_offset)
    check_counts(engine, log)
    retention_ms = COMPACT.delete_retention_ms + 1
    for number, now_ms in enumerate((NOW_MS, NOW_MS + retention_ms)):
        assert marker in stored(engine, log), "its time begins with the round that finds none of its records"
        log.roll()
        append(log, [(b"later", b"%d" % number)])
        assert await flush(engine, log) is None
        await clean(log, now_ms)
    assert marker not in stored(engine, log)
    assert committed in stored(engine, log)
    assert not log.aborted.between(Offset(0), log.log_end_offset)
    assert not opened(engine_of(server), 1, COMPACT).aborted.has_any, "Redis has none either"
