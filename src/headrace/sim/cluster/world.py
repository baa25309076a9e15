"""State shared by one run of a cluster: the loop, randomness, the story, the history, and the problems found."""

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
"""Timeout of each request. After it, a broker may confirm a change before it shows it."""


def address_of(node: int) -> str:
    """The address of a broker's host."""
    return f"10.0.0.{node}"


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation under way."""

    client: str
    node: int
    action: Action
    called: int
    life: int
    """Life of the broker when it was asked."""
    floor: int
    since: float


class ClusterWorld:
    """The state, as the module says. The first problem ends the run, because later events would show nothing more."""

    def __init__(self, loop: VirtualLoop, seed: int, kind: str = "") -> None:
        """`kind` names the run, so that the runs of one seed share no randomness."""
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
        """By broker and its life: the moment of a request whose effects its answers must include."""
        self.lives: Counter[int] = Counter()
        """By broker: the number of its starts."""

    def chance(self, who: str) -> random.Random:
        """A separate source of randomness, so that drawing from one does not change another."""
        return random.Random(f"{self._kind}{who} {self.seed}")

    def tell(self, text: str) -> None:
        """Add one line to the story."""
        self.story.append(f"{self.loop.time():11.6f}  {text}")

    def tell_of(self, what: str) -> None:
        """Add one line of the running process."""
        process = CURRENT.get()
        self.tell(f"{process.name if process is not None else LOOPBACK}: {what}")

    def problem(self, kind: str, what: str) -> None:
        """Note a broken promise."""
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
        """The operation ends; with None its outcome is unknown.

        A broker answers reads from its own image, which may be outdated. But the image includes every change that was
        acknowledged in time through it since it was started. So a read may take effect long before its request: at any
        time since the request of the newest of those changes.
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
        """The operation certainly did not happen."""
        self.tell(f"{asked.client}: {asked.action} through {asked.node}: not done, {why}")
