"""Followers answer readers of committed records (KIP-392) from durable history, and list what was aborted there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import PartitionIndex
from headrace.broker.partitions.following import FollowerPartition
from headrace.metadata.segment_keys import is_undecided
from headrace.storage.tier.reader import Store
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests import loops
from tests.broker.durable.test_behind_history import Failing
from tests.broker.durable.test_recovery_from_history import exported, until_led
from tests.broker.group_broker import until
from tests.broker.in_transactions import Transactions, by_aiokafka
from tests.broker.moving import A, B, C, Moving, moving
from tests.broker.tiered import objects_in

PADDING = b"." * 3_000
ABORTED, COMMITTED, PLAIN = 1, 2, 3
DEADLINE_S = 150.0


def run(root: Path, store: Any, work: Callable[[Moving], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), moving(root, objects=store) as world:
            await work(world)

    loops.run(whole())


async def fetched(world: Moving, broker: int, offset: int, version: int = 11) -> Any:
    """By a reader of committed records that is in a rack, so that a follower answers it."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=10_000,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_epoch=-1,
        topics=(FetchTopic(topic="t", partitions=(wanted,)),),
        rack_id="any",
    )
    return (await (await world.client(broker)).ask(version, request)).responses[0].partitions[0]


async def sealed_in_the_middle(world: Moving) -> None:
    """History ends in the middle of two transactions, and both markers are in the log behind it alone, on B."""
    await world.make(A, segment_bytes="4096")
    begun = Transactions(world.leading(A))
    begun.write(ABORTED, b"aborted" + PADDING)
    begun.write(COMMITTED, b"committed" + PADDING)
    await world.move(B)
    ended = Transactions(world.leading(B))
    ended.mark(ABORTED, committed=False)
    ended.mark(COMMITTED, committed=True)
    leader = world.leading(B)
    await until(lambda: leader.last_stable_offset == leader.log.log_end_offset == 4)
    assert leader.history is not None
    assert leader.history.next_offset == leader.log.log_start_offset == 2
    assert is_undecided(list(leader.history)[-1].descriptor)


@pytest.mark.parametrize("is_told_by", ["history", "the leader"])
def test_a_follower_lists_what_was_aborted_behind_a_seal(is_told_by: str, tmp_path: Path) -> None:
    """A follower that cannot read the store takes its beginning from the leader. Later it leads, and exports."""
    store = Failing(objects_in(tmp_path))

    async def work(world: Moving) -> None:
        await sealed_in_the_middle(world)
        store.is_down = is_told_by == "the leader"
        await world.place(B, C, through=B)
        store.is_down = False
        following = world.partitions(C).role(world.key)
        assert isinstance(following, FollowerPartition)
        await until(lambda: following.visible_end == 4)
        assert following.log.log_start_offset == 2
        for broker in (B, C):
            for offset in (0, 1):
                answer = await fetched(world, broker, offset)
                assert (answer.error_code, answer.last_stable_offset) == (0, 4)
                told = [tuple(each) for each in answer.aborted_transactions]
                assert (broker, offset, told) == (broker, offset, [(ABORTED, 0)])
        await world.place(C, through=B)
        await until_led(world, C)
        later = Transactions(world.leading(C))
        for number in range(2):
            later.write(PLAIN, b"%d" % number + PADDING, transactional=False)
        await exported(world, C, 5)
        seen = [b"committed" + PADDING, b"0" + PADDING, b"1" + PADDING]
        assert await by_aiokafka(str(world.cluster.address(C)), len(seen)) == seen

    run(tmp_path, store, work)
    read = Store.open(f"file://{tmp_path / 'store'}")
    topic = read.topic("t")
    read.verify(topic, PartitionIndex(0))
    last = read.catalog(topic, PartitionIndex(0)).last
    assert last is not None
    assert [each[:3] for each in read.footer("t", 0, last.descriptor).aborted_transactions] == [(ABORTED, 0, 2)]
