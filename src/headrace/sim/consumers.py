"""The consuming half of the workload: readers that follow every partition from its start, and a prober of ends.

A reader keeps its position over every crash: records that it saw must stay, and none may be skipped or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.base.errors import CorruptData
from headrace.sim.client import Client, Lost
from headrace.sim.history import Found, PartitionKey
from headrace.sim.world import BROKER, World
from headrace.wire.apis import ApiKey
from headrace.wire.batches import check_batch, decode_records, iterate_headers
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

WAIT_MS: Final = 300
RETRY_SECONDS_MAX: Final = 0.1
LATEST: Final = -1
PASSING: Final = (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE)


def fetch_request(world: World, positions: dict[PartitionKey, int], *, wait_ms: int, bytes_max: int) -> FetchRequest:
    """One request for all these partitions, each from its position, in this run's version."""
    topics: dict[str | object, list[FetchPartition]] = {}
    for partition, position in positions.items():
        topic = partition.topic_id if world.versions.fetches_by_id else world.live_partitions[partition]
        asked = FetchPartition(partition=partition.number, fetch_offset=position, partition_max_bytes=bytes_max)
        topics.setdefault(topic, []).append(asked)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=4 * bytes_max,
        topics=tuple(
            FetchTopic(topic=topic, partitions=tuple(asked))
            if isinstance(topic, str)
            else FetchTopic(topic_id=topic, partitions=tuple(asked))  # type: ignore[arg-type]  # a UUID
            for topic, asked in topics.items()
        ),
    )


def fetched(world: World, asked: dict[PartitionKey, int], answer: Any) -> Iterator[tuple[PartitionKey, Any]]:
    """The partitions of a fetch's answer, by the keys of their requests."""
    names = {(world.live_partitions.get(key), key.number): key for key in asked}
    for topic in answer.responses:
        for data in topic.partitions:
            if world.versions.fetches_by_id:
                yield PartitionKey(topic.topic_id, data.partition_index), data
            elif (topic.topic, data.partition_index) in names:
                yield names[topic.topic, data.partition_index], data


def records_from(data: bytes | memoryview, position: int) -> Iterator[Found]:
    """The records at and above `position`. Raises CorruptBatch on anything that is no sound batch."""
    for at, header in iterate_headers(data):
        check_batch(data, at, at + header.size)
        for record in decode_records(memoryview(data)[at : at + header.size]):
            if record.offset >= position:
                yield Found(record.offset, record.key, record.value, record.timestamp)


class Reader:
    """One consumer of all partitions."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._client = Client(name, BROKER)
        self._positions: dict[PartitionKey, int] = {}
        self._high_watermarks: dict[PartitionKey, int] = {}
        self._bytes_max = world.random.choice((1, 3000, 100_000))

    async def run(self) -> None:
        """Read until the world winds down."""
        world = self._world
        while not world.winding_down:
            asked = {each: self._positions.get(each, 0) for each in world.live_partitions}
            if not asked:
                await world.think(RETRY_SECONDS_MAX)
                continue
            request = fetch_request(world, asked, wait_ms=WAIT_MS, bytes_max=self._bytes_max)
            try:
                answer = await self._client.call(ApiKey.FETCH, world.versions.fetch, request)
            except Lost:
                await world.think(RETRY_SECONDS_MAX)
                continue
            for partition, data in list(fetched(world, asked, answer)):
                self._take(partition, data)
            await world.think(0.02)
        self._client.close()

    def _take(self, partition: PartitionKey, data: Any) -> None:
        if partition not in self._world.live_partitions:
            return
        history, error = self._world.history, error_of(data.error_code)
        position = self._positions.get(partition, 0)
        if error is not ErrorCode.NONE:
            if (not error.retriable or error is ErrorCode.CORRUPT_MESSAGE) and not self._world.in_trouble:
                history.problem("unreadable", f"{self._name} at {position} of {partition} was told {error.name}")
            return
        before = self._high_watermarks.get(partition, 0)
        if data.high_watermark < before:
            history.problem("high-watermark-fell", f"{partition} from {before} to {data.high_watermark}")
        self._high_watermarks[partition] = max(before, data.high_watermark)
        history.high_watermarks[partition] = max(history.high_watermarks.get(partition, 0), data.high_watermark)
        for record in self._records(partition, data, position):
            if record.offset != position:
                history.problem("skipped", f"{self._name} on {partition} got {record.offset} for {position}")
            if record.offset >= data.high_watermark:
                history.problem("unstable-read", f"{partition} gave {record.offset}, over {data.high_watermark}")
            history.see(self._name, partition, record)
            position = record.offset + 1
        self._positions[partition] = position

    def _records(self, partition: PartitionKey, data: Any, position: int) -> list[Found]:
        try:
            return list(records_from(data.records or b"", position))
        except CorruptData as error:
            self._world.history.problem("unreadable", f"{self._name} at {position} of {partition}: {error}")
            return []


class Prober:
    """Asks for the ends of partitions: none may be below acknowledged or seen records."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = Client("prober", BROKER)

    async def run(self) -> None:
        world = self._world
        while not world.winding_down:
            await world.think(0.2)
            if not world.live_partitions:
                continue
            partition = world.random.choice(list(world.live_partitions))
            try:
                await self._probe(partition)
            except Lost:
                await world.think(RETRY_SECONDS_MAX)
        self._client.close()

    async def _probe(self, partition: PartitionKey) -> None:
        world, history = self._world, self._world.history
        expected = max(history.durable_ends.get(partition, 0), max(history.seen.get(partition, {-1: b""})) + 1)
        name = world.live_partitions[partition]
        asked = ListOffsetsPartition(partition_index=partition.number, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=name, partitions=(asked,)),))
        answer = await self._client.call(ApiKey.LIST_OFFSETS, 7, request)
        [answered] = answer.topics[0].partitions
        if partition not in world.live_partitions:
            return
        if answered.error_code == ErrorCode.NONE and answered.offset < expected:
            history.problem("lost-write", f"{partition} ends at {answered.offset}; {expected} was acknowledged or seen")
        elif answered.error_code and not error_of(answered.error_code).retriable and not world.in_trouble:
            history.problem("unreadable", f"the end of {partition}: {error_of(answered.error_code).name}")
