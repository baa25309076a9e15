"""Promises 1, 3 and 4 while every voter's disk is lost, with real processes.

One after the other of three brokers is killed, its disk is lost, it is removed, and another one joins. In the end none
of the first three is left; an idempotent producer sends all the time. Then all are killed, and two disks may be lost:
the quorum is recovered from the third. One of the two returns from before the recovery, is refused, and rejoins with
its records. A new broker takes the third place.

Each time the quorum has three voters again before the next disk is lost. The oracle is what librdkafka was told, and
what a reader saw that followed it.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.errors import ClientError
from headrace.net.client.members import Members
from headrace.wire.messages.metadata import MetadataRequest
from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.load import PARTITIONS, QUIET, PartitionLogs, Producer, Watcher, read_all
from tests.promises.support.records import ASKED_EVERY_S, IMPATIENT, OPTIONS
from tests.promises.test_an_acknowledged_write_is_never_lost import check_idempotent
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "orders"
BROKERS: Final = 3
ACKNOWLEDGED: Final = 1_000
"""Between two losses."""
DEADLINE_S: Final = 150.0


async def until_all_is_on_three(cluster: BrokerCluster) -> None:
    """All partitions are in sync on as many brokers, which are the voters; no other is left."""
    through = max(cluster.nodes)
    async with asyncio.timeout(DEADLINE_S), Client(str(cluster.address(through))) as client:
        while True:
            async with RawClient(str(cluster.address(through))) as raw:
                told = await raw.ask(12, MetadataRequest(topics=None))
            parts = [part for topic in told.topics for part in topic.partitions]
            voters = {member.id for member in (await Members(client).quorum()).members if member.voter}
            if voters == set(cluster.nodes) and all(set(part.isr_nodes) == voters for part in parts) and parts:
                return
            await asyncio.sleep(ASKED_EVERY_S)


async def lose(cluster: BrokerCluster, broker: int) -> None:
    """For good, and the cluster is told."""
    await cluster.kill(broker)
    shutil.rmtree(cluster.nodes.pop(broker).data)
    async with asyncio.timeout(DEADLINE_S), Client(cluster.bootstrap) as client:
        while True:
            try:
                await Members(client).remove(broker)
            except ClientError as refusal:
                if "stop it before" not in str(refusal):  # it has not been missed yet
                    raise
                await asyncio.sleep(ASKED_EVERY_S)
            else:
                return


async def replace(cluster: BrokerCluster, broker: int) -> None:
    await lose(cluster, broker)
    await cluster.start(cluster.add())
    await until_all_is_on_three(cluster)


async def quorum(*words: str) -> None:
    """An operator's command, which does what it is asked for."""
    command = [sys.executable, "-m", "headrace.cli.main", "quorum", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=sys.stderr)
    told, _ = await process.communicate()
    print(told.decode(), flush=True)
    assert process.returncode == 0, words


async def recover(cluster: BrokerCluster) -> None:
    """Two of three are lost at once; one of them is back later, with its disk."""
    survivor, gone, back = cluster.nodes
    await cluster.kill(survivor, gone, back)
    shutil.rmtree(cluster.nodes[gone].data)
    await quorum("recover", "--data", str(cluster.nodes[survivor].data), "--accept-loss")
    await cluster.start(survivor)
    refused = await cluster.launch(back)
    assert refused != 0
    assert "headrace quorum rejoin" in cluster.log(back).read_text()
    await quorum("rejoin", "--data", str(cluster.nodes[back].data))
    await cluster.start(back)
    await lose_what_is_gone(cluster, gone)
    await cluster.start(cluster.add())
    await until_all_is_on_three(cluster)


async def lose_what_is_gone(cluster: BrokerCluster, broker: int) -> None:
    del cluster.nodes[broker]
    async with Client(cluster.bootstrap) as client:
        await Members(client).remove(broker)


def holds(found: PartitionLogs, before: PartitionLogs) -> bool:
    return all(before[part].items() <= found[part].items() for part in before)


def test_brokers_are_replaced_until_none_of_the_first_is_left_and_a_lost_quorum_is_recovered(tmp_path: Path) -> None:
    async def work() -> None:
        async with BrokerCluster(tmp_path, BROKERS, *OPTIONS) as cluster:
            await cluster.start(*cluster.nodes)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC]
            await asyncio.to_thread(partial(made.result, DEADLINE_S))
            with ExitStack() as stack:
                watcher = stack.enter_context(Watcher(cluster.bootstrap, TOPIC, **{"socket.timeout.ms": 2_000}))
                producer = Producer(cluster.bootstrap, TOPIC, idempotent=True, burst=250, **IMPATIENT)
                stack.enter_context(producer)
                for broker in list(cluster.nodes):
                    await asyncio.to_thread(producer.wait_for, ACKNOWLEDGED)
                    await replace(cluster, broker)
                await asyncio.to_thread(producer.wait_for, ACKNOWLEDGED)
                await asyncio.to_thread(producer.stop)
                found = await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC)
            check_idempotent(found, producer, watcher)
            await recover(cluster)
            assert holds(await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC), found)
            with Producer(cluster.bootstrap, TOPIC, idempotent=True, burst=250, **IMPATIENT) as later:
                await asyncio.to_thread(later.wait_for, ACKNOWLEDGED)
                await asyncio.to_thread(later.stop)
            after = await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC)
            assert holds(after, found)
            assert holds(after, later.snapshot())
            assert sum(map(len, after.values())) == producer.sent + later.sent

    loops.run(work())
