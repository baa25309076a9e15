"""A broker that is on its way into its cluster knows less than others do: no client is served by it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.base.ids import BrokerId
from headrace.broker.handlers import metadata
from headrace.wire.messages.describe_cluster import DescribeClusterRequest
from headrace.wire.messages.metadata import MetadataRequest
from tests import loops
from tests.broker.clusters import Cluster, running
from tests.broker.data_path import batch, produce_request
from tests.broker.group_broker import RawClient

BROKERS = (1, 2, 3)
ALL = MetadataRequest(topics=None, allow_auto_topic_creation=False)


async def answer(cluster: Cluster, broker: int, version: int, request: Any) -> Any:
    """On a connection of its own, as soon as there is one; None where that is closed instead."""
    while True:
        try:
            async with RawClient(str(cluster.address(broker))) as client:
                return await client.ask(version, request)
        except ConnectionRefusedError:
            await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None


def test_who_has_not_heard_the_quorum_serves_no_client(tmp_path: Path) -> None:
    """The first broker of a cluster that restarts cannot register with anybody. Its metadata may be empty, or long
    outdated."""

    async def work() -> None:
        async with running(tmp_path, len(BROKERS)) as cluster:
            async with RawClient(str(cluster.address(1))) as client:
                await client.create_topic("t")
            await cluster.agree()
            await cluster.stop(*BROKERS)
            alone = asyncio.ensure_future(cluster.start(1))
            assert await answer(cluster, 1, 12, ALL) is None
            assert await answer(cluster, 1, 9, produce_request("t", batch(b"v"))) is None
            described = await answer(cluster, 1, 1, DescribeClusterRequest())
            others = asyncio.ensure_future(cluster.start(2, 3))
            while (told := await answer(cluster, 1, 12, ALL)) is None:
                pass
            await asyncio.gather(alone, others)
            assert told.brokers, "who is told of nobody has nobody left to ask"
            assert [topic.name for topic in told.topics if topic.name == "t"] == ["t"]
            assert described.cluster_id == told.cluster_id != ""

    loops.run(work())


def test_somebody_is_always_told_of(tmp_path: Path) -> None:
    """Though the controller hears nobody: a consumer of librdkafka 2.16 that is told of no broker hangs for ever."""

    async def work() -> None:
        async with running(tmp_path, 1) as cluster:
            image = cluster.image(1)
            assert [broker.node_id for broker in metadata.told_brokers(image, BrokerId(1), "PLAINTEXT")] == [1]
            silent = replace(image.brokers[BrokerId(1)], fenced=True)
            image = replace(image, brokers=image.brokers.set(BrokerId(1), silent))
            assert [broker.node_id for broker in metadata.told_brokers(image, BrokerId(1), "PLAINTEXT")] == [1]
            assert list(metadata.told_brokers(image, BrokerId(2), "PLAINTEXT")) == []

    loops.run(work())
