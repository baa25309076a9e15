"""Refusals of the controller, and answers that a deposed one, which does not know it, must not give."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.base.ids import BrokerEpoch, BrokerId, DirectoryId, IncarnationId, TopicId
from headrace.broker.cluster.controller_role import ControllerRole
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.driver import NotController
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.brokers import ChangeVoter, Heartbeat, ReadQuorum, RegisterBroker, RemoveBroker
from headrace.controller.asks.topics import CreateTopics
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic
from headrace.metadata.values import Endpoint, Engine
from headrace.raft.membership import Demote
from headrace.sim.clock import SimClock
from headrace.wire.errors import ErrorCode
from tests.broker.cluster.quorum_simulation import Machine, World, played
from tests.broker.cluster.quorum_world import CLUSTER, Node, controller, equal, peer
from tests.broker.cluster.test_quorum_stories import isolate, leading, nodes

STRANGER = BrokerId(9)


def registration(broker: int, life: int, engine: Engine = Engine.LOCAL) -> RegisterBroker:
    return RegisterBroker(
        cluster_id=CLUSTER,
        broker_id=BrokerId(broker),
        directory_id=DirectoryId(uuid.UUID(int=broker * 1000 + life)),
        incarnation=IncarnationId(uuid.UUID(int=life)),
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9),),
        engine=engine,
    )


def creation(number: int) -> CreateTopics:
    topic = NewTopic(
        topic_id=TopicId(uuid.UUID(int=number)),
        name="t",
        partitions=1,
        replication_factor=1,
        assignments=None,
        configs={},
    )
    return CreateTopics(topics=(topic,))


@asynccontextmanager
async def service(world: World, node: Node) -> Any:
    def on_bug(error: BaseException) -> None:
        raise AssertionError from error

    made = ControllerService(
        node=node.me.node,
        cluster_id=CLUSTER,
        configs={},
        metadata=node.driver,
        clock=SimClock(world.loop),
        on_bug=on_bug,
    )
    role = ControllerRole(node.driver, [made])
    role.start()
    try:
        yield made
    finally:
        role.stop()


async def ask(machine: Machine, work: Callable[[ControllerService], Awaitable[Any]]) -> Any:
    """Of the service of whoever takes itself for the controller on this machine."""
    assert machine.process is not None
    assert machine.node is not None
    node = machine.node

    async def asked() -> Any:
        async with service(machine.world, node) as made:
            return await work(made)

    return await machine.world.within(machine.process, asked())


async def told(made: ControllerService, asked: Ask[Any]) -> Any:
    try:
        return await made.answer(asked)
    except NotController as error:
        return error


def refused(number: int) -> dict[str, Ask[Any]]:
    """Refused requests, by error code; `number` is a voter that is not the leader."""
    return {
        "DUPLICATE_BROKER_REGISTRATION": registration(number, 2),
        "BROKER_ID_NOT_REGISTERED": RemoveBroker(broker_id=STRANGER),
        "STALE_BROKER_EPOCH": Heartbeat(broker_id=STRANGER, broker_epoch=BrokerEpoch(1), ready=True),
        "DUPLICATE_VOTER": ChangeVoter(broker_id=BrokerId(number), directory_id=None, voter=True),
        "VOTER_NOT_FOUND": ChangeVoter(broker_id=STRANGER, directory_id=None, voter=False),
    }


async def registered(old: Machine, engine: Engine = Engine.LOCAL) -> int:
    """All brokers live; one that is not the controller."""
    numbers = list(old.world.machines)
    other = next(number for number in numbers if number != old.number)

    async def register(made: ControllerService) -> bool:
        for number in numbers:
            epoch = await made.answer(registration(number, 1, engine))
            beat = Heartbeat(broker_id=BrokerId(number), broker_epoch=epoch, ready=True)
            assert await made.answer(beat) is True
        return True

    assert await ask(old, register)
    return other


async def what_it_knows_may_be_old(world: World) -> None:
    old = await leading(world)
    other = await registered(old)

    async def each_is_refused(made: ControllerService) -> list[Any]:
        await made.answer(Heartbeat(broker_id=BrokerId(other), broker_epoch=_epoch(old, other), ready=True))
        return [await told(made, asked) for asked in refused(other).values()]

    answers = await ask(old, each_is_refused)
    assert [answer.code.name for answer in answers] == list(refused(other)), "by the controller"

    async def deposed(made: ControllerService) -> list[Any]:
        await made.answer(Heartbeat(broker_id=BrokerId(other), broker_epoch=_epoch(old, other), ready=True))
        isolate(world, old)
        await world.accuse(old)
        await world.submit(through=[machine for machine in world.machines.values() if machine is not old])
        assert old.node is not None
        assert old.node.driver.is_controller, "else this shows nothing"
        return await asyncio.gather(*(told(made, asked) for asked in [*refused(other).values(), ReadQuorum()]))

    answers = await ask(old, deposed)
    assert [type(answer) for answer in answers] == [NotController] * len(answers)
    world.cut.clear()
    await equal(nodes(world))


def _epoch(machine: Machine, broker: int) -> BrokerEpoch:
    assert machine.node is not None
    return machine.node.driver.image.brokers[BrokerId(broker)].epoch


async def what_it_has_decided_may_never_be_committed(world: World) -> None:
    """ "It exists already" and "it is a learner already", of what only the deposed one has."""
    old = await leading(world)
    other = await registered(old)

    async def deposed(made: ControllerService) -> list[Any]:
        isolate(world, old)
        assert old.node is not None
        driver = old.node.driver
        lost = [asyncio.ensure_future(driver.change(Demote(peer(other))))]
        lost += [asyncio.ensure_future(made.answer(creation(1)))]
        await asyncio.sleep(0)
        again = ChangeVoter(broker_id=BrokerId(other), directory_id=None, voter=False)
        found = list(await asyncio.gather(told(made, creation(2)), told(made, again)))
        await asyncio.gather(*lost, return_exceptions=True)
        return found

    seen = world.loop.create_task(ask(old, deposed))
    rest = [machine.node for machine in world.machines.values() if machine is not old and machine.node]
    await controller(rest)
    assert [type(answer) for answer in await seen] == [NotController] * 2
    world.cut.clear()
    await equal(nodes(world))
    made = await ask(await leading(world), lambda made: told(made, creation(3)))
    assert not isinstance(made, Refusal)
    assert made[0].refusal is None, "the topic was never there"


async def a_voter_stays_while_another_is_down(world: World) -> None:
    """Else the quorum would be one of two, and one of them is not there."""
    leader = await leading(world)
    down, stays = (machine for machine in world.machines.values() if machine is not leader)
    demotion = ChangeVoter(broker_id=BrokerId(stays.number), directory_id=None, voter=False)
    down.kill(power=True)
    await asyncio.sleep(5)
    answer = await ask(leader, lambda made: told(made, demotion))
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.code.retriable) == (ErrorCode.INVALID_REQUEST, False)
    assert "mend those first" in answer.message
    await down.boot()
    await equal(nodes(world))
    await asyncio.sleep(1)
    assert await ask(leader, lambda made: told(made, demotion)) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "story",
    [
        what_it_knows_may_be_old,
        what_it_has_decided_may_never_be_committed,
        a_voter_stays_while_another_is_down,
    ],
    ids=lambda story: story.__name__,
)
def test_story(story: Any, seed: int) -> None:
    played(seed, story)
