"""Promises 1 to 5 over replicas, with real processes: any broker may die, or all of them, and what was acknowledged is
there, once, in order, at its offset; clients go on by themselves.

Three brokers, three replicas, two of which have to be in sync; librdkafka produces, with and without idempotence, and
reads, through every death. The oracle is on the client's side only (tests/promises/load.py).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net import loops
from tests.promises.load import PARTITIONS, QUIET, Producer, Watcher, read_all
from tests.promises.test_an_acknowledged_write_is_never_lost import check_kept, check_once_and_in_order, check_seen
from tools.broker_cluster import BrokerCluster

BROKERS: Final = (1, 2, 3)
BEFORE_EACH_DEATH: Final = 1_000
"""Acknowledgements that each producer waits for, so that a death meets a busy cluster."""
AFTER_A_DEATH: Final = 500
VICTIMS: Final[tuple[str | int, ...]] = ("leader", "controller", 1, "two", 2, "all", 3, "leader")
CONFIG: Final = {"min.insync.replicas": "2", "segment.bytes": str(1024 * 1024)}


@asynccontextmanager
async def loaded(directory: Path) -> AsyncIterator[tuple[BrokerCluster, Sequence[Producer]]]:
    """A cluster under load; at the end all that was acknowledged is looked for."""
    async with BrokerCluster(directory, len(BROKERS), "--json") as cluster:
        await cluster.start(*BROKERS)
        bootstrap = cluster.bootstrap
        await asyncio.to_thread(make_topics, bootstrap, "plain", "idempotent")
        plain = Producer(bootstrap, "plain", idempotent=False)
        idempotent = Producer(bootstrap, "idempotent", idempotent=True)
        watcher = Watcher(bootstrap, "idempotent")
        with watcher, plain, idempotent:
            yield cluster, (plain, idempotent)
            await everybody_is_acknowledged(1, plain, idempotent)
            await asyncio.to_thread(plain.stop)
            await asyncio.to_thread(idempotent.stop)
        for again in (False, True):
            if again:
                await cluster.kill(*BROKERS)
                await cluster.start(*BROKERS)
            await asyncio.to_thread(check, bootstrap, plain, idempotent, watcher)
        assert await cluster.stop(*BROKERS) == [0, 0, 0]


def make_topics(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 3, config=CONFIG) for name in names]).values():
        future.result(30)


async def everybody_is_acknowledged(more: int, *producers: Producer) -> None:
    await asyncio.gather(*(asyncio.to_thread(producer.wait_for, more) for producer in producers))


def check(bootstrap: str, plain: Producer, idempotent: Producer, watcher: Watcher) -> None:
    for producer in (plain, idempotent):
        assert not producer.acknowledged.failures
        assert not producer.acknowledged.twice
        check_kept(read_all(bootstrap, producer.topic), producer.snapshot())
    assert idempotent.acknowledged.count == idempotent.sent
    found = read_all(bootstrap, "idempotent")
    check_once_and_in_order(found, idempotent.sent)
    check_seen(watcher, found)


async def whom(cluster: BrokerCluster, victim: str | int, number: int) -> list[int]:
    if victim == "all":
        return list(BROKERS)
    if victim == "two":
        return [broker for broker in BROKERS if broker != number % 3 + 1]
    if isinstance(victim, int):
        return [victim]
    metadata = await asyncio.to_thread(
        AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET}).list_topics, "idempotent", 30
    )
    if victim == "controller":
        return [metadata.controller_id]
    leader = metadata.topics["idempotent"].partitions[number % PARTITIONS].leader
    return [leader] if leader in BROKERS else [1]


def test_kill_9_of_any_brokers_loses_repeats_and_reorders_nothing_acknowledged(tmp_path: Path, rounds: int) -> None:
    async def work() -> None:
        async with loaded(tmp_path) as (cluster, producers):
            for number, victim in enumerate(itertools.islice(itertools.cycle(VICTIMS), rounds)):
                await everybody_is_acknowledged(BEFORE_EACH_DEATH, *producers)
                killed = await whom(cluster, victim, number)
                print(f"round {number + 1}: kill -9 of {killed}", flush=True)
                await cluster.kill(*killed)
                if len(killed) == 1:
                    await everybody_is_acknowledged(AFTER_A_DEATH, *producers)
                await cluster.start(*killed)

    loops.run(work())
