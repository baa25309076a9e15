"""Compacted topics in durable history whose partition moves to another broker.

A reader at brokers, and a reader of the store and the log behind it, have one table, before and after. Both sides are
compacted then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.durable import merger
from headrace.broker.partitions.partition import Partition
from headrace.controller.asks.history import ReplaceSegments
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.tier.compact import Keys, compact_segments
from headrace.wire.batches import encode_batch
from headrace.wire.durable import MergeTotals
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests import loops
from tests.broker.clusters import Cluster
from tests.broker.data_path import fetch, produce
from tests.broker.durable.test_behind_history import lead, reassign
from tests.broker.durable.test_behind_history import run as run_replicated
from tests.broker.durable.test_compacted_history import COMPACTED, OFTEN, Table, alter, apply, stored, table_of
from tests.broker.group_broker import RawClient, until
from tests.broker.local_logs import local
from tests.broker.moving import A, B, moving
from tests.broker.replicas import set_isr
from tests.broker.replication_world import World
from tests.broker.tiered import TIME

ZERO = PartitionIndex(0)
KEYS = 9
SMALL = {**COMPACTED, "segment_bytes": "1024"}


class Placed:
    """Topic 't', of one partition, of keyed records: whoever leads it."""

    def __init__(self, cluster: Cluster, client: Callable[[int], Awaitable[RawClient]], root: Path) -> None:
        self._cluster = cluster
        self._client_of = client
        self._root = root
        self._random = Random(5)
        self.all: list[tuple[int, bytes | None, bytes | None]] = []

    @property
    def key(self) -> TopicPartition:
        image = self._cluster.newest_image
        return TopicPartition(image.topic_ids["t"], ZERO)

    def role(self, broker: int) -> Partition:
        found = self._cluster.brokers[broker].parts.partitions.role(self.key)
        assert isinstance(found, Partition)
        return found

    @property
    def leader(self) -> int:
        known = self._cluster.newest_image.partition(self.key)
        assert known is not None
        return int(known.leader)

    @property
    def leading(self) -> Partition:
        return self.role(self.leader)

    @property
    def history(self) -> PartitionCatalog:
        assert self.leading.history is not None
        return self.leading.history

    async def client(self) -> RawClient:
        return await self._client_of(self.leader)

    @property
    def end(self) -> int:
        return len(self.all)

    @property
    def table(self) -> Table:
        known: Any = self
        return table_of(known, self.end)

    async def write(self, count: int) -> None:
        """One segment holds a few of these."""
        for _ in range(count):
            key = b"key %d" % self._random.randrange(KEYS)
            value = None if self._random.random() < 0.3 else b"%d " % self.end + b"v" * 200
            answer = await produce(await self.client(), "t", encode_batch([Record(0, TIME + self.end, key, value)]))
            assert (answer.error_code, answer.base_offset) == (0, self.end)
            self.all.append((self.end, key, value))

    async def exported(self) -> None:
        """All that is closed; and the mirror knows."""
        await until(lambda: self.leading.history is not None)
        await until(lambda: self.history.next_offset >= local(self.leading.log).closed_segments()[-1].next_offset)

    async def compacted(self) -> None:
        """Log, as far as may be, and history."""
        await self.exported()
        held = local(self.leading.log)
        await until(lambda: held.gaps_below > 0 and held.cleaning.dirtiness(TIME, self.leading.cleanable_end) == 0)
        merged = await self.merge()
        assert (merged.problems, merged.partitions) == ([], [0])

    async def merge(self) -> MergeTotals:
        """By who leads."""
        exports = self._cluster.brokers[self.leader].parts.durable.exports
        assert exports is not None
        return await exports.merger.merge(self.key.topic_id, None, execute=True)

    async def fetched(self, table: Table, offset: int) -> None:
        """On from there, into a table."""
        client, begun = await self.client(), False
        while offset < self.end:
            answer = await fetch(client, "t", offset, wait_ms=10_000)
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                assert not begun, "it is on its way"
                offset = self.leading.start_offset
                continue
            assert answer.error_code == 0
            begun = True
            offset = apply(table, bytes(answer.records), offset)

    async def check(self) -> None:
        """Both readings."""
        by_brokers: Table = {}
        await self.fetched(by_brokers, 0)
        assert by_brokers == self.table
        by_store, _, end = stored(self._root)
        await self.fetched(by_store, end)
        assert by_store == self.table


def run(root: Path, work: Callable[[Any, Placed], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(150), moving(root, 2, configs=OFTEN) as world:
            await work(world, Placed(world.cluster, world.client, root))

    loops.run(whole())


@pytest.mark.parametrize("compacts", [False, True])
def test_a_partition_that_goes_to_another_broker_is_the_same_table(tmp_path: Path, compacts: bool) -> None:
    """`compacts`: log and history, before it goes, or only there."""

    async def work(world: Any, placed: Placed) -> None:
        await world.make(**SMALL)
        await placed.write(60)
        await placed.exported()
        if compacts:
            await placed.compacted()
            assert placed.history.batch_bytes < 60 * 200
        await placed.check()
        before = placed.history.next_offset
        await world.move(B)
        assert placed.leader == B
        await placed.check()
        await placed.write(40)
        await placed.exported()
        assert placed.history.next_offset > before
        await placed.check()
        await placed.compacted()
        assert placed.leading.log.gaps_below > before
        await placed.check()
        await world.move(A)
        await placed.write(10)
        await placed.compacted()
        await placed.check()

    run(tmp_path, work)


NO_TOMBSTONES = {**SMALL, "delete_retention_ms": "0"}
"""Such go with the second round."""


def test_a_replacement_whose_answer_was_lost_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it was done; it is done later, and the next round begins at the beginning."""
    monkeypatch.setattr(merger, "Keys", partial(Keys, keys_max=3))

    async def work(world: Any, placed: Placed) -> None:
        await world.make(**NO_TOMBSTONES)
        await placed.write(60)
        await placed.exported()
        before = placed.history.head
        held = world.hold(A, ReplaceSegments, lost=True)
        assert (await placed.merge()).problems == ["Partition 0: Whether it was done is not known."]
        assert placed.history.head == before
        held.let_go()
        await until(lambda: placed.history.head != before)
        await placed.check()
        for _ in range(2):
            assert (await placed.merge()).problems == []
            await placed.check()

    run(tmp_path, work)


def test_a_partition_that_goes_while_its_history_is_compacted_is_replaced_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of a segment and the event: what was made is nobody's."""

    async def work(world: Any, placed: Placed) -> None:
        await world.make(**NO_TOMBSTONES)
        await placed.write(60)
        await placed.exported()
        loop = asyncio.get_running_loop()

        def interrupted(*args: Any, **named: Any) -> SegmentDescriptor | None:
            monkeypatch.undo()
            made = compact_segments(*args, **named)
            asyncio.run_coroutine_threadsafe(world.move(B), loop).result()
            return made

        monkeypatch.setattr(merger, "compact_segments", interrupted)
        merged = await placed.merge()
        assert (merged.after, len(merged.problems)) == (0, 1)
        assert placed.leader == B
        assert not any(entry.is_substitute for entry in placed.history)
        await placed.check()
        for _ in range(2):
            await placed.write(8)
            await placed.compacted()
            await placed.check()

    run(tmp_path, work)


def test_retention_of_a_compacted_partition_goes_with_it(tmp_path: Path) -> None:
    """By age: history's beginning, by an event, and the log after that."""

    async def work(world: Any, placed: Placed) -> None:
        await world.make(**{**SMALL, "cleanup_policy": "compact,delete"})
        await placed.write(60)
        await placed.compacted()
        await world.move(B)
        await placed.write(10)
        await placed.exported()
        await placed.check()
        end = placed.history.next_offset
        here: Any = SimpleNamespace(client=await placed.client())
        await alter(here, "retention.ms", "1000")
        await until(lambda: placed.history.log_start_offset >= end)
        await until(lambda: placed.leading.log.log_start_offset >= end)
        assert placed.leading.start_offset >= end
        await alter(here, "retention.ms", "-1")
        for offset, key, _ in placed.all:
            if offset < placed.leading.log.log_start_offset:
                placed.all[offset] = offset, key, None  # it is not owed any more
        await placed.write(30)
        await placed.compacted()
        by_brokers: Table = {}
        await placed.fetched(by_brokers, 0)
        assert by_brokers == placed.table
        by_store, _, behind = stored(tmp_path)
        await placed.fetched(by_store, behind)
        assert by_store == placed.table

    run(tmp_path, work)


def test_who_is_elected_uncleanly_below_a_compacted_history_gives_way_to_it(tmp_path: Path) -> None:
    """Exported records stay, and others are lost. The old leader, whose log was compacted, comes to agree."""

    async def work(world: World) -> None:
        placed = Placed(world.cluster, world.client, tmp_path)
        configs: dict[str, Any] = {**SMALL, "min_insync_replicas": "1"}
        await world.make("t", replicas=3, **configs)
        await reassign(world, (1, 2))
        await placed.write(3)
        old = placed.leader
        (behind,) = {1, 2} - {old}
        await world.until_end("t", 3, old, behind)
        world.cluster.brokers[behind].parts.replication.copying.drop(world.key("t"))  # until the next epoch
        await set_isr(world.cluster, world.key("t"), (old,))
        await placed.write(60)
        await placed.compacted()
        await placed.check()
        frontier = placed.history.next_offset
        assert frontier < placed.end
        await lead(world, behind, (behind,))
        del placed.all[frontier:]
        assert placed.leading.log.log_start_offset == frontier
        await placed.write(1)
        await placed.check()
        await world.in_sync("t", 2)
        await placed.write(40)
        await placed.exported()
        await placed.check()
        assert placed.leading.cleanable_end == 0, "it is read behind history"
        await lead(world, old, (1, 2))
        await placed.compacted()
        await placed.check()
        await placed.write(10)
        await placed.check()

    async def in_time(world: World) -> None:
        async with asyncio.timeout(150):
            await work(world)

    run_replicated(tmp_path, in_time, configs=OFTEN)
