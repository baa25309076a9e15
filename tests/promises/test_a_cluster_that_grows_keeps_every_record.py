"""Promises 1 to 5 while a cluster grows, with real processes.

One broker has committed offsets, and a topic without a requested replication factor. Two more brokers join while an
idempotent producer sends, and are killed meanwhile. Once all data is on three brokers, the first is killed and its disk
is lost. Acknowledged records are there, once, in order, at their offsets, also those from the time with one broker.
Committed offsets are kept.

The oracle is what librdkafka was told, and what a reader saw that followed it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.members import Members
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.load import PARTITIONS, QUIET, Producer, Watcher, read_all
from tests.promises.support.records import ASKED_EVERY_S, IMPATIENT, patient_options
from tests.promises.test_an_acknowledged_write_is_never_lost import check_idempotent
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "orders"
OFFSETS_PARTITIONS: Final = 5
GROUP: Final = "readers"
DEADLINE_S: Final = 150.0
BEFORE: Final = 2_000
AFTER: Final = 1_000
"""Acknowledgements."""
FIRST: Final = 1
SEED: Final = 1
CHOSEN: Final = ("--config", f"offsets.topic.num.partitions={OFFSETS_PARTITIONS}")


async def told(cluster: BrokerCluster, through: int) -> MetadataResponse:
    async with RawClient(str(cluster.address(through))) as client:
        answer: MetadataResponse = await client.ask(12, MetadataRequest(topics=None))
        return answer


async def until_all_is_on(cluster: BrokerCluster, brokers: int, through: int) -> None:
    """So many, and all of them in sync, and voters."""
    async with asyncio.timeout(DEADLINE_S), Client(str(cluster.address(through))) as client:
        while True:
            parts = [part for topic in (await told(cluster, through)).topics for part in topic.partitions]
            voters = sum(member.voter for member in (await Members(client).quorum()).members)
            copied = len(parts) == PARTITIONS + OFFSETS_PARTITIONS and all(
                len(part.isr_nodes) == brokers for part in parts
            )
            if copied and voters == brokers:
                return
            await asyncio.sleep(ASKED_EVERY_S)


def consumer(bootstrap: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})


def commit(bootstrap: str, offset: int) -> None:
    client = consumer(bootstrap)
    try:
        client.commit(offsets=[confluent_kafka.TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    finally:
        client.close()


def committed(bootstrap: str) -> int:
    client = consumer(bootstrap)
    try:
        (found,) = client.committed([confluent_kafka.TopicPartition(TOPIC, 0)], timeout=DEADLINE_S)
        return int(found.offset)
    finally:
        client.close()


async def grow(cluster: BrokerCluster, chance: random.Random) -> None:
    """Two brokers join; somebody is killed while they copy."""
    for _ in range(2):
        joined = cluster.add()
        await cluster.start(joined)
        victim = chance.choice((FIRST, joined))
        for _ in range(chance.randrange(5)):  # how far it comes is left to chance
            await told(cluster, joined if victim == FIRST else FIRST)
        await cluster.kill(victim)
        await cluster.start(victim)
        await until_all_is_on(cluster, len(cluster.nodes), joined)


def test_what_one_broker_acknowledged_outlives_it_once_others_have_joined(tmp_path: Path, few_rounds: int) -> None:
    async def once(directory: Path, chance: random.Random) -> None:
        directory.mkdir()
        async with BrokerCluster(directory, 1, *patient_options(), *CHOSEN) as cluster:
            await cluster.start(FIRST)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC]
            await asyncio.to_thread(partial(made.result, DEADLINE_S))
            await asyncio.to_thread(commit, cluster.bootstrap, 7)
            with ExitStack() as stack:
                watcher = stack.enter_context(Watcher(cluster.bootstrap, TOPIC, **{"socket.timeout.ms": 2_000}))
                producer = Producer(cluster.bootstrap, TOPIC, idempotent=True, burst=250, **IMPATIENT)
                stack.enter_context(producer)
                await asyncio.to_thread(producer.wait_for, BEFORE)
                await grow(cluster, chance)
                await asyncio.to_thread(producer.look_around)  # it was told of the first broker alone
                await asyncio.to_thread(producer.wait_for, AFTER)
                await cluster.kill(FIRST)
                shutil.rmtree(cluster.nodes.pop(FIRST).data)
                await asyncio.to_thread(producer.wait_for, AFTER)
                await asyncio.to_thread(producer.stop)
                found = await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC)
            check_idempotent(found, producer, watcher)
            assert await asyncio.to_thread(committed, cluster.bootstrap) == 7
            print(f"{producer.acknowledged.count} acknowledged and there, of one broker, then three, then two")

    async def work() -> None:
        for number in range(few_rounds):
            await once(tmp_path / str(number), random.Random(SEED + number))

    loops.run(work())
