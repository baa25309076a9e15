"""Producers that stay away for a while with batches in doubt: these may be in history when they are sent again."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.sim.cluster.records.producers import Lane, Producers
from headrace.sim.history import PartitionKey

ABSENT: Final = 0.25
"""Share of an idempotent producer's bursts that it does not wait for."""
SENT_SECONDS_MAX: Final = 0.05
"""Time from a burst to the end of its connection."""
AWAY_SECONDS_MAX: Final = 3.0


class AbsentLane(Lane):
    """See the module."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chance = self._world.chance(f"absences of {self.name}")

    async def _burst(self) -> bool:
        if not self._idempotent or self._is_ending or self._chance.random() >= ABSENT:
            return await super()._burst()
        loop, route = self._world.loop, self._route

        def break_connection() -> None:
            if route.leader >= 0:
                route.client(route.leader).reset()

        breaking = loop.call_later(self._chance.random() * SENT_SECONDS_MAX, break_connection)
        settled = await super()._burst()
        breaking.cancel()
        if not settled:
            self._world.tell(f"{self.name} is away")
            end = loop.time() + self._chance.random() * AWAY_SECONDS_MAX
            while loop.time() < end and not self._stage.winding_down:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)
        return settled


class AbsentProducers(Producers):
    """Producers whose lanes are all of this kind."""

    def _lane(self, name: str, partition: PartitionKey, *, idempotent: bool, acks: int) -> Lane:
        return AbsentLane(self._stage, name, partition, idempotent=idempotent, acks=acks)
