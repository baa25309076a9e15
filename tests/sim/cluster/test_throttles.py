"""Replication throttles (KIP-73) on virtual time: an out-of-sync copy catches up at the configured rate and no faster.
Nothing holds up a copy in sync."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.metadata.values import PartitionImage
from headrace.sim.client import Client
from headrace.sim.cluster.brokers import CONFIGS, BrokerPrograms
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.guard import guarded
from headrace.sim.loop import VirtualLoop
from headrace.sim.run import close
from headrace.wire.apis import ApiKey
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.data_path import batch, produce_request

RATE = 50_000
BATCHES, BATCH_BYTES = 40, 10_000
BYTES = BATCHES * BATCH_BYTES
BROKER = 4
"""As resources of configs are numbered."""


class World:
    """Three brokers, and a topic of which all hold a replica."""

    def __init__(self, loop: VirtualLoop, side: str, replicas: str) -> None:
        self.world = ClusterWorld(loop, 1, "throttles ")
        self.side = side
        self._replicas = replicas
        configs = {**CONFIGS, "broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
        programs = BrokerPrograms(range(1, 4), configs)
        self.hosts = {node: Host(self.world, node, programs) for node in range(1, 4)}
        programs.birth(list(self.hosts.values()))
        self.clients = {node: Client("test", (address_of(node), PORT)) for node in self.hosts}

    @property
    def state(self) -> PartitionImage | None:
        """As the newest image of those that serve has it."""
        images = [host.program._broker.image for host in self.hosts.values() if host.serves]  # type: ignore[union-attr]
        newest = max(images, key=lambda image: image.index)
        topic = newest.topic("t")
        return None if topic is None else newest.partition(TopicPartition(topic.id, PartitionIndex(0)))

    async def until_in_sync(self, count: int) -> None:
        while (state := self.state) is None or len(state.isr) != count:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)

    async def begin(self) -> None:
        for host in self.hosts.values():
            host.boot()
        while not all(host.serves for host in self.hosts.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        configs = (
            CreatableTopicConfig(f"{self.side}.replication.throttled.replicas", self._replicas),
            CreatableTopicConfig("min.insync.replicas", "1"),
            CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 60)),
        )
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=3, configs=configs)
        (made,) = (await self.clients[1].call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 9_000))).topics
        assert made.error_code == 0, made.error_message
        await self.until_in_sync(3)

    async def set_rate(self, rate: int) -> None:
        """Of all brokers, while they run."""
        config = AlterableConfig(f"{self.side}.replication.throttled.rate", 0, str(rate))
        resource = AlterConfigsResource(BROKER, "", (config,))
        request = IncrementalAlterConfigsRequest(resources=(resource,))
        (told,) = (await self.clients[1].call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
        assert told.error_code == 0, told.error_message

    async def produce(self) -> None:
        assert self.state is not None
        client = self.clients[self.state.leader]
        for _ in range(BATCHES):
            request = produce_request("t", batch(bytes(BATCH_BYTES)))
            answer = await client.call(ApiKey.PRODUCE, 9, request)
            assert answer.responses[0].partition_responses[0].error_code == 0

    async def lose_a_disk(self) -> None:
        """Lose the disk of a follower, until it is back, and begins to copy everything again."""
        assert self.state is not None
        node = next(each for each in self.hosts if each != self.state.leader)
        self.hosts[node].wipe()
        self.hosts[node].boot()
        while BrokerId(node) in self.state.isr:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while not self.hosts[node].serves:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def play(work: Coroutine[Any, Any, None], loop: VirtualLoop) -> None:
    with guarded():
        try:
            loop.run_until_complete(asyncio.wait_for(work, 3_600))
        finally:
            close(loop)
    assert loop.failures == []


@pytest.mark.parametrize(("side", "replicas"), [("leader", "*"), ("follower", "*"), ("leader", "0:1,0:2,0:3")])
def test_a_copy_out_of_sync_comes_at_its_rate(side: str, replicas: str) -> None:
    loop = VirtualLoop(random.Random(1))
    world = World(loop, side, replicas)

    async def work() -> None:
        await world.begin()
        await world.set_rate(RATE)
        began = loop.time()
        await world.produce()
        assert loop.time() - began < BYTES / RATE, "who is in sync is not held up"
        await world.lose_a_disk()
        began = loop.time()
        await world.until_in_sync(3)
        took = loop.time() - began
        assert BYTES / RATE - 2 < took < BYTES / RATE * 1.5 + 3
        await world.set_rate(1 << 40)
        await world.lose_a_disk()
        began = loop.time()
        await world.until_in_sync(3)
        assert loop.time() - began < 4, "who is not limited any more is back at once"

    play(work(), loop)
    assert world.world.problems == []


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_only_those_replicas_are_held_up_that_are_named(side: str) -> None:
    loop = VirtualLoop(random.Random(1))
    world = World(loop, side, "1:1,1:2,1:3,0:9")

    async def work() -> None:
        await world.begin()
        await world.set_rate(RATE)
        await world.produce()
        await world.lose_a_disk()
        began = loop.time()
        await world.until_in_sync(3)
        assert loop.time() - began < 4

    play(work(), loop)
