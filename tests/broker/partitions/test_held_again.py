"""A partition that a broker holds again before it has removed its former copy.

Nobody counts on data that is to be removed, and nothing is removed that anybody counts on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex
from headrace.broker.partitions.logs.opening import Opened, Wanted
from headrace.controller.decision import Decision
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.metadata.events import LeaderChanged, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.storage.commit_log import Committed
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import until
from tests.broker.replicas import release_later
from tests.broker.replication_world import ALL, World, replicating

COUNT = 3


def run(directory: Path, work: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with replicating(directory, BY_HAND) as world:
            await work(world)

    loops.run(whole())


async def make(world: World, name: str, *replicas: int) -> None:
    wanted = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=(CreatableReplicaAssignment(0, replicas),)
    )
    client = await world.client(replicas[0])
    (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000))).topics
    assert made.error_code == 0, made.error_message
    await world.cluster.agree()
    for broker in ALL:
        await world.cluster.settled(broker)


async def fill(world: World, *replicas: int) -> None:
    """'t', which the first of these leads, with all of them in sync."""
    await make(world, "t", *replicas)
    await until(lambda: world.all_copy("t"))
    for number in range(COUNT):
        assert (await produce(await world.client(replicas[0]), "t", batch(b"%d" % number))).error_code == 0
    await world.until_end("t", COUNT, *replicas)


def placed(image: MetadataImage, name: str, *replicas: int) -> Sequence[MetadataEvent]:
    """The events that give a topic these replicas, as far as it can have them at once."""
    wish = Reassignment(topic=name, partition=PartitionIndex(0), replicas=tuple(map(BrokerId, replicas)))
    decision = reassign_partitions(image, [wish])
    assert decision.result == (None,)
    return decision.events


async def place(world: World, name: str, *replicas: int) -> None:
    """That is one entry; returns once it is committed."""
    await world.cluster.controller.metadata.submit(lambda image: Decision(tuple(placed(image, name, *replicas)), None))


def values(records: Sequence[tuple[int, bytes | None]]) -> list[bytes | None]:
    return [value for _, value in records]


def test_a_copy_that_is_held_again_while_its_removal_waits_is_there_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work under way when the copy goes and returns reaches it only then. It must not give the old log to the new
    assignment, because the removal is still to come."""

    async def work(world: World) -> None:
        a, b = 1, 2
        await fill(world, a, b)
        await make(world, "u", b)
        quiet, opens = asyncio.Event(), asyncio.Event()
        opener = world.cluster.brokers[a].parts.logs.assignments._taking_up._opener
        open_all = opener.open_all

        async def held(_: Sequence[PartitionLog]) -> None:
            await quiet.wait()

        async def slow(wanted: Sequence[Wanted]) -> list[Opened | Exception]:
            if any(each.identity.topic_name == "u" for each in wanted):
                await opens.wait()
            return await open_all(wanted)

        release_later(world.cluster, a, held)
        monkeypatch.setattr(opener, "open_all", slow)

        def leads_and_comes(image: MetadataImage) -> Decision[None]:
            """In one entry: B leads 't', and A is to hold 'u' too."""
            known = image.partition(world.key("t"))
            assert known is not None
            elected = LeaderChanged(
                topic_id=world.key("t").topic_id,
                partition=known.index,
                leader=BrokerId(b),
                leader_epoch=LeaderEpoch(known.leader_epoch + 1),
                partition_epoch=PartitionEpoch(known.partition_epoch + 1),
                isr=known.isr,
            )
            return Decision((elected, *placed(image, "u", b, a)), None)

        try:
            await world.cluster.controller.metadata.submit(leads_and_comes)
            await place(world, "t", b)
            await place(world, "t", a)  # and it goes from B once it is there
            await world.cluster.agree(is_carried_out=False)  # A waits for `quiet`
            quiet.set()
            for _ in range(30):
                if world.image("t", broker=b).replicas == (a,):
                    break
                await world.turns()
        finally:
            quiet.set()
            opens.set()
        for broker in ALL:
            await world.cluster.until(broker, lambda image: image.partition(world.key("t")).replicas == (a,))  # type: ignore[union-attr]
        for broker in ALL:
            await world.cluster.settled(broker)
        await until(lambda: world.leading("t") is not None and world.leader("t") == a)
        await world.committed("t", COUNT)
        assert values(await world.read("t")) == [b"0", b"1", b"2"]
        await until(lambda: world.all_copy("u"))

    run(tmp_path, work)


def test_who_has_not_heard_that_it_was_no_replica_is_not_counted_on_by_what_it_says(tmp_path: Path) -> None:
    """It is about to hear that it is to remove its copy, and will."""

    async def work(world: World) -> None:
        controller = world.cluster.controller.metadata.me
        late, leader = next(each for each in ALL if each != controller), int(controller)
        await fill(world, leader, late)
        applier = world.cluster.brokers[late].parts.metadata._applier
        held: list[Committed] = []
        applier.apply = held.extend  # type: ignore[method-assign,assignment]
        await place(world, "t", leader)
        await place(world, "t", leader, late)
        answer = await produce(await world.client(leader), "t", batch(b"3"), acks=1)
        assert answer.error_code == 0
        for _ in range(60):
            if late in world.image("t", broker=leader).isr:
                break
            await world.turns()
        assert world.image("t", broker=leader).replicas == (leader, late)
        assert world.image("t", broker=leader).isr == (leader,)
        del applier.apply
        applier.apply(held)
        await world.in_sync("t", 2)
        await world.until_end("t", COUNT + 1, leader, late)
        assert world.role(late, "t").log.log_start_offset == 0
        assert values(await world.read("t")) == [b"0", b"1", b"2", b"3"]

    run(tmp_path, work)
