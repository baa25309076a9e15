"""What the two kinds of runs have in common: they last until a problem is found, and are then put an end to."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from typing import Final

from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.world import ClusterWorld

LIVENESS_SECONDS_MAX: Final = 60.0
"""Virtual, from the end of all faults until every broker has answered."""


class Over(Exception):  # noqa: N818 - a state of the run
    """A problem was found: the rest would show nothing."""


class Play(ABC):
    """A run. `hosts`: those that were ever started."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.judge = Judge(world.problem, world.tell_of)
        self.hosts: list[Host] = []

    @abstractmethod
    def watching(self) -> AbstractContextManager[None]:
        """Have the judge see everything, of a quorum in more or less of a hurry."""

    @abstractmethod
    async def _life(self) -> None:
        """All that is to happen. Raises Over where a problem ends it."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """For the table of a swarm."""

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
