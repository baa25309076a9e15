"""One run of whole brokers: faults and load, then calm and progress, then a power cut for all, then judgement.

A run has these phases:
- Some brokers are born.
- Clients work while the nemesis causes faults, and the judge checks every step.
- All faults end. Every broker must take part again and answer.
- The power of all brokers is cut at once. Everything acknowledged must still be there.
- The whole history of operations is judged.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.catalog import Action, Catalog, Create, Describe, Done, List, by_topic, relevant, topic_of
from headrace.sim.cluster.clients import NAMES, Ledger, Voice, settle, work
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import watching
from headrace.sim.cluster.linear import Judgement, Verdict, judge, judge_apart
from headrace.sim.cluster.nemesis import Nemesis
from headrace.sim.cluster.operator import Operator
from headrace.sim.cluster.play import LIVENESS_SECONDS_MAX, Over, Play
from headrace.sim.cluster.world import ClusterWorld

SIZES: Final = (3, 3, 3, 4, 5)
TICKS_MS: Final = (10, 10, 50)
"""Short ticks give as many elections as possible; one run in three has the shipped tick."""
ENTRIES_KEPT: Final = (3, 1_000)
"""Entries kept below a snapshot, for members that are slightly behind."""
SPARE: Final = (0, 1, 2)
"""Hosts that may join later."""
CLIENTS: Final = 4
VOTERS: Final = 3
"""The default of `controller.voters`."""
FAULTS_SECONDS: Final = (4.0, 12.0)
STEPS_MAX: Final = 60_000
"""Limit of the search for an order of the history."""


class BrokersRun(Play):
    """A run of whole brokers."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        born = world.random.choice(SIZES)
        programs = BrokerPrograms(range(1, born + 1))
        hosts = [Host(world, node, programs) for node in range(1, born + world.random.choice(SPARE) + 1)]
        self.hosts = hosts[:born]
        programs.birth(self.hosts)
        self._operator = Operator(world, self.hosts, hosts[born:], self.judge)
        self._nemesis = Nemesis(world, self.hosts, self.judge)
        self._ledger = Ledger()
        self.undecided = 0

    def watching(self) -> AbstractContextManager[None]:
        """Connect the judge to every step. Ticks and snapshots of the quorum vary by run."""
        pick = self._world.random.choice
        tick_ms = pick(TICKS_MS)
        return watching(self.judge, tick_ms=tick_ms, settings=replace(SETTINGS, entries_kept=pick(ENTRIES_KEPT)))

    async def _life(self) -> None:
        world = self._world
        for host in self.hosts:
            host.boot()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work(world, self._ledger, f"client-{number}", self.hosts))
                for number in range(CLIENTS)
            ]
            tasks.append(group.create_task(self._operator.run()))
            await world.think(2.0)
            least, most = FAULTS_SECONDS
            await self._nemesis.run(least + world.random.random() * (most - least))
            world.winding_down = True
            self._nemesis.calm()
            keeping = group.create_task(self._nemesis.keep_up())
            await asyncio.wait(tasks)
            await self._progress("calm")
            keeping.cancel()
        for host in self.hosts:
            host.power_cut()
        await world.think(1.0)
        for host in self.hosts:
            host.boot()
        await self._progress("end")
        await self._restored()
        self._judge_history()

    async def _restored(self) -> None:
        """Wait until there are as many voters as possible, after losses, replacements and removals."""
        try:
            async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                while self.judge.lacks_voters(VOTERS):  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.05)
        except TimeoutError:
            problem = f"{self.judge.lacks_voters(VOTERS)} after {LIVENESS_SECONDS_MAX} s"
            self._world.problem("voters-not-restored", problem)
            raise Over from None

    async def _progress(self, when: str) -> None:
        """Check that every broker answers, and that all show the same state."""
        for host in self.hosts:
            try:
                async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                    await self._ask_all(host, when)
            except TimeoutError:
                self._world.problem("liveness", f"broker {host.node} did not answer in {LIVENESS_SECONDS_MAX} s")
                raise Over from None
        try:
            async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                while self.judge.apart():  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self._world.problem("liveness", f"{self.judge.apart()} after {LIVENESS_SECONDS_MAX} s")
            raise Over from None

    async def _ask_all(self, host: Host, when: str) -> None:
        """Make one change through this broker, then ask every question: its answers must include the change."""
        world, voice = self._world, Voice(self._world, f"judge-{when}")
        while True:
            create = Create(f"{when}-{host.node}", self._ledger.next_number())
            asked = world.ask(f"judge-{when}", host.node, create)
            answer = await voice.ask(host.node, create)
            settle(world, self._ledger, asked, answer)
            if answer == Done():
                break
            await world.think(0.5)
        questions: list[Action] = [*map(Describe, NAMES), List()]
        for action in questions:
            asked = world.ask(f"judge-{when}", host.node, action)
            settle(world, self._ledger, asked, await voice.ask(host.node, action))
        voice.close()

    def _judge_history(self) -> None:
        operations = relevant(self._world.operations)
        for name, found in judge_apart(by_topic(operations), Catalog(), topic_of, steps_max=STEPS_MAX).items():
            self._accuse(f"topic {name}", found)
        self._accuse("all topics", judge(operations, Catalog(), steps_max=STEPS_MAX))

    def _accuse(self, what: str, found: Judgement) -> None:
        if found.verdict is Verdict.BROKEN:
            last = "; ".join(f"{each.client}: {each.action} {each.answer}" for each in found.order[-3:])
            stuck = "; ".join(f"{each.client}: {each.action} {each.answer}" for each in found.stuck_before)
            self._world.problem("not-linearizable", f"{what}: after {last or 'nothing'}, none can be next: {stuck}")
        elif found.verdict is Verdict.UNDECIDED:
            self._world.tell(f"{what}: too many orders, undecided")
            self.undecided += 1

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        return {
            "faults": self._nemesis.acts,
            "starts of a broker": sum(host.boots for host in self.hosts),
            "leaders": len(self.judge.leaders),
            "entries committed": len(self.judge.committed),
            "operations": len(self._world.operations),
            "of them answered": sum(each.returned is not None for each in self._world.operations),
            "histories too long to decide": self.undecided,
            "virtual seconds": self._world.loop.time(),
        }
