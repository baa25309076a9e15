"""The common part of members of both protocols: their lives, and their mishaps."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from headrace.sim.client import Lost
from headrace.sim.cluster.groups.history import Register
from headrace.sim.cluster.groups.judge import Share
from headrace.sim.cluster.groups.offsets import Identity, Offsets
from headrace.sim.cluster.groups.stage import Phase, Stage, Way

INTERVAL_SECONDS: Final = 0.2
AWAY_SECONDS_MAX: Final = 1.5
LATE: Final = 0.5
"""Probability that an earlier commit is still on its way when a member has to join again."""
LATE_SECONDS_MAX: Final = 1.0
MISHAPS: Final = (("crash", 2.0), ("stall", 3.0), ("leave", 1.5))
MISHAP_PROBABILITIES: Final = (0.0, 0.01, 0.04)
"""Probability of a mishap in each turn of a member's life; drawn for each member."""


class Member(ABC):
    """One slot of a group, in which one life follows another. `may_be_refused`: a group of the other protocol may
    refuse it."""

    session_s: float

    def __init__(self, stage: Stage, name: str, group: str, *, is_static: bool) -> None:
        self._stage = stage
        self._world = stage.world
        self.name = name
        self.group = group
        self.instance_id = f"static-{name}" if is_static else None
        self._chance = stage.world.chance(f"member {name}")
        self._way = Way(stage, name, group, self._chance)
        self._offsets = Offsets(stage, name, group, self._way, self._chance)
        self._mishaps = self._chance.choice(MISHAP_PROBABILITIES)
        self.member_id = ""
        self.owned: Share = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self.may_be_refused = False
        self.lives = 0

    # the parts that differ between the protocols

    @abstractmethod
    def forget(self) -> None:
        """A new process takes the slot."""

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The identity with which it commits."""

    @abstractmethod
    async def join(self) -> bool:
        """Try once to become a member. Raises Lost."""

    @abstractmethod
    async def beat(self) -> bool:
        """Send one heartbeat; returns whether it is still a member. Raises Lost; then it may still be one."""

    @abstractmethod
    async def commit(self, who: Identity, registers: list[Register], offsets: Offsets) -> None:
        """Commit through `offsets`. Raises Lost."""

    @abstractmethod
    async def leave(self) -> None:
        """Leave the group. Raises Lost."""

    # a life

    async def run(self) -> None:
        """Live one life after the other, until the run is over."""
        while self._stage.phase is not Phase.OVER:
            await self.live(seconds=None)
            await asyncio.sleep(self._chance.random() * AWAY_SECONDS_MAX)
        self._way.close()

    async def live(self, *, seconds: float | None) -> None:
        """Live one life. The member leaves after `seconds`, if they are given."""
        self.lives += 1
        self.forget()
        end = None if seconds is None else self._world.loop.time() + seconds
        is_member = False
        while self._stage.phase is not Phase.OVER:
            if end is not None and self._world.loop.time() > end:
                await self._leave_quietly()
                return
            mishap = self._mishap()
            if mishap == "crash":
                self._world.tell(f"{self.name} crashes")
                self._way.close()
                return
            if mishap == "leave":
                await self._leave_quietly()
                return
            if mishap == "stall":
                self._world.tell(f"{self.name} falls silent")
                await asyncio.sleep(self.session_s * (0.5 + 1.5 * self._chance.random()))
            try:
                if not is_member:
                    is_member = await self.join()
                    if is_member and self.owned and self._chance.random() < 0.5:
                        await self._offsets.look(self._registers())
                else:
                    is_member = await self._turn(is_zombie=mishap == "stall")
            except Lost:
                continue

    async def _turn(self, *, is_zombie: bool) -> bool:
        """One turn of a member. One that returns from silence commits first, as clients do."""
        if not is_zombie:
            await asyncio.sleep(INTERVAL_SECONDS * self._chance.random())
        registers = self._registers()
        wants = self._stage.phase is Phase.SETTLING or is_zombie or self._chance.random() < 0.6
        if registers and wants:
            if self._stage.phase is Phase.FAULTS:
                registers = self._chance.sample(registers, self._chance.randrange(1, len(registers) + 1))
                registers += self._extra()
            await self.commit(self.identity, registers, self._offsets)
        who, registers = self.identity, self._registers()
        is_member = await self.beat()
        if not is_member and registers and self._chance.random() < LATE:
            self._later(self._commit_late(who, registers))
        return is_member

    async def _commit_late(self, who: Identity, registers: list[Register]) -> None:
        """Send a commit that was long on its way, while its member joins again."""
        way = Way(self._stage, f"{self.name}-late", self.group, self._chance)
        offsets = Offsets(self._stage, f"{self.name}-late", self.group, way, self._chance)
        with suppress(Lost):
            await asyncio.sleep(self._chance.random() * LATE_SECONDS_MAX)
            if self._stage.phase is Phase.FAULTS:
                await self.commit(who, registers, offsets)
        way.close()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._world.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _registers(self) -> list[Register]:
        return [Register(self.group, topic, index) for topic, index in sorted(self.owned)]

    def _extra(self) -> list[Register]:
        """Registers that it commits beside those of its own partitions."""
        return []

    def _has_committed(self, register: Register) -> None:
        if self._stage.phase is Phase.SETTLING:
            self._stage.settled.add((self.name, register))

    def _mishap(self) -> str | None:
        if self._stage.phase is not Phase.FAULTS or self._chance.random() >= self._mishaps:
            return None
        [kind] = self._chance.choices([kind for kind, _ in MISHAPS], [weight for _, weight in MISHAPS])
        return kind

    async def _leave_quietly(self) -> None:
        self._world.tell(f"{self.name} leaves")
        with suppress(Lost):
            await self.leave()
