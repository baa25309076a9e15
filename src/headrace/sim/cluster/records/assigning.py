"""Copies that go away and come back: the records' nemesis, which also removes a copy from a broker and assigns it
again.

The new copy has the name, topic and assignment epoch of the old one, and nothing else of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.nemesis import Act
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import error_of
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

TIMEOUT_MS: Final = 3_000
PLOT_SECONDS_MAX: Final = 8.0
DEPOSED: Final = 0.6
"""Share of the copies that are removed from brokers that have just led, with records that nobody copied."""
CUTS_FIRST: Final = 0.6
"""Share of the latter that have truncated these records by then."""
ELSEWHERE: Final = 0.5
"""Probability that another broker has the copy meanwhile, if there is one."""
BACK_SECONDS: Final = (0.01, 0.3, 1.0)
"""Longest time from the news of its removal until its return is requested, one of these. Its broker may not have heard
of the removal yet, or may have."""
DIES_SECONDS: Final = (0.03, 0.3, 1.0)
"""Time from its return to its broker's power cut."""
DIES: Final = 0.7


class Assigner:
    """Asks brokers to reassign a partition, as Kafka's own tools do. `partitions` has the names of their topics."""

    def __init__(self, world: ClusterWorld, partitions: Mapping[PartitionKey, str], name: str) -> None:
        self._world = world
        self._partitions = partitions
        self._name = name
        self._clients: dict[int, Client] = {}

    async def place(self, key: PartitionKey, replicas: tuple[int, ...] | None, *, through: int) -> bool:
        """Ask for these replicas; None cancels the reassignment under way. Returns whether the controller agreed."""
        topic = ReassignableTopic(self._partitions[key], (ReassignablePartition(key.number, replicas),))
        what = f"{self._name}: {self._partitions[key]}-{key.number} to {replicas} through {through}"
        client = self._clients.setdefault(through, Client(self._name, (address_of(through), PORT)))
        try:
            answer = await client.call(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                1,
                AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=(topic,)),
            )
        except Lost:
            self._world.tell(f"{what}: unknown")
            return False
        part = answer.responses[0].partitions[0] if answer.responses else answer
        self._world.tell(f"{what}: {error_of(part.error_code).name} {part.error_message or ''}")
        return not (answer.error_code or part.error_code)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class AssigningNemesis(RecordsNemesis):
    """The nemesis, as the module says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._assigner = Assigner(self._world, self._partitions, "assigner")
        self._whole: dict[PartitionKey, tuple[int, ...]] = {}
        """The first replicas of each."""
        self.returns = 0
        """Number of copies that have come back."""

    def _mood(self) -> list[tuple[Act, float]]:
        return [*super()._mood(), (self.away_and_back, self._random.choice((0.0, 3.0, 10.0)))]

    @property
    def has_given_back(self) -> bool:
        return not any(map(self._lacks, self._whole))

    def _lacks(self, key: PartitionKey) -> bool:
        """Whether it is not on its first replicas, or is being reassigned."""
        state = self._records.state(key)
        return state is not None and (state.is_reassigned or set(state.replicas) != set(self._whole[key]))

    async def keep_up(self) -> None:
        """Also assign removed copies again."""
        giving = self._world.loop.create_task(self._give_back())
        try:
            await super().keep_up()
        finally:
            giving.cancel()

    async def _give_back(self) -> None:
        while True:
            for key in filter(self._lacks, list(self._whole)):
                await self._place(key, self._whole[key])
            await asyncio.sleep(0.5)

    async def away_and_back(self) -> None:
        """Assign a copy elsewhere, or nowhere, and back again, often after its broker has led in isolation. Then that
        broker loses its power. If an earlier copy is still away, it comes back instead. Nothing else happens
        meanwhile."""
        if not self._partitions:
            return
        playing = self._world.loop.create_task(self._play(self._random.choice(list(self._partitions))))
        await asyncio.wait({playing}, timeout=PLOT_SECONDS_MAX)
        playing.cancel()
        self.heal()

    async def _play(self, key: PartitionKey) -> None:
        state = self._records.state(key)
        if state is None or state.is_reassigned or state.replication_factor == 1:
            return
        whole = self._whole.setdefault(key, state.replicas)
        if set(state.replicas) != set(whole):
            await self._place(key, whole)
            return
        is_deposed = self._random.random() < DEPOSED
        host = await self._deposed(key) if is_deposed else self._some()
        if host is None or host.node not in whole:
            return
        stay = tuple(node for node in whole if node != host.node)
        others = [each.node for each in self._hosts if each.node not in whole]
        elsewhere = (self._random.choice(others),) if others and self._random.random() < ELSEWHERE else ()
        if not await self._place(key, (*stay, *elsewhere)):
            return
        await self._until(lambda: not self._has(host, key))
        await asyncio.sleep(self._random.random() * self._random.choice(BACK_SECONDS))
        back = self._random.choice(((*stay, host.node), (host.node, *stay)))
        if not await self._place(key, back):
            return
        await self._until(lambda: self._is_in_sync(host, key))
        self.returns += 1
        await asyncio.sleep(self._random.random() * self._random.choice(DIES_SECONDS))
        if self._random.random() < DIES and host.is_up and not host.is_paused:
            self.acts += 1
            host.power_cut()
            self._boot_later(host)

    async def _deposed(self, key: PartitionKey) -> Host | None:
        """A broker that led until the others could not hear it, and was left alone with its clients."""
        host = self._leader_of(key)
        if host is None or host.is_paused:
            return None
        await self._depose(key, host)
        self.heal()
        if self._random.random() < CUTS_FIRST:
            await self._until(lambda: self._is_in_sync(host, key))
        return host

    async def _place(self, key: PartitionKey, replicas: tuple[int, ...]) -> bool:
        up = [host.node for host in self._hosts if host.serves and not host.is_paused]
        return bool(up) and await self._assigner.place(key, replicas, through=self._random.choice(up))

    def _has(self, host: Host, key: PartitionKey) -> bool:
        state = self._records.state(key)
        return state is None or host.node in state.replicas

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for the condition without a limit; the plot's own limit ends it."""
        while not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
