"""Produce, Fetch and ListOffsets over the wire where something is wrong: an error or a closed connection, never
silence."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.kit.parking import ParkedFetch
from headrace.broker.partitions.partition import Partition
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import QUICK, RawClient, running


def produce(value: bytes, *, topic: str = "t", acks: int = -1, timeout_ms: int = 120_000) -> ProduceRequest:
    records = encode_batch([Record(0, 1_700_000_000_000, None, value, ())])
    data = PartitionProduceData(index=0, records=memoryview(records))
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=(TopicProduceData(name=topic, partition_data=(data,)),)
    )


async def test_an_error_at_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, asyncio.timeout(150):
        async with RawClient(bootstrap) as client:
            await client.create_topic("t")
        async with RawClient(bootstrap) as client:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.ask(9, produce(b"lost", topic="gone", acks=0))


async def test_what_acks_0_stores_leaves_the_connection_open(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        await client.create_topic("t")
        silent = asyncio.ensure_future(client.ask(9, produce(b"stored", acks=0)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(silent, 0.2)
        response = await client.ask(9, produce(b"stored too"))
        assert response.responses[0].partition_responses[0].base_offset == 1


async def test_look_ups_by_time_of_an_unreadable_log_are_refused_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: Any) -> None:
        raise OSError(5, "scripted")

    monkeypatch.setattr("headrace.storage.log.reading.lookups.first_at_or_after", unreadable)
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        await client.create_topic("t")
        asked = ListOffsetsPartition(partition_index=0, timestamp=1)
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="t", partitions=(asked,)),))
        (topic,) = (await client.ask(6, request)).topics
        assert topic.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_what_waits_for_a_hung_disk_holds_no_records_once_it_was_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked: list[Any] = []
    monkeypatch.setattr(Partition, "park_commit", lambda _self, _end, waiter: parked.append(waiter))
    config = BrokerConfig(data=tmp_path, port=0, configs=QUICK)
    async with (
        asyncio.timeout(150),
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        await client.create_topic("t")
        response = await client.ask(9, produce(bytes(1000), timeout_ms=1))
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert len(parked) == 1
        assert not any(isinstance(found, memoryview) for found in _reachable(parked[0]))


async def test_a_connection_has_one_parked_fetch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parked: list[ParkedFetch] = []
    most = 0

    def park(*args: Any, **kwargs: Any) -> ParkedFetch:
        nonlocal most
        parked.append(ParkedFetch(*args, **kwargs))
        most = max(most, sum(one._read_on is not None for one in parked))
        return parked[-1]

    for road in ("fetch", "plain_fetch"):
        monkeypatch.setattr(f"headrace.broker.handlers.{road}.ParkedFetch", park)
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        await client.create_topic("t")
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=50, min_bytes=1000, topics=(FetchTopic(topic="t", partitions=(part,)),), session_epoch=-1
        )
        host, port = bootstrap.split(":")
        codec = api(ApiKey.FETCH)
        assert codec is not None
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in range(3):
            writer.write(b"".join(map(bytes, encode_request_frame(codec, 12, number, "raw", request))))
        for _ in range(3):
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.close()
    assert (len(parked), most) == (3, 1)


def _reachable(start: object) -> list[object]:
    """Plain data that an object keeps alive, a few steps on; not what all requests share."""
    found: list[object] = []
    edge, seen = [start], {id(start)}
    for _ in range(8):
        edge = [
            other
            for one in edge
            for other in gc.get_referents(one)
            if id(other) not in seen
            and (type(other).__module__.startswith("headrace") or isinstance(other, list | dict | tuple | memoryview))
            and type(other).__name__ != "RequestContext"
        ]
        seen.update(map(id, edge))
        found += edge
    return found
