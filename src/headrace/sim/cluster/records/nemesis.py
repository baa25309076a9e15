"""Who breaks what partitions rely on: as the cluster's nemesis, but it looks at who leads partitions, too.

Leaders that are cut off from the other brokers and not from their clients, for longer than a session lasts; followers
that fall so far behind that they leave the in-sync replicas, and then those that stayed in them die.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.base.ids import NO_LEADER
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.nemesis import Act, Nemesis
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.history import PartitionKey

PARTITION_LEADER_PROBABILITY: Final = 0.7
"""Of what happens to a leader, how often it is one of a partition's and not the quorum's."""
TEMPI: Final = (1.0, 2.0, 3.0)
"""Slower than the quorum's nemesis in most runs, so that there is something to lose."""
DETHRONED_SECONDS: Final = (0.6, 2.4)
REGENCY_SECONDS_MAX: Final = 0.5
"""From the return of a leader that was cut off to the death of the one that came after it."""
BEHIND_SECONDS: Final = (0.5, 3.0)
CATCH_UP_SECONDS_MAX: Final = 1.5
"""For which who has fallen behind is still slow to catch up, under the next leader."""
HARDLY_MOVES: Final = 300.0
"""By how much longer a disk takes to sync then."""


class RecordsNemesis(Nemesis):
    """See the module. `partitions`: the run's own collection, which may grow."""

    def __init__(
        self, world: ClusterWorld, hosts: Sequence[Host], judge: RecordsJudge, partitions: dict[PartitionKey, str]
    ) -> None:
        super().__init__(world, hosts, judge, tempo=world.random.choice(TEMPI))
        self._records = judge
        self._partitions = partitions

    def _mood(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        return [*super()._mood(), (self.dethrone, pick((0.0, 2.0, 5.0))), (self.leave_behind, pick((0.0, 2.0, 5.0)))]

    def _leader(self) -> Host | None:
        if self._random.random() < PARTITION_LEADER_PROBABILITY:
            return self._partition_leader()
        return super()._leader()

    def _partition_leader(self) -> Host | None:
        if not self._partitions:
            return None
        state = self._records.state(self._random.choice(list(self._partitions)))
        leader = NO_LEADER if state is None else state.leader
        return next((host for host in self._hosts if host.node == leader and host.is_up), None)

    def dethrone(self) -> None:
        """Cut a partition's leader off from other brokers, and then let it hear of its successor, which may die."""
        if (host := self._partition_leader()) is None:
            return
        others = [each.address for each in self._hosts if each is not host]
        if self._random.random() < 0.3:
            others.remove(self._random.choice(others))
        self._cut({link for other in others for link in ((host.address, other), (other, host.address))})

        def return_to_the_throne() -> None:
            self.heal()
            if self._random.random() < 0.6:
                self._later(self._within(REGENCY_SECONDS_MAX), lambda: self._kill_other_leader(host))

        self._later(self._seconds(DETHRONED_SECONDS), return_to_the_throne)

    def _kill_other_leader(self, than: Host) -> None:
        host = self._partition_leader()
        if host is not None and host is not than and not host.is_paused:
            host.kill()
            self._boot_later(host)

    def leave_behind(self) -> None:
        """One broker hears nothing of the others, or its disk hardly moves; then one that went on without it dies."""
        if (host := self._some()) is None:
            return
        others = [each for each in self._hosts if each is not host]
        is_slow = self._random.random() < 0.6
        if is_slow:
            host.disk.slowness = HARDLY_MOVES
            self._world.tell(f"the disk of broker {host.node} hardly moves")
        else:
            self._cut({(other.address, host.address) for other in others})

        def catches_up() -> None:
            host.disk.slowness = 1.0

        def strike() -> None:
            if not is_slow:
                self.heal()
                host.disk.slowness = HARDLY_MOVES
            for victim in others if self._random.random() < 0.3 else [self._partition_leader()]:
                if victim is not None and victim is not host and victim.is_up and not victim.is_paused:
                    (victim.power_cut if self._random.random() < 0.5 else victim.kill)()
                    self._boot_later(victim)
            self._later(self._within(CATCH_UP_SECONDS_MAX), catches_up)

        self._later(self._seconds(BEHIND_SECONDS), strike)

    def _seconds(self, bounds: tuple[float, float]) -> float:
        least, most = bounds
        return least + self._random.random() * (most - least)
