"""What everyone in one run of a cluster shares: the loop, chance, the story, the history, and the problems found."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

from headrace.sim.cluster.catalog import Action, Answer, Configure, Create, Delete, Done
from headrace.sim.cluster.linear import Operation
from headrace.sim.history import Problem
from headrace.sim.loop import VirtualLoop
from headrace.sim.process import CURRENT, LOOPBACK

PORT: Final = 9092
PROBLEMS_MAX: Final = 20
TIMEOUT_SECONDS: Final = 3.0
"""Of each request, after which a broker may say that a change is made before it shows it."""


def address_of(node: int) -> str:
    """The host that a broker lives on."""
    return f"10.0.0.{node}"


class Asked:
    """An operation under way."""

    def __init__(self, client: str, node: int, life: int, action: Action, called: int, since: float) -> None:
        self.since = since
        self.client = client
        self.node = node
        self.life = life
        self.action = action
        self.called = called


class ClusterWorld:
    """See the module. The first problem ends the run: what comes after it shows nothing more."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.random = self.chance("workload")
        self.story: list[str] = []
        self.problems: list[Problem] = []
        self.broken = asyncio.Event()
        self.operations: list[Operation] = []
        self.winding_down = False
        self._moment = 0
        self._floors: dict[tuple[int, int], int] = {}
        """By broker and its life: what it shows is at least as new as something that was asked for at this moment."""
        self.lives: Counter[int] = Counter()
        """By broker: how often it was started."""

    def chance(self, who: str) -> random.Random:
        """A source of chance of its own, so that what one draws does not change what another does."""
        return random.Random(f"{who} {self.seed}")

    def tell(self, text: str) -> None:
        """One line of the story."""
        self.story.append(f"{self.loop.time():11.6f}  {text}")

    def tell_of(self, what: str) -> None:
        """The same by the process that is running now."""
        process = CURRENT.get()
        self.tell(f"{process.name if process is not None else LOOPBACK}: {what}")

    def problem(self, kind: str, what: str) -> None:
        """A promise is broken."""
        if len(self.problems) < PROBLEMS_MAX:
            self.tell(f"PROBLEM {kind}: {what}")
            self.problems.append(Problem(kind, what))
        self.broken.set()

    async def think(self, seconds_max: float) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.random.random() * seconds_max)

    # the history of operations

    def ask(self, client: str, node: int, action: Action) -> Asked:
        """An operation begins, through this broker."""
        self._moment += 1
        return Asked(client, node, self.lives[node], action, self._moment, self.loop.time())

    def hear(self, asked: Asked, answer: Answer | None, *, newest: bool = False) -> None:
        """It ends; with None nobody knows how.

        A broker answers questions from its own image, which may be old, but not older than what was acknowledged in
        time through it since it was started. So such a read may have happened long before it was asked for: at any time
        since the newest of those was asked for. `newest`: the answer was confirmed by a quorum.
        """
        self._moment += 1
        called = asked.called
        is_change = isinstance(asked.action, Create | Delete | Configure)
        if not is_change and not newest:
            called = self._floors.get((asked.node, asked.life), 0)
        in_time = self.loop.time() - asked.since < TIMEOUT_SECONDS
        if answer is not None and in_time and (not is_change or answer == Done()):
            place = asked.node, asked.life
            self._floors[place] = max(called, self._floors.get(place, 0))
        name = f"{asked.client} through {asked.node}"
        returned = None if answer is None else self._moment
        self.operations.append(Operation(name, asked.action, called, answer, returned))
        self.tell(f"{asked.client}: {asked.action} through {asked.node}: {'unknown' if answer is None else answer}")

    def forget(self, asked: Asked, why: Any) -> None:
        """It certainly did not happen."""
        self.tell(f"{asked.client}: {asked.action} through {asked.node}: not done, {why}")
