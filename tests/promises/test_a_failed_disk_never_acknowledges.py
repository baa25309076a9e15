"""Promise 9: a full disk or a failed fsync stops the partition (the metadata disk: the process) from acknowledging."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ports import Buffer, File, Space
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.errors import error_of as error_from
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import QUICK, RawClient


class BrittleFile:
    """A file whose syncs or appends fail once the disk says so."""

    def __init__(self, file: File, disk: BrittleDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._disk.syncs += 1
        if self._disk.sync_fails(self._file.path):
            raise OSError(errno.EIO, "scripted")
        self._file.sync()

    def append(self, buffers: Sequence[Buffer]) -> int:
        if self._disk.append_fails(self._file.path):
            raise OSError(errno.ENOSPC, "scripted")
        return self._file.append(buffers)


class BrittleDisk(LocalDisk):
    """The real disk, until a path is told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.sync_fails: Callable[[Path], bool] = lambda _: False
        self.append_fails: Callable[[Path], bool] = lambda _: False
        self.usable: int | None = None
        """Bytes that it says it has left; None: those of the real one."""

    def space(self, path: Path) -> Space:
        found = super().space(path)
        return found if self.usable is None else found._replace(usable=self.usable)

    def open(self, path: Path, *, create: bool = False) -> Any:
        return BrittleFile(super().open(path, create=create), self)

    def begin_sync(self, file: File, done: Callable[[OSError | None], object]) -> None:
        def sync() -> OSError | None:
            try:
                file.sync()
            except OSError as error:
                return error
            return None

        work = asyncio.get_running_loop().run_in_executor(None, sync)
        work.add_done_callback(lambda work: done(work.result()))


@asynccontextmanager
async def brittle_broker(
    directory: Path, configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Broker, BrittleDisk, RawClient]]:
    disk = BrittleDisk()
    config = BrokerConfig(data=directory, port=0, configs={**QUICK, **(configs or {})})
    async with (
        Broker(config, clock=SystemClock(), random=system_random(), disk=disk) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        yield broker, disk, client


def produce(partition: int, value: bytes, acks: int = -1) -> ProduceRequest:
    records = encode_batch([Record(0, 1_700_000_000_000, None, value, ())])
    data = PartitionProduceData(index=partition, records=memoryview(records))
    topic = TopicProduceData(name="orders", partition_data=(data,))
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(topic,))


async def error_of(client: RawClient, request: ProduceRequest) -> ErrorCode:
    response = await client.ask(9, request)
    return error_from(response.responses[0].partition_responses[0].error_code)


async def latest(client: RawClient, partition: int) -> tuple[ErrorCode, int]:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="orders", partitions=(asked,)),))
    answer = (await client.ask(6, request)).topics[0].partitions[0]
    return error_from(answer.error_code), answer.offset


@pytest.mark.parametrize("acks", [-1, 1])
async def test_after_a_failed_fsync_a_partition_takes_nothing_more_and_the_others_go_on(
    tmp_path: Path, acks: int
) -> None:
    async with brittle_broker(tmp_path) as (_, disk, client):
        await client.create_topic("orders", 2)
        assert await error_of(client, produce(0, b"kept")) is ErrorCode.NONE
        disk.sync_fails = lambda path: path.parent.name == "orders-0"
        if acks == 1:
            await client.ask(9, produce(0, b"not flushed", acks=1))
        assert await error_of(client, produce(0, b"lost")) is ErrorCode.KAFKA_STORAGE_ERROR
        disk.sync_fails = lambda _: False
        assert await error_of(client, produce(0, b"refused")) is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await latest(client, 0))[0] is ErrorCode.KAFKA_STORAGE_ERROR
        assert await error_of(client, produce(1, b"elsewhere")) is ErrorCode.NONE


async def test_after_a_failed_fsync_a_restart_keeps_what_was_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    async with brittle_broker(tmp_path) as (_, disk, client):
        await client.create_topic("orders", 1)
        assert await error_of(client, produce(0, b"kept")) is ErrorCode.NONE
        disk.sync_fails = lambda path: path.parent.name == "orders-0"
        assert await error_of(client, produce(0, b"in doubt")) is ErrorCode.KAFKA_STORAGE_ERROR
        disk.sync_fails = lambda _: False
    async with brittle_broker(tmp_path) as (_, _, client):
        assert await latest(client, 0) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("acks", [-1, 1])
async def test_on_a_full_disk_a_partition_takes_nothing_serves_all_and_goes_on_once_there_is_room(
    tmp_path: Path, acks: int
) -> None:
    async with brittle_broker(tmp_path) as (broker, disk, client):
        await client.create_topic("orders", 2)
        assert await error_of(client, produce(0, b"kept")) is ErrorCode.NONE
        disk.append_fails = lambda path: path.parent.name == "orders-0"
        for _ in range(2):
            assert await error_of(client, produce(0, b"no room", acks)) is ErrorCode.KAFKA_STORAGE_ERROR
            assert await latest(client, 0) == (ErrorCode.NONE, 1)
            await look(broker)
        disk.append_fails = lambda _: False
        await look(broker)
        assert await error_of(client, produce(0, b"room", acks)) is ErrorCode.NONE
        assert await error_of(client, produce(1, b"elsewhere", acks)) is ErrorCode.NONE
    async with brittle_broker(tmp_path) as (_, _, client):
        assert await latest(client, 0) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("acks", [-1, 1])
async def test_before_the_disk_is_full_clients_are_refused_and_all_else_goes_on(tmp_path: Path, acks: int) -> None:
    async with brittle_broker(tmp_path, {"log.disk.min.free.bytes": "1000"}) as (broker, disk, client):
        await client.create_topic("orders", 1)
        assert await error_of(client, produce(0, b"kept", acks)) is ErrorCode.NONE
        assert broker._parts is not None
        broker._parts.logs.room.stop()  # it is looked at here
        disk.usable = 999
        await look(broker)
        assert await error_of(client, produce(0, b"no room", acks)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await latest(client, 0) == (ErrorCode.NONE, 1)
        await client.create_topic("metadata-has-its-reserve", 1)
        disk.usable = 1000
        await look(broker)
        assert await error_of(client, produce(0, b"room", acks)) is ErrorCode.NONE
        assert await error_of(client, produce(0, b"none left, as far as is known", acks)) is (
            ErrorCode.KAFKA_STORAGE_ERROR
        )


async def look(broker: Broker) -> None:
    """At the room that the disk has."""
    assert broker._parts is not None
    await broker._parts.logs.room.look()


async def test_a_failed_metadata_disk_stops_the_broker_and_the_change_is_never_acknowledged(tmp_path: Path) -> None:
    async with brittle_broker(tmp_path) as (broker, disk, client):
        disk.sync_fails = lambda path: "metadata" in path.parts
        topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        try:
            response = await client.ask(7, CreateTopicsRequest(topics=(topic,), timeout_ms=10_000))
            assert response.topics[0].error_code != 0
        except (EOFError, ConnectionError):
            pass
        await broker.over()
        assert broker.failure is not None


async def test_the_harness_itself_sees_syncs(tmp_path: Path) -> None:
    """The oracle's own check: acks=all does sync, so a broker that did not would be told apart."""
    async with brittle_broker(tmp_path) as (_, disk, client):
        await client.create_topic("orders", 1)
        before = disk.syncs
        assert await error_of(client, produce(0, b"kept")) is ErrorCode.NONE
        assert disk.syncs > before
