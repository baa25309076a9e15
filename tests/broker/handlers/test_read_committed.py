"""Readers under read_committed see what is decided: to the last stable offset, with the list of what was aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import Offset
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.data_path import create
from tests.broker.group_broker import QUICK, RawClient, until
from tests.broker.in_transactions import Transactions, by_aiokafka, by_librdkafka, interleaved

READ_COMMITTED = 1
DEADLINE_S = 150
SMALL = {"segment_bytes": "14000"}


@asynccontextmanager
async def written(directory: Path, **configs: str) -> AsyncIterator[tuple[RawClient, Transactions]]:
    """A client of a broker with topic t, and a way to write transactions to it."""
    config = BrokerConfig(data=directory, port=0, configs=QUICK)
    async with (
        asyncio.timeout(DEADLINE_S),
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        if not any(each.topic == "t" for each in broker.parts.partitions):
            await create(client, "t", 1, **configs)
        (partition,) = [each for each in broker.parts.partitions if each.topic == "t"]
        yield client, Transactions(partition)


async def fetched(
    client: RawClient, offset: int, *, version: int = 11, session: bool = False, wait_ms: int = 0, size: int = 1 << 20
) -> Any:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=size,
        isolation_level=READ_COMMITTED,
        session_epoch=0 if session else -1,
        topics=(FetchTopic(topic="t", partitions=(wanted,)),),
    )
    return (await client.ask(version, request)).responses[0].partitions[0]


def listed(answer: Any) -> list[tuple[int, int]]:
    return [tuple(each) for each in answer.aborted_transactions]


async def settled(transactions: Transactions) -> None:
    """Everything appended is committed."""
    partition = transactions.partition
    await until(lambda: partition.high_watermark == partition.log.log_end_offset)


ROADS = pytest.mark.parametrize(("version", "session"), [(4, False), (9, False), (11, False), (12, False), (12, True)])


@ROADS
async def test_each_road_of_fetch_goes_to_the_last_stable_offset_and_lists_what_was_aborted(
    tmp_path: Path, version: int, session: bool
) -> None:
    async with written(tmp_path) as (client, transactions):
        transactions.write(1, b"aborted")
        transactions.write(2, b"committed")
        transactions.mark(1, committed=False)
        transactions.write(3, b"open")
        transactions.mark(2, committed=True)
        await settled(transactions)
        answer = await fetched(client, 0, version=version, session=session)
        assert (answer.high_watermark, answer.last_stable_offset) == (5, 3)
        assert listed(answer) == [(1, 0)]
        assert bytes(answer.records).count(b"committed") == 1
        assert b"open" not in bytes(answer.records)
        behind = await fetched(client, 3, version=version, session=session)
        assert (behind.last_stable_offset, bytes(behind.records or b""), listed(behind)) == (3, b"", [])
        transactions.mark(3, committed=False)
        await settled(transactions)
        rest = await fetched(client, 3, version=version, session=session)
        assert (rest.last_stable_offset, listed(rest)) == (6, [(3, 3)])


async def test_a_waiting_reader_sleeps_through_an_open_transaction_and_wakes_when_it_ends(tmp_path: Path) -> None:
    async with written(tmp_path) as (client, transactions), RawClient(client.address) as other:
        waiting = [
            asyncio.ensure_future(fetched(client, 0, wait_ms=30_000)),
            asyncio.ensure_future(fetched(other, 0, version=4, wait_ms=30_000)),
        ]
        await until(lambda: len(transactions.partition.fetches) == 2)
        for _ in range(3):
            transactions.write(1, bytes(1000))
            await settled(transactions)
        assert len(transactions.partition.fetches) == 2
        assert not any(each.done() for each in waiting)
        transactions.mark(1, committed=True)
        for answer in await asyncio.gather(*waiting):
            assert (answer.last_stable_offset, len(bytes(answer.records)) > 3000) == (4, True)


async def test_the_latest_offset_is_the_last_stable_one_and_producers_tell_their_transactions(tmp_path: Path) -> None:
    async with written(tmp_path) as (client, transactions):
        transactions.write(1, b"plain", transactional=False)
        transactions.write(2, b"first")
        transactions.mark(2, committed=True)
        transactions.write(2, b"second")
        await settled(transactions)
        for isolation, latest in ((0, 4), (READ_COMMITTED, 3)):
            asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
            topics = (ListOffsetsTopic(name="t", partitions=(asked,)),)
            request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
            assert (await client.ask(5, request)).topics[0].partitions[0].offset == latest
        question = DescribeProducersRequest(topics=(TopicRequest(name="t", partition_indexes=(0,)),))
        producers = (await client.ask(0, question)).topics[0].partitions[0].active_producers
        assert {
            each.producer_id: (each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset)
            for each in producers
        } == {1: (0, -1, -1), 2: (1, 3, 3)}


async def test_records_that_were_deleted_hold_nobody_back(tmp_path: Path) -> None:
    """An open transaction may have begun below the log's start."""
    async with written(tmp_path) as (client, transactions):
        transactions.write(1, b"deleted")
        transactions.write(1, b"left")
        await settled(transactions)
        partition = transactions.partition
        partition.log.delete_records_before(Offset(1))
        assert partition.last_stable_offset == 1
        assert (await fetched(client, 1)).last_stable_offset == 1
        transactions.mark(1, committed=False)
        await settled(transactions)
        assert listed(await fetched(client, 1)) == [(1, 0)]


async def test_clients_read_exactly_the_committed_records_of_interleaved_transactions(tmp_path: Path) -> None:
    """Over many segments, in small fetches, and again after a restart."""
    expected: Sequence[bytes] = ()
    for start in range(2):
        async with written(tmp_path, **SMALL) as (client, transactions):
            if start == 0:
                expected = interleaved(transactions)
                await settled(transactions)
                assert len(list(tmp_path.rglob("*.log"))) > 3
            assert await by_aiokafka(client.address, len(expected)) == expected
            assert await asyncio.to_thread(by_librdkafka, client.address, len(expected)) == expected
