"""Replicas whose logs begin where durable history goes on: what they copy from each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from headrace.base.ids import BrokerId
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, fetch, produce
from tests.broker.group_broker import until
from tests.broker.replicas import silence
from tests.broker.replication_world import ALL, World, decoded, replicating
from tests.broker.tiered import objects_in

CHECK = "log.retention.check.interval.ms"
BIG = b"v" * 1000
"""A segment of its own."""


def run(directory: Path, work: Callable[[World], Awaitable[None]], configs: Mapping[str, str] | None = None) -> None:
    async def whole() -> None:
        named = {**BY_HAND, CHECK: "5", **(configs or {})}
        async with replicating(directory, named, objects=objects_in(directory)) as world:
            await work(world)

    loops.run(whole())


async def make(world: World) -> tuple[int, int]:
    """'t', of two replicas, whose logs keep as little as they may: its leader, and its follower."""
    await world.make(
        "t", replicas=2, segment_bytes="1024", local_retention_bytes="0", retention_ms="-1", min_insync_replicas="1"
    )
    leading = world.leading("t")
    assert leading is not None
    (follower,) = set(leading.isr.leader.replicas) - {leading.isr.leader.node}
    return leading.isr.leader.node, follower


async def write(world: World, *values: bytes, acks: int = -1) -> int:
    answer = await produce(await world.client(world.leader("t")), "t", batch(*values), acks=acks)
    assert answer.error_code == 0
    return int(answer.base_offset)


async def read(world: World, end: int) -> list[tuple[int, bytes | None]]:
    """From offset 0 to `end`, of the leader."""
    client, found, offset = await world.client(world.leader("t")), [], 0
    while offset < end:
        answer = await fetch(client, "t", offset, wait_ms=10_000)
        assert answer.error_code == 0
        found += decoded(answer.records) if answer.records else []
        offset = found[-1][0] + 1 if found else 0
    return found


def test_what_a_deposed_leader_alone_has_goes_though_the_new_leaders_log_begins_above_it(tmp_path: Path) -> None:
    """Where the logs differ is below the leader's log, and it has forgotten the epochs from there."""

    async def work(world: World) -> None:
        old, new = await make(world)
        await write(world, b"kept")
        await world.until_end("t", 1, old, new)
        world.cluster.brokers[new].parts.replication.copying.drop(world.key("t"))  # until the next epoch
        for number in range(1, 21):
            assert await write(world, b"lost", acks=1) == number
        await world.until_end("t", 21, old)
        world.cluster.configs[CHECK] = "3600000"  # the old leader deletes nothing by itself when it comes back
        silence(world.cluster, old)  # it dies before it follows anybody
        await world.fence(old)
        await world.stop(old)
        for number in range(1, 10):
            assert await write(world, BIG) == number
        await until(lambda: world.role(new, "t").log.log_start_offset >= 8)
        await world.stop(new)
        await world.cluster.start(new)
        await world.unfence(new)
        await world.committed("t", 10)
        leading = world.leading("t")
        assert leading is not None
        start = leading.log.log_start_offset
        assert 8 <= start == leading.log.epochs[0][1] + 1, "the epochs are trimmed, but for the record before"
        await world.cluster.start(old)
        await world.unfence(old)
        await world.in_sync("t", 2)
        assert world.role(old, "t").log.log_start_offset == leading.log.log_start_offset
        await world.fence(new)
        assert world.leader("t") == old
        await world.committed("t", 10)
        assert await read(world, 10) == [(0, b"kept"), *((number, BIG) for number in range(1, 10))]
        await world.stop(*ALL)
        assert b"lost" not in b"".join(world.files(old, "t").values())

    run(tmp_path, work)


def test_who_stands_where_the_leader_has_deleted_says_where_it_is_and_keeps_its_connection(tmp_path: Path) -> None:
    """The follower's disk is slow, so it asks for nothing while it leaves the ISR, and the leader deletes."""

    async def work(world: World) -> None:
        leader, follower = await make(world)
        await write(world, b"kept")
        sessions = world.cluster.brokers[leader].parts.replication.followers._sessions
        session, key = sessions[BrokerId(follower)], world.key("t")
        with world.held(follower):
            for _ in range(10):
                await write(world, BIG)
            await until(lambda: world.role(leader, "t").log.log_start_offset >= 8)
            assert session._places[key].next_offset < world.role(leader, "t").log.log_start_offset
        await write(world, b"more")
        await world.until_end("t", 12, leader, follower)
        assert sessions[BrokerId(follower)] is session
        assert await read(world, 12) == [(0, b"kept"), *((number, BIG) for number in range(1, 11)), (11, b"more")]

    run(tmp_path, work, {"replica.lag.time.max.ms": "500"})
