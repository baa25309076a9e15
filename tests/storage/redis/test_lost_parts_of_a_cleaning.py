"""A cleaning of which a part is lost in a failover, or comes late: no record goes with it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace.storage.engine.faults import Unreachable
from headrace.storage.redis import cleaning as redis_cleaning
from headrace.storage.redis.errors import RedisOutcomeUnknown
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.server_side.functions import Answer, Call
from tests.storage.redis.conftest import Start
from tests.storage.redis.redis_world import SAFE, engine_of, flush, follow, opened, unstarted
from tests.storage.redis.test_cleaning import COMPACT, append, check_counts, clean, stored
from tools.servers.redis_servers import RedisServer

KEYS = 40


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaning has many parts."""
    monkeypatch.setattr(redis_cleaning, "REDIS_APPEND_BYTES_MAX", 200)


def fill(log: RedisLog) -> None:
    """Append records of which no key comes twice, so that all of them stay."""
    for number in range(KEYS):
        append(log, [(b"k%d" % number, b"x")])


@pytest.mark.parametrize("lost", ["a part in the middle", "the last part"])
async def test_a_failover_to_a_replica_that_lacks_a_part_loses_no_record(
    start: Start, engines: None, lost: str
) -> None:
    server, replica = start(*SAFE, tcp=True), start(*SAFE, tcp=True)
    await follow(replica, server)
    engine, other = engine_of(server), unstarted(replica)
    log = opened(engine, 0, COMPACT)
    fill(log)
    assert await flush(engine, log) is None
    before = stored(engine, log)
    run, parts, failed_over = log.cleaning._run, list[Call](), list[Call]()

    def failing_over(call: Call) -> Answer:
        if failed_over:
            return other.blocking.run(call)
        if call.function == "clean":
            parts.append(call)
            if len(parts) == 4 if lost == "a part in the middle" else str(log.marked.marks[-1].end) in call.payload:
                engine.blocking.call("SET", "everything", "before")
                assert engine.blocking.call("WAIT", 1, 10_000) == 1
                other.blocking.call("REPLICAOF", "NO", "ONE")
                failed_over.append(call)
        return run(call)

    log.cleaning._run = failing_over
    with suppress(Unreachable):
        await clean(log)
    assert failed_over
    assert stored(other, log) == before


async def test_a_call_of_an_earlier_try_that_comes_late_loses_no_record(server: RedisServer) -> None:
    engine = engine_of(server)
    log = opened(engine, 0, COMPACT)
    fill(log)
    assert await flush(engine, log) is None
    before, run, late, parts = stored(engine, log), log.cleaning._run, list[Call](), list[Call]()

    def delayed(call: Call) -> Answer:
        if call.function == "clean" and not late:
            late.append(call)
            raise RedisOutcomeUnknown("it is on its way")
        parts.append(call)
        if len(parts) == 4:
            run(late[0])
        return run(call)

    log.cleaning._run = delayed
    with pytest.raises(Unreachable):
        await clean(log)
    assert await clean(log) > 0
    assert stored(engine, log) == before
    check_counts(engine, log)
