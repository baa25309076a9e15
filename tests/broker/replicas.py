"""Helpers for tests of replicas on a `Cluster`: they name the leader, hold up a broker's disk, and look at either
role."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex, TopicPartition
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.controller.decision import Decision
from headrace.metadata.events import IsrChanged, LeaderChanged
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from tests.broker import group_broker
from tests.broker.clusters import Cluster
from tests.broker.group_broker import RawClient

DEADLINE_S = 150.0


async def until(true: Callable[[], bool]) -> None:
    """Looked at in every turn of the loop."""
    async with asyncio.timeout(DEADLINE_S):
        await group_broker.until(true)


async def make_topic(cluster: Cluster, name: str, replicas: int, **configs: str) -> TopicPartition:
    """Of one partition, with all of its replicas in sync; None of its configs has a dash."""
    items = tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items())
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=replicas, configs=items)
    async with RawClient(cluster.bootstrap.split(",")[0]) as client:
        await client.create(topic)
    image = await cluster.agree()
    return TopicPartition(image.topic_ids[name], PartitionIndex(0))


def known(image: MetadataImage, key: TopicPartition) -> PartitionImage:
    found = image.partition(key)
    assert found is not None
    return found


def leader(cluster: Cluster, broker: int, key: TopicPartition) -> Partition:
    """Its role there, which is the leader's."""
    found = cluster.brokers[broker].parts.partitions.find(key, cluster.image(broker))
    assert isinstance(found, Partition), found
    return found


def follower(cluster: Cluster, broker: int, key: TopicPartition) -> FollowerPartition:
    """Its role there, which is a follower's."""
    found = cluster.brokers[broker].parts.partitions.follower(key)
    assert found is not None
    return found


async def elect(cluster: Cluster, key: TopicPartition, broker: int, isr: Sequence[int] | None = None) -> None:
    """As the controller would, were the leader gone; `isr`: where another one than before."""

    def decide(image: MetadataImage) -> Decision[None]:
        before = known(image, key)
        event = LeaderChanged(
            topic_id=key.topic_id,
            partition=key.partition,
            leader=BrokerId(broker),
            leader_epoch=LeaderEpoch(before.leader_epoch + 1),
            partition_epoch=PartitionEpoch(before.partition_epoch + 1),
            isr=before.isr if isr is None else tuple(BrokerId(each) for each in isr),
        )
        return Decision((event,), None)

    await cluster.controller.metadata.submit(decide)


async def set_isr(cluster: Cluster, key: TopicPartition, isr: Sequence[int]) -> None:
    def decide(image: MetadataImage) -> Decision[None]:
        before = known(image, key)
        event = IsrChanged(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=before.leader_epoch,
            partition_epoch=PartitionEpoch(before.partition_epoch + 1),
            isr=tuple(BrokerId(each) for each in isr),
        )
        return Decision((event,), None)

    await cluster.controller.metadata.submit(decide)


@contextmanager
def held_rounds(cluster: Cluster, broker: int) -> Iterator[Callable[[], None]]:
    """That broker's disk takes no sync, until told to go on, or the block ends."""
    flusher = cluster.brokers[broker].parts.logs.flusher
    gate = _Gate(flusher)
    flusher._engine = gate
    try:
        yield gate.open
    finally:
        gate.open()


class _Gate:
    """An engine that hands out rounds which do not begin."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._engine: Any = flusher._engine
        self._waiting: list[Callable[[], None]] = []

    def begin_round(self, tickets: Any) -> Any:
        inner = self._engine.begin_round(tickets)
        waiting = self._waiting

        class Held:
            def begin(self, done: Any) -> None:
                waiting.append(lambda: inner.begin(done))

            def end(self) -> None:
                inner.end()

        return Held()

    @property
    def upkeep(self) -> Any:
        return self._engine.upkeep

    @property
    def count(self) -> int:
        return len(self._waiting)

    def open(self) -> None:
        self.begin_round = self._engine.begin_round  # type: ignore[method-assign]
        waiting, self._waiting[:] = list(self._waiting), []
        for begin in waiting:
            begin()


def silence(cluster: Cluster, broker: int) -> None:
    """That broker copies nothing in later epochs, and goes on with what it copies now."""
    copying = cluster.brokers[broker].parts.replication.copying
    vars(copying).update(copy=lambda _: None, drop=lambda _: None)


def release_later(cluster: Cluster, broker: int, wait: Callable[[Sequence[PartitionLog]], Awaitable[None]]) -> None:
    """That broker's logs are closed, or change their roles, only after this wait too."""
    examiner = cluster.brokers[broker].parts.upkeep.examiner
    release = examiner.release

    async def and_wait(logs: Sequence[PartitionLog]) -> None:
        await release(logs)
        await wait(logs)

    vars(examiner).update(release=and_wait)
