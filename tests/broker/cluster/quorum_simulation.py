"""Quorums on virtual time, from one seed: machines, clients, faults, and checks that look at every image."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from headrace.broker.cluster.driver import ChangeRefused, NotController, OutcomeUnknown
from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.controller.decision import Decision
from headrace.metadata.image import MetadataImage
from headrace.raft.membership import AddLearner, Membership, MembershipRefusal, Promote
from headrace.sim.clock import SimClock
from headrace.sim.disk import Mount, SimDisk
from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process
from tests.broker.cluster.quorum_world import News, Node, count_up, equal, look, peer

T = TypeVar("T")
Decide = Callable[[MetadataImage], Decision[Any]]
BORN = Membership(frozenset(map(peer, (1, 2, 3))))
SMALL = replace(SETTINGS, entries_kept=3, append_bytes_max=300)
PATIENCE = 60.0
DATA = Path("/srv/headrace")


class Machine:
    """One member's hardware, and the process on it, if any."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.number = node
        self.life = 1
        self.disk = world.new_disk()
        self.process: Process | None = None
        self.node: Node | None = None
        self.joins = False

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive and self.node is not None

    async def boot(self) -> None:
        world = self.world
        self.process = Process(f"broker-{self.number}")
        self.node = None

        async def start(process: Process) -> Node:
            node = Node(
                peer(self.number, self.life),
                voters=Membership() if self.joins else BORN,
                disk=Mount(self.disk, process),
                directory=DATA / "metadata",
                ports=world.ports,
                cut=world.cut,
                random=random.Random(world.random.getrandbits(64)),
                news=world.news,
                clock=SimClock(world.loop),
                settings=SMALL,
            )
            node.driver.subscribe(lambda delta: world.check_image(self.number, delta.after))
            node.driver.on_controller(lambda active: world.check_controller(node, active=active))
            await node.start()
            return node

        self.node = await world.within(self.process, start(self.process))

    def kill(self, *, power: bool) -> None:
        assert self.process is not None
        self.world.loop.kill(self.process)
        self.node = None
        if power:
            self.disk.power_cut()

    async def ask(self, work: Callable[[Node], Coroutine[Any, Any, T]], seconds: float = 5.0) -> T | None:
        """The process's answer; None where it gives none, whatever the outcome."""
        if not self.up:
            return None
        assert self.process is not None
        assert self.node is not None
        try:
            return await self.world.within(self.process, work(self.node), seconds)
        except (NotController, OutcomeUnknown, ChangeRefused):
            return None


class World:
    """A run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop = VirtualLoop(random.Random(seed + 1))
        self.ports = {node: 9_000 + node for node in range(1, 6)}
        self.cut: set[tuple[int, int]] = set()
        self.news = News()
        self.machines = {node: Machine(self, node) for node in (1, 2, 3)}
        self.images: dict[int, MetadataImage] = {}
        self.controllers: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.done = False
        self.snapshots_received = 0
        self.story: list[str] = []

    def tell(self, what: str) -> None:
        self.story.append(f"{self.loop.time():9.3f} {what}")

    def new_disk(self) -> SimDisk:
        disk = SimDisk(self.loop, random.Random(self.random.getrandbits(64)))
        disk.make_durable_directory(DATA)
        return disk

    def check_image(self, node: int, image: MetadataImage) -> None:
        """State machine safety: at one index there is one image, on every member and in every life."""
        if image.index not in self.images:
            self.images[image.index] = image
        assert self.images[image.index] == image, (node, image.index)

    def check_controller(self, node: Node, *, active: bool) -> None:
        if active:
            self.tell(f"{node.me.node} is the controller of term {node.driver.term}")
            assert self.controllers.setdefault(node.driver.term, node.me.node) == node.me.node, "one in a term"

    async def within(self, process: Process, work: Coroutine[Any, Any, T], seconds: float = PATIENCE) -> T | None:
        """Run it as the process's own; None where that dies or is too slow."""
        task = self.loop.spawn(process, work)
        waited = 0.0
        while not task.done() and process.alive and waited < seconds:
            await asyncio.wait({task}, timeout=0.05)
            waited += 0.05
        return task.result() if task.done() else None

    # clients

    async def counts(self) -> None:
        """Creates, through any member, each of which sees all before it."""
        while not self.done:
            machine = self.random.choice(list(self.machines.values()))
            for value in await machine.ask(partial(counted, times=self.random.choice((1, 1, 1, 1, 4, 12)))) or ():
                assert value not in self.acknowledged, "what was acknowledged is never lost"
                self.acknowledged.add(value)
            await asyncio.sleep(self.random.random() * 0.05)

    async def looks(self) -> None:
        while not self.done:
            before = max(self.acknowledged, default=-1)
            machine = self.random.choice(list(self.machines.values()))
            value = await machine.ask(lambda node: node.driver.submit(look))
            assert value is None or value > before, "a look sees all that was acknowledged before it began"
            await asyncio.sleep(self.random.random() * 0.1)

    # faults

    async def faults(self, rounds: int) -> None:
        actions = [self.crash, self.crash, self.partition, self.isolate, self.heal, self.heal, self.wipe, self.reset]
        for _ in range(rounds):
            await asyncio.sleep(self.random.random() * 2)
            await self.random.choice(actions)()
            for machine in self.machines.values():
                if not machine.up and self.random.random() < 0.6:
                    self.tell(f"boot {machine.number}")
                    await machine.boot()
        self.tell("all is well from here on")
        self.cut.clear()
        for machine in self.machines.values():
            if not machine.up:
                await machine.boot()

    async def crash(self) -> None:
        """One dies, or, seldom, all do; at once, or amid a write to come."""
        running = [machine for machine in self.machines.values() if machine.up]
        chosen = running if self.random.random() < 0.15 else running[:1] and [self.random.choice(running)]
        for machine in chosen:
            power = self.random.random() < 0.6
            if self.random.random() < 0.5:
                machine.disk.trigger(self.random.randrange(1, 12), lambda: None)
                machine.disk.disarm()
            self.tell(f"kill {machine.number}, power {power}")
            machine.kill(power=power)

    async def partition(self) -> None:
        nodes = sorted(self.machines)
        side = set(self.random.sample(nodes, self.random.randrange(1, len(nodes))))
        self.tell(f"partition {side}")
        for one in side:
            for other in set(nodes) - side:
                self.cut.add((one, other))
                if self.random.random() < 0.8:
                    self.cut.add((other, one))

    async def isolate(self) -> None:
        """The controller speaks to nobody, or hears nobody."""
        leaders = [each.number for each in self.machines.values() if each.node and each.node.driver.is_controller]
        for leader in leaders:
            hears, speaks = self.random.choice([(False, False), (True, False), (False, True)])
            self.tell(f"isolate {leader}: hears {hears}, speaks {speaks}")
            for other in self.machines:
                self.cut |= set() if speaks else {(leader, other)}
                self.cut |= set() if hears else {(other, leader)}
            if self.random.random() < 0.5:
                await self.accuse(self.machines[leader])

    async def accuse(self, machine: Machine) -> None:
        """The others are told that its process is dead, which it may not be."""
        if machine.node is None:
            return
        me, term = machine.node.me, machine.node.driver.term

        async def told(node: Node) -> None:
            node.driver.leader_died(me, term)

        for other in self.machines.values():
            if other is not machine:
                await other.ask(told)

    async def heal(self) -> None:
        self.tell("heal")
        self.cut.clear()

    async def reset(self) -> None:
        for transport in list(self.loop.network.transports):
            if self.random.random() < 0.3:
                self.loop.network.reset(transport)

    async def wipe(self) -> None:
        """A disk is lost; who had it comes back as a new learner, and then as a voter. Only while all others are well:
        with two disks lost of three, what was acknowledged may be lost."""
        if not all(machine.up for machine in self.machines.values()) or self.cut or self.random.random() < 0.5:
            return
        machine = self.random.choice(list(self.machines.values()))
        self.tell(f"wipe {machine.number}")
        machine.kill(power=True)
        machine.disk, machine.life, machine.joins = self.new_disk(), machine.life + 1, True
        await machine.boot()
        new = peer(machine.number, machine.life)
        await self.changed(AddLearner(new))
        await self.changed(Promote(new))
        self.tell(f"{machine.number} is a voter again")

    async def changed(self, change: AddLearner | Promote) -> None:
        """Ask whoever is the controller until it is so."""
        while True:
            for machine in list(self.machines.values()):
                if machine.up and await self._asked(machine, change):
                    return
            await asyncio.sleep(0.1)

    async def _asked(self, machine: Machine, change: AddLearner | Promote) -> bool:
        async def ask(node: Node) -> bool:
            try:
                await node.driver.change(change)
            except ChangeRefused as refused:
                return refused.refusal is MembershipRefusal.ALREADY_SO
            return True

        return bool(await machine.ask(ask))

    # the run

    async def progress(self) -> None:
        """Liveness: once nothing fails any more, decisions are made."""
        before = len(self.acknowledged)
        while len(self.acknowledged) < before + 5:  # noqa: ASYNC110 - nobody tells, and time is virtual
            await asyncio.sleep(0.1)

    async def ordeal(self, rounds: int) -> None:
        clients = [self.loop.create_task(work()) for work in (self.counts, self.counts, self.looks)]
        faults = self.loop.create_task(self.faults(rounds))
        done, _ = await asyncio.wait({*clients, faults}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # the clients are not done before they failed
        await self.progress()
        self.done = True
        await asyncio.gather(*clients)
        nodes = [machine.node for machine in self.machines.values() if machine.node]
        await equal(nodes)
        assert all(value < nodes[0].driver.image.next_producer_id for value in self.acknowledged)

    async def submit(self, decide: Decide = count_up, *, through: Iterable[Machine] = ()) -> Any:
        """Through whoever is the controller, as a client does that tries again."""
        while True:
            for machine in list(through) or list(self.machines.values()):
                value = await machine.ask(lambda node: node.driver.submit(decide))
                if value is not None:
                    return value
            await asyncio.sleep(0.05)

    async def play(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*(machine.boot() for machine in self.machines.values()))
        await story(self)
        for machine in self.machines.values():
            assert machine.process is not None
            assert machine.node is not None
            assert machine.node.fatal == []
            await self.within(machine.process, machine.node.stop())


async def counted(node: Node, times: int) -> list[int]:
    """So many at a time; those that were acknowledged."""
    waiting = (node.driver.submit(count_up) for _ in range(times))
    found = await asyncio.gather(*waiting, return_exceptions=True)
    for each in found:
        if not isinstance(each, int | NotController | OutcomeUnknown | ChangeRefused):
            raise AssertionError(each)
    return [each for each in found if isinstance(each, int)]


def played(seed: int, story: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """A whole run, with snapshots so often and so small that each matters."""
    world = World(seed)
    with ExitStack() as stack:
        stack.enter_context(patch("headrace.broker.cluster.quorum.member.METADATA_EVENTS_PER_SNAPSHOT", 7))
        stack.enter_context(patch("headrace.broker.cluster.quorum.member.RAFT_SNAPSHOT_CHUNK_BYTES", 100))
        try:
            world.loop.run_until_complete(asyncio.wait_for(world.play(story), 3_000))
        except BaseException:
            print("\n".join(world.story[-40:]))
            raise
        finally:
            tasks = asyncio.all_tasks(world.loop)
            for task in tasks:
                task.cancel()
            world.loop.run_until_complete(asyncio.wait(tasks, timeout=1) if tasks else asyncio.sleep(0))
            world.loop.workers.close()
            world.loop.close()
    assert world.loop.failures == []
    return world
