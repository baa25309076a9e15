"""The common part of all runs of a cluster: they last until a problem is found, and are ended then."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.guard import guarded, logs_to
from headrace.sim.history import Problem
from headrace.sim.loop import Stuck, VirtualLoop
from headrace.sim.run import close, garbage_kept
from headrace.wire.apis import ApiKey, api

LIVENESS_SECONDS_MAX: Final = 60.0
"""Virtual seconds from the end of all faults until every broker must have answered."""


RUN_SECONDS_MAX: Final = 600.0
"""Virtual seconds of a whole run."""


@dataclass(slots=True)
class ClusterOutcome:
    """The outcome of one seed."""

    seed: int
    problems: list[Problem] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    @property
    def is_sound(self) -> bool:
        return not self.problems


class Over(Exception):  # noqa: N818 - a state of the run
    """A problem was found, and the rest would show nothing."""


class Play(ABC):
    """A run. `hosts` are those that were ever started."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.judge = Judge(world.problem, world.tell_of)
        self.hosts: list[Host] = []

    @abstractmethod
    def watching(self) -> AbstractContextManager[None]:
        """Connect the judge to every step. Ticks and snapshots of the quorum vary by run."""

    @abstractmethod
    async def _life(self) -> None:
        """Everything that happens. Raises Over where a problem ends it."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""

    async def whole(self) -> None:
        """Run everything, or until a problem is found."""
        life = self._world.loop.create_task(self._until_over())
        broken = self._world.loop.create_task(self._world.broken.wait())
        await asyncio.wait({life, broken}, return_when=asyncio.FIRST_COMPLETED)
        broken.cancel()
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life
        for host in self.hosts:
            host.end()
        await asyncio.sleep(1)  # lets the rest of them unwind

    async def _until_over(self) -> None:
        try:
            await self._life()
        except* Over:
            pass


def simulate(
    seed: int,
    kind: str,
    make: Callable[[ClusterWorld], Play],
    apis: Iterable[ApiKey],
    also: Callable[[VirtualLoop], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> ClusterOutcome:
    """Play one run. Never raises for anything that the brokers did. `kind`: as in `ClusterWorld`. `apis`: what its
    clients ask, whose codecs are imported before time stands still. `also` is entered for as long as it lasts."""
    for key in apis:
        api(key)
    loop = VirtualLoop(random.Random(f"{kind}loop {seed}"))
    world = ClusterWorld(loop, seed, kind)
    run = make(world)
    outcome = ClusterOutcome(seed, story=world.story)
    with ExitStack() as stack:
        for each in (garbage_kept(), guarded(), also(loop), logs_in(world), run.watching()):
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


@contextmanager
def logs_in(world: ClusterWorld) -> Iterator[None]:
    """Add the brokers' own log lines to the story."""

    def note(_: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        text = f"{event.pop('event')} " + " ".join(f"{key}={value}" for key, value in event.items())
        world.tell_of(f"{level}: {text}")
        raise structlog.DropEvent

    with logs_to(note):
        yield
