"""Partitions are exported in turn, whatever one of them gets, and within `durable.export.io.max.bytes.per.second`."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.durable.exporter import Exporter
from headrace.broker.partitions.partition import Partition
from headrace.broker.system import SystemClock
from tests.broker.data_path import batch, create, produce
from tests.broker.group_broker import until
from tests.broker.moving import A, B, moving
from tests.broker.tiered import Tiered, tiered

CONFIGS = {"durable.export.io.max.bytes.per.second": "1"}
"""A segment of a kilobyte takes it up for a quarter of an hour."""


def segments(here: Tiered) -> list[int]:
    topic = here.broker.image.topic("t")
    assert topic is not None
    keys = [TopicPartition(topic.id, PartitionIndex(index)) for index in range(3)]
    return [len(here.broker.image.durable(key).entries) for key in keys]


class Looks:
    """An exporter's looks at all partitions; before every other one its rest is over."""

    def __init__(self, here: Tiered, exporter: Exporter) -> None:
        self.seen: list[list[int]] = []
        """How many segments each partition had exported before each look."""
        self._here = here
        self._exporter = exporter
        self._by_turns = exporter._by_turns
        exporter._rest_until = math.inf
        exporter._by_turns = self.by_turns  # type: ignore[method-assign]

    def by_turns(self) -> list[Partition]:
        self.seen.append(segments(self._here))
        if len(self.seen) % 2 == 0:
            self._exporter._rest_until = 0.0
        return self._by_turns()


async def test_exports_rest_as_long_as_what_was_exported_takes_and_take_turns(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, CONFIGS) as here:
        await create(here.client, "t", 3, segment_bytes="1024", retention_ms="-1")
        assert here.broker.parts.durable.exports is not None
        here.broker.parts.durable.exports.exporter._rest_until = math.inf
        now = SystemClock().now_ms()
        for _ in range(10):
            for index in range(3):
                answer = await produce(here.client, "t", batch(b"v" * 500, timestamp=now), partition=index)
                assert answer.error_code == 0
        looks = Looks(here, here.broker.parts.durable.exports.exporter)
        await until(lambda: len(looks.seen) == 9)
        assert [sum(counts) for counts in looks.seen] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
        assert looks.seen[6] == [1, 1, 1]


async def test_a_partition_that_is_written_to_without_end_leaves_others_their_turn(tmp_path: Path) -> None:
    """And those who wait for its own turn, as a move does: each of its segments is followed by another before it is
    published."""
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await create(here.client, "t", 3, segment_bytes="1024", retention_ms="-1")
        assert here.broker.parts.durable.exports is not None
        exporter = here.broker.parts.durable.exports.exporter
        publish, now = exporter.publish, SystemClock().now_ms()

        async def two_segments(index: int) -> None:
            for _ in range(4):
                answer = await produce(here.client, "t", batch(b"v" * 500, timestamp=now), partition=index)
                assert answer.error_code == 0

        async def write_then_publish(partition: Partition, *published: Any) -> None:
            if partition.topic_partition.partition == 0:
                await two_segments(0)
            await publish(partition, *published)

        exporter.publish = write_then_publish  # type: ignore[method-assign, assignment]
        for index in range(3):
            await two_segments(index)
        await until(lambda: min(segments(here)) > 0)
        for _ in range(3):
            async with exporter.turn_of(here.partition):
                pass


async def test_the_export_of_a_backlog_ends_where_a_move_begins(tmp_path: Path) -> None:
    """The move itself stores the rest, in one segment."""
    async with asyncio.timeout(150), moving(tmp_path) as world:
        exports = world.cluster.brokers[A].parts.durable.exports
        assert exports is not None
        exporter, publish = exports.exporter, exports.exporter.publish
        exporter._rest_until = math.inf
        published = 0

        async def move_then_publish(*segment: Any) -> None:
            nonlocal published
            published += 1
            if published == 1:
                assert await world.ask(B) == 0
                await world.until(A, lambda known: known.move is not None)
            await publish(*segment)

        exporter.publish = move_then_publish  # type: ignore[method-assign, assignment]
        await world.make(segment_bytes="1024")
        for _ in range(20):
            await world.write(A, b"v" * 500)
        exporter._rest_until = 0.0
        await world.until_owned(B)
        assert published <= 2  # of 19 that were closed
