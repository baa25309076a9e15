"""Partitions get the replicas that they lack, also where brokers come while others are still being added."""

from __future__ import annotations

from pathlib import Path

from headrace.metadata.image import MetadataImage
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from tests import loops
from tests.broker.cluster import Cluster


def test_who_comes_while_another_is_added_is_added_next(tmp_path: Path) -> None:
    async def work() -> None:
        cluster = Cluster(tmp_path)
        del cluster.configs["default.replication.factor"]
        cluster.give_birth(1)
        try:
            await cluster.start(1)
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("t", partitions=9)
            await cluster.start(2, 3, join=(cluster.address(1),))
            await cluster.until(1, lambda image: in_sync(image) == [3] * 9)
        finally:
            await cluster.stop(*cluster.brokers)

    loops.run(work())


def in_sync(image: MetadataImage) -> list[int]:
    topic = image.topic("t")
    return [] if topic is None else [len(one.isr) for one in topic.partitions]
