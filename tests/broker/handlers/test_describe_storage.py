"""DescribeProducers, DescribeLogDirs and AlterReplicaLogDirs over the wire, in every version that is advertised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from headrace.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.wire.records import Record
from tests.broker.data_path import batch, create, produce
from tests.broker.group_broker import RawClient, running


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t", 2)
        yield client


def idempotent(producer: int, epoch: int, sequence: int, count: int) -> bytes:
    records = [Record(at, 1_700_000_000_000, None, b"v", ()) for at in range(count)]
    return encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


async def test_a_partition_tells_who_wrote_to_it_and_how_far(client: RawClient) -> None:
    for producer, epoch, sequence, count in ((7, 0, 0, 3), (9, 2, 0, 1), (7, 0, 3, 2)):
        assert (await produce(client, "t", idempotent(producer, epoch, sequence, count))).error_code == 0
    await produce(client, "t", batch(b"of nobody"))
    request = DescribeProducersRequest(
        topics=(TopicRequest(name="t", partition_indexes=(0, 1, 2)), TopicRequest(name="u", partition_indexes=(0,)))
    )
    known, unknown = (await client.ask(0, request)).topics
    written, empty, missing = known.partitions
    assert [
        (state.producer_id, state.producer_epoch, state.last_sequence, state.current_txn_start_offset)
        for state in written.active_producers
    ] == [(9, 2, 0, -1), (7, 0, 4, -1)]
    assert (empty.error_code, empty.active_producers) == (0, ())
    assert missing.error_code == unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_the_log_directory_tells_what_each_partition_takes(
    client: RawClient, tmp_path: Path, version: int
) -> None:
    sent = batch(b"v" * 500)
    await produce(client, "t", sent, partition=1)
    (everything,) = (await client.ask(version, DescribeLogDirsRequest(topics=None))).results
    assert (everything.error_code, everything.log_dir) == (0, str(tmp_path / "data" / "logs"))
    assert {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in everything.topics
        for partition in topic.partitions
    } == {("t", 0): 0, ("t", 1): len(sent)}
    if version >= 4:
        assert everything.total_bytes >= everything.usable_bytes > 0
    asked = (
        DescribableLogDirTopic(topic="t", partitions=(1, 1, 5)),
        DescribableLogDirTopic(topic="u", partitions=(0,)),
    )
    (named,) = (await client.ask(version, DescribeLogDirsRequest(topics=asked))).results
    ((partition,),) = [topic.partitions for topic in named.topics]
    assert (partition.partition_index, partition.offset_lag, partition.is_future_key) == (1, 0, False)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_replica_stays_in_the_one_directory(client: RawClient, tmp_path: Path, version: int) -> None:
    here, there = str(tmp_path / "data" / "logs"), str(tmp_path / "elsewhere")

    def of(path: str, topic: str, *partitions: int) -> AlterReplicaLogDir:
        return AlterReplicaLogDir(path=path, topics=(AlterReplicaLogDirTopic(name=topic, partitions=partitions),))

    dirs = (of(there, "t", 0, 1), of(here, "t", 1, 5), of(here, "u", 0))
    answer = await client.ask(version, AlterReplicaLogDirsRequest(dirs=dirs))
    assert {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in answer.results
        for partition in topic.partitions
    } == {
        ("t", 0): ErrorCode.LOG_DIR_NOT_FOUND,
        ("t", 1): ErrorCode.NONE,
        ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
