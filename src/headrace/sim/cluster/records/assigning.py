"""Who has copies go away and come back: as the records' nemesis, and brokers are told to give up a copy, and to have it
again. The copy that comes back has the name, topic and assignment epoch of the one that is gone, and nothing of it.
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
"""Of the copies that go away, how many are of brokers that have just led, and written what nobody has copied."""
CUTS_FIRST: Final = 0.6
"""Of these, how many have cut that off by then."""
ELSEWHERE: Final = 0.5
"""How often another broker has it meanwhile, where there is one."""
BACK_SECONDS: Final = (0.01, 0.3, 1.0)
"""Longest from the time it is known to be gone until it is to come back, one of these: before its broker has heard of
it, or after."""
DIES_SECONDS: Final = (0.03, 0.3, 1.0)
"""From its return to the end of its broker's power."""
DIES: Final = 0.7


class Assigner:
    """Asks brokers that a partition's copies be where it says, as Kafka's own tools do. `partitions`: with the names of
    their topics."""

    def __init__(self, world: ClusterWorld, partitions: Mapping[PartitionKey, str], name: str) -> None:
        self._world = world
        self._partitions = partitions
        self._name = name
        self._clients: dict[int, Client] = {}

    async def place(self, key: PartitionKey, replicas: tuple[int, ...] | None, *, through: int) -> bool:
        """Whether the controller says that it will be so; None: as before what is under way."""
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
        told = answer.responses[0].partitions[0] if answer.responses else answer
        self._world.tell(f"{what}: {error_of(told.error_code).name} {told.error_message or ''}")
        return not (answer.error_code or told.error_code)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class AssigningNemesis(RecordsNemesis):
    """See the module."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._assigner = Assigner(self._world, self._partitions, "assigner")
        self._whole: dict[PartitionKey, tuple[int, ...]] = {}
        """Who had each at first."""
        self.returns = 0
        """Copies that have come back."""

    def _mood(self) -> list[tuple[Act, float]]:
        return [*super()._mood(), (self.away_and_back, self._random.choice((0.0, 3.0, 10.0)))]

    @property
    def has_given_back(self) -> bool:
        return not any(map(self._lacks, self._whole))

    def _lacks(self, key: PartitionKey) -> bool:
        """Whether it is not where it was at first, or is still on its way."""
        state = self._records.state(key)
        return state is not None and (state.is_reassigned or set(state.replicas) != set(self._whole[key]))

    async def keep_up(self) -> None:
        """Where a copy was left away it comes back."""
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
        """A copy is assigned elsewhere, or nowhere, and here again, in many cases after its broker has led on its own;
        then that loses its power. Where one is away from before it comes back. Nothing else happens meanwhile."""
        if not self._partitions:
            return
        playing = self._world.loop.create_task(self._play(self._random.choice(list(self._partitions))))
        await asyncio.wait({playing}, timeout=PLOT_SECONDS_MAX)
        playing.cancel()
        self.heal()

    async def _play(self, key: PartitionKey) -> None:
        state = self._records.state(key)
        if state is None or state.is_reassigned:
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
        """Who led until others could not hear it any more, and was left alone with its clients."""
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
        """For ever, where it never holds: the plot ends before."""
        while not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
