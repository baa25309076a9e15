"""Brokers' drivers on one commit log in a real Valkey."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from headrace.base.ids import BrokerId, ClusterId, DirectoryId, LeaderEpoch, PartitionEpoch, PartitionIndex, TopicId
from headrace.broker.cluster.driver import MetadataDriver, OutcomeUnknown
from headrace.controller.decision import Decision
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import ClusterBorn, MetadataEvent, TopicCreated
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import Engine, PartitionImage
from headrace.storage.redis.errors import RedisOutcomeUnknown
from headrace.storage.redis.links.address import parse_redis_address
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.opening import client_of, open_redis
from headrace.storage.redis.metadata.commit_log import RedisCommitLog
from headrace.storage.redis.metadata.durability import Durability
from headrace.storage.redis.metadata.lease import Holder, LeaseTimes
from headrace.storage.redis.server_side.keys import Keys
from tools.servers.redis_servers import RedisServer

KEYS: Final = Keys()
QUICK: Final = LeaseTimes(lasts=300, poll=20)
STEADY: Final = LeaseTimes(lasts=30_000, poll=20)
"""Nobody loses it, however busy the machine is."""
TOPIC: Final = TopicId(uuid.UUID(int=7))
BORN: Final = ClusterBorn(cluster_id=ClusterId("cluster"), engine=Engine.REDIS)


class Node:
    """A broker's driver on the shared log."""

    def __init__(
        self,
        number: int,
        commands: Redis,
        reading: Redis,
        times: LeaseTimes = STEADY,
        durability: Durability | None = None,
    ) -> None:
        holder = Holder(BrokerId(number), DirectoryId(uuid.UUID(int=number)), "127.0.0.1", 9000 + number)
        self.log = RedisCommitLog(
            commands,
            reading,
            KEYS,
            name=f"node {number}",
            about=lambda: holder,
            times=times,
            durability=durability,
        )
        self.commands, self.reading = commands, reading
        self.fatal: list[Exception] = []
        self.driver = MetadataDriver(self.log, me=holder.broker, on_fatal=self.fatal.append)
        self.went_back = False
        """Whether its image's index, or the leader epoch of a partition 0, ever fell."""
        self.driver.subscribe(self._look)

    @property
    def image(self) -> MetadataImage:
        return self.driver.image

    def _look(self, delta: ImageDelta) -> None:
        self.went_back |= delta.after.index < delta.before.index
        for topic in delta.before.topics.values():
            if (after := delta.after.topics.get(topic.id)) is not None:
                self.went_back |= after.partitions[0].leader_epoch < topic.partitions[0].leader_epoch

    async def submit(self, *events: MetadataEvent) -> None:
        await self.driver.submit(lambda image: Decision(events, None))

    async def crash(self) -> None:
        """End without giving the lease back."""
        self.log.halt(lambda: OutcomeUnknown())
        await self.commands.close()
        await self.reading.close()


class Join:
    """Starts nodes on one server."""

    def __init__(self, server: RedisServer) -> None:
        self.server: Final = server
        self.nodes: list[Node] = []

    async def __call__(
        self,
        number: int,
        times: LeaseTimes = STEADY,
        *,
        reading: str = "",
        durability: Durability | None = None,
    ) -> Node:
        """`reading`: the URL at which it reads the log; empty: that of the server."""
        address = parse_redis_address(self.server.url)
        commands = await open_redis(address, Random(number))
        way = client_of(parse_redis_address(reading), Random(number)) if reading else commands
        read = way.beside(KEYS.metadata, timeout_ms=10_000)
        if way is not commands:
            await way.close()
        await read.ready(10_000)
        node = Node(number, commands, read, times, durability)
        self.nodes.append(node)
        await node.driver.start()
        return node

    async def close(self) -> None:
        for node in self.nodes:
            await node.driver.stop()
            await node.commands.close()  # of one that never started
            await node.reading.close()


class Losing:
    """A server that is to lose what it was told last. It keeps its append-only file as it was at the beginning."""

    def __init__(self, server: RedisServer) -> None:
        self.server: Final = server
        self._file: Final = server.directory / "appendonlydir"
        self._kept: Final = server.directory / "kept"
        shutil.copytree(self._file, self._kept)

    def fail(self) -> None:
        """Kill it, and start it as it was, with another history. Blocks."""
        self.server.kill()
        shutil.rmtree(self._file)
        self._kept.rename(self._file)
        self.server.start()


class Way:
    """A way to a server that can be cut."""

    def __init__(self, server: RedisServer, path: Path) -> None:
        self._server: Final = server
        self._path: Final = path
        self.restore()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def restore(self) -> None:
        self._path.symlink_to(self._server.socket)

    def sever(self, client: Redis) -> None:
        """Until it is restored, this client has no connection, and gets none."""
        self._path.unlink()
        client.leave(RedisOutcomeUnknown("The way is cut."))

    @contextmanager
    def cut(self, client: Redis) -> Iterator[None]:
        self.sever(client)
        yield
        self.restore()


def created(name: str = "orders", topic: TopicId = TOPIC) -> TopicCreated:
    return TopicCreated(topic_id=topic, name=name, partitions=(partition(0),), configs={"retention.ms": "1000"})


def partition(index: int) -> PartitionImage:
    return PartitionImage(
        index=PartitionIndex(index),
        replicas=(BrokerId(1),),
        isr=(BrokerId(1),),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )
