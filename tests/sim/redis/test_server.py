"""The simulated server answers as a real one does, in what the model of the functions does not cover."""

from __future__ import annotations

import asyncio
import random
import tempfile
import uuid
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.loop import VirtualLoop
from headrace.sim.redis.service import HOST, PORT, Service
from headrace.sim.run import close
from headrace.storage.redis.errors import RedisRefused
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from headrace.storage.redis.server_side.functions import CODE, Batch, PartitionFunctions
from headrace.storage.redis.server_side.keys import Keys
from tools.servers.redis_servers import RedisServer, valkey

KEYS: Final = Keys().partition("orders", PartitionIndex(0))
LEADER: Final = PartitionFunctions(KEYS, TopicId(uuid.UUID(int=7)), LeaderEpoch(0))
CLAIM: Final = LEADER.claim(1, "me").command
APPEND: Final = LEADER.append(Offset(0), [Batch(Offset(2), b"two")], 5)
COMMANDS: Final[tuple[tuple[Any, ...], ...]] = (
    ("PING",),
    ("GET", "cluster"),
    ("SET", "cluster", "one", "NX"),
    ("SET", "cluster", "two", "NX"),
    ("GET", "cluster"),
    CLAIM,
    ("FUNCTION", "LOAD", CODE),
    ("FUNCTION", "LOAD", CODE),
    CLAIM,
    ("XREAD", "COUNT", 5, "BLOCK", 10, "STREAMS", KEYS.stream, "0-0"),
    (*APPEND.command, *APPEND.buffers),
    ("XREAD", "COUNT", 5, "BLOCK", 10, "STREAMS", KEYS.stream, "0-0"),
    ("WAIT", 0, 10),
    ("WAIT", 1, 10),
    ("WAITAOF", 1, 0, 5_000),
    ("WAITAOF", 0, 1, 10),
    ("CONFIG", "GET", "appendfsync"),
    ("NOSUCH", "thing"),
)
TOLD: Final = ("role", "connected_slaves", "maxmemory", "maxmemory_policy", "aof_enabled")


async def answers(connection: Connection) -> list[Any]:
    """Replies to all commands; a refusal by its first words."""
    found: list[Any] = [connection.server["mode"], connection.server["role"]]
    for command in COMMANDS:
        try:
            found.append(await connection.call(*command))
        except RedisRefused as error:
            found.append(error.text.split(" ")[:2])
    lines = (await connection.call("INFO", "memory", "persistence", "replication")).decode().splitlines()
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    assert {"master_replid", "master_repl_offset", "used_memory", "total_system_memory"} <= told.keys()
    await connection.close()
    return [*found, *(told[name] for name in TOLD)]


def simulated(*, is_always: bool) -> list[Any]:
    loop = VirtualLoop(random.Random(1))
    Service(ClusterWorld(loop, 1), has_replica=False, is_always=is_always).start()

    async def whole() -> list[Any]:
        await asyncio.sleep(1)
        return await answers(await connect(Place(host=HOST, port=PORT), Credentials()))

    try:
        return loop.run_until_complete(whole())
    finally:
        close(loop)


async def real(path: str) -> list[Any]:
    return await answers(await connect(Place(path=path), Credentials()))


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_the_simulated_server_answers_as_a_real_one(fsync: str) -> None:
    options = ("--appendonly", "yes", "--appendfsync", fsync)
    with tempfile.TemporaryDirectory(prefix="hr") as name, RedisServer(valkey(), Path(name), options) as server:
        assert simulated(is_always=fsync == "always") == asyncio.run(real(str(server.socket)))
