"""The native road serves whole requests: what becomes of a batch that fails, and of the others in its request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.partitions.hot import KINDS
from headrace.broker.partitions.partition import Partition
from headrace.native import ROAD
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.data_path import batch, create, fetch
from tests.broker.group_broker import RawClient
from tests.broker.tiered import Tiered, tiered
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.batches import Bodies, made
from tools.partition_fuzz.choosing import settings_of
from tools.partition_fuzz.world import Clock, InlineLoop, World

pytestmark = pytest.mark.skipif(ROAD.native is None, reason="the pure road is taken")
OS = {"flush.policy": "os"}
PRODUCE = cast("Api", api(ApiKey.PRODUCE))


def led(here: Tiered, index: int) -> Partition:
    topic = here.broker.image.topic("t")
    assert topic is not None
    found = here.broker.parts.partitions.find(TopicPartition(topic.id, PartitionIndex(index)), here.broker.image)
    assert isinstance(found, Partition)
    return found


def request(*wanted: tuple[int, bytes], acks: int = -1) -> ProduceRequest:
    data = tuple(PartitionProduceData(index, memoryview(batch(value))) for index, value in wanted)
    return ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=(TopicProduceData("t", partition_data=data),))


async def answers(client: RawClient, asked: ProduceRequest) -> list[tuple[int, int, int]]:
    found = (await client.ask(9, asked)).responses[0].partition_responses
    return [(each.index, each.error_code, each.base_offset) for each in found]


async def records(here: Tiered, index: int) -> bytes:
    return bytes((await fetch(here.client, "t", 0, partition=index)).records)


class Failing:
    """The log's write fails in its `at`-th call, with this error."""

    def __init__(self, partition: Partition, error: BaseException, at: int = 1) -> None:
        log: Any = partition.log
        self._write = log.write_past_held
        self._error = error
        self._left = at
        log.write_past_held = self.write

    def write(self, buffers: Any) -> None:
        self._left -= 1
        if not self._left:
            raise self._error
        self._write(buffers)


@pytest.mark.parametrize("acks", [-1, 1])
async def test_each_batch_has_its_own_place_in_the_answer(tmp_path: Path, acks: int) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OS) as here:
        await create(here.client, "t", 4)
        for round_ in range(3):  # the first time the partitions are not remembered
            several = request((2, b"c"), (0, b"a"), (2, b"d"), (3, b"e"), acks=acks)
            twice = 2 * round_
            expected = [(2, 0, twice), (0, 0, round_), (2, 0, twice + 1), (3, 0, round_)]
            assert await answers(here.client, several) == expected


async def test_a_single_batch_is_answered_as_by_the_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native, taken = ROAD.native, 0
    assert native is not None
    produce_one = native.produce_one

    def counted(frame: memoryview, known: Any) -> Any:
        nonlocal taken
        found = produce_one(frame, known)
        taken += isinstance(found, bytes)
        return found

    monkeypatch.setattr(native, "produce_one", counted)
    async with asyncio.timeout(150), tiered(tmp_path, OS) as here:
        await create(here.client, "t", 2)
        twin = list[bytes]()
        for road in (lambda _, __: None, counted):
            monkeypatch.setattr(native, "produce_one", road)
            async with RawClient(f"{here.broker.host}:{here.broker.port}") as client:
                for index in (0, 1, 1):
                    client.send(9, request((index, b"a")))
                    twin.append(bytes(await client.receive(9, PRODUCE)))
        first, second = twin[:3], twin[3:]
        assert [len(each) for each in second] == [len(each) for each in first]
        at = first[1].rindex(bytes(8) + b"\xff" * 8)  # the base offset, before the time
        assert second[1][:at] == first[1][:at]
        assert second[1][at + 8 :] == first[1][at + 8 :]
        assert second[1][at : at + 8] == (2).to_bytes(8)
        assert taken == 3


async def test_a_disk_that_fails_under_a_single_batch_is_told(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OS) as here:
        await create(here.client, "t", 2)
        for index in (0, 1):
            await answers(here.client, request((index, b"a")))
        Failing(led(here, 0), StorageFailure("the disk is gone"))
        assert await answers(here.client, request((0, b"b"))) == [(0, ErrorCode.KAFKA_STORAGE_ERROR, -1)]
        assert await answers(here.client, request((1, b"b"))) == [(1, 0, 1)]


async def test_a_bug_under_a_single_batch_ends_its_partition(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OS) as here:
        await create(here.client, "t", 2)
        for index in (0, 1):
            await answers(here.client, request((index, b"a")))
        Failing(led(here, 0), RuntimeError("planted"))
        async with RawClient(f"{here.broker.host}:{here.broker.port}") as other:
            with pytest.raises((ConnectionError, EOFError)):
                await other.ask(9, request((0, b"b")))
        assert await answers(here.client, request((1, b"b"))) == [(1, 0, 1)]
        (told,) = await answers(here.client, request((0, b"b")))
        assert told[1] != 0


async def test_a_disk_that_fails_in_the_middle_is_told_of_its_partition_alone(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, OS) as here:
        await create(here.client, "t", 4)
        several = request((0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"))
        await answers(here.client, several)
        Failing(led(here, 1), StorageFailure("the disk is gone"))
        storage = ErrorCode.KAFKA_STORAGE_ERROR
        assert await answers(here.client, several) == [(0, 0, 1), (1, storage, -1), (2, 0, 1), (3, 0, 1)]
        assert led(here, 2).log.log_end_offset == 2
        (told,) = await answers(here.client, request((1, b"b")))
        assert told[1] != 0


async def test_a_bug_in_the_middle_ends_its_partition_alone(tmp_path: Path) -> None:
    """The client gets no answer, and no other partition has half a batch."""
    async with asyncio.timeout(150), tiered(tmp_path, OS) as here:
        await create(here.client, "t", 3)
        several = request((0, b"a"), (1, b"b"), (2, b"c"))
        await answers(here.client, several)
        Failing(led(here, 1), RuntimeError("planted"))
        async with RawClient(f"{here.broker.host}:{here.broker.port}") as other:
            with pytest.raises((ConnectionError, EOFError)):
                await other.ask(9, several)
        assert [led(here, index).log.log_end_offset for index in (0, 2)] == [2, 1]
        assert await answers(here.client, request((0, b"x"), (2, b"y"))) == [(0, 0, 2), (2, 0, 1)]
        assert b"x" in await records(here, 0)


class Alone:
    """One partition, of which appended batches are not durable before `do.flush`."""

    def __init__(self) -> None:
        native = ROAD.native
        assert native is not None
        self._append_all, self._produce_one = native.append_all, native.produce_one
        [self._body, *_] = Bodies(Random(1), native).single
        self._clock = Clock()
        settings, config = settings_of(Random(3), fsync=True, is_narrow=False, replicas=1)
        self.world = World(
            5, self._clock, InlineLoop(), native=None, config=config, settings=settings, replicas=1, has_journal=True
        )
        self.world.partition.append_plain(self.batch(0), needs_isr=True)
        do.flush(self.world)  # the first one begins a segment
        self.world.partition.hot = native.HotPartition(self.world.partition, KINDS)

    def batch(self, sequence: int) -> memoryview:
        return memoryview(made(self._body, self._clock.ms, (11, 0, sequence)).data)

    def produce(self, sequence: int) -> Any:
        """A whole request."""
        wanted = ProduceRequest(
            acks=-1,
            timeout_ms=9,
            topic_data=(TopicProduceData("t", partition_data=(PartitionProduceData(0, self.batch(sequence)),)),),
        )
        frame = b"".join(encode_request_frame(PRODUCE, 9, 7, "alone", wanted))
        return self._produce_one(memoryview(frame)[4:], {(b"\2t", 0): self.world.partition})

    def append(self, *sequences: int) -> Any:
        topics = [(b"\2t", [(0, self.batch(each)) for each in sequences])]
        return self._append_all(7, topics, {(b"\2t", 0): self.world.partition}, True)


@pytest.fixture
def alone() -> Iterator[Alone]:
    made_alone = Alone()
    yield made_alone
    made_alone.world.loop.close()


def test_the_answer_is_not_written_before_all_is_durable(alone: Alone) -> None:
    told = alone.append(1, 2)
    assert [(each[2].base_offset, alone.world.partition.has_committed(each[2].end)) for each in told] == [
        (1, False),
        (2, False),
    ]
    do.flush(alone.world)
    assert all(alone.world.partition.has_committed(each[2].end) for each in told)


def test_a_single_batch_is_not_answered_before_it_is_durable(alone: Alone) -> None:
    correlation_id, timeout_ms, topic, index, partition, appended, start = alone.produce(1)
    assert (correlation_id, timeout_ms, topic, index, start) == (7, 9, b"\2t", 0, 0)
    assert partition is alone.world.partition
    assert (appended.base_offset, partition.has_committed(appended.end)) == (1, False)
    do.flush(alone.world)
    assert partition.has_committed(appended.end)


def test_a_single_batch_that_does_not_come_next_is_left_to_the_twin(alone: Alone) -> None:
    assert alone.produce(7) is None
    assert alone.world.partition.log.log_end_offset == 1


def test_nothing_is_appended_behind_a_batch_that_is_left_to_the_twin(alone: Alone) -> None:
    """Both may be of one partition, where the twin would append them the other way round."""
    assert [each[2] for each in alone.append(7, 1)] == [None, None]
    assert alone.world.partition.log.log_end_offset == 1
