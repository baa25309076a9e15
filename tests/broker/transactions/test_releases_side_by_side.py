"""Brokers of two releases serve one transaction, as while brokers are upgraded one after the other.

The older release is today's, which offers fewer versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.broker import parts
from headrace.broker.handlers import all_handlers
from headrace.wire.apis import ApiKey
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.clusters import DEADLINE_S, Cluster
from tests.broker.group_broker import RawClient
from tests.broker.transactions.test_wire import ID, Client

COORDINATOR, LEADER = 1, 2
CONFIGS = {"transaction.state.log.num.partitions": "1", "transaction.state.log.replication.factor": "1"}
NOTHING = (0, 0)
"""A range of versions of which no broker speaks any."""


@contextmanager
def offering(versions: dict[int, tuple[int, int]]) -> Iterator[None]:
    """Brokers that start in this block offer these versions, and serve no others."""
    with pytest.MonkeyPatch.context() as patch:
        offered = [replace(each, versions=versions.get(each.key, each.versions)) for each in all_handlers()]
        patch.setattr(parts, "OFFERED", tuple(offered))
        yield


@asynccontextmanager
async def cluster_of(directory: Path, older: dict[int, dict[int, tuple[int, int]]]) -> AsyncIterator[Cluster]:
    """One broker coordinates the transaction, and the other leads its partition. `older`: what those offer that are of
    an older release."""
    cluster = Cluster(directory, CONFIGS)
    cluster.give_birth(1)
    async with asyncio.timeout(DEADLINE_S):
        try:
            with offering(older.get(COORDINATOR, {})):
                await cluster.start(COORDINATOR)
            async with RawClient(str(cluster.address(COORDINATOR))) as raw:
                await raw.ask(1, FindCoordinatorRequest(key=ID, key_type=1))
                with offering(older.get(LEADER, {})):
                    await cluster.start(LEADER, join=(cluster.address(COORDINATOR),))
                await cluster.agree()
                assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=(LEADER,))
                made = await raw.create(
                    CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=(assignment,))
                )
                assert made.error_code == 0, made.error_message
            await cluster.agree()
            yield cluster
        finally:
            await cluster.stop(*list(cluster.brokers))


@asynccontextmanager
async def clients(cluster: Cluster) -> AsyncIterator[tuple[Client, Client]]:
    """To the coordinator and to the leader."""
    async with (
        RawClient(str(cluster.address(COORDINATOR))) as coordinator,
        RawClient(str(cluster.address(LEADER))) as leader,
    ):
        yield Client(coordinator), Client(leader)


@pytest.mark.parametrize(
    "older",
    [
        {},
        {LEADER: {ApiKey.WRITE_TXN_MARKERS: (1, 1)}},
        {COORDINATOR: {ApiKey.ADD_PARTITIONS_TO_TXN: (0, 4)}},
    ],
    ids=["one release", "markers of v1", "additions of v4"],
)
async def test_a_transaction_is_served_by_brokers_of_two_releases(
    tmp_path: Path, older: dict[int, dict[int, tuple[int, int]]]
) -> None:
    async with cluster_of(tmp_path, older) as cluster, clients(cluster) as (coordinator, leader):
        producer: Any = await coordinator.init()
        for commit in (True, False):
            assert await leader.produce(producer, 0, version=12) == 0
            producer = await coordinator.end(producer, commit=commit, version=5)
            assert producer.error_code == 0
            await coordinator.until("CompleteCommit" if commit else "CompleteAbort")


async def test_markers_that_no_version_carries_come_once_the_leader_is_upgraded(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with cluster_of(tmp_path, {LEADER: {ApiKey.WRITE_TXN_MARKERS: NOTHING}}) as cluster:
            async with clients(cluster) as (coordinator, leader):
                producer = await coordinator.init()
                assert await leader.produce(producer, 0, version=12) == 0
                assert (await coordinator.end(producer, commit=True, version=5)).error_code == 0
                assert await coordinator.state() == "PrepareCommit"
            await cluster.stop(LEADER)
            await cluster.start(LEADER)
            async with clients(cluster) as (coordinator, _):
                await coordinator.until("CompleteCommit")
    told = [line["reason"] for line in lines if line["event"].startswith("a broker of another release")]
    assert told == [
        f"The broker at {cluster.address(LEADER)} offers WRITE_TXN_MARKERS in versions 0 to 0, "
        "but this side speaks 1 to 2."
    ]
