"""Reads everything after the last recovery, as any client would."""

from __future__ import annotations

from typing import Final

from headrace.base.errors import CorruptData
from headrace.sim.client import Client
from headrace.sim.committer import check_committed, find_coordinator
from headrace.sim.consumers import fetch_request, fetched, records_from
from headrace.sim.history import FinalState, PartitionKey
from headrace.sim.world import BROKER, World
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.metadata import MetadataRequest

TRIES_MAX: Final = 500
BYTES_MAX: Final = 1_000_000


async def read_everything(world: World) -> FinalState:
    """Topics, and every partition from its first record to its high watermark. Raises Lost."""
    client, final = Client("judge", BROKER), FinalState()
    answer = await client.call(ApiKey.METADATA, 12, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    world.live_partitions.clear()
    for topic in answer.topics:
        final.topics[topic.topic_id] = (topic.name, len(topic.partitions))
        if not topic.is_internal:
            world.open_topic(topic.name, topic.topic_id, len(topic.partitions))
    for partition in list(world.live_partitions):
        await _read_partition(world, client, partition, final)
    await find_coordinator(client)
    for partition in world.history.positions_acked:
        if partition in world.live_partitions:
            await _read_position(world, client, partition)
    client.close()
    return final


async def _read_position(world: World, client: Client, partition: PartitionKey) -> None:
    for _ in range(TRIES_MAX):
        if await check_committed(world, client, partition):
            return
        await world.think(0.02)
    world.history.problem("unreadable", f"no committed position of {partition} is told")


async def _read_partition(world: World, client: Client, partition: PartitionKey, final: FinalState) -> None:
    content = final.contents.setdefault(partition, [])
    for _ in range(TRIES_MAX):
        asked = {partition: len(content)}
        request = fetch_request(world, asked, wait_ms=0, bytes_max=BYTES_MAX)
        [(_, data)] = fetched(world, asked, await client.call(ApiKey.FETCH, world.versions.fetch, request))
        error = error_of(data.error_code)
        if error is not ErrorCode.NONE and not error.retriable:
            world.history.problem("unreadable", f"{partition} at {len(content)}: {error.name}")
            return
        if error is ErrorCode.NONE:
            final.high_watermarks[partition] = data.high_watermark
            try:
                content.extend(records_from(data.records or b"", len(content)))
            except CorruptData as damage:
                world.history.problem("unreadable", f"{partition} at {len(content)}: {damage}")
                return
            if len(content) >= data.high_watermark:
                return
        await world.think(0.02)
    world.history.problem("unreadable", f"{partition} at {len(content)} of {final.high_watermarks.get(partition)}")
