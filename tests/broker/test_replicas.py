"""Leaders and their followers, in running brokers: what is copied, counted, cut and shown when roles change."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from headrace.net import loops
from tests.broker.cluster import running
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient
from tests.broker.replicas import elect, follower, held_rounds, known, leader, make_topic, until


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


def test_what_a_follower_had_not_flushed_when_it_was_elected_is_flushed_by_the_leader(tmp_path: Path) -> None:
    """Nobody else would: the high watermark would stay below the start of its epoch until somebody writes again."""

    async def work() -> None:
        async with running(tmp_path, 2) as cluster:
            key = await make_topic(cluster, "t", 2)
            first = known(await cluster.agree(), key).leader
            other = 3 - first
            async with RawClient(str(cluster.address(first))) as client:
                await until(lambda: leader(cluster, first, key).standings.in_sync == 2)
                assert (await produce(client, "t", batch(b"a"))).error_code == 0
                copy = follower(cluster, other, key)
                with held_rounds(cluster, other):
                    for end in (2, 3):  # the second comes while the round of the first is under way
                        assert (await produce(client, "t", batch(b"b"), acks=1)).error_code == 0
                        await until(lambda end=end: copy.log.log_end_offset == end)  # type: ignore[misc]
                    await elect(cluster, key, other)
                    await cluster.until(other, lambda image: known(image, key).leader == other)
                await cluster.settled(other)
                await until(lambda: leader(cluster, other, key).high_watermark == 3)
                await until(lambda: follower(cluster, first, key).high_watermark == 3)

    run(work())
