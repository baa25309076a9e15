"""Logs in Redis with a durable store: closed ranges are exported, and history outlives what Redis loses."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.storage.redis.links.address import Credentials, parse_redis_address
from headrace.storage.redis.links.connection import Place, connect
from headrace.storage.redis.server_side.keys import Keys
from headrace.wire.batches import decode_records, iterate_headers
from headrace.wire.errors import ErrorCode
from tests.broker.data_path import batch, produce
from tests.broker.tiered import PER_BATCH, Tiered, tiered, values
from tools.servers.redis_servers import RedisServer

BATCHES = 40


async def everything(world: Tiered, end: int) -> list[bytes | None]:
    """The values of all records, from the first offset on."""
    found, at = list[bytes | None](), 0
    while at < end:
        error, records = await world.read(at)
        assert error in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for place, header in iterate_headers(records):
            at = header.next_offset
            found += [record.value for record in decode_records(records[place : place + header.size])]
    return found


async def test_history_goes_on_where_redis_has_lost_its_records(server: RedisServer, tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, redis=parse_redis_address(server.url)) as world:
        await world.create()
        await world.produce(0, BATCHES)
        await world.local_start(PER_BATCH)
        written = [value for number in range(BATCHES) for value in values(number)]
        assert await everything(world, PER_BATCH * BATCHES) == written
        frontier = world.partition.log.log_start_offset
        keys = Keys().partition("t", world.partition.topic_partition.partition)
        connection = await connect(Place(path=str(server.socket)), Credentials())
        await connection.call("UNLINK", keys.stream, keys.state, keys.times, keys.epochs, keys.producers)
        await connection.close()
        while (later := await produce(world.client, "t", batch(b"later"))).error_code:
            assert later.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert later.base_offset >= frontier
        left = await everything(world, later.base_offset + 1)
        assert left == [*written[: later.base_offset], b"later"]
