"""Records that are read for a page: the event loop goes on while large ones are looked at."""

from __future__ import annotations

import asyncio
from functools import partial

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.operations.reading import TURN_BYTES, At, Wanted, read
from headrace.testing import RunningBroker
from headrace.wire.records import Record

RECORDS = 8


async def test_other_tasks_have_turns_between_large_records(headrace_broker: RunningBroker) -> None:
    turns, seen = [0], list[int]()

    async def turning() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    def is_wanted(_: int, record: Record) -> bool:
        seen.append(turns[0])
        return True

    reach = partial(Cluster, headrace_broker.bootstrap)
    async with reach() as cluster:
        await Admin(cluster).create_topic("t", partitions=1, replication_factor=1)
        async with Producer(cluster) as producer:
            sent = [
                await producer.send("t", value=bytes(TURN_BYTES + 1), timestamp_ms=1, partition=0)
                for _ in range(RECORDS)
            ]
            await asyncio.gather(*sent)
        topic = await cluster.existing_topic("t")
    task = asyncio.ensure_future(turning())
    try:
        wanted = Wanted(partition=0, at=At.OLDEST, offset=0, time_ms=0, key=None, count=RECORDS, test=is_wanted)
        page = await read(reach, topic, wanted)
    finally:
        task.cancel()
    assert (len(page.records), page.is_whole) == (RECORDS, True)
    assert len(set(seen)) >= RECORDS - 1
