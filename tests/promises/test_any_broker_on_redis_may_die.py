"""Promises 1 to 5 on the Redis engine, with real processes: three brokers on one Redis, any of which may die.

Redis and a leader may also stand still, and all connections to Redis may be cut.

Acknowledged records are there, once, in order, at their offsets; clients continue by themselves. The producers are
librdkafka, with and without idempotence, and a client at each broker that asks that one alone; a reader follows. The
oracle is on the client's side, with the Streams as another client reads them.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Final

from tests import loops
from tests.promises.support import insiders
from tests.promises.support.load import PARTITIONS, QUEUED_MESSAGES_MAX, Sender
from tests.promises.support.records import ASKED_EVERY_S, IDEMPOTENT, OPTIONS, PLAIN, Records, Shape, under_records
from tests.storage.redis.topologies import to
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.redis_servers import RedisServer

SHAPES: Final = {name: Shape(replicas=1, in_sync=1) for name in (IDEMPOTENT, PLAIN, insiders.TOPIC)}
BEFORE_EACH_FAULT: Final = 500
AFTER_A_FAULT: Final = 250
MEANWHILE: Final = 50
"""Records that each producer sends while Redis is paused, or between two cuts of all connections to it."""
CUTS: Final = 5
FAULTS: Final = ("leader", "redis", "pause", "cut", "controller", "redis and all", "all", "redis paused")


async def leader_of(records: Records, number: int) -> int:
    return (await records.partition(IDEMPOTENT, number % PARTITIONS, 1)).leader_id


async def _sent(records: Records, more: int) -> None:
    """Until each sender has sent so many more, or its client takes no more before it has an answer."""
    wanted = {sender: sender.sent + more for sender in records.senders}

    def has_sent(sender: Sender) -> bool:
        unanswered = sender.sent - sender.acknowledged.count - len(sender.acknowledged.failures)
        return sender.sent >= wanted[sender] or unanswered >= QUEUED_MESSAGES_MAX

    while not all(map(has_sent, records.senders)):  # noqa: ASYNC110
        await asyncio.sleep(ASKED_EVERY_S)


async def _fault(records: Records, server: RedisServer, fault: str, number: int) -> None:
    cluster = records.cluster
    brokers = tuple(cluster.nodes)
    match fault:
        case "leader" | "controller":
            victim = await (leader_of(records, number) if fault == "leader" else records.controller())
            await cluster.kill(victim)
            await records.acknowledged(AFTER_A_FAULT)
            await cluster.start(victim)
        case "all":
            await cluster.kill(*brokers)
            await cluster.start(*brokers)
        case "redis":
            server.kill()
            await asyncio.to_thread(server.start)
        case "redis and all":
            server.kill()
            await cluster.kill(*brokers)
            await asyncio.to_thread(server.start)
            await cluster.start(*brokers)
        case "pause":
            victim = await leader_of(records, number)
            cluster.pause(victim)
            await records.led_by_others(victim, next(broker for broker in brokers if broker != victim))
            await records.acknowledged(AFTER_A_FAULT)
            cluster.resume(victim)
        case "redis paused":
            server.pause()
            await _sent(records, MEANWHILE)  # no command has an answer
            server.resume()
        case "cut":
            async with to(server) as at:
                for _ in range(CUTS):
                    assert await at.call("CLIENT", "KILL", "TYPE", "normal") >= len(brokers)
                    await records.acknowledged(MEANWHILE)
        case _:
            raise AssertionError(fault)


def test_kill_9_of_brokers_and_of_redis_loses_repeats_and_reorders_nothing_acknowledged(
    tmp_path: Path, server: RedisServer, rounds: int
) -> None:
    async def work() -> None:
        cluster = BrokerCluster(tmp_path, 3, *OPTIONS, redis=server.url)
        async with cluster, under_records(cluster, SHAPES) as records:
            for number, fault in enumerate(itertools.islice(itertools.cycle(FAULTS), rounds)):
                await records.acknowledged(BEFORE_EACH_FAULT)
                print(f"round {number + 1} of {rounds}: {fault}", flush=True)
                await _fault(records, server, fault, number)

    loops.run(work())
