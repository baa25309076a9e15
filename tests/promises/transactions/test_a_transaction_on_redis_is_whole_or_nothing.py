"""Promise 4 on the Redis engine, with real processes: brokers are killed, and Redis itself, which syncs each write.

Writers, readers and the oracle are those of the local engine. A committed transaction is there once, in every
partition, also where Redis was killed in the middle of its commit. One that was aborted is nowhere.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests import loops
from tests.promises.support.load import QUIET
from tests.promises.test_a_transaction_is_whole_or_nothing import (
    BEFORE_EACH_FAULT,
    DEADLINE_S,
    PARTITIONS,
    QUICK,
    TOPIC,
    Outcome,
    Writer,
    check,
    committed,
    victims,
    writing,
)
from tests.tiers import long_only
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.redis_servers import RedisServer

FAULTS: Final = ("redis", "coordinator", "redis and all", "leader", "redis and coordinator", "all")


@long_only
def test_no_kill_of_brokers_or_of_redis_tears_a_transaction_or_loses_a_committed_one(
    tmp_path: Path, server: RedisServer, rounds: int
) -> None:
    loops.run(kills(tmp_path, server, rounds))


async def kills(root: Path, server: RedisServer, rounds: int) -> None:
    """Kill between two looks at the writers, who go on meanwhile, and check at the end."""
    async with BrokerCluster(root, 3, "--json", *QUICK, redis=server.url) as cluster:
        await cluster.start(*cluster.nodes)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        await asyncio.to_thread(made[TOPIC].result, DEADLINE_S)
        with writing(cluster.bootstrap) as writers:
            for number, fault in enumerate(itertools.islice(itertools.cycle(FAULTS), rounds)):
                await more(writers)
                await strike(cluster, server, fault, number)
            await more(writers)
            for writer in writers:
                await asyncio.to_thread(writer.stop)
        seen = await asyncio.to_thread(committed, cluster.bootstrap)
        for writer in writers:
            print(writer.number, {each.value: list(writer.outcomes.values()).count(each) for each in Outcome})
        check(writers, seen)


async def more(writers: list[Writer]) -> None:
    """Wait until each has ended some more transactions."""
    await asyncio.gather(*(asyncio.to_thread(each.wait_for, BEFORE_EACH_FAULT) for each in writers))


async def strike(cluster: BrokerCluster, server: RedisServer, fault: str, number: int) -> None:
    """Kill what the fault names, all of it before any of it is started again."""
    named = fault.removeprefix("redis").removeprefix(" and ")
    killed = [each for each in await victims(cluster, named, number) if each > 0] if named else []
    print(f"round {number + 1}: {fault}, brokers {killed}", flush=True)
    if fault.startswith("redis"):
        server.kill()
    await cluster.kill(*killed)
    if fault.startswith("redis"):
        await asyncio.to_thread(server.start)
    await cluster.start(*killed)
