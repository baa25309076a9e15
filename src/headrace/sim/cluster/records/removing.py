"""Dead brokers are removed from the cluster: the records' nemesis, with a plot of its own.

The removed broker's replicas are gone, and the controller replaces them with others. The broker returns as a stranger
with its old data.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.base.ids import BrokerId
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.nemesis import Act
from headrace.sim.cluster.play import ClusterOutcome
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.records.run import RecordsRun, play
from headrace.sim.cluster.world import PORT, address_of
from headrace.wire.apis import ApiKey
from headrace.wire.errors import error_of
from headrace.wire.messages.unregister_broker import UnregisterBrokerRequest

PLOT_SECONDS_MAX: Final = 8.0
WEIGHTS: Final = (3.0, 10.0)
BACK_SECONDS: Final = (0.02, 0.5, 2.0)
"""Longest time from its removal to its return, one of these: before others begin to copy, while they do, or after."""


def run_removals(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return play(seed, "removals ", RemovalsRun)


class RemovingNemesis(RecordsNemesis):
    """The nemesis, as the module says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.removals = 0

    def _mood(self) -> list[tuple[Act, float]]:
        return [*super()._mood(), (self.remove, self._random.choice(WEIGHTS))]

    async def remove(self) -> None:
        """Kill a broker, remove it once it is fenced, and start it again. Nothing else happens meanwhile."""
        host = self._some() if self._partitions else None
        if host is None:
            return
        (host.kill if self._random.random() < 0.5 else host.power_cut)()
        dead = host.process
        playing = self._world.loop.create_task(self._play(host))
        await asyncio.wait({playing}, timeout=PLOT_SECONDS_MAX)
        playing.cancel()
        if host.process is dead and not host.is_up:
            host.boot()
        self.heal()

    async def _play(self, host: Host) -> None:
        while self._is_taken_for_alive(host):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        through = [each.node for each in self._hosts if each.serves and not each.is_paused]
        if through:
            await self._ask(host, self._random.choice(through))
            await asyncio.sleep(self._random.random() * self._random.choice(BACK_SECONDS))

    def _is_taken_for_alive(self, host: Host) -> bool:
        known = self._records.newest.brokers.get(BrokerId(host.node))
        return known is not None and not known.fenced

    async def _ask(self, host: Host, through: int) -> None:
        client = Client("remover", (address_of(through), PORT))
        what = f"broker {host.node} is to be removed, through {through}"
        try:
            answer = await client.call(ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(host.node))
        except Lost:
            self._world.tell(f"{what}: nobody knows")
        else:
            self._world.tell(f"{what}: {error_of(answer.error_code).name}")
            self.removals += not answer.error_code
        finally:
            client.close()


class RemovalsRun(RecordsRun):
    """A records run in a cluster that can spare a broker. At the end there are as many replicas as at first."""

    sizes = (4, 5, 5)

    def _make_nemesis(self) -> RemovingNemesis:
        self._removing = RemovingNemesis(self._world, self.hosts, self.judge, self._stage.partitions)
        return self._removing

    async def _more_faults(self) -> None:
        """Lose no disk: together with a removal there would be no promises."""

    def _is_whole(self) -> bool:
        states = [self.judge.state(key) for key in self._stage.partitions]
        return super()._is_whole() and all(state and len(state.replicas) == self._replicas for state in states)

    def figures(self) -> dict[str, float]:
        return {**super().figures(), "removals of brokers": self._removing.removals}
