"""A broker that holds more than goes into one entry: it goes in slices, whoever is the controller meanwhile, and comes
back so. On virtual time, with slices of three."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.ids import NO_LEADER, BrokerId, IncarnationId, TopicId
from headrace.broker.cluster.controller_service import ControllerService
from headrace.controller.asks.brokers import Heartbeat, RemoveBroker
from headrace.controller.asks.topics import CreateTopics
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import Engine
from tests.broker.cluster.quorum_simulation import Machine, World, played
from tests.broker.cluster.quorum_world import equal
from tests.broker.cluster.test_quorum_stories import isolate, leading, nodes
from tests.broker.cluster.test_refusals import ask, registered, registration

SLICE = 3
PARTITIONS = 20


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.cluster.transitions.SETTLED_PER_ENTRY_MAX", SLICE)
    monkeypatch.setattr("headrace.broker.cluster.transitions.SETTLED_PER_SLICE_MAX", SLICE)


def topics(*, replicas: int, number: int) -> CreateTopics:
    topic = NewTopic(
        topic_id=TopicId(uuid.UUID(int=number)),
        name=f"t{number}",
        partitions=PARTITIONS,
        replication_factor=replicas,
        configs={},
    )
    return CreateTopics(topics=(topic,))


def changed(delta: ImageDelta) -> int:
    """How many partitions of topics that were there it changed."""
    pairs = [(before, after) for before, after in delta.changed_topics() if before is not None and after is not None]
    return sum(
        was is not now for before, after in pairs for was, now in zip(before.partitions, after.partitions, strict=True)
    )


def is_out(image: MetadataImage, broker: int) -> bool:
    """It leads nothing, and is in sync with nothing but what nobody else is."""
    partitions = [partition for _, partition in image.all_partitions()]
    return all(part.leader != broker and (broker not in part.isr or part.isr == (broker,)) for part in partitions)


def led(image: MetadataImage) -> bool:
    return all(partition.leader != NO_LEADER for _, partition in image.all_partitions())


async def until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.01)


async def it_goes_and_comes_in_slices(world: World) -> None:
    controller = await leading(world)
    other = await registered(controller)
    assert controller.node is not None
    driver, deltas = controller.node.driver, list[int]()
    left = list[int]()
    driver.subscribe(lambda delta: deltas.append(changed(delta)))
    driver.subscribe(lambda delta: left.append(sum(part.leader == other for _, part in delta.after.all_partitions())))

    async def work(made: ControllerService) -> bool:
        for number, replicas in ((1, 3), (2, 1)):
            answer = await made.answer(topics(replicas=replicas, number=number))
            assert not isinstance(answer, Refusal)
        epochs = {key: partition.leader_epoch for key, partition in by_key(driver.image)}
        led_by_it = {key for key, partition in by_key(driver.image) if partition.leader == other}
        left.clear()
        made.on_peer_dead(BrokerId(other))
        await until(lambda: is_out(driver.image, other))
        going = list(range(len(led_by_it) - SLICE, -1, -SLICE))
        assert left[: len(going)] == going, "what it leads goes first"
        assert not led(driver.image), "what only it has"
        epoch = await made.answer(registration(other, 3))  # another process, on another disk
        assert not led(driver.image)
        await beat(made, other, epoch)
        assert not led(driver.image), "not from another disk"
        made.on_peer_dead(BrokerId(other))
        await until(lambda: driver.image.brokers[BrokerId(other)].fenced)
        epoch = await made.answer(registration(other, 1))
        await beat(made, other, epoch)
        assert led(driver.image)
        assert max(deltas) == SLICE
        for key, partition in by_key(driver.image):
            assert (partition.leader_epoch > epochs[key]) == (key in led_by_it)
        return True

    assert await ask(controller, work), "in time"
    await equal(nodes(world))


def by_key(image: MetadataImage) -> Iterator[tuple[tuple[str, int], Any]]:
    return (((topic.name, partition.index), partition) for topic, partition in image.all_partitions())


async def beat(made: ControllerService, broker: int, epoch: Any) -> None:
    assert await made.answer(Heartbeat(broker_id=BrokerId(broker), broker_epoch=epoch, ready=True)) is True


async def a_new_incarnation_has_a_new_epoch_for_all_that_it_led_before_it_serves(world: World) -> None:
    """A process that was killed and is there again before anybody missed it."""
    controller = await leading(world)
    other = await registered(controller)
    assert controller.node is not None
    driver = controller.node.driver

    async def work(made: ControllerService) -> bool:
        await made.answer(topics(replicas=1, number=1))
        before = {key: partition for key, partition in by_key(driver.image) if partition.leader == other}
        again = replace(registration(other, 1), incarnation=IncarnationId(uuid.UUID(int=99)))
        epoch = await made.answer(again)
        assert not isinstance(epoch, Refusal)
        now = dict(by_key(driver.image))
        assert all(now[key].leader_epoch > known.leader_epoch for key, known in before.items())
        await beat(made, other, epoch)
        assert all(now[key].leader_epoch > known.leader_epoch for key, known in before.items())
        assert led(driver.image)
        return True

    assert await ask(controller, work), "in time"


async def it_comes_though_its_heartbeat_is_given_up(world: World) -> None:
    """The broker that asked hangs up after a slice, and the controller looked at what is left just before the first."""
    controller = await leading(world)
    other = await registered(controller)
    assert controller.node is not None
    driver = controller.node.driver

    async def work(made: ControllerService) -> bool:
        await made.answer(topics(replicas=1, number=1))
        made.on_peer_dead(BrokerId(other))
        await until(lambda: is_out(driver.image, other))
        again = replace(registration(other, 1), incarnation=IncarnationId(uuid.UUID(int=99)))
        epoch = await made.answer(again)
        coming = asyncio.ensure_future(beat(made, other, epoch))

        def hang_up(delta: ImageDelta) -> None:
            if not delta.after.brokers[BrokerId(other)].fenced:
                coming.cancel()

        driver.subscribe(hang_up)
        await asyncio.sleep(0)
        await made._settling.go_on()
        assert driver.image.brokers[BrokerId(other)].fenced
        await until(coming.done)
        assert not led(driver.image), "else this shows nothing"
        await until(lambda: led(driver.image))
        return True

    assert await ask(controller, work), "in time"


async def it_is_removed_in_slices(world: World) -> None:
    controller = await leading(world)
    other = await registered(controller)
    assert controller.node is not None
    driver, deltas = controller.node.driver, list[int]()

    async def work(made: ControllerService) -> bool:
        await made.answer(topics(replicas=3, number=1))
        made.on_peer_dead(BrokerId(other))
        await until(lambda: is_out(driver.image, other))
        driver.subscribe(lambda delta: deltas.append(changed(delta)))
        assert await made.answer(RemoveBroker(broker_id=BrokerId(other))) is None
        assert max(deltas) == SLICE
        assert BrokerId(other) not in driver.image.brokers
        assert not any(other in partition.replicas for _, partition in driver.image.all_partitions())
        return True

    assert await ask(controller, work), "in time"


async def the_next_controller_finishes_it(world: World, engine: Engine = Engine.LOCAL) -> None:
    old = await leading(world)
    other = await registered(old, engine)
    assert old.node is not None
    driver = old.node.driver

    async def begin(made: ControllerService) -> bool:
        for number in (1, 2, 3) if engine.shares_logs else (1,):  # it is to lead more than a few slices
            await made.answer(topics(replicas=3, number=number))
        slices = 0

        def cut(delta: ImageDelta) -> None:
            nonlocal slices
            if changed(delta) == SLICE:
                slices += 1
                if slices == 2:
                    isolate(world, old)

        driver.subscribe(cut)
        made.on_peer_dead(BrokerId(other))
        await until(lambda: not driver.is_controller)
        return True

    assert await ask(old, begin), "in time"
    assert not is_out(driver.image, other), "else this shows nothing"
    new = await next_leading(world, old)

    async def finish(made: ControllerService) -> bool:
        assert new.node is not None
        await until(lambda: new.node is not None and is_out(new.node.driver.image, other))
        return True

    assert await ask(new, finish), "in time"
    world.cut.clear()
    await equal(nodes(world))


async def the_next_controller_finishes_it_where_logs_are_shared(world: World) -> None:
    await the_next_controller_finishes_it(world, Engine.REDIS)


async def where_logs_are_shared_the_first_that_lives_leads_all(world: World) -> None:
    controller = await leading(world)
    other = await registered(controller, Engine.REDIS)
    assert controller.node is not None
    driver, deltas = controller.node.driver, list[int]()

    async def work(made: ControllerService) -> bool:
        await made.answer(topics(replicas=3, number=1))
        driver.subscribe(lambda delta: deltas.append(changed(delta)))
        for broker in driver.image.live_brokers():
            stops = Heartbeat(broker_id=broker.id, broker_epoch=broker.epoch, ready=False, stopping=True)
            assert await made.answer(stops) is False
        assert all(partition.leader == NO_LEADER for _, partition in driver.image.all_partitions())
        epoch = await made.answer(registration(other, 2, Engine.REDIS))  # from another directory
        await beat(made, other, epoch)
        assert all(partition.leader == other for _, partition in driver.image.all_partitions())
        assert max(deltas) == SLICE
        return True

    assert await ask(controller, work), "in time"


async def next_leading(world: World, old: Machine) -> Machine:
    def found() -> list[Machine]:
        rest = [machine for machine in world.machines.values() if machine is not old]
        return [machine for machine in rest if machine.node is not None and machine.node.driver.is_controller]

    await until(found)
    return found()[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "story",
    [
        it_goes_and_comes_in_slices,
        a_new_incarnation_has_a_new_epoch_for_all_that_it_led_before_it_serves,
        it_comes_though_its_heartbeat_is_given_up,
        it_is_removed_in_slices,
        the_next_controller_finishes_it,
        the_next_controller_finishes_it_where_logs_are_shared,
        where_logs_are_shared_the_first_that_lives_leads_all,
    ],
    ids=lambda story: story.__name__,
)
def test_story(story: Any, seed: int) -> None:
    played(seed, story)
