"""Stories of a quorum, on virtual time: what each side hears when the controller is cut off, and how a long-absent
member comes back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.base import limits
from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex, TopicId
from headrace.broker.cluster.driver import ChangeRefused, ChangeTooLarge, MetadataStopped, NotController, OutcomeUnknown
from headrace.controller.decision import Decision
from headrace.metadata.events import ConfigChanged, TopicCreated
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.raft.membership import Demote, MembershipRefusal, Remove
from headrace.raft.messages import AppendAnswer
from headrace.storage.raftlog.raft_log import RaftLog
from tests.broker.cluster.quorum_simulation import Machine, World, played
from tests.broker.cluster.quorum_world import Node, controller, count_up, equal, look, peer

Story = Callable[[World], Coroutine[Any, Any, None]]


def nodes(world: World) -> list[Node]:
    return [machine.node for machine in world.machines.values() if machine.up and machine.node]


async def leading(world: World) -> Machine:
    found = await controller(nodes(world))
    return world.machines[found.me.node]


async def count(world: World, times: int = 1) -> None:
    for _ in range(times):
        await world.submit()


def isolate(world: World, machine: Machine) -> None:
    for other in world.machines.values():
        world.cut |= {(machine.number, other.number), (other.number, machine.number)}


async def outcome(machine: Machine, decide: Callable[[MetadataImage], Decision[Any]] = count_up) -> Exception | None:
    """The error that a submitter on this machine gets; None where the change was made."""

    async def ask(node: Node) -> Exception | None:
        try:
            await node.driver.submit(decide)
        except (NotController, OutcomeUnknown) as error:
            return error
        return None

    assert machine.process is not None
    assert machine.node is not None
    return await machine.world.within(machine.process, ask(machine.node))


async def who_is_cut_off_says_that_it_does_not_know(world: World) -> None:
    old = await leading(world)
    await count(world, 3)
    isolate(world, old)
    lost = world.loop.create_task(outcome(old))
    seen = world.loop.create_task(outcome(old, look))
    rest = [machine for machine in world.machines.values() if machine is not old]
    await controller([machine.node for machine in rest if machine.node])
    assert await world.submit(through=rest) == 3, "without what only the old one had"
    assert isinstance(await lost, OutcomeUnknown)
    assert isinstance(await seen, NotController | OutcomeUnknown), "what it sees may be old"
    assert old.node is not None
    assert old.node.roles == [True, False]
    assert isinstance(await outcome(old), NotController)
    world.cut.clear()
    await equal(nodes(world))
    assert old.node.driver.image.next_producer_id == 4


async def who_does_not_know_that_another_leads_tells_nothing_old(world: World) -> None:
    """The others were told that it is dead, which is false: it is only cut off, and still takes itself for it."""
    old = await leading(world)
    await count(world, 3)
    isolate(world, old)
    assert old.node is not None
    rest = [machine for machine in world.machines.values() if machine is not old]
    await world.accuse(old)
    assert await world.submit(through=rest) == 3
    assert old.node.driver.is_controller, "else this shows nothing"
    assert isinstance(await outcome(old, look), NotController | OutcomeUnknown)
    world.cut.clear()
    await equal(nodes(world))


async def a_controller_that_is_started_again_at_once_is_not_waited_for(world: World) -> None:
    """Nobody sees that it was dead."""
    old = await leading(world)
    await count(world, 3)
    before = world.loop.time()
    old.kill(power=True)
    await old.boot()
    await count(world)
    assert world.loop.time() - before < 0.9, "less than the shortest silence of a leader"


async def the_last_voter_does_not_wait_for_a_leader_that_has_removed_itself(world: World) -> None:
    old = await leading(world)
    await count(world, 3)
    other, last = (machine for machine in world.machines.values() if machine is not old)
    await old.ask(lambda node: node.driver.change(Remove(peer(other.number))))
    await old.ask(lambda node: node.driver.change(Remove(peer(old.number))))
    assert await world.submit(through=[last]) == 3
    assert last.node is not None
    assert last.node.driver.membership.voters == {peer(last.number)}


async def a_controller_that_dies_is_not_waited_for(world: World) -> None:
    """Its connections break, and nobody listens where it was."""
    old = await leading(world)
    await count(world, 3)
    before = world.loop.time()
    old.kill(power=True)
    await count(world)
    assert world.loop.time() - before < 0.9, "less than the shortest silence of a leader"
    assert all(old.number in node.dead for node in nodes(world))
    await old.boot()


async def an_acknowledgement_of_what_was_never_sent_is_not_believed(world: World) -> None:
    leader = await leading(world)
    await count(world)
    other = next(machine for machine in world.machines.values() if machine is not leader)
    assert leader.node is not None
    assert other.node is not None
    wrong = AppendAnswer(
        term=leader.node.driver.term, source=other.node.me, target=leader.node.me, match_index=1_000_000
    )

    async def speak(node: Node) -> None:
        node.peers.send(wrong)

    await other.ask(speak)
    await count(world, 3)
    await equal(nodes(world))


async def what_is_too_large_is_refused_and_harms_nobody(world: World) -> None:
    leader = await leading(world)
    event = ConfigChanged(broker_id=BrokerId(1), changes={"x": "y" * limits.METADATA_ENTRY_BYTES_MAX})

    async def ask(node: Node) -> list[Any]:
        large = node.driver.submit(lambda image: Decision((event,), None))
        return list(await asyncio.gather(large, node.driver.submit(count_up), return_exceptions=True))

    assert leader.process is not None
    assert leader.node is not None
    refused, counted = await world.within(leader.process, ask(leader.node)) or [None, None]
    assert isinstance(refused, ChangeTooLarge)
    assert counted == 0
    await equal(nodes(world))


async def who_was_away_gets_a_snapshot_in_pieces(world: World) -> None:
    leader = await leading(world)
    away = next(machine for machine in world.machines.values() if machine is not leader)
    away.kill(power=True)
    await count(world, 40)
    await away.boot()
    assert away.node is not None
    jumps: list[int] = []
    away.node.driver.subscribe(lambda delta: jumps.append(delta.after.index - delta.before.index))
    await equal(nodes(world))
    assert max(jumps) > 20, "in one delta"
    away.kill(power=True)
    await away.boot()
    await equal(nodes(world))


async def a_large_topic_is_applied_by_all(world: World) -> None:
    """Encoded, and on the others decoded, in a worker thread; what is decided meanwhile comes after it."""
    leader = await leading(world)
    partitions = tuple(
        PartitionImage(
            index=PartitionIndex(index),
            leader=BrokerId(1),
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
            replicas=(BrokerId(1),),
            isr=(BrokerId(1),),
        )
        for index in range(3_000)
    )
    event = TopicCreated(topic_id=TopicId(uuid.UUID(int=9)), name="large", partitions=partitions, configs={})

    async def create(node: Node) -> list[Any]:
        large = node.driver.submit(lambda image: Decision((event,), image.index))
        return list(await asyncio.gather(large, node.driver.submit(count_up), node.driver.submit(look)))

    assert leader.process is not None
    assert leader.node is not None
    assert await world.within(leader.process, create(leader.node)) == [1, 0, 1]
    await equal(nodes(world))
    assert all(len(node.driver.image.topics[event.topic_id].partitions) == 3_000 for node in nodes(world))


async def a_snapshot_that_arrives_damaged_stops_who_received_it(world: World) -> None:
    leader = await leading(world)
    away = next(machine for machine in world.machines.values() if machine is not leader)
    away.kill(power=True)
    await count(world, 40)
    receive = RaftLog.receive_chunk

    def damaged(self: RaftLog, offset: int, data: bytes) -> None:
        receive(self, offset, bytes([data[0] ^ 1]) + data[1:])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RaftLog, "receive_chunk", damaged)
        await away.boot()
        assert away.node is not None
        while not away.node.fatal:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.1)
    assert isinstance(away.node.fatal[0], CorruptData)
    assert "look at the disk of the controller" in str(away.node.fatal[0])
    away.kill(power=False)
    await away.boot()
    await equal(nodes(world))


async def a_stop_waits_for_the_others_and_not_for_ever(world: World) -> None:
    old = await leading(world)
    await count(world)
    isolate(world, old)
    waiting = world.loop.create_task(outcome(old))
    await asyncio.sleep(0.1)
    assert old.process is not None
    assert old.node is not None
    before = world.loop.time()
    await world.within(old.process, old.node.driver.stop())
    assert world.loop.time() - before < 3
    assert isinstance(await waiting, OutcomeUnknown)
    with pytest.raises(MetadataStopped):
        await old.node.driver.submit(look)
    world.cut.clear()
    old.kill(power=False)
    await old.boot()
    await count(world)


async def changes_go_one_at_a_time_and_the_last_voter_stays(world: World) -> None:
    leader = await leading(world)
    assert leader.process is not None
    await asyncio.sleep(1)  # it has heard of all: none is let go before it knows who is left
    others = [machine.number for machine in world.machines.values() if machine is not leader]

    async def demote(node: Node) -> list[Any]:
        both = (node.driver.change(Demote(peer(other))) for other in others)
        found = list(await asyncio.gather(*both, node.driver.submit(count_up), return_exceptions=True))
        await node.driver.change(Demote(peer(others[1])))
        with pytest.raises(ChangeRefused) as last:
            await node.driver.change(Demote(node.me))
        assert last.value.refusal is MembershipRefusal.LAST_VOTER
        return [*found, await node.driver.submit(look)]

    assert leader.node is not None
    first, second, counted, seen = await world.within(leader.process, demote(leader.node)) or [None] * 4
    assert first is None
    assert isinstance(second, ChangeRefused)
    assert second.refusal is MembershipRefusal.CHANGE_PENDING
    assert (counted, seen) == (0, 1)
    await equal(nodes(world))
    assert leader.node.driver.membership.learners == {peer(other) for other in others}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "story",
    [
        who_is_cut_off_says_that_it_does_not_know,
        who_does_not_know_that_another_leads_tells_nothing_old,
        a_controller_that_is_started_again_at_once_is_not_waited_for,
        the_last_voter_does_not_wait_for_a_leader_that_has_removed_itself,
        a_controller_that_dies_is_not_waited_for,
        an_acknowledgement_of_what_was_never_sent_is_not_believed,
        what_is_too_large_is_refused_and_harms_nobody,
        who_was_away_gets_a_snapshot_in_pieces,
        a_large_topic_is_applied_by_all,
        a_snapshot_that_arrives_damaged_stops_who_received_it,
        a_stop_waits_for_the_others_and_not_for_ever,
        changes_go_one_at_a_time_and_the_last_voter_stays,
    ],
    ids=lambda story: story.__name__,
)
def test_story(story: Story, seed: int) -> None:
    played(seed, story)
