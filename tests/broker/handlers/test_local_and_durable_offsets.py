"""ListOffsets at -4 and -5 over the wire: what is kept here, and how far the durable store goes (KIP-405, KIP-1005)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.data_path import batch, create, delete_records, produce
from tests.broker.group_broker import QUICK, RawClient, running

EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -2, -4, -5, -6


async def offset(client: RawClient, timestamp: int) -> tuple[int, int, int]:
    """Error, offset and epoch, by the newest version."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=(asked,)),))
    found = (await client.ask(10, request)).topics[0].partitions[0]
    return found.error_code, found.offset, found.leader_epoch


async def test_what_is_kept_here_begins_where_the_log_does(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t")
        await produce(client, "t", batch(*[b"v"] * 10))
        assert await offset(client, EARLIEST_LOCAL) == (0, 0, 0)
        await delete_records(client, "t", [4])
        assert await offset(client, EARLIEST_LOCAL) == await offset(client, EARLIEST) == (0, 4, 0)
        assert await offset(client, LATEST_TIERED) == (0, -1, -1)
        assert await offset(client, EARLIEST_PENDING) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)


async def test_the_durable_store_goes_as_far_as_its_catalog(tmp_path: Path) -> None:
    objects = DirectoryObjects(LocalDisk(), tmp_path / "store")
    config = BrokerConfig(data=tmp_path / "data", port=0, configs=QUICK)
    exported = asyncio.Event()
    async with (
        asyncio.timeout(150),
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk(), objects=objects) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        broker.observe(lambda delta: exported.set() if delta.after.catalog else None)
        await create(client, "t", segment_bytes="1024")
        await produce(client, "t", batch(*[b"v" * 100] * 10))
        await produce(client, "t", batch(*[b"v" * 100] * 10))  # rolls, and so closes the first
        await exported.wait()
        assert await offset(client, LATEST_TIERED) == (0, 9, 0)
        assert await offset(client, EARLIEST_LOCAL) == (0, 0, 0)
