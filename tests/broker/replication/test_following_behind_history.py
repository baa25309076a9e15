"""Replicas whose leader's log begins later than theirs: what is common stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import Offset
from headrace.broker.replication import followers
from headrace.storage.tier import export
from headrace.wire.errors import ErrorCode
from tests.broker.data_path import batch, produce
from tests.broker.durable.test_behind_history import (
    exported,
    lead,
    reassign,
    run,
    send,
    sent,
    with_history,
    without_the_newest,
)
from tests.broker.group_broker import until
from tests.broker.replication.test_replicas_with_history import BIG, read
from tests.broker.replication_world import World


def span(world: World, broker: int) -> tuple[int, int]:
    log = world.role(broker, "t").log
    return log.log_start_offset, log.log_end_offset


def test_full_logs_stay_when_a_replica_leads_that_began_at_the_frontier(tmp_path: Path) -> None:
    """Cleanly, all in sync, and again once it was restarted: nobody drops what the store alone has beside it."""

    async def work(world: World) -> None:
        await with_history(world)
        await reassign(world, (1, 2, 3))
        leading = world.leading("t")
        assert leading is not None
        leading.roll()
        await exported(world, 20)
        await until(lambda: all(world.role(each, "t").log.flushed_end >= 20 for each in (1, 2, 3)))
        await world.stop(3)
        (directory,) = world.cluster.data(3).rglob("t-0")
        directory.rename(tmp_path / "away")
        await world.cluster.start(3)
        await world.unfence(3)
        await world.in_sync("t", 3)
        assert [span(world, each) for each in (1, 2, 3)] == [(0, 20), (0, 20), (20, 20)]
        await lead(world, 3, (1, 2, 3))
        await world.in_sync("t", 3)
        assert await send(world, 20) == (0, 20)
        await world.committed("t", 21)
        assert [span(world, each) for each in (1, 2, 3)] == [(0, 21), (0, 21), (20, 21)]
        await world.fence(3)
        await world.stop(3)
        await world.cluster.start(3)
        await world.unfence(3)
        await world.in_sync("t", 3)
        await lead(world, 3, (1, 2, 3))
        await world.in_sync("t", 3)
        assert await send(world, 21) == (0, 21)
        await world.committed("t", 22)
        assert [span(world, each) for each in (1, 2, 3)] == [(0, 22), (0, 22), (20, 22)]
        assert await read(world, 22) == [(number, BIG) for number in range(22)]

    run(tmp_path, work)


@pytest.mark.parametrize("start", [1, 4])
def test_many_copies_are_told_their_producers_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """Few are put together before others are taken; none is forgotten. `start`: behind nobody's batches, or all."""
    monkeypatch.setattr(followers, "REPLICA_BEGINNINGS_MAX", 1)
    topics = [f"topic-{number}" for number in range(9)]

    async def work(world: World) -> None:
        for producer, topic in enumerate(topics):
            await world.make(topic, replicas=3)
            await produce(await world.client(world.leader(topic)), topic, batch(b"nobody's"))
            for number in range(3):
                answer = await produce(await world.client(world.leader(topic)), topic, sent(number, producer=producer))
                assert answer.error_code == 0
            await world.committed(topic, 4)
        await world.fence(3)
        await world.stop(3)
        for producer, topic in enumerate(topics):
            leading = world.leading(topic)
            assert leading is not None
            assert leading.log.delete_records_before(Offset(start)) == start
            (directory,) = world.cluster.data(3).rglob(f"{topic}-0")
            directory.rename(tmp_path / f"away-{producer}")
        await world.cluster.start(3)
        await world.unfence(3)
        for producer, topic in enumerate(topics):
            await world.in_sync(topic, 3)
            copy = world.role(3, topic)
            assert (copy.log.log_start_offset, copy.log.log_end_offset) == (start, 4)
            assert copy.producers.ids == {producer}

    run(tmp_path, work)


def test_where_footers_tell_no_producers_the_batches_do(tmp_path: Path) -> None:
    """Segments of an earlier version; the leader's own log has the first record alone."""
    known = export.ExportSource.__init__

    def without(self: Any, **fields: Any) -> None:
        known(self, **{**fields, "producers": None})

    async def work(world: World) -> None:
        _, behind = await without_the_newest(world)
        await lead(world, behind, (behind,))
        leading = world.leading("t")
        assert leading is not None
        assert leading.history is not None
        frontier = int(leading.history.next_offset)
        assert leading.log.log_start_offset == frontier
        assert await send(world, frontier - 1) == (0, frontier - 1), "sent again: it is in history"
        assert (await send(world, 1))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "as its own log would take it"
        assert await send(world, frontier) == (0, frontier)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export.ExportSource, "__init__", without)
        run(tmp_path, work)
