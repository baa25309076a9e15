"""Promise 6: the durable catalog has no gap, no overlap, and its chain verifies; its content equals the log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import PartitionIndex
from headrace.base.ports import Buffer
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.metadata.delta import ImageDelta
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.format import decode_footer
from headrace.storage.tier.packed import batches_of
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import QUICK, RawClient

PARTITIONS = 2


class Frontier:
    """Waits until the catalog of every partition has reached an offset."""

    def __init__(self, broker: Broker) -> None:
        self._ends: dict[int, int] = {}
        self._news = asyncio.Event()
        broker.observe(self._on_delta)

    def _on_delta(self, delta: ImageDelta) -> None:
        self._ends = {key.partition: catalog.end_offset for key, catalog in delta.after.catalog.items()}
        self._news.set()

    async def reached(self, end_offset: int) -> None:
        while len(self._ends) < PARTITIONS or min(self._ends.values()) < end_offset:
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def exporting(root: Path, objects: DirectoryObjects) -> AsyncIterator[tuple[Frontier, RawClient]]:
    config = BrokerConfig(data=root / "data", port=0, configs=QUICK)
    disk, clock = LocalDisk(), SystemClock()
    async with (
        Broker(config, clock=clock, random=system_random(), disk=disk, objects=objects) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        yield Frontier(broker), client


async def create(client: RawClient, codec: str = "none") -> None:
    configs = {"segment.bytes": "4096", "durable.export.max.lag.ms": "0", "storage.compression": codec}
    topic = CreatableTopic(
        name="orders",
        num_partitions=PARTITIONS,
        replication_factor=1,
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in configs.items()),
    )
    response = await client.ask(7, CreateTopicsRequest(topics=(topic,), timeout_ms=120_000))
    assert response.topics[0].error_code == 0, response.topics[0].error_message


async def produce(client: RawClient, first: int, count: int) -> None:
    """`count` batches of two records to each partition; the first record's offset is 2 * `first`."""
    for number in range(first, first + count):
        records = [Record(at, 1_700_000_000_000 + number, b"%d" % number, b"v" * 150, ()) for at in range(2)]
        encoded = memoryview(encode_batch(records))
        data = tuple(PartitionProduceData(index=index, records=encoded) for index in range(PARTITIONS))
        topic = TopicProduceData(name="orders", partition_data=data)
        response = await client.ask(9, ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=(topic,)))
        assert {each.error_code for each in response.responses[0].partition_responses} == {0}


def log_bytes(root: Path, partition: int) -> bytes:
    """The oracle: the partition's files, end to end, as they are on the disk."""
    files = sorted((root / "data" / "logs" / f"orders-{partition}").glob("*.log"))
    return b"".join(file.read_bytes() for file in files)


def check_equal(root: Path, end_offset: int, codec: str = "none") -> None:
    """The store, read with no broker and nothing but its URL, holds the log's bytes and proves itself."""
    store = Store.open(f"file://{root / 'store'}")
    topic = store.topic("orders")
    for partition in range(PARTITIONS):
        store.verify(topic, PartitionIndex(partition))
        entries = list(store.catalog(topic, PartitionIndex(partition)))
        ranges = [(entry.descriptor.start_offset, entry.descriptor.end_offset) for entry in entries]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == end_offset
        assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))
        assert any(entry.descriptor.is_packed for entry in entries) == (codec != "none")
        bodies = ((root / "store" / entry.descriptor.key).read_bytes() for entry in entries)
        exported = b"".join(batches_of(body, decode_footer(body)) for body in bodies)
        assert log_bytes(root, partition).startswith(exported)
        assert len(entries) > 1


def objects_in(root: Path) -> DirectoryObjects:
    return DirectoryObjects(LocalDisk(), root / "store")


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_what_is_closed_is_exported_and_equals_the_log_across_a_restart(tmp_path: Path, codec: str) -> None:
    async with exporting(tmp_path, objects_in(tmp_path)) as (frontier, client):
        await create(client, codec)
        await produce(client, 0, 30)
        await frontier.reached(59)
    check_equal(tmp_path, 59, codec)
    async with exporting(tmp_path, objects_in(tmp_path)) as (frontier, client):
        await produce(client, 30, 30)
        await frontier.reached(119)
    check_equal(tmp_path, 119, codec)


class Interrupted(DirectoryObjects):
    """A store that fails every write of one kind until it is mended."""

    def __init__(self, root: Path, part: str) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.part = part
        self.failed = asyncio.Event()
        self.mended = False
        self._loop = asyncio.get_running_loop()

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        if not self.mended and self.part in key:
            self._loop.call_soon_threadsafe(self.failed.set)
            raise StorageFailure("scripted")
        return super().put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("part", ["/segments/cur", "/state", "segment"])
async def test_a_crash_between_object_event_and_mirror_is_made_good_by_the_next_start(
    tmp_path: Path, part: str, codec: str
) -> None:
    interrupted = Interrupted(tmp_path, part)
    async with exporting(tmp_path, interrupted) as (_, client):
        await create(client, codec)
        await produce(client, 0, 30)
        await interrupted.failed.wait()
    async with exporting(tmp_path, objects_in(tmp_path)) as (frontier, client):
        await produce(client, 30, 1)
        await frontier.reached(61)
    check_equal(tmp_path, 61, codec)


async def test_a_deleted_topic_is_marked_so_in_the_mirror(tmp_path: Path) -> None:
    marked = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Watched(DirectoryObjects):
        def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
            done = super().put(key, data, if_absent=if_absent)
            if b'"deleted": true' in bytes(data):
                loop.call_soon_threadsafe(marked.set)
            return done

    async with exporting(tmp_path, Watched(LocalDisk(), tmp_path / "store")) as (frontier, client):
        await create(client)
        await produce(client, 0, 30)
        await frontier.reached(59)
        await client.ask(5, DeleteTopicsRequest(topic_names=("orders",), timeout_ms=120_000))
        await marked.wait()
    assert Store.open(f"file://{tmp_path / 'store'}").topics() == []


async def test_a_lost_mirror_is_written_anew_from_the_image(tmp_path: Path) -> None:
    async with exporting(tmp_path, objects_in(tmp_path)) as (frontier, client):
        await create(client)
        await produce(client, 0, 30)
        await frontier.reached(59)
    shutil.rmtree(tmp_path / "store" / "storage")
    async with exporting(tmp_path, objects_in(tmp_path)) as (frontier, client):
        await produce(client, 30, 1)
        await frontier.reached(61)
    check_equal(tmp_path, 61)
