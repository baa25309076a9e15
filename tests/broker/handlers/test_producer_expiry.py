"""producer.id.expiration.ms over the wire: remembered while it writes, whatever its records' times, then forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.wire.records import Record
from tests.broker.data_path import create, produce
from tests.broker.group_broker import RawClient, running

A_LONG_TIME_AGO_MS = 1


def sequenced(sequence: int) -> bytes:
    records = [Record(0, A_LONG_TIME_AGO_MS, None, b"v", ())]
    return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)


async def producers(client: RawClient) -> list[int]:
    request = DescribeProducersRequest(topics=(TopicRequest(name="t", partition_indexes=(0,)),))
    (partition,) = (await client.ask(0, request)).topics[0].partitions
    return [state.producer_id for state in partition.active_producers]


async def test_a_producer_of_old_records_is_remembered_over_a_restart(tmp_path: Path) -> None:
    quick = {"log.retention.check.interval.ms": "1"}
    async with running(tmp_path / "data", quick) as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t", retention_ms="-1")
        assert (await produce(client, "t", sequenced(0))).base_offset == 0
        assert (await produce(client, "t", sequenced(0))).base_offset == 0, "a duplicate"
    async with running(tmp_path / "data", quick) as bootstrap, RawClient(bootstrap) as client:
        assert (await produce(client, "t", sequenced(0))).base_offset == 0, "still a duplicate"
        assert (await produce(client, "t", sequenced(5))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_silent_producer_is_forgotten_and_may_begin_anew(tmp_path: Path) -> None:
    configs = {"log.retention.check.interval.ms": "1", "producer.id.expiration.ms": "20"}
    async with running(tmp_path / "data", configs) as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t", retention_ms="-1")
        assert (await produce(client, "t", sequenced(0))).base_offset == 0
        async with asyncio.timeout(150):
            while await producers(client):
                pass
        assert (await produce(client, "t", sequenced(5))).base_offset == 1
