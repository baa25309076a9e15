"""One run of a cluster from one seed: faults and load, then calm and progress, then all power lost, then judgement.

The order of things: some brokers are born; clients work while the nemesis breaks things, and the judge looks at every
step; then nothing breaks any more, and every broker must take part again and answer; then the power of all is cut at
once, and what was acknowledged must be there; then the whole history of operations is judged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import structlog

from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.catalog import Action, Catalog, Create, Describe, Done, List, by_topic, relevant, topic_of
from headrace.sim.cluster.clients import APIS, NAMES, Ledger, Voice, settle, work
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge, watching
from headrace.sim.cluster.linear import Judgement, Verdict, judge, judge_apart
from headrace.sim.cluster.nemesis import Nemesis
from headrace.sim.cluster.operator import APIS as OPERATORS_APIS
from headrace.sim.cluster.operator import Operator
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.guard import guarded
from headrace.sim.history import Problem
from headrace.sim.loop import Stuck, VirtualLoop
from headrace.sim.run import close, garbage_kept
from headrace.wire.apis import api

SIZES: Final = (3, 3, 3, 4, 5)
TICKS_MS: Final = (10, 10, 50)
"""As many elections as a run has time for; and now and then the shipped pace."""
ENTRIES_KEPT: Final = (3, 1_000)
"""Below a snapshot, for those who are a little behind."""
SPARE: Final = (0, 1, 2)
"""Hosts that are there to join later."""
CLIENTS: Final = 4
FAULTS_SECONDS: Final = (4.0, 12.0)
LIVENESS_SECONDS_MAX: Final = 60.0
"""Virtual, from the end of all faults until every broker has answered."""
RUN_SECONDS_MAX: Final = 600.0
EVENTS_PER_SNAPSHOT: Final = 25
STEPS_MAX: Final = 60_000
"""Of the search for an order of the history."""


@dataclass(slots=True)
class ClusterOutcome:
    """What became of one seed."""

    seed: int
    problems: list[Problem] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def run_cluster(seed: int, *, size: int | None = None) -> ClusterOutcome:
    """Simulate one seed. Never raises for what the brokers did."""
    for key in (*APIS, *OPERATORS_APIS):
        api(key)
    loop = VirtualLoop(random.Random(f"loop {seed}"))
    world = ClusterWorld(loop, seed)
    run = Run(world, size)
    outcome = ClusterOutcome(seed, story=world.story)
    with ExitStack() as stack:
        for each in (garbage_kept(), guarded(), logs_in(world), run.watching(), _small_snapshots()):
            stack.enter_context(each)
        try:
            loop.run_until_complete(asyncio.wait_for(run.whole(), RUN_SECONDS_MAX))
        except (Stuck, TimeoutError) as error:
            world.problem("stuck", repr(error))
        finally:
            close(loop)
    for failure in loop.failures:
        world.problem("broker-error", failure)
    outcome.problems = world.problems
    outcome.figures.update(run.figures())
    return outcome


class Over(Exception):  # noqa: N818 - a state of the run
    """A problem was found: the rest would show nothing."""


class Run:
    """See the module."""

    def __init__(self, world: ClusterWorld, size: int | None) -> None:
        self._world = world
        self.judge = Judge(world.problem, world.tell_of)
        born = size or world.random.choice(SIZES)
        programs = BrokerPrograms(range(1, born + 1))
        hosts = [Host(world, node, programs) for node in range(1, born + world.random.choice(SPARE) + 1)]
        self.hosts = hosts[:born]
        programs.birth(self.hosts)
        self._operator = Operator(world, self.hosts, hosts[born:], self.judge)
        self._nemesis = Nemesis(world, self.hosts, self.judge)
        self._ledger = Ledger()
        self.undecided = 0

    def watching(self) -> AbstractContextManager[None]:
        """Have the judge see everything, of a quorum in more or less of a hurry."""
        pick = self._world.random.choice
        return watching(self.judge, tick_ms=pick(TICKS_MS), entries_kept=pick(ENTRIES_KEPT))

    async def whole(self) -> None:
        """All of it, or until a problem is found."""
        life = self._world.loop.create_task(self._until_over())
        broken = self._world.loop.create_task(self._world.broken.wait())
        await asyncio.wait({life, broken}, return_when=asyncio.FIRST_COMPLETED)
        broken.cancel()
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life
        for host in self.hosts:
            host.end()
        await asyncio.sleep(1)  # what is left of them is unwound

    async def _until_over(self) -> None:
        try:
            await self._life()
        except* Over:
            pass

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
        self._judge_history()

    async def _progress(self, when: str) -> None:
        """Every broker answers, and shows what all show."""
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
        """One change through this broker, and then every question: what it shows must be as new as the change."""
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
        """For the table of a swarm."""
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


@contextmanager
def _small_snapshots() -> Iterator[None]:
    with patch("headrace.broker.quorum.member.METADATA_EVENTS_PER_SNAPSHOT", EVENTS_PER_SNAPSHOT):
        yield


@contextmanager
def logs_in(world: ClusterWorld) -> Iterator[None]:
    """The brokers' own log lines become part of the story."""

    def note(_: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        text = f"{event.pop('event')} " + " ".join(f"{key}={value}" for key, value in event.items())
        world.tell_of(f"{level}: {text}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
