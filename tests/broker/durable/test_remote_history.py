"""A broker whose durable store is an S3-compatible server that hangs, dies and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.base.ids import PartitionIndex
from headrace.storage.objects import open_objects
from headrace.storage.tier.reader import Store
from headrace.wire.errors import ErrorCode
from tests.broker.data_path import fetch
from tests.broker.durable.test_reading_history import expected, stream
from tests.broker.tiered import SETTLED, tiered
from tools.servers.s3_server import S3Server

NO_CACHE = {"durable.cache.bytes": "0"}


async def test_while_the_store_hangs_the_log_is_written_and_read(tmp_path: Path, own_s3: S3Server) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, NO_CACHE, objects=open_objects(own_s3.url())) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        own_s3.pause()
        try:
            for number in range(40, 50):
                await here.produce(number, 1)
                cold = await fetch(here.client, "t", 0, wait_ms=1)
                assert (cold.error_code, bytes(cold.records or b"")) == (0, b"")
                assert await stream(here, 2 * number, 2 * number + 2) == expected(50)[2 * number : 2 * number + 2]
        finally:
            own_s3.resume()
        await here.local_start(90)
        assert await stream(here, 0, 100) == expected(50)


async def test_a_store_that_dies_is_gone_on_with_when_it_is_back(
    tmp_path: Path, own_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.durable.exporter.EXPORT_RETRY_MS_MAX", 100)
    async with asyncio.timeout(150):
        async with tiered(tmp_path, NO_CACHE, objects=open_objects(own_s3.url())) as here:
            await here.create()
            await here.produce(0, 40)
            await here.local_start(SETTLED)
            own_s3.kill()
            await here.produce(40, 20)
            assert await stream(here, 80, 120) == expected(60)[80:]
            cold = 0
            while cold == 0:  # its block is being read, and is told of once that has failed
                cold, _ = await here.read(0)
            assert cold == ErrorCode.KAFKA_STORAGE_ERROR
            own_s3.start()
            await here.local_start(110)
        async with tiered(tmp_path, objects=open_objects(own_s3.url())) as here:
            assert await stream(here, 0, 120) == expected(60)
        store = Store.open(own_s3.url())
        assert store.verify(store.topic("t"), PartitionIndex(0)).end_offset >= 110
