"""Batches as Redis has them: looked through for a time, they give what a look at every record gives."""

from __future__ import annotations

import pytest

from headrace.base.ids import Offset
from headrace.storage.engine.faults import Unreachable
from tests.storage.redis.redis_world import append, engine_of, flush, opened
from tools.servers.redis_servers import RedisServer

TIMES = (40, 10, 30, 70, 20, 70, 50, 60)
"""Of one batch after the other, in each for two records."""
START = Offset(3)
"""It lies inside the second batch."""


async def test_a_look_by_time_finds_what_a_look_at_every_record_finds(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    for at, time in enumerate(TIMES):
        append(log, times=(time, time + 5), seed=at)
        if at % 3 == 2:
            log.roll()
    log.delete_records_before(START)
    assert await flush(engine, log) is None
    records = [(2 * at + more, time + 5 * more) for at, time in enumerate(TIMES) for more in (0, 1)]
    kept = [(offset, time) for offset, time in records if offset >= START]
    for wanted in range(0, 80, 5):
        found = log.offset_for_timestamp(wanted)
        expected = next(((offset, time) for offset, time in kept if time >= wanted), None)
        assert (found and (found.offset, found.timestamp)) == expected
    newest = log.max_timestamp()
    assert newest is not None
    assert (newest.offset, newest.timestamp) == max(kept, key=lambda each: (each[1], -each[0]))


async def test_a_server_that_is_away_is_told_as_such(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine)
    append(log)
    assert await flush(engine, log) is None
    server.kill()
    with pytest.raises(Unreachable, match="cannot be read"):
        log.max_timestamp()
