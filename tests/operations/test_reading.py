"""Records that are read for a page: the event loop goes on while large ones are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.operations import reading
from headrace.operations.masking import NO_MASK
from headrace.operations.reading import TURN_BYTES, At, Placed, Wanted, read
from headrace.testing import RunningBroker
from headrace.wire.records import Record

RECORDS = 8


async def test_other_tasks_have_turns_between_large_records(headrace_broker: RunningBroker) -> None:
    turns, seen = [0], list[int]()

    async def turning() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    def is_wanted(_: Placed) -> bool:
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
        two = await read(reach, topic, replace(wanted, count=2))
    finally:
        task.cancel()
    assert (len(page.records), page.is_whole) == (RECORDS, True)
    assert len(set(seen)) >= RECORDS - 1
    assert (len(two.records), two.looked_at) == (2, 2), "no more are looked at than are wanted"


async def test_new_records_are_searched_before_there_are_too_many_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(count: int) -> list[Placed]:
        return [
            Placed(0, Record(offset=offset, timestamp=1, key=None, value=b"", headers=())) for offset in range(count)
        ]

    def wanted(*offsets: int) -> Wanted:
        return Wanted(
            partition=None,
            at=At.NEWEST,
            offset=0,
            time_ms=0,
            key=None,
            count=1,
            test=lambda one: one.record.offset in offsets,
        )

    async def found(count: int, chosen: Wanted) -> tuple[list[int], int]:
        kept, looked_at = await reading._newest(placed(count), chosen, 2, NO_MASK)
        return [each.record.offset for each in kept], looked_at

    assert await found(1_000, wanted(999)) == ([999], 1_000)
    assert await found(1_000, wanted(3, 7, 9)) == ([3, 7], 8), "these are enough"
    assert await found(1_000, replace(wanted(), test=None)) == ([0, 1], 2)
    monkeypatch.setattr(reading, "TURN_S", -1.0)
    monkeypatch.setattr(reading, "TAIL_S", 0.0)
    assert await found(1_000, wanted(999)) == ([], 0), "it takes too long"
    monkeypatch.setattr(reading, "TAIL_S", 60.0)
    turns, looked = list[int](), reading._looked

    def noted(some: Sequence[Placed], first: int, *more: Any) -> tuple[list[Placed], int]:
        turns.append(first)
        return looked(some, first, *more)

    monkeypatch.setattr(reading, "_looked", noted)
    assert await found(1_000, wanted(999)) == ([999], 1_000)
    assert len(turns) == 1_000, "a turn has its time, which one record may take"
