"""Three brokers that hold each other's partitions, for tests of replication: leaders, followers, and how far each is.
Their disks keep a flush waiting for as long as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headrace.base.ids import BrokerId, Offset, PartitionIndex, TopicPartition
from headrace.base.ports import Objects
from headrace.broker.partitions.flusher import Rounds
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.metadata.values import PartitionImage
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from headrace.storage.engine.files import Upkeep
from headrace.storage.engine.flushing import FlushRound, FlushTicket, Outcomes
from headrace.wire.batches import decode_records, iterate_headers
from headrace.wire.messages.metadata import MetadataRequest
from tests.broker.clusters import Cluster
from tests.broker.data_path import fetch
from tests.broker.group_broker import RawClient, until

ALL = (1, 2, 3)
WHOLE_S = 150.0
"""For a test with its brokers' start and stop: less than the test's own limit, which does not say how all stood."""


class HeldRound(NamedTuple):
    """A round of flushes that begins when it is let go."""

    begun: FlushRound
    held: list[Callable[[], None]]

    def begin(self, done: Callable[[Outcomes], object]) -> None:
        self.held.append(lambda: self.begun.begin(done))

    def end(self) -> None:
        self.begun.end()


class HeldRounds:
    """A broker's engine, as its flusher sees it, whose disk is slow: no round begins until they are let go."""

    def __init__(self, engine: Rounds) -> None:
        self._engine = engine
        self._held: list[Callable[[], None]] | None = []

    def begin_round(self, tickets: Sequence[FlushTicket]) -> FlushRound:
        begun = self._engine.begin_round(tickets)
        return begun if self._held is None else HeldRound(begun, self._held)

    @property
    def upkeep(self) -> Upkeep | None:
        return self._engine.upkeep

    def let_go(self) -> None:
        held, self._held = self._held, None
        for begin in held or ():
            begin()


class World:
    """A running cluster, its clients, and its topics, each of one partition unless it is said."""

    def __init__(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self._clients: dict[int, RawClient] = {}

    async def client(self, broker: int) -> RawClient:
        """The one for tests that ask one thing at a time."""
        if broker not in self._clients:
            self._clients[broker] = await self.another_client(broker)
        return self._clients[broker]

    async def another_client(self, broker: int) -> RawClient:
        return await self._stack.enter_async_context(RawClient(str(self.cluster.address(broker))))

    async def stop(self, *brokers: int) -> None:
        for broker in brokers:
            self._clients.pop(broker, None)
        await self.cluster.stop(*brokers)

    @contextmanager
    def held(self, *brokers: int) -> Iterator[None]:
        """No flush of theirs ends within the block."""
        gates = []
        for broker in brokers:
            flusher = self.cluster.brokers[broker].parts.logs.flusher
            gates.append(HeldRounds(flusher._engine))
            flusher._engine = gates[-1]
        try:
            yield
        finally:
            for gate in gates:
                gate.let_go()

    # topics

    async def make(self, name: str, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
        """Until every replica is opened, and every follower copies."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        async with Client(self.cluster.bootstrap) as client:
            await Admin(client).create_topic(
                name, partitions=partitions, replication_factor=replicas, configs=named or None
            )
        await self.cluster.agree()
        for index in range(partitions):
            await until(lambda index=index: self.all_copy(name, index))  # type: ignore[misc]

    def all_copy(self, name: str, index: int = 0) -> bool:
        """Whether all followers have been heard of in this epoch, and the ISR has all replicas."""
        leading = self.leading(name, index)
        if leading is None:
            return False
        standings = leading.isr.leader
        others = {each for each in standings.replicas if each != standings.node}
        return standings.flushed_ends.keys() == others and len(standings.isr) == len(standings.replicas)

    def key(self, name: str, index: int = 0) -> TopicPartition:
        image = self.cluster.newest_image
        return TopicPartition(image.topic_ids[name], PartitionIndex(index))

    def image(self, name: str, index: int = 0, *, broker: int | None = None) -> PartitionImage:
        """Return it as that broker knows it, or the one that knows most."""
        image = self.cluster.newest_image if broker is None else self.cluster.image(broker)
        found = image.partition(self.key(name, index))
        assert found is not None
        return found

    # roles

    def partitions(self, broker: int) -> Partitions:
        return self.cluster.brokers[broker].parts.partitions

    def role(self, broker: int, name: str, index: int = 0) -> Replica:
        key = self.key(name, index)
        (found,) = [each for each in self.partitions(broker).replicas if each.topic_partition == key]
        return found

    def leading(self, name: str, index: int = 0) -> Partition | None:
        """Where it is led, in the newest epoch that anybody serves it in; None: nowhere."""
        key, found = self.key(name, index), []
        for broker in self.cluster.brokers:
            served = self.partitions(broker).find(key, self.cluster.image(broker))
            if isinstance(served, Partition):
                found.append(served)
        return max(found, key=lambda each: each.leader_epoch, default=None)

    def leader(self, name: str, index: int = 0) -> int:
        """The broker that serves it."""
        leading = self.leading(name, index)
        assert leading is not None, "somebody leads it"
        return leading.isr.leader.node

    def followers(self, name: str, index: int = 0) -> list[int]:
        leader = self.leader(name, index)
        return [each for each in ALL if each != leader]

    def copy(self, broker: int, name: str, index: int = 0) -> FollowerPartition:
        found = self.partitions(broker).follower(self.key(name, index))
        assert found is not None, "it is copied there"
        return found

    # changes

    async def fence(self, *brokers: int) -> None:
        for broker in brokers:
            assert await self.cluster.fence(broker) is None
        await self.carried_out()

    async def unfence(self, *brokers: int) -> None:
        for broker in brokers:
            assert await self.cluster.unfence(broker) is None
        await self.carried_out()

    async def carried_out(self) -> None:
        """Everybody does what the image says."""
        await self.cluster.agree()

    async def in_sync(self, name: str, count: int = 3, index: int = 0) -> None:
        """Until the ISR has so many members everywhere."""
        key = self.key(name, index)
        for broker in self.cluster.brokers:
            await self.cluster.until(broker, lambda image: len(image.partition(key).isr) == count)  # type: ignore[union-attr]

    async def until_end(self, name: str, end: int, *brokers: int) -> None:
        """Until the logs of these are flushed that far, or all are."""
        for broker in brokers or tuple(self.cluster.brokers):
            await until(lambda broker=broker: self.role(broker, name).log.flushed_end >= end)  # type: ignore[misc]

    async def committed(self, name: str, end: int) -> None:
        """Until the leader shows all below `end`."""
        await until(lambda: (leading := self.leading(name)) is not None and leading.high_watermark >= Offset(end))

    async def turns(self) -> None:
        """Everybody has had the time for what could be done by now: several questions and answers."""
        for _ in range(3):
            for broker in self.cluster.brokers:
                await (await self.client(broker)).ask(12, MetadataRequest(topics=()))

    def standing(self) -> list[str]:
        """Of each broker: which it counts as alive, whether it decides, and each of its replicas."""
        return [f"broker {broker}: {self._standing(broker)}" for broker in self.cluster.brokers]

    def _standing(self, broker: int) -> str:
        metadata, image = self.cluster.brokers[broker].parts.metadata, self.cluster.image(broker)
        told = [f"alive {[each.id for each in image.brokers.values() if not each.fenced]}"]
        told += ["is the controller"] if metadata.is_controller else []
        for role in self.partitions(broker).replicas:
            known = image.partition(role.topic_partition)
            told.append(
                f"{role.topic}-{role.topic_partition.partition} {type(role).__name__} in epoch {role.leader_epoch}, "
                f"log {role.log.log_start_offset} to {role.log.flushed_end} of {role.log.log_end_offset}, "
                f"high watermark {role.high_watermark}, {role.availability.name}, in the image {known}"
            )
            told += [f"standings {role.isr.leader}"] if isinstance(role, Partition) else []
        return ", ".join(told)

    # records

    async def read(self, name: str, index: int = 0) -> list[tuple[int, bytes | None]]:
        """Offset and value of all that a consumer may see, from the leader."""
        client = await self.client(self.leader(name, index))
        found: list[tuple[int, bytes | None]] = []
        offset = int(self.role(self.leader(name, index), name, index).log.log_start_offset)
        while True:
            answer = await fetch(client, name, offset, partition=index)
            assert answer.error_code == 0
            if not answer.records:
                return found
            found += decoded(answer.records)
            offset = found[-1][0] + 1

    def files(self, broker: int, name: str, index: int = 0) -> dict[str, bytes]:
        """The segments of a broker that is stopped."""
        (directory,) = self.cluster.data(broker).rglob(f"{name}-{index}")
        return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def decoded(records: Any) -> list[tuple[int, bytes | None]]:
    batches = [records[at : at + header.size] for at, header in iterate_headers(records)]
    return [(record.offset, record.value) for batch in batches for record in decode_records(batch)]


@asynccontextmanager
async def replicating(
    directory: Path,
    configs: Mapping[str, str] | None = None,
    racks: Mapping[int, str] | None = None,
    objects: Objects | None = None,
) -> AsyncIterator[World]:
    """Brokers 1 to 3, ready. Raises TimeoutError, with how all stood then."""
    stood: list[str] = []
    try:
        async with asyncio.timeout(WHOLE_S), AsyncExitStack() as stack:
            cluster = Cluster(directory, configs, racks, objects)
            cluster.give_birth(len(ALL))
            world = World(cluster, stack)
            try:
                await cluster.start(*ALL)
                await cluster.agree()  # each knows that the others are ready
                assert set(cluster.brokers) == {BrokerId(each) for each in ALL}
                yield world
            except asyncio.CancelledError:
                stood = world.standing()
                raise
            finally:
                await cluster.stop(*cluster.brokers)
    except TimeoutError as error:
        raise TimeoutError("; ".join(stood)) from error
