"""The functions that every request pays for, one by one: `make bench-micro` prints the time of each. It asserts nothing
about the times, and `make test` does not run this.

The measured code is the broker's. It has codecs and checks on the bytes of a client, and a log on a real disk with
`flush.policy=os`. For answers it is a whole broker's dispatcher, from the bytes of a request to the buffers of its
response, without the sockets.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.base.ids import DirectoryId, LeaderEpoch, PartitionIndex, TopicId
from headrace.base.ports import Buffer
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.net.server.connection import Connection
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.log.engine import LocalLogEngine
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.batches import check_batch, check_batches, encode_batch
from headrace.wire.headers import decode_request_header, encode_request_frame
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.records import Record
from tests.broker import data_path
from tests.broker.group_broker import QUICK, RawClient

NOW_MS: Final = 1_700_000_000_000
BATCHES: Final = {"16 x 1 KB": (16, 1024), "650 x 100 B": (650, 100)}
"""Batches of a producer by default, and with batches of 64 KB: records and their bytes."""
ROUNDS: Final = 100
ITERATIONS: Final = 20
"""Of what leaves something on the disk."""
PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 11
METADATA_VERSION: Final = 12
LENGTH_BYTES: Final = 4

batches = pytest.mark.parametrize("shape", BATCHES.values(), ids=BATCHES.keys())


def batch(shape: tuple[int, int]) -> bytes:
    records, record_bytes = shape
    return encode_batch([Record(at, NOW_MS, None, bytes(record_bytes)) for at in range(records)])


def codec(key: ApiKey) -> Api:
    found = api(int(key))
    assert found is not None
    return found


def frame(key: ApiKey, version: int, request: Any) -> memoryview:
    """A request as the listener hands it on: without its length."""
    parts = encode_request_frame(codec(key), version, 1, "micro", request)
    return memoryview(b"".join(bytes(part) for part in parts))[LENGTH_BYTES:]


@batches
def test_parse_a_produce_request(benchmark: BenchmarkFixture, shape: tuple[int, int]) -> None:
    received = frame(ApiKey.PRODUCE, PRODUCE_VERSION, data_path.produce_request("topic", batch(shape)))
    produce = codec(ApiKey.PRODUCE)

    def parse() -> Any:
        header, at = decode_request_header(received)
        return produce.decode_request(header.api_version, received[at:])

    request = benchmark(parse)
    assert request.topic_data[0].partition_data[0].records == batch(shape)


@batches
def test_check_a_batch(benchmark: BenchmarkFixture, shape: tuple[int, int]) -> None:
    received = memoryview(batch(shape))
    assert benchmark(check_batch, received).count == shape[0]


@batches
def test_append_to_a_log(benchmark: BenchmarkFixture, tmp_path: Path, shape: tuple[int, int]) -> None:
    identity = LogIdentity(
        topic_name="topic",
        topic_id=TopicId(uuid.UUID(int=1)),
        partition=PartitionIndex(0),
        directory_id=DirectoryId(uuid.UUID(int=2)),
    )
    engine = LocalLogEngine(LocalDisk(), tmp_path / "logs")
    engine.start()
    log = engine.open(identity, LogConfig(fsync=False))
    received = memoryview(batch(shape))
    headers = check_batches(received)

    def append() -> Any:
        return log.append(received, headers, leader_epoch=LeaderEpoch(1), now_ms=NOW_MS)

    benchmark.pedantic(append, rounds=ROUNDS, iterations=ITERATIONS)  # type: ignore[no-untyped-call]
    assert log.log_end_offset >= ROUNDS * ITERATIONS * shape[0]
    log.close()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[RawClient, Callable[[memoryview], Any]]]:
    """A client of a broker, and what the broker does with a request frame."""
    config = BrokerConfig(data=directory, port=0, configs=QUICK)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        assert broker._parts is not None
        listener = broker._parts.requests.listener
        connection = Connection(listener)
        async with RawClient(f"{broker.host}:{broker.port}") as client:
            yield client, lambda received: listener.serve(received, connection)


def size(answer: list[Buffer]) -> int:
    return sum(map(len, answer))


@batches
async def test_answer_a_produce(benchmark: BenchmarkFixture, tmp_path: Path, shape: tuple[int, int]) -> None:
    """One batch to one partition, at acks=all: from its bytes to the answer, which stands before the call returns."""
    async with serving(tmp_path) as (client, serve):
        await data_path.create(client, "topic", flush_policy="os")
        received = frame(ApiKey.PRODUCE, PRODUCE_VERSION, data_path.produce_request("topic", batch(shape)))

        def produce() -> Any:
            answer = serve(received)
            return answer if isinstance(answer, list) else answer.answer()

        answer = benchmark.pedantic(produce, rounds=ROUNDS, iterations=ITERATIONS)  # type: ignore[no-untyped-call]
        assert answer
        end = (await data_path.offset_at(client, "topic", data_path.LATEST)).offset
        assert end >= ROUNDS * ITERATIONS * shape[0]


@pytest.mark.parametrize("partitions", [1, 6, 20])
async def test_answer_a_fetch(benchmark: BenchmarkFixture, tmp_path: Path, partitions: int) -> None:
    """64 KB of each partition, in batches of 16 KB."""
    produced = batch((16, 1024))
    async with serving(tmp_path) as (client, serve):
        await data_path.create(client, "topic", partitions, flush_policy="os")
        for partition in range(partitions):
            for _ in range(4):
                assert (await data_path.produce(client, "topic", produced, partition=partition)).error_code == 0
        wanted = tuple(
            FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=4 * len(produced))
            for partition in range(partitions)
        )
        topics = (FetchTopic(topic="topic", partitions=wanted),)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, session_epoch=-1, topics=topics)
        answer = benchmark(serve, frame(ApiKey.FETCH, FETCH_VERSION, request))
        assert size(answer) > 4 * partitions * len(produced)


async def test_answer_a_fetch_that_finds_nothing(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """At the end of 20 partitions."""
    async with serving(tmp_path) as (client, serve):
        await data_path.create(client, "topic", 20, flush_policy="os")
        wanted = tuple(FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(20))
        topics = (FetchTopic(topic="topic", partitions=wanted),)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, session_epoch=-1, topics=topics)
        assert benchmark(serve, frame(ApiKey.FETCH, FETCH_VERSION, request))


async def test_answer_metadata_of_10000_partitions(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """All topics: ten of 1,000 partitions."""
    async with serving(tmp_path) as (client, serve):
        for number in range(10):
            await data_path.create(client, f"topic-{number}", 1_000)
        answer = benchmark(serve, frame(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None)))
        assert size(answer) > 10_000 * 20
