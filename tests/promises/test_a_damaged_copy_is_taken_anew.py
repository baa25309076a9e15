"""Promises 1 and 4, with real processes, where a disk damages one of three copies while its broker is down.

The broker copies a sound log from the leader by itself. Nothing acknowledged is lost whichever broker dies after that,
and meanwhile no request is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.storage.log.recovery.replaced import REPLACED
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponsePartition
from tests import loops
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient
from tests.promises.support.load import PARTITIONS, QUIET, PartitionLogs, read_all
from tests.promises.support.records import ASKED_EVERY_S
from tests.promises.support.replicas import check_replicas
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "orders"
BATCHES: Final = 60
SEGMENT_BYTES: Final = 4096
DAMAGED_AT: Final = 100
"""In the first record's value, which no header tells of."""
CONFIGS: Final = (
    "log.scrub.interval.ms=200",
    "log.scrub.io.max.bytes.per.second=100000000",
    "leader.imbalance.check.interval.seconds=1",
)
"""All that is kept is read again and again, and who is back leads again soon."""
OPTIONS: Final = ("--json", *(option for config in CONFIGS for option in ("--config", config)))
DEADLINE_S: Final = 150.0


async def told(cluster: BrokerCluster, through: int) -> list[MetadataResponsePartition]:
    async with RawClient(str(cluster.address(through))) as client:
        answer = await client.ask(12, MetadataRequest(topics=None))
        partitions = [part for topic in answer.topics if topic.name == TOPIC for part in topic.partitions]
        return sorted(partitions, key=lambda part: part.partition_index)


async def until(
    cluster: BrokerCluster, through: int, holds: Callable[[MetadataResponsePartition], bool]
) -> list[MetadataResponsePartition]:
    """Until that is so of every partition, as this broker tells it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await told(cluster, through)  # nothing, as long as this broker has not heard of the topic
            if found and all(map(holds, found)):
                return found
            await asyncio.sleep(ASKED_EVERY_S)


def is_whole(part: MetadataResponsePartition) -> bool:
    return part.leader_id != -1 and len(part.isr_nodes) == 3


def is_settled(part: MetadataResponsePartition) -> bool:
    """Nobody is given the lead any more."""
    return is_whole(part) and part.leader_id == part.replica_nodes[0]


def make_topic(bootstrap: str) -> None:
    config = {"min.insync.replicas": "2", "segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=config)]).values():
        future.result(150)


async def fill(cluster: BrokerCluster) -> PartitionLogs:
    """All of it acknowledged by the whole ISR."""
    found: PartitionLogs = {index: {} for index in range(PARTITIONS)}
    for broker in cluster.nodes:  # any of them may lead, and must know it
        parts = await until(cluster, broker, is_settled)
    for part in parts:
        async with RawClient(str(cluster.address(part.leader_id))) as client:
            for number in range(BATCHES):
                value = b"%d of %d" % (number, part.partition_index) + b"v" * 250
                sent = batch(value, timestamp=1_700_000_000_000)
                answer = await produce(client, TOPIC, sent, partition=part.partition_index)
                assert answer.error_code == 0
                found[part.partition_index][answer.base_offset] = value
    return found


def directory_of(cluster: BrokerCluster, broker: int, index: int) -> Path:
    return cluster.nodes[broker].data / "logs" / f"{TOPIC}-{index}"


def contents(cluster: BrokerCluster, broker: int) -> list[bytes]:
    """Of its copy of each partition."""
    directories = [directory_of(cluster, broker, index) for index in range(PARTITIONS)]
    return [b"".join(path.read_bytes() for path in sorted(each.glob("*.log"))) for each in directories]


def damage(cluster: BrokerCluster, broker: int) -> None:
    """A byte of the first closed segment of each partition. The broker is down."""
    for index in range(PARTITIONS):
        path = directory_of(cluster, broker, index) / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[DAMAGED_AT] ^= 1
        path.write_bytes(data)


def are_now(cluster: BrokerCluster, broker: int, sound: list[bytes]) -> bool:
    """Whether its copies are these. It is at work on them: a file may go between its listing and its reading."""
    try:
        return contents(cluster, broker) == sound
    except FileNotFoundError:
        return False


async def mended(cluster: BrokerCluster, broker: int, sound: list[bytes]) -> None:
    """Until its copies are what they were, and what they replaced is gone."""
    replaced = [directory_of(cluster, broker, index) / REPLACED for index in range(PARTITIONS)]
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if are_now(cluster, broker, sound) and not any(each.exists() for each in replaced):
                return
            await asyncio.sleep(ASKED_EVERY_S)


def test_a_copy_that_its_disk_has_damaged_is_taken_anew_and_loses_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with BrokerCluster(tmp_path, 3, *OPTIONS) as cluster:
            await cluster.start(1, 2, 3)
            await asyncio.to_thread(make_topic, cluster.bootstrap)
            records = await fill(cluster)
            victim, *others = (3, 1, 2)
            for broker in cluster.nodes:  # else it may lack what two others have acknowledged
                await until(cluster, broker, is_whole)
            assert await cluster.stop(victim) == [0]
            sound = contents(cluster, victim)  # a clean stop has written out what only the journal held
            damage(cluster, victim)
            await cluster.start(victim)
            await mended(cluster, victim, sound)
            await until(cluster, victim, is_whole)
            for other in others:
                await cluster.kill(other)
                await until(cluster, victim, lambda part: part.leader_id not in (-1, other))  # noqa: B023
                assert await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC) == records
                await cluster.start(other)
                await until(cluster, victim, is_whole)
            first = [part.partition_index for part in await told(cluster, victim) if part.replica_nodes[0] == victim]
            await until(cluster, victim, lambda part: part.leader_id == part.replica_nodes[0])
            assert first, "it leads some of them again"
            assert await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC) == records
            await cluster.kill(1, 2, 3)
            check_replicas(cluster, TOPIC, records, replicas=3)

    loops.run(work())
