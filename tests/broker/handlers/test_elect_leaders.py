"""ElectLeaders over the wire, asked of any broker, also by clients that nobody here wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from headrace.base.ids import BrokerId
from headrace.controller.asks.replicas import AlterIsr
from headrace.controller.isr import IsrMember, IsrProposal
from headrace.metadata.image import MetadataImage
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.replicas.elections import elect_leaders
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests import loops
from tests.broker.clusters import BY_HAND, Cluster, running
from tests.broker.group_broker import RawClient

PREFERRED, UNCLEAN = 0, 1
DEADLINE_S = 150


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


@asynccontextmanager
async def two_brokers(directory: Path) -> AsyncIterator[Cluster]:
    """t-0 and t-1 are on brokers 1 and 2, led by 2 since 1 was fenced, with both in sync again."""
    async with running(directory, 2, BY_HAND) as cluster, RawClient(str(cluster.address(1))) as client:
        assignments = tuple(CreatableReplicaAssignment(at, (1, 2)) for at in range(2))
        wanted = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
        (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=120_000))).topics
        assert made.error_code == 0
        assert await cluster.fence(1) is None
        assert await cluster.unfence(1) is None
        image = await cluster.agree()
        assert leaders(image) == [2, 2]
        await in_sync(cluster, image)
        yield cluster


async def in_sync(cluster: Cluster, image: MetadataImage) -> None:
    """As the leader, broker 2, proposes it."""
    members = tuple(IsrMember(broker_id=one, broker_epoch=image.brokers[one].epoch) for one in map(BrokerId, (1, 2)))
    proposals = tuple(
        IsrProposal(
            topic_id=topic.id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=members,
        )
        for topic, partition in image.all_partitions()
    )
    two = BrokerId(2)
    ask = AlterIsr(broker_id=two, broker_epoch=image.brokers[two].epoch, proposals=proposals)
    assert await cluster.brokers[2].parts.control.submit(ask) == (ErrorCode.NONE, ErrorCode.NONE)


def leaders(image: MetadataImage) -> list[int]:
    return [partition.leader for _, partition in image.all_partitions()]


async def elect(client: RawClient, version: int, election: int, *partitions: int) -> tuple[int, list[tuple[int, int]]]:
    """The error, and of each partition its number and error."""
    request = ElectLeadersRequest(election, (TopicPartitions("t", partitions),) if partitions else None, 10_000)
    response = await client.ask(version, request)
    results = [(topic.topic, found) for topic in response.replica_election_results for found in topic.partition_result]
    assert {topic for topic, _ in results} <= {"t"}
    return response.error_code, [(found.partition_id, found.error_code) for _, found in results]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_partitions_are_led_by_their_first_replica_again(version: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with two_brokers(tmp_path) as cluster:
            for broker in (1, 2):  # one of them is not the controller
                async with RawClient(str(cluster.address(broker))) as client:
                    found = await elect(client, version, PREFERRED, broker - 1, 7)
                    assert found == (0, [(broker - 1, 0), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])
                    assert cluster.image(broker).partition_info("t", broker - 1) is not None
                    assert leaders(cluster.image(broker))[broker - 1] == 1, "who is asked knows it when it answers"
                    again = await elect(client, version, PREFERRED, broker - 1)
                    assert again == (0, [(broker - 1, ErrorCode.ELECTION_NOT_NEEDED)])
            assert leaders(await cluster.agree()) == [1, 1]

    run(work())


def test_all_partitions_are_elected_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_brokers(tmp_path) as cluster, RawClient(str(cluster.address(2))) as client:
            assert await elect(client, 2, PREFERRED) == (0, [(0, 0), (1, 0)])
            assert await elect(client, 2, PREFERRED) == (0, [])
            assert await elect(client, 2, 5, 0) == (ErrorCode.INVALID_REQUEST, [(0, ErrorCode.INVALID_REQUEST)])
            assert await cluster.fence(2) is None
            assert await cluster.fence(1) is None  # in this order: broker 2 is out of sync when it comes back
            assert await cluster.unfence(2) is None
            image = await cluster.agree()
            assert leaders(image) == [-1, -1]
            unavailable = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            assert await elect(client, 2, PREFERRED) == (0, [(0, unavailable), (1, unavailable)])
            assert await elect(client, 2, UNCLEAN, 1) == (0, [(1, 0)])
            partition = (await cluster.agree()).partition_info("t", 1)
            assert partition is not None
            assert (partition.leader, partition.isr) == (2, (2,))
            assert await elect(client, 2, UNCLEAN, 1) == (0, [(1, ErrorCode.ELECTION_NOT_NEEDED)])
            assert await cluster.fence(2) is None
            assert await elect(client, 2, UNCLEAN, 0) == (0, [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)])

    run(work())


def test_librdkafka_kafka_python_and_our_own_client_hold_elections(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_brokers(tmp_path) as cluster:
            bootstrap = str(cluster.address(2))
            await asyncio.to_thread(by_librdkafka, bootstrap)
            assert leaders(await cluster.agree()) == [1, 2]
            await asyncio.to_thread(by_kafka_python, bootstrap)
            assert leaders(await cluster.agree()) == [1, 1]
            async with Client(bootstrap) as client:
                (one,) = await elect_leaders(client, "t", [0])
                assert (one.partition, one.error) == (0, ErrorCode.ELECTION_NOT_NEEDED)
                assert one.detail == "t-0 is led by broker 1 already."

    run(work())


def by_librdkafka(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [TopicPartition("t", 0), TopicPartition("none", 0)]
    results = admin.elect_leaders(ElectionType.PREFERRED, asked).result(DEADLINE_S)
    errors = {(one.topic, one.partition): error for one, error in results.items()}
    assert errors["t", 0] is None
    error = errors["none", 0]
    assert error is not None
    assert (error.code(), error.str()) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Partition none-0 does not exist.")


def by_kafka_python(bootstrap: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.elect_leaders(0, {"t": [1]})
    finally:
        admin.close()
