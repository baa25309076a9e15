"""An engine over a real server, and one log in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.broker.system import system_random
from headrace.storage.engine.flushing import Outcome
from headrace.storage.engine.identity import LogConfig
from headrace.storage.engine.reading import read_or_fetch
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.errors import RedisFailure, refusal
from headrace.storage.redis.links.address import parse_redis_address
from headrace.storage.redis.links.connection import Connection
from headrace.storage.redis.log import RedisLog
from headrace.wire.batches import check_batches, iterate_headers
from tests.broker.group_broker import until
from tests.storage.log.log_world import IDENTITY, NOW_MS, SMALL, batch
from tools.servers.redis_servers import RedisServer

SAFE = ("--appendonly", "yes", "--appendfsync", "always")
MADE: list[RedisEngine] = []


def unstarted(server: RedisServer, durability: str = "", *, cleans_in_child: bool = False) -> RedisEngine:
    MADE.append(
        RedisEngine(
            parse_redis_address(server.url),
            random=system_random(),
            durability=durability,
            cleans_in_child=cleans_in_child,
        )
    )
    return MADE[-1]


def engine_of(server: RedisServer, durability: str = "", *, cleans_in_child: bool = False) -> RedisEngine:
    engine = unstarted(server, durability, cleans_in_child=cleans_in_child)
    engine.start()
    return engine


async def engine_at(url: str) -> RedisEngine:
    """An engine over servers that have to be found first."""
    engine = RedisEngine(parse_redis_address(url), random=system_random())
    MADE.append(engine)
    await engine.ready()
    await asyncio.to_thread(engine.start)
    return engine


async def disconnect_all() -> None:
    while MADE:
        await MADE.pop().disconnect()


def opened(engine: RedisEngine, epoch: int = 0, config: LogConfig = SMALL) -> RedisLog:
    return engine.begin_open(IDENTITY, config, leader_epoch=LeaderEpoch(epoch)).finish()


def append(log: RedisLog, epoch: int = 0, *, count: int = 2, seed: int = 0, times: tuple[int, ...] = ()) -> None:
    data = batch(count, seed=seed, times=times)
    log.append(data, check_batches(data), leader_epoch=LeaderEpoch(epoch), now_ms=NOW_MS)


async def flush(engine: RedisEngine, log: RedisLog) -> Outcome:
    (outcome,) = await flush_all(engine, [log])
    return outcome


async def flush_all(engine: RedisEngine, logs: Sequence[RedisLog]) -> Sequence[Outcome]:
    """Flush these in one round."""
    tickets = [ticket for log in logs if (ticket := log.begin_flush()) is not None]
    assert len(tickets) == len(logs)
    done = asyncio.get_running_loop().create_future()
    flushing = engine.begin_round(tickets)
    flushing.begin(done.set_result)
    outcomes: Sequence[Outcome] = (await done)()
    flushing.end()
    for log, ticket, outcome in zip(logs, tickets, outcomes, strict=True):
        if outcome is None:
            log.finish_flush(ticket)
        else:
            log.fail_flush(ticket)
    return outcomes


async def offsets(log: RedisLog) -> list[tuple[int, int]]:
    """Base offset and epoch of every batch that Redis is known to have, however it is read."""
    found, at = [], log.log_start_offset
    while at < log.known_end:
        data = await read_or_fetch(log, at, 1 << 20, log.known_end, at_least_one=True)
        headers = [header for _, header in iterate_headers(data)]
        found += [(header.base_offset, header.leader_epoch) for header in headers]
        at = Offset(headers[-1].next_offset)
    return found


async def follow(replica: RedisServer, server: RedisServer) -> None:
    """Have one copy the other, until both say so: a replica that knows it may not be counted yet."""
    copying, copied = unstarted(replica).blocking, unstarted(server).blocking
    copying.call("REPLICAOF", "127.0.0.1", server.port)
    await until(lambda: b"master_link_status:up" in copying.call("INFO", "replication"))
    await until(lambda: b"state=online" in copied.call("INFO", "replication"))


async def restart(server: RedisServer) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


def serves(engine: RedisEngine) -> bool:
    """Whether the server is up, and has loaded its data."""
    try:
        engine.blocking.call("EXISTS", "any")
    except RedisFailure:
        return False
    return True


def refuse_once(monkeypatch: pytest.MonkeyPatch, name: str, error: str) -> list[str]:
    """The server refuses the first call of this function with an error, as one that is short of something for a
    moment. Returns the names of all functions that are called from now on, in order."""
    real, called = Connection.post, list[str]()

    def post(
        self: Connection,
        command: tuple[Any, ...],
        done: Callable[[Any], object],
        payload: Sequence[Buffer] = (),
    ) -> None:
        function = str(command[1]).rpartition("_")[2] if command[0] == "FCALL" else ""
        called.append(function)
        if function == name and called.count(name) == 1:
            real(self, ("PING",), lambda _: done(refusal(error)))
        else:
            real(self, command, done, payload)

    monkeypatch.setattr(Connection, "post", post)
    return called
