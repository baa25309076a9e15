"""Damaged copies are taken anew from their leaders: when, in which order, and when not (decision 0023)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from headrace.base.ids import Offset
from headrace.broker import renewals as renewals_module
from headrace.net import loops
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import until
from tests.broker.replication_world import BY_HAND, World, replicating

COUNT = 12
SEGMENT = {"segment_bytes": "1024"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "RENEWAL_LOOK_MS", 1)


def run(directory: Path, work: Callable[[World], Awaitable[None]], configs: Mapping[str, str] | None = None) -> None:
    async def whole() -> None:
        async with replicating(directory, {**BY_HAND, **(configs or {})}) as world:
            await work(world)

    loops.run(whole())


async def filled(world: World, *, replicas: int = 3, count: int = COUNT, **configs: str) -> None:
    """A topic of several closed segments, with all replicas in sync and all flushed."""
    await world.make("t", 1, replicas, **SEGMENT | configs)
    client = await world.client(world.leader("t"))
    for number in range(count):
        assert (await produce(client, "t", record(number))).error_code == 0
    await world.until_end("t", count, *world.image("t").replicas)


def record(number: int) -> bytes:
    return batch(b"%d" % number + b"v" * 250, timestamp=1_700_000_000_000)


def segments(world: World, broker: int) -> list[Path]:
    return sorted(world.role(broker, "t").log.directory.glob("*.log"))


def damage(world: World, broker: int, number: int = 0) -> Path:
    """A changed value in one of its closed segments, which is looked at as if a reader had stumbled there."""
    path = segments(world, broker)[number]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert world.partitions(broker).suspect(world.role(broker, "t"), Offset(int(path.stem)))
    return path


def is_sound(world: World, broker: int) -> bool:
    role = world.role(broker, "t")
    return not role.is_damaged and not role.log.has_replaced and not list(role.log.directory.glob("replaced*"))


async def mended(world: World, broker: int, count: int = 3) -> None:
    """Until its copy is sound, and in sync."""
    await until(lambda: is_sound(world, broker))
    await world.in_sync("t", count)


def contents(world: World, broker: int) -> bytes:
    return b"".join(path.read_bytes() for path in segments(world, broker))


def test_a_damaged_follower_is_copied_anew_and_rejoins(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, _) = world.leader("t"), world.followers("t")
        sound, epoch = contents(world, leader), world.image("t").leader_epoch
        path = damage(world, follower)
        damaged = path.read_bytes()
        await until(lambda: world.image("t").leader_epoch > epoch)
        await mended(world, follower)
        assert contents(world, follower) == sound
        assert world.leader("t") == leader
        assert path.with_name(path.name + ".damaged").read_bytes() == damaged
        assert len(await world.read("t")) == COUNT

    run(tmp_path, work)


def test_a_damaged_leader_hands_over_and_then_does_as_a_follower(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, followers = world.leader("t"), world.followers("t")
        sound = contents(world, followers[0])
        damage(world, leader)
        await until(lambda: world.leading("t") is not None and world.leader("t") in followers)
        await mended(world, leader)
        assert contents(world, leader) == sound

    run(tmp_path, work)


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_isr_is_not_left_that_would_be_too_small(tmp_path: Path, replicas: int) -> None:
    """Producers wait for nothing that is done in the background."""

    async def work(world: World) -> None:
        await filled(world, replicas=replicas, min_insync_replicas=str(replicas))
        leader = world.leader("t")
        follower = next(each for each in world.image("t").replicas if each != leader)
        epoch = world.image("t").leader_epoch
        damage(world, follower)
        told = world.cluster.brokers[follower].parts._renewals
        await until(lambda: world.key("t") in told.obstacles)
        for _ in range(5):
            await world.turns()
        assert (world.image("t").leader_epoch, len(world.image("t").isr)) == (epoch, replicas)
        assert told.obstacles[world.key("t")] == renewals_module.TOO_FEW
        assert world.role(follower, "t").is_damaged
        assert (await produce(await world.client(leader), "t", record(99))).error_code == 0

    run(tmp_path, work)
