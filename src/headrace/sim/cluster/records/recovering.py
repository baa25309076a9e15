"""Runs in which most voters are lost at once, and the quorum is recovered by force, while clients wait.

All replicas are in sync, and all brokers show the same. Then every broker loses power or dies. So many disks are gone
for good, or stay away, that no quorum is left. An operator goes on with the longest log, as `headrace quorum recover`
does. Then all brokers come back in any order: new ones, and the disks that were away, which know nothing of it.

Promise: no promised record is lost, because a survivor has a copy of each partition. The disks that were away are never
a majority: a majority could go on without the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final

from headrace.base.limits import QUORUM_RECOVERY_EPOCHS
from headrace.base.ports import Disk
from headrace.broker.cluster.lost_quorum import Remains, check_lost, examine, go_on, longest
from headrace.broker.home import lineage
from headrace.controller.lost_quorum import superseded
from headrace.sim.cluster.host import DATA, Host
from headrace.sim.cluster.play import ClusterOutcome, Over
from headrace.sim.cluster.records.run import RecordsRun, play

LATE_SECONDS_MAX: Final = 3.0
"""Longest time between two returns: longer than an election takes."""


def run_lost_quorums(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for what the brokers did."""
    return play(seed, "lost quorum ", LostQuorumRun)


class LostQuorumRun(RecordsRun):
    """See the module."""

    sizes: ClassVar[Sequence[int]] = (3, 4)
    """With more, all copies of a partition could be lost."""

    async def _more_faults(self) -> None:
        await self._quietly(self._all_know)
        before = set(self.judge.leaders)
        survivors, others = self._lose_the_quorum()
        await self._recover(survivors)
        await self._within("not all came back", self._bring_back([*survivors, *others]))
        for term in self.judge.leaders.keys() - before:
            if term < QUORUM_RECOVERY_EPOCHS:
                self._world.problem("elected-in-what-is-over", f"{self.judge.leaders[term].node} leads in term {term}")
                raise Over
        await self._quietly(self._all_in_sync)
        await self._faults()

    async def _all_know(self) -> None:
        """Wait until all are in sync and know so: a survivor goes by its own metadata."""
        await self._within("not all are in sync", self._until(lambda: self._is_whole() and self.judge.apart() is None))

    def _lose_the_quorum(self) -> tuple[list[Host], list[Host]]:
        """Return the survivors and the others."""
        chance = self._world.chance("lost quorum")
        hosts = chance.sample(self.hosts, len(self.hosts))
        quorum = len(hosts) // 2 + 1
        survivors, others = hosts[: quorum - 1], hosts[quorum - 1 :]
        for number, host in enumerate(others):
            if number >= quorum - 1 or chance.random() < 0.5:
                self.judge.on_disk_lost(host.node)
                host.wipe()
            else:
                host.power_cut()
        for host in survivors:
            (host.kill if chance.random() < 0.5 else host.power_cut)()
        self._world.tell(f"of the voters {_named(hosts)} only {_named(survivors)} are left")
        return survivors, others

    async def _recover(self, survivors: Sequence[Host]) -> None:
        remains = {host: await host.by_hand(_examine) for host in survivors}
        best = longest(list(remains.values()))
        check_lost(best, list(remains.values()), {})
        chance, now_ms = self._world.chance("recovery"), survivors[0].clock.now_ms()

        def recover(disk: Disk) -> str:
            done = go_on(disk, best, list(remains.values()), random=chance, now_ms=now_ms)
            return superseded(done.lineage)

        def give_up(disk: Disk) -> None:
            lineage.note_superseded(disk, DATA, outcome)
            lineage.rejoin(disk, DATA)

        (chosen,) = [host for host, found in remains.items() if found is best]
        outcome = await chosen.by_hand(recover)
        for host in survivors:
            if host is not chosen:
                await host.by_hand(give_up)

    async def _bring_back(self, hosts: Sequence[Host]) -> None:
        """Start all. A broker that hears of a recovery without it rejoins."""
        chance = self._world.chance("back")
        for host in chance.sample(hosts, len(hosts)):
            host.boot()
            await asyncio.sleep(chance.random() * LATE_SECONDS_MAX)
        while not all(host.serves for host in hosts):
            for host in hosts:
                if not host.is_up:
                    await host.by_hand(_rejoin)
                    host.boot()
            await asyncio.sleep(0.1)


def _examine(disk: Disk) -> Remains:
    return examine(disk, DATA)


def _rejoin(disk: Disk) -> None:
    """Set the metadata aside where the broker noted that it has to rejoin."""
    if lineage.superseded_by(disk, DATA):
        lineage.rejoin(disk, DATA)


def _named(hosts: Sequence[Host]) -> str:
    return ", ".join(str(host.node) for host in sorted(hosts, key=lambda host: host.node))
