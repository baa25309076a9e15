"""`storage.compression` on a broker: history is smaller, reads as before, and mixes with what was exported before."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import PartitionIndex
from headrace.storage import packed_blocks
from headrace.storage.tier import export
from headrace.storage.tier.reader import Store
from headrace.wire.compression import Compression
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.durable.test_history_retention import history_of, mirrored
from tests.broker.durable.test_merging import merge
from tests.broker.durable.test_reading_history import expected, stream
from tests.broker.durable.test_sweeper import exported
from tests.broker.tiered import SETTLED, Tiered, tiered

TOPIC, BROKER, SET = 2, 4, 0
KEY = "storage.compression"
LARGER = {"segment_bytes": "4096"}
"""So that a segment's footer is small beside its batches."""


async def alter(here: Tiered, kind: int, name: str, value: str) -> int:
    change = AlterableConfig(name=KEY, config_operation=SET, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=(change,))
    (answer,) = (await here.client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))).responses
    code: int = answer.error_code
    return code


async def described(here: Tiered, kind: int, name: str) -> tuple[str, int]:
    """Value, and where it is from: 1 topic, 2 broker, 4 its start, 5 default."""
    resource = DescribeConfigsResource(kind, name, (KEY,))
    (result,) = (await here.client.ask(4, DescribeConfigsRequest(resources=(resource,)))).results
    (config,) = result.configs
    return config.value, config.config_source


def packed(here: Tiered, start: int = 0) -> set[bool]:
    return {each.descriptor.is_packed for each in history_of(here).reaching(start)}


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_segments_are_packed_from_the_change_on_and_all_are_read_as_one(tmp_path: Path, codec: str) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create(**LARGER)
            assert await described(here, TOPIC, "t") == ("none", 5)
            await here.produce(0, 40)
            await exported(here, SETTLED - 16)
            before = history_of(here).next_offset
            assert packed(here) == {False}
            assert await alter(here, TOPIC, "t", codec) == 0
            assert await described(here, TOPIC, "t") == (codec, 1)
            await here.produce(40, 60)
            await exported(here, 180)
            assert packed(here, before) == {True}
            middle = history_of(here).next_offset
            assert await alter(here, TOPIC, "t", "none") == 0
            await here.produce(100, 40)
            await exported(here, 260)
            assert packed(here, middle + 20) == {False}
            await here.local_start(200)
            assert await stream(here, 0, 280) == expected(140)
            assert await stream(here, before + 13, 280) == expected(140)[before + 13 :]
        async with tiered(tmp_path) as here:
            assert await stream(here, 0, 280) == expected(140)
            await mirrored(here, tmp_path)
        store = Store.open(f"file://{tmp_path / 'store'}")
        assert store.verify(store.topic("t"), PartitionIndex(0)).records >= 260


async def test_a_broker_s_own_value_is_the_default_and_merging_mixes(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, {KEY: "lz4"}) as here:
        await here.create(**LARGER)
        assert await described(here, TOPIC, "t") == ("lz4", 4)
        assert await alter(here, TOPIC, "t", "none") == 0
        await here.produce(0, 40)
        await exported(here, SETTLED - 16)
        assert await alter(here, TOPIC, "t", "zstd") == 0
        await here.produce(40, 40)
        await exported(here, 140)
        assert packed(here) == {False, True}
        size = history_of(here).batch_bytes
        merged = await merge(here)
        assert merged.problems == []
        first, _ = history_of(here)
        assert first.descriptor.is_packed
        assert history_of(here).batch_bytes == size, "sizes are those of batches, whatever their form"
        assert await stream(here, 0, 160) == expected(80)
        assert await alter(here, TOPIC, "t", "snappy") == 40
        assert await alter(here, BROKER, "1", "zstd") == 0


async def test_nothing_is_packed_or_unpacked_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    loop = threading.get_ident()

    def pack_block(codec: Compression, content: Any) -> bytes:
        used.add("loop" if threading.get_ident() == loop else "pack")
        return packed_blocks.pack_block(codec, content)

    def unpack_block(block: Any, bytes_max: int) -> Any:
        used.add("loop" if threading.get_ident() == loop else "unpack")
        return packed_blocks.unpack_block(block, bytes_max)

    monkeypatch.setattr(export, "pack_block", pack_block)
    monkeypatch.setattr("headrace.storage.tier.packed.unpack_block", unpack_block)
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create(storage_compression="zstd", **LARGER)
        await here.produce(0, 60)
        await here.local_start(60)
        assert await stream(here, 0, 120) == expected(60)
        assert (await merge(here)).problems == []
    assert used == {"pack", "unpack"}
