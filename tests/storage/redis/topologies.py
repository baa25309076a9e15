"""Redis on several servers: a primary with replicas under Sentinels, and a Cluster."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import Final

from headrace.base.ids import Offset
from headrace.broker.home.ports import HeldPorts
from headrace.storage.redis.links.address import parse_redis_address
from headrace.storage.redis.links.client import Redis, place_of
from headrace.storage.redis.links.connection import Connection, Reply, connect
from headrace.storage.redis.server_side.functions import Answer, Batch, PartitionFunctions, Status
from headrace.storage.redis.server_side.keys import SLOTS, slot_of
from tests.storage.redis.client_world import Start, done, leader, until
from tools.servers.redis_servers import RedisServer
from tools.servers.server_process import port_held_for

AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")
"""A replica is copied to at once, not after 5 seconds."""


@asynccontextmanager
async def to(server: RedisServer) -> AsyncIterator[Connection]:
    """A connection of the operator's."""
    address = parse_redis_address(server.url)
    connection = await connect(place_of(address), address.credentials)
    try:
        yield connection
    finally:
        await connection.close()


@dataclass(frozen=True, slots=True)
class Replicated:
    """A primary, its replica, and Sentinels that know of both."""

    primary: RedisServer
    replica: RedisServer
    sentinels: tuple[RedisServer, ...]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/queue"


async def replicated(start: Start, *options: str, sentinels: int = 1) -> Replicated:
    """Start a primary with one replica and Sentinels, and wait until all know of all."""
    primary = start(*AT_ONCE, *options, tcp=True)
    replica = start(*AT_ONCE, *options, "--replicaof", "127.0.0.1", str(primary.port), tcp=True)
    async with to(primary) as at:
        await until(lambda: _is(at.call("WAIT", 1, 1000), 1))
    settings = (
        f"sentinel monitor queue 127.0.0.1 {primary.port} {sentinels // 2 + 1}",
        "sentinel down-after-milliseconds queue 300",
        "sentinel failover-timeout queue 2000",
    )
    started = tuple(start(*settings, tcp=True, sentinel=True) for _ in range(sentinels))
    for each in started:
        async with to(each) as at:
            # It hears of the replica from the primary's INFO, and of the others by the primary's messages.
            await until(lambda: _counts(at.call("SENTINEL", "REPLICAS", "queue"), 1))
            await until(lambda: _counts(at.call("SENTINEL", "SENTINELS", "queue"), sentinels - 1))
    return Replicated(primary, replica, started)


async def cluster_of(start: Start, count: int, *options: str) -> list[RedisServer]:
    """Start servers of one Cluster, each with its share of the slots."""
    held = HeldPorts.free("127.0.0.1", count, SystemRandom())
    buses = held.numbers  # by default 10,000 above the other port, which may be too high
    servers = [
        start("--cluster-enabled", "yes", "--cluster-port", str(bus), *AT_ONCE, *options, tcp=True) for bus in buses
    ]
    for number, server in enumerate(servers):
        async with to(server) as at:
            first, last = 16384 * number // count, 16384 * (number + 1) // count - 1
            await at.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            await at.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            await at.call("CLUSTER", "MEET", "127.0.0.1", servers[0].port, buses[0])
    for server in servers:
        async with to(server) as at:
            await until(lambda: _counts(at.call("CLUSTER", "SLOTS"), count))
            await until(lambda: _holds(at.call("CLUSTER", "INFO"), b"cluster_state:ok"))
    weakref.finalize(servers[0], held.release)
    return servers


async def replica_in(start: Start, primary: RedisServer, *options: str) -> RedisServer:
    """Start a replica of one of a Cluster's servers, and wait until all of it is there."""
    bus = port_held_for(primary)
    replica = start("--cluster-enabled", "yes", "--cluster-port", str(bus), *AT_ONCE, *options, tcp=True)
    async with to(primary) as old, to(replica) as new:
        name = (await old.call("CLUSTER", "MYID")).decode()
        await old.call("CLUSTER", "MEET", "127.0.0.1", replica.port, bus)
        await until(lambda: _holds(new.call("CLUSTER", "NODES"), name.encode()))
        await until(lambda: _holds(new.call("CLUSTER", "INFO"), b"cluster_state:ok"))
        await new.call("CLUSTER", "REPLICATE", name)
        await until(lambda: _is(old.call("WAIT", 1, 1000), 1))
        await until(lambda: _holds(new.call("INFO", "replication"), b"master_link_status:up"))
    return replica


# of a Cluster of three


def log_of(topic: str) -> PartitionFunctions:
    return leader(topic, 0, clustered=True)


def slot(log: PartitionFunctions) -> int:
    return slot_of(log.keys.stream.encode())


def first(log: PartitionFunctions) -> int:
    """The server, of three, that has the partition until it moves."""
    return slot(log) * 3 // SLOTS


async def append(client: Redis, log: PartitionFunctions, at: int) -> None:
    """Append one record at this offset, again where the server asks for that."""
    call = log.append(Offset(at), [Batch(Offset(at + 1), b"batch")], 0)
    assert await done(lambda: client.run(call)) == Answer(Status.DONE, (at + 1,))


async def claimed(client: Redis, log: PartitionFunctions) -> None:
    assert (await client.run(log.claim(1, "a"))).status is Status.DONE


async def move_keys(servers: Sequence[RedisServer], log: PartitionFunctions, target: int) -> None:
    """Move all keys of the slot, and not the slot itself yet."""
    async with to(servers[first(log)]) as old, to(servers[target]) as new:
        await new.call("CLUSTER", "SETSLOT", slot(log), "IMPORTING", (await old.call("CLUSTER", "MYID")).decode())
        await old.call("CLUSTER", "SETSLOT", slot(log), "MIGRATING", (await new.call("CLUSTER", "MYID")).decode())
        keys = await old.call("CLUSTER", "GETKEYSINSLOT", slot(log), 100)
        await old.call("MIGRATE", "127.0.0.1", servers[target].port, "", 0, 5000, "KEYS", *keys)


async def move_slot_whole(servers: Sequence[RedisServer], log: PartitionFunctions, target: int) -> None:
    await move_keys(servers, log, target)
    await move_slot(servers, log, target)


async def move_slot(servers: Sequence[RedisServer], log: PartitionFunctions, target: int) -> None:
    async with to(servers[target]) as new:
        owner = (await new.call("CLUSTER", "MYID")).decode()
        await new.call("CLUSTER", "SETSLOT", slot(log), "NODE", owner)
    for server in servers:
        async with to(server) as each:
            await each.call("CLUSTER", "SETSLOT", slot(log), "NODE", owner)


async def _is(reply: Awaitable[Reply], wanted: int) -> bool:
    found: Reply = await reply
    return bool(found == wanted)


async def _counts(reply: Awaitable[Reply], wanted: int) -> bool:
    return len(await reply) >= wanted


async def _holds(reply: Awaitable[Reply], words: bytes) -> bool:
    return words in await reply
