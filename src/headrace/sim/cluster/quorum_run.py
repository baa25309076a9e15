"""One run of a quorum alone: plots and load, then calm and progress, then a power cut for all, then judgement.

Three to seven voters run the shipped driver with its commit log and its network, and nothing else. Times are short and
messages small, so that a run has many leaders, rivals and changes of the membership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from headrace.base.ids import BrokerEpoch, BrokerId, ProducerId
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.controller.decision import Decision
from headrace.metadata.events import ProducerIdsAllocated
from headrace.metadata.image import MetadataImage
from headrace.raft.messages import EntryKind
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.intrigue import TEMPO, Intriguer
from headrace.sim.cluster.judges import watching
from headrace.sim.cluster.play import LIVENESS_SECONDS_MAX, Over, Play
from headrace.sim.cluster.quorums import QuorumPrograms, asked, driver_of, peer_of
from headrace.sim.cluster.tickets import Ticket, faults_in
from headrace.sim.cluster.world import ClusterWorld

SIZES: Final = (3, 3, 4, 5, 5, 5)
SPARE: Final = (0, 1, 2)
"""Hosts that are no members at first."""
TICK_MS: Final = 10
QUICK: Final = replace(SETTINGS, election_ticks=5, heartbeat_ticks=2)
APPEND_BYTES_MAX: Final = (1, 1, SETTINGS.append_bytes_max)
"""Bytes of entries in a message: one entry at a time, or all there are."""
WINDOWS: Final = (1, SETTINGS.window_messages_max)
ENTRIES_KEPT: Final = (3, 1_000)
CLIENTS: Final = 3
PACES: Final[Sequence[tuple[float, Sequence[int]]]] = ((0.04, (1, 1, 1, 4)), (0.3, (2, 4, 12)))
"""Longest pause of a client in seconds, and its numbers of requests at a time: a steady stream, or bursts."""
LOOK_PROBABILITY: Final = 0.2
ANSWER_SECONDS_MAX: Final = (0.02, 1.0)
"""Patience of clients. An impatient client keeps asking a cut-off leader, and so fills its log with entries that no
other member has."""
FAULTS_SECONDS: Final = (2.0, 6.0)


def take(image: MetadataImage) -> Decision[int]:
    """Take the next number."""
    start = image.next_producer_id
    event = ProducerIdsAllocated(
        broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1), start=start, end=ProducerId(start + 1)
    )
    return Decision((event,), start)


def look(image: MetadataImage) -> Decision[int]:
    """Read the next number without taking it."""
    return Decision((), image.next_producer_id)


class QuorumRun(Play):
    """The run, as the module says."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        born = world.random.choice(SIZES)
        nodes = range(1, born + world.random.choice(SPARE) + 1)
        programs = QuorumPrograms(nodes, born)
        self.hosts = [Host(world, node, programs) for node in nodes]
        programs.birth(self.hosts)
        world.loop.network.links.resend_seconds_max *= TEMPO
        self._intriguer = Intriguer(world, self.hosts, self.judge)
        self._think_seconds_max, self._bursts = world.random.choice(PACES)
        self._patience = world.random.choice(ANSWER_SECONDS_MAX)
        self._history: list[Ticket] = []
        self._moment = 0

    def watching(self) -> AbstractContextManager[None]:
        pick = self._world.random.choice
        settings = replace(
            QUICK,
            append_bytes_max=pick(APPEND_BYTES_MAX),
            window_messages_max=pick(WINDOWS),
            entries_kept=pick(ENTRIES_KEPT),
        )
        return watching(self.judge, tick_ms=TICK_MS, settings=settings)

    async def _life(self) -> None:
        world = self._world
        for host in self.hosts:
            host.boot()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._work()) for _ in range(CLIENTS)]
            least, most = FAULTS_SECONDS
            await self._intriguer.run(least + world.random.random() * (most - least))
            world.winding_down = True
            self._intriguer.calm()
            keeping = group.create_task(self._intriguer.keep_up())
            await asyncio.wait(tasks)
            await self._progress()
            keeping.cancel()
        for host in self.hosts:
            host.power_cut()
        await world.think(1.0)
        for host in self.hosts:
            host.boot()
        await self._progress()
        for fault in faults_in(self._history):
            world.problem("not-linearizable", fault)

    # the workload

    async def _work(self) -> None:
        """Run one client until the world winds down. It asks members that believe that they lead, also deposed ones."""
        world = self._world
        while not world.winding_down:
            if (host := self._some_host()) is not None:
                burst = world.random.choice(self._bursts)
                await asyncio.gather(*(self._ask(host) for _ in range(burst)))
            await world.think(self._think_seconds_max)

    def _some_host(self) -> Host | None:
        pick = self._world.random.choice
        deciding = [host for host in self.hosts if (driver := driver_of(host)) is not None and driver.is_controller]
        return pick(deciding) if deciding else None

    async def _ask(self, host: Host, *, taken: bool | None = None) -> int | None:
        """Make one request; returns its number where there is an answer."""
        taken = self._world.random.random() >= LOOK_PROBABILITY if taken is None else taken
        called = self._next_moment()
        answer = await asked(host, lambda driver: driver.submit(take if taken else look), self._patience)
        if not isinstance(answer, int):
            self._history.append(Ticket(taken, called))
            return None
        self._history.append(Ticket(taken, called, answer, self._next_moment()))
        return answer

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment

    # the end

    async def _progress(self) -> None:
        """Check that a number can be taken, and that every member learns of it."""
        world, controller, behind = self._world, None, None
        try:
            async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                self._patience = LIVENESS_SECONDS_MAX
                while (controller := self._some_host()) is None or await self._ask(controller, taken=True) is None:
                    await world.think(0.1)
                driver = driver_of(controller)
                index = driver.image.index if driver is not None else 0
                while (behind := self._behind(index)) is not None:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.05)
        except TimeoutError:
            where = "" if behind is None else f"; broker {behind.node} is behind"
            world.problem("liveness", f"no progress in {LIVENESS_SECONDS_MAX} s{where}")
            raise Over from None

    def _behind(self, index: int) -> Host | None:
        """A member that does not show this index yet."""
        members = max((driver for driver in map(driver_of, self.hosts) if driver), key=_index).membership.members
        for host in self.hosts:
            driver = driver_of(host)
            if peer_of(host.node) in members and (driver is None or driver.image.index < index):
                return host
        return None

    def figures(self) -> dict[str, float]:
        judge = self.judge
        return {
            "faults": self._intriguer.acts,
            "starts of a broker": sum(host.boots for host in self.hosts),
            "leaders": len(judge.leaders),
            "terms without one": max(judge.leaders, default=0) - len(judge.leaders),
            "entries committed": len(judge.committed),
            "changes of the quorum": sum(entry.kind is EntryKind.MEMBERSHIP for entry in judge.committed),
            "operations": len(self._history),
            "of them answered": sum(each.returned is not None for each in self._history),
            "virtual seconds": self._world.loop.time(),
        }


def _index(driver: MetadataDriver) -> int:
    return driver.image.index
