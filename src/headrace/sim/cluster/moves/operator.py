"""An operator of moves: partitions go to a broker, change their target, go back, or are cancelled; brokers are drained.

It asks any broker, as `headrace topic move` and Kafka's own tools do, and accepts refusals.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.sim.cluster.asking import asked
from headrace.sim.cluster.moves.judge import MovesJudge
from headrace.sim.cluster.records.assigning import Assigner
from headrace.sim.cluster.records.stage import Stage
from headrace.sim.cluster.world import address_of
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.moves import MOVE, MoveRequest, decode_answer, encode_request

APIS: Final = (ApiKey.ALTER_PARTITION_REASSIGNMENTS,)
PACES: Final = (0.15, 0.4, 1.0)
"""Longest pause between two requests, in seconds."""


class Mover:
    """The operator, as the module says."""

    def __init__(self, stage: Stage, judge: MovesJudge) -> None:
        self._stage = stage
        self._world = stage.world
        self._judge = judge
        self._random = stage.world.chance("mover")
        pick = self._random.choice
        self._pace = pick(PACES)
        self._cancels, self._retargets = pick((0.0, 0.1, 0.4)), pick((0.0, 0.1, 0.3))
        self._drains = pick((0.0, 0.05, 0.15))
        self._assigner = Assigner(self._world, stage.partitions, "mover")
        self.asked = 0
        self.rests = False
        """Set while another client moves partitions."""

    def drain_nothing(self) -> None:
        """Never drain a broker, because that moves all of its partitions."""
        self._drains = 0.0

    async def run(self) -> None:
        """Request moves until the world winds down."""
        while not self._world.winding_down:
            await asyncio.sleep(self._random.random() * self._pace)
            roll = self._random.random()
            if self.rests:
                continue
            if roll < self._drains:
                await self._drain()
            else:
                await self._wish(roll)
        self._assigner.close()

    async def _wish(self, roll: float) -> None:
        """Cancel a move, change its target, or start one."""
        moving = self._judge.under_way
        if moving and roll < self._drains + self._cancels:
            await self.alter(self._random.choice(moving), None)
        elif moving and roll < self._drains + self._cancels + self._retargets:
            await self.alter(self._random.choice(moving), self._somebody())
        else:
            still = [key for key in self._stage.partitions if key not in moving]
            if still:
                await self.alter(self._random.choice(still), self._somebody())

    def _somebody(self) -> int:
        return self._random.choice(self._stage.hosts).node

    async def alter(self, key: PartitionKey, to: int | None, *, through: int | None = None) -> bool:
        """Ask for the move; returns whether the controller agreed. Of several replicas the first is replaced."""
        state = self._judge.state(key)
        replicas: tuple[int, ...] | None = None if to is None else (to,)
        if to is not None and state is not None and len(state.replicas) > 1:
            others = [node for node in state.replicas if node != to][: state.replication_factor - 1]
            replicas = (to, *others)
        return await self.place(key, replicas, through=through)

    async def place(self, key: PartitionKey, replicas: tuple[int, ...] | None, *, through: int | None = None) -> bool:
        """Ask for all replicas of a partition; None cancels the reassignment under way. Returns whether the controller
        agreed."""
        self.asked += 1
        return await self._assigner.place(key, replicas, through=self._somebody() if through is None else through)

    async def _drain(self) -> None:
        node, through = self._somebody(), self._somebody()
        self.asked += 1
        frame = await asked(address_of(through), encode_request(MoveRequest(MOVE, broker=node)))
        answer = None if frame is None else decode_answer(frame)
        outcome = "unknown" if answer is None else answer.error or f"{len(answer.asked)} partitions"
        self._world.tell(f"mover: drain of broker {node} through {through}: {outcome}")
