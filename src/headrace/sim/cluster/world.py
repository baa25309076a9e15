"""What everyone in one run of a cluster shares: the loop, chance, the story, the history, and the problems found."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation under way."""

    client: str
    node: int
    action: Action
    called: int
    life: int
    """Of the broker, when it was asked."""
    floor: int
    since: float


class ClusterWorld:
    """See the module. The first problem ends the run: what comes after it shows nothing more."""

    def __init__(self, loop: VirtualLoop, seed: int, kind: str = "") -> None:
        """`kind`: of the run, so that those of one seed share no chance."""
        self.loop = loop
        self.seed = seed
        self._kind = kind
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
        return random.Random(f"{self._kind}{who} {self.seed}")

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
        life = self.lives[node]
        floor = self._floors.get((node, life), 0)
        return Asked(client, node, action, self._moment, life, floor, self.loop.time())

    def hear(self, asked: Asked, answer: Answer | None) -> None:
        """It ends; with None nobody knows how.

        A broker answers questions from its own image, which may be old, but not older than what had been acknowledged
        in time through it since it was started. So such a read may have happened long before it was asked for: at any
        time since the newest of those was asked for.
        """
        self._moment += 1
        same_life = self.lives[asked.node] == asked.life
        is_change = isinstance(asked.action, Create | Delete | Configure)
        called = asked.called if is_change else asked.floor if same_life else 0
        shows_it = not is_change or (answer == Done() and self.loop.time() - asked.since < TIMEOUT_SECONDS)
        if answer is not None and same_life and shows_it:
            place = asked.node, asked.life
            self._floors[place] = max(called, self._floors.get(place, 0))
        name = f"{asked.client} through {asked.node}"
        returned = None if answer is None else self._moment
        self.operations.append(Operation(name, asked.action, called, answer, returned))
        self.tell(f"{asked.client}: {asked.action} through {asked.node}: {'unknown' if answer is None else answer}")

    def forget(self, asked: Asked, why: Any) -> None:
        """It certainly did not happen."""
        self.tell(f"{asked.client}: {asked.action} through {asked.node}: not done, {why}")
