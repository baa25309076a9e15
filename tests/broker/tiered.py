"""One broker with a durable store whose logs keep as little as they may, so that nearly all is read from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.ports import Objects
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.partitions.partition import Partition
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.redis.links.address import RedisAddress
from tests.broker.data_path import batch, create, fetch, produce
from tests.broker.group_broker import QUICK, RawClient, until

PER_BATCH = 2
TIME = 1_700_000_000_000
SETTLED = 76
"""Where the log of the first 40 batches begins once all that is closed is durable: there it stays."""


def values(number: int) -> list[bytes]:
    """Of the batch of this number."""
    return [b"%d/%d" % (number, at) + b"v" * 200 for at in range(PER_BATCH)]


def objects_in(root: Path) -> DirectoryObjects:
    return DirectoryObjects(LocalDisk(), root / "store")


class Tiered:
    """A broker, a client of it, and topic 't', of one partition."""

    def __init__(self, broker: Broker, client: RawClient) -> None:
        self.broker = broker
        self.client = client

    @property
    def partition(self) -> Partition:
        topic = self.broker.image.topic("t")
        assert topic is not None
        found = self.broker.parts.partitions.find(TopicPartition(topic.id, PartitionIndex(0)), self.broker.image)
        assert isinstance(found, Partition)
        return found

    async def create(self, **configs: str) -> None:
        known = {"segment_bytes": "1024", "local_retention_bytes": "0", "retention_ms": "-1"}
        await create(self.client, "t", 1, **{**known, **configs})

    async def produce(self, first: int, count: int, *, time: int = TIME) -> None:
        for number in range(first, first + count):
            answer = await produce(self.client, "t", batch(*values(number), timestamp=time + 10 * number))
            assert (answer.error_code, answer.base_offset) == (0, PER_BATCH * number)

    async def local_start(self, at_least: int) -> None:
        """Wait until the log begins there, or above."""
        await until(lambda: self.partition.log.log_start_offset >= at_least)

    async def read(self, offset: int) -> tuple[int, bytes]:
        """The result of one fetch: its error, and bytes."""
        found = await fetch(self.client, "t", offset, wait_ms=10_000)
        return found.error_code, bytes(found.records)


@asynccontextmanager
async def tiered(
    root: Path,
    configs: Mapping[str, str] | None = None,
    *,
    objects: Objects | None = None,
    redis: RedisAddress | None = None,
) -> AsyncIterator[Tiered]:
    quick = {**QUICK, "log.retention.check.interval.ms": "5", **(configs or {})}
    config = BrokerConfig(data=root / "data", port=0, configs=quick, redis=redis)
    store = objects or objects_in(root)
    async with (
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk(), objects=store) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        yield Tiered(broker, client)
