"""Three drivers, three disks, one loop, real sockets: what one decides all know, whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from headrace.base.ids import BrokerId
from headrace.broker.cluster.driver import ChangeRefused, NotController
from headrace.broker.system import SystemClock
from headrace.raft.membership import AddLearner, Membership, MembershipRefusal, Promote, Remove
from headrace.storage.disk import LocalDisk
from tests.broker.cluster.quorum_world import News, Node, controller, count_up, equal, look, peer, stop_all, submit

BORN = Membership(frozenset(map(peer, (1, 2, 3))))


class Quorum:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports: dict[int, int] = {}
        self.cut: set[tuple[int, int]] = set()
        self.nodes: dict[int, Node] = {}
        self.news = News()

    async def boot(self, node: int, *, voters: Membership = BORN, life: int = 1) -> Node:
        self.nodes[node] = Node(
            peer(node, life),
            voters=voters,
            disk=LocalDisk(),
            directory=self.directory / f"{node}-{life}",
            ports=self.ports,
            cut=self.cut,
            random=Random(node),
            news=self.news,
            clock=SystemClock(),
        )
        await self.nodes[node].start()
        for each in self.nodes.values():
            each.peers.learn(BrokerId(node), "127.0.0.1", self.ports[node])
        return self.nodes[node]

    async def stop(self, node: int) -> None:
        await self.nodes.pop(node).stop()

    @property
    def all(self) -> list[Node]:
        return list(self.nodes.values())


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    quorum = Quorum(tmp_path)
    async with asyncio.timeout(150):
        for node in (1, 2, 3):
            await quorum.boot(node)
        yield quorum
        await stop_all(quorum.all)
        assert [member.fatal for member in quorum.all] == [[] for _ in quorum.all]


async def test_one_is_elected_and_what_it_decides_all_know(quorum: Quorum) -> None:
    leader = await controller(quorum.all)
    assert [await leader.driver.submit(count_up) for _ in range(20)] == list(range(20))
    assert await leader.driver.submit(look) == 20
    await equal(quorum.all, at_least=21)
    for node in quorum.all:
        assert node.driver.leader == leader.me.node
        assert node.image == node.driver.image
        if node is not leader:
            with pytest.raises(NotController) as refused:
                await node.driver.submit(count_up)
            assert refused.value.leader == leader.me.node
    status = leader.driver.quorum()
    assert [member.is_voter for member in status.members] == [True] * 3
    assert status.leader == leader.me
    assert status.high_watermark == 21
    assert sorted(member.log_end for member in status.members)[1:] == [21, 21], "a quorum, and the third in a moment"
    assert all(member.last_fetch_ms > 0 for member in status.members)


async def test_when_the_controller_goes_another_decides_and_it_catches_up(quorum: Quorum) -> None:
    first = await controller(quorum.all)
    assert await submit(quorum.all) == 0
    await quorum.stop(first.me.node)
    assert first.roles == [True, False]
    assert await submit(quorum.all) == 1
    second = await controller(quorum.all)
    assert second.driver.term > first.driver.term
    assert first.me.node in second.dead
    again = await quorum.boot(first.me.node)
    await equal(quorum.all, at_least=4)
    assert again.driver.image.next_producer_id == 2


async def test_everyone_restarts(quorum: Quorum) -> None:
    for turn in range(3):
        assert await submit(quorum.all) == turn
        await stop_all(quorum.all)
        quorum.nodes.clear()
        for node in (1, 2, 3):
            await quorum.boot(node)
    assert await submit(quorum.all, look) == 3


async def promoted(leader: Node, learner: Node) -> None:
    while True:
        try:
            return await leader.driver.change(Promote(learner.me))
        except ChangeRefused as error:
            if error.refusal is not MembershipRefusal.NOT_CAUGHT_UP:
                raise
            await leader.driver.read_barrier()  # a round of messages


async def test_a_member_joins_is_promoted_and_another_is_removed(quorum: Quorum) -> None:
    leader = await controller(quorum.all)
    await submit(quorum.all)
    fourth = await quorum.boot(4, voters=Membership())
    await leader.driver.change(AddLearner(fourth.me))
    await equal(quorum.all, at_least=3)
    await promoted(leader, fourth)
    gone = next(node for node in quorum.all if node not in (leader, fourth))
    await leader.driver.change(Remove(gone.me))
    await quorum.stop(gone.me.node)
    assert await submit(quorum.all) == 1
    await equal(quorum.all)
    assert leader.driver.membership.voters == {node.me for node in quorum.all}
    assert await leader.driver.transfer(fourth.me)
    assert await controller(quorum.all) is fourth
    assert await submit(quorum.all) == 2
