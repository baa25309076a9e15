"""The common part of the two kinds of runs: they last until a problem is found, and are ended then."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from typing import Final

from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.world import ClusterWorld

LIVENESS_SECONDS_MAX: Final = 60.0
"""Virtual seconds from the end of all faults until every broker must have answered."""


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
