"""A cluster of brokers in this process, over real directories and loopback."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.ports import Objects
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.home import identity
from headrace.broker.parts import Parts
from headrace.broker.system import SystemClock, system_random
from headrace.controller.brokers import fence_broker, unfence_broker
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.image import MetadataImage
from headrace.storage.disk import LocalDisk
from tests.broker.group_broker import until
from tools import engine_under_test
from tools.servers.server_process import port_held_for

DEADLINE_S = 150.0
CONFIGS = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
}
"""Quick, and one copy of each partition, unless a test says otherwise."""
BY_HAND = {"broker.heartbeat.interval.ms": "3600000", "broker.session.timeout.ms": "3600000"}
"""Nobody is fenced, or unfenced, but by the test."""


class Cluster:
    """Brokers by id, each in a directory of its own; stopped ones can be started again where they were."""

    def __init__(
        self,
        directory: Path,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        objects: Objects | None = None,
    ) -> None:
        """`objects`: the durable store of all."""
        self._directory = directory
        self._racks = racks or {}
        self._objects = objects
        self.stores: dict[int, Objects | None] = {}
        """Stores of brokers that have another one than the rest, or none."""
        self.configs = {**CONFIGS, **(configs or {})}
        """Configs of the started brokers."""
        self._addresses: dict[int, Address] = {}
        self.brokers: dict[int, Broker] = {}

    def data(self, broker: int) -> Path:
        return self._directory / f"broker-{broker}"

    def address(self, broker: int) -> Address:
        """Where it listens, or will."""
        if broker not in self._addresses:
            self._addresses[broker] = Address("127.0.0.1", port_held_for(self))
        return self._addresses[broker]

    @property
    def bootstrap(self) -> str:
        return ",".join(str(self.address(broker)) for broker in self.brokers)

    def give_birth(self, count: int) -> None:
        """Brokers 1 to `count` are the voters, and none is started. On Redis there are no voters."""
        if engine_under_test.is_redis():
            return
        addresses = {BrokerId(one): (self.address(one).host, self.address(one).port) for one in range(1, count + 1)}
        for made in identity.born(system_random(), addresses):
            self.data(made.broker_id).mkdir(parents=True)
            identity.write(LocalDisk(), self.data(made.broker_id), made)

    async def start(self, *brokers: int, join: tuple[Address, ...] = ()) -> None:
        """Start them together, until all are ready."""
        await asyncio.gather(*(self._start(broker, join) for broker in brokers))

    async def _start(self, broker: int, join: tuple[Address, ...]) -> None:
        address = self.address(broker)
        config = BrokerConfig(
            data=self.data(broker),
            host=address.host,
            port=address.port,
            broker_id=BrokerId(broker),
            join=join,
            rack=self._racks.get(broker),
            configs=self.configs,
        )
        store = self.stores.get(broker, self._objects)
        running = Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk(), objects=store)
        async with asyncio.timeout(DEADLINE_S):
            await running.start()
        self.brokers[broker] = running

    async def stop(self, *brokers: int) -> None:
        """One after the other."""
        for broker in brokers:
            await self.brokers.pop(broker).stop()

    @property
    def controller(self) -> Parts:
        """Of whoever decides now."""
        (found,) = [running.parts for running in self.brokers.values() if running.parts.metadata.is_controller]
        return found

    def fence(self, broker: int) -> Awaitable[Refusal | None]:
        """As its silence would."""
        return self._have(fence_broker, broker)

    def unfence(self, broker: int) -> Awaitable[Refusal | None]:
        """As its heartbeat would."""
        return self._have(unfence_broker, broker)

    async def _have(self, decide: Callable[..., Decision[Refusal | None]], broker: int) -> Refusal | None:
        metadata = (await self.decider()).metadata
        known = metadata.image.brokers[BrokerId(broker)]
        return await metadata.submit(partial(decide, broker_id=known.id, broker_epoch=known.epoch))

    async def decider(self) -> Parts:
        """The deciding controller, once there is one: a new leader is elected before it knows all decisions."""
        await until(lambda: sum(each.parts.metadata.is_controller for each in self.brokers.values()) == 1)
        return self.controller

    async def settled(self, broker: int) -> None:
        """Wait until the work that the image asks of it is done."""
        await self.brokers[broker].parts.partitions.settled()

    def wipe(self, broker: int) -> None:
        """Its disk is lost."""
        shutil.rmtree(self.data(broker))

    def image(self, broker: int) -> MetadataImage:
        """As that broker has it."""
        return self.brokers[broker].image

    @property
    def newest_image(self) -> MetadataImage:
        """As the broker has it that knows most."""
        return max(map(self.image, self.brokers), key=lambda image: image.index)

    async def until(self, broker: int, holds: Callable[[MetadataImage], bool]) -> None:
        """Wait until that broker's image is such."""
        running, reached = self.brokers[broker], asyncio.Event()

        def look() -> None:
            if not reached.is_set() and holds(running.image):
                reached.set()

        running.observe(lambda _: look())
        look()
        async with asyncio.timeout(DEADLINE_S):
            await reached.wait()

    async def agree(self, *, is_carried_out: bool = True) -> MetadataImage:
        """Wait until all images are at the index of the furthest, and give it.

        A broker that has an image serves by it only once logs are open and roles given. That is waited for, too,
        except where the test holds it up: `is_carried_out` is false.
        """
        furthest = self.newest_image
        for broker in self.brokers:
            await self.until(broker, lambda image: image.index >= furthest.index)
        for broker in self.brokers if is_carried_out else ():
            await self.settled(broker)
        return furthest


@asynccontextmanager
async def running(directory: Path, voters: int, configs: Mapping[str, str] | None = None) -> AsyncIterator[Cluster]:
    """So many brokers, born together and ready; stopped after the block."""
    cluster = Cluster(directory, configs)
    cluster.give_birth(voters)
    try:
        await cluster.start(*range(1, voters + 1))
        await cluster.agree()  # each knows that the others are ready
        yield cluster
    finally:
        await cluster.stop(*cluster.brokers)
