"""Partitions get the replicas that they lack, also where brokers come while others are still being added."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from headrace.base.limits import REPLICAS_GROWN_AT_ONCE_MAX
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.growing import Grower
from headrace.controller.decision import Decision
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from tests import loops
from tests.broker.clusters import Cluster
from tests.controller.test_brokers import fence, register
from tests.controller.test_growth import joined, made, topic_of
from tests.controller.test_reassignments import applied

T = TypeVar("T")

PARTITIONS = 9
TURNS = 100
"""Of the loop, in which a grower has done all that it can do at once."""


class Deciding:
    """A controller whose every change is committed at once; what else happens to the image is the test's."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._subscribers: list[Callable[[ImageDelta], None]] = []

    def subscribe(self, subscriber: Callable[[ImageDelta], None]) -> None:
        self._subscribers.append(subscriber)

    async def submit(self, decide: Callable[[MetadataImage], Decision[T]]) -> T:
        decision = decide(self.image)
        await asyncio.sleep(0)
        if decision.events:
            self.become(applied(self.image, decision.events))
        return decision.result

    def become(self, image: MetadataImage) -> None:
        before, self.image = self.image, image
        for subscriber in self._subscribers:
            subscriber(ImageDelta(before, image))


def test_who_comes_while_another_is_added_is_added_next() -> None:
    async def work() -> None:
        metadata = Deciding(made(register(EMPTY_IMAGE, 1), PARTITIONS, factor=1, desired=3))
        grower = Grower(metadata=cast("MetadataDriver", metadata), on_bug=raised)
        grower.begin()
        try:
            metadata.become(register(metadata.image, 2))
            await turns()
            assert added(metadata.image) == [(2,)] * PARTITIONS
            metadata.become(register(metadata.image, 3))
            await turns()
            assert added(metadata.image) == [(2,)] * PARTITIONS  # one after the other
            metadata.become(joined(metadata.image))
            await turns()
            assert added(metadata.image) == [(3,)] * PARTITIONS
        finally:
            grower.end()

    loops.run(work())


def test_who_goes_down_while_it_is_added_holds_nobody_up() -> None:
    """There is room for no more at once than wait for it."""

    async def work() -> None:
        count = REPLICAS_GROWN_AT_ONCE_MAX + PARTITIONS
        metadata = Deciding(made(register(EMPTY_IMAGE, 1), count, factor=1, desired=3))
        grower = Grower(metadata=cast("MetadataDriver", metadata), on_bug=raised)
        grower.begin()
        try:
            metadata.become(register(metadata.image, 2))
            await turns()
            assert added(metadata.image) == [(2,)] * REPLICAS_GROWN_AT_ONCE_MAX + [()] * PARTITIONS
            metadata.become(fence(metadata.image, 2))
            await turns()
            metadata.become(register(metadata.image, 3))
            for _ in range(2):
                await turns()
                metadata.become(joined(metadata.image))
            assert [3 in one.isr for one in topic_of(metadata.image).partitions] == [True] * count
        finally:
            grower.end()

    loops.run(work())


def test_every_partition_gets_what_it_lacks_of_brokers_that_come_together(tmp_path: Path) -> None:
    async def work() -> None:
        cluster = Cluster(tmp_path)
        del cluster.configs["default.replication.factor"]
        cluster.give_birth(1)
        try:
            await cluster.start(1)
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("t", partitions=PARTITIONS)
            await cluster.start(2, 3, join=(cluster.address(1),))
            await cluster.until(1, lambda image: in_sync(image) == [3] * PARTITIONS)
        finally:
            await cluster.stop(*cluster.brokers)

    loops.run(work())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def raised(error: BaseException) -> None:
    raise error


def added(image: MetadataImage) -> list[tuple[int, ...]]:
    return [one.adding for one in topic_of(image).partitions]


def in_sync(image: MetadataImage) -> list[int]:
    topic = image.topic("t")
    return [] if topic is None else [len(one.isr) for one in topic.partitions]
