"""AlterPartitionReassignments and ListPartitionReassignments, asked of any broker, also by kafka-python."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from headrace.base.ids import BrokerId
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests import loops
from tests.broker.clusters import BY_HAND, running
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient
from tests.broker.replicas import held_rounds


async def create(client: RawClient, name: str, *replicas: Sequence[int]) -> None:
    assignments = tuple(CreatableReplicaAssignment(at, tuple(each)) for at, each in enumerate(replicas))
    wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=120_000))).topics
    assert made.error_code == 0


async def alter(
    client: RawClient, wishes: dict[str, list[tuple[int, tuple[int, ...] | None]]], version: int = 1, **rest: Any
) -> list[tuple[str, int, int]]:
    """(topic, partition, error) of each."""
    topics = tuple(
        ReassignableTopic(name=name, partitions=tuple(ReassignablePartition(at, replicas) for at, replicas in each))
        for name, each in wishes.items()
    )
    response = await client.ask(version, AlterPartitionReassignmentsRequest(timeout_ms=120_000, topics=topics, **rest))
    assert (response.error_code, response.error_message) == (0, None)
    return [
        (topic.name, one.partition_index, one.error_code) for topic in response.responses for one in topic.partitions
    ]


async def ongoing(client: RawClient, named: dict[str, tuple[int, ...]] | None = None) -> dict[tuple[str, int], Any]:
    """(replicas, adding, removing) of each."""
    topics = None if named is None else tuple(ListPartitionReassignmentsTopics(*topic) for topic in named.items())
    response = await client.ask(0, ListPartitionReassignmentsRequest(timeout_ms=120_000, topics=topics))
    assert (response.error_code, response.error_message) == (0, None)
    return {
        (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in response.topics
        for one in topic.partitions
    }


def found(image: MetadataImage, topic: str, partition: int) -> PartitionImage:
    one = image.partition_info(topic, partition)
    assert one is not None
    return one


@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_moves_to_other_brokers(version: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            running(tmp_path, 3, BY_HAND) as cluster,
            RawClient(str(cluster.address(1))) as one,
            RawClient(str(cluster.address(2))) as two,
        ):
            await create(one, "t", (1, 2), (1, 2))
            await create(one, "u", (2,))
            assert await ongoing(one) == {}
            wishes: dict[str, list[tuple[int, tuple[int, ...] | None]]] = {
                "t": [(1, (3, 2)), (7, (1,)), (0, None)],
                "u": [(0, (9,))],
            }
            await cluster.settled(1)
            assert (await produce(one, "t", batch(b"a"), partition=1)).error_code == 0
            with held_rounds(cluster, 3):  # else it has copied all, and the reassignment is over at once
                assert await alter(two, wishes, version) == [
                    ("t", 1, 0),
                    ("t", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    ("t", 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
                    ("u", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                ]
                on_its_way = {("t", 1): ((3, 2, 1), (3,), (1,))}
                assert await ongoing(two) == on_its_way, "who is asked knows it when it answers"
                await cluster.agree()
                assert await ongoing(one) == on_its_way
                assert await ongoing(one, {"u": (0,), "none": (0,), "t": (0, 1, 7, -1)}) == on_its_way
                assert await ongoing(one, {"t": (0,)}) == {}
            for broker in (1, 2, 3):
                await cluster.until(broker, lambda image: found(image, "t", 1).replicas == (3, 2))
            done = found(await cluster.agree(), "t", 1)
            assert (done.leader, done.replicas, done.isr) == (3, (3, 2), (3, 2))
            assert await ongoing(one) == {}
            forbidden = await alter(one, {"t": [(0, (1,))]}, 1, allow_replication_factor_change=False)
            assert forbidden == [("t", 0, ErrorCode.INVALID_REPLICATION_FACTOR)]

    loops.run(work())


def test_kafka_python_begins_lists_and_cancels_it(tmp_path: Path) -> None:
    def play(bootstrap: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.alter_partition_reassignments({TopicPartition("t", 0): [2]})
            listed = admin.list_partition_reassignments()
            assert "adding_replicas" in str(listed), listed
            assert "'t'" in str(listed), listed
            admin.alter_partition_reassignments({TopicPartition("t", 0): None})
            assert "adding_replicas" not in str(admin.list_partition_reassignments())
        finally:
            admin.close()

    async def work() -> None:
        async with running(tmp_path, 2, BY_HAND) as cluster, RawClient(str(cluster.address(1))) as client:
            await create(client, "t", (1,))
            await cluster.settled(1)
            assert (await produce(client, "t", batch(b"a"))).error_code == 0
            with held_rounds(cluster, 2):  # else it has copied all, and the reassignment is over at once
                await asyncio.to_thread(play, str(cluster.address(2)))
            one = found(await cluster.agree(), "t", 0)
            assert (one.replicas, one.adding, one.removing) == ((BrokerId(1),), (), ())

    loops.run(work())
