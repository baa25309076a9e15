"""Faults for partitions: those of the cluster's nemesis, and faults aimed at leaders of partitions.

Leaders are cut off from other brokers, but not from their clients, for longer than a session. Followers fall so far
behind that they leave the ISR, and then members that stayed in it die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from headrace.base.ids import NO_LEADER
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.nemesis import Act, Nemesis
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.history import PartitionKey

PARTITION_LEADER_PROBABILITY: Final = 0.7
"""Share of the faults of leaders that hit a partition's leader instead of the quorum's."""
TEMPI: Final = (1.0, 2.0, 3.0)
"""Factors on its times: in most runs it is slower than the quorum's nemesis, so that there are records to lose."""
DETHRONED_SECONDS_MAX: Final = 3.0
"""Time after which it still leads: there is no other replica, or no controller."""
INTERREGNUM_SECONDS_MAX: Final = 0.3
SUCCESSOR_DIES: Final = 0.6
REGENCY_SECONDS_MAX: Final = 1.5
"""Longest time from the return of a cut-off leader to the death of its successor. It ends at once when the old leader
is in sync again."""
MOMENT_SECONDS_MAX: Final = 0.1
SHRUNK_SECONDS_MAX: Final = 0.03
BEHIND_SECONDS: Final = (0.5, 3.0)
CATCH_UP_SECONDS_MAX: Final = 1.5
"""Time for which a broker that fell behind stays slow under the next leader."""
HARDLY_MOVES: Final = 300.0
"""Factor by which its disk's syncs are slower then."""
LEFT_OUT_SECONDS_MAX: Final = 4.0
"""Time in which a broker cut off from its leader must leave the ISR, or the plot ends."""
STALL_SECONDS: Final = (0.05, 0.5)
STALLED_SECONDS: Final = (0.3, 1.5)


class RecordsNemesis(Nemesis):
    """The nemesis, as the module says. `partitions` is the run's own collection, which may grow."""

    def __init__(
        self, world: ClusterWorld, hosts: Sequence[Host], judge: RecordsJudge, partitions: dict[PartitionKey, str]
    ) -> None:
        super().__init__(world, hosts, judge, tempo=world.random.choice(TEMPI))
        self._records = judge
        self._at_shrunk = 0.0
        judge.on_shrunk = self._on_shrunk
        self._partitions = partitions

    @property
    def has_given_back(self) -> bool:
        """Whether every removed copy is back, and no other is there."""
        return True

    def _mood(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        self._at_shrunk = pick((0.0, 0.3, 0.8))
        return [
            *super()._mood(),
            (self.dethrone, pick((0.0, 3.0, 12.0))),
            (self.leave_behind, pick((0.0, 2.0, 5.0))),
            (self.stall, pick((0.0, 3.0, 12.0))),
        ]

    def _leader(self) -> Host | None:
        if self._random.random() < PARTITION_LEADER_PROBABILITY:
            return self._partition_leader()
        return super()._leader()

    def _partition_leader(self) -> Host | None:
        return self._leader_of(self._random.choice(list(self._partitions))) if self._partitions else None

    def _leader_of(self, key: PartitionKey) -> Host | None:
        state = self._records.state(key)
        leader = NO_LEADER if state is None else state.leader
        return next((host for host in self._hosts if host.node == leader and host.is_up), None)

    def _is_in_sync(self, host: Host, key: PartitionKey) -> bool:
        state = self._records.state(key)
        return state is not None and host.node in state.isr

    async def dethrone(self) -> None:
        """Cut a partition's leader off from other brokers until it is fenced. Then let it learn of its successor, which
        may die soon. Nothing else happens meanwhile."""
        key = self._random.choice(list(self._partitions)) if self._partitions else None
        if key is None or (host := self._leader_of(key)) is None or host.is_paused:
            return
        loop = self._world.loop
        await self._depose(key, host)
        await asyncio.sleep(self._random.random() * INTERREGNUM_SECONDS_MAX)
        self.heal()
        if self._random.random() < SUCCESSOR_DIES:
            end = loop.time() + REGENCY_SECONDS_MAX
            while not self._is_in_sync(host, key) and loop.time() < end:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._random.random() * MOMENT_SECONDS_MAX)
            successor = self._leader_of(key)
            if successor is not None and successor is not host and not successor.is_paused:
                successor.kill()
                self._boot_later(successor)

    async def _depose(self, key: PartitionKey, host: Host) -> None:
        """Cut it off from other brokers until another broker leads, or none can."""
        loop = self._world.loop
        others = [each.address for each in self._hosts if each is not host]
        cut = {link for other in others for link in ((host.address, other), (other, host.address))}
        end = loop.time() + DETHRONED_SECONDS_MAX
        while self._leader_of(key) is host and host.is_up and loop.time() < end:
            if loop.network.links.cut != cut:
                self._cut(cut)
            await asyncio.sleep(0.1)

    def _on_shrunk(self, key: PartitionKey) -> None:
        """Sometimes kill its leader: records that waited for the lost member are committed now, and few brokers know
        that."""
        if not self.is_over and self._random.random() < self._at_shrunk:
            self._later(self._random.random() * SHRUNK_SECONDS_MAX, lambda: self._kill_leader(key))

    def _kill_leader(self, key: PartitionKey) -> None:
        if (host := self._leader_of(key)) is not None and not host.is_paused:
            self.acts += 1
            host.kill()
            self._boot_later(host)

    def leave_behind(self) -> None:
        """Isolate one broker, or slow its disk down; then kill one that continued without it."""
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

    async def stall(self) -> None:
        """Cut a follower off from its leader until it is out of the ISR. It returns when another in-sync follower is
        paused. So the high watermark stands still while the log grows. Then the leader dies.

        Its successor does not know how much was promised. The returned follower soon has everything below that high
        watermark. Nothing else happens meanwhile.
        """
        if not (wide := self._wide()):
            return
        key = self._random.choice(wide)
        behind, still = self._random.sample(self._in_sync_followers(key), 2)
        if (leader := self._leader_of(key)) is None:
            return
        loop = self._world.loop
        self._cut({(leader.address, behind.address)})
        end = loop.time() + LEFT_OUT_SECONDS_MAX
        while self._is_in_sync(behind, key) and loop.time() < end:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.02)
        still.pause()
        await asyncio.sleep(self._seconds(STALL_SECONDS))
        self._kill_leader(key)
        self.heal()
        await asyncio.sleep(self._seconds(STALLED_SECONDS))
        still.resume()

    def _wide(self) -> list[PartitionKey]:
        """Partitions where one follower may fall behind, one may stand still and one may become leader."""
        return [key for key in self._partitions if len(self._in_sync_followers(key)) >= 3]

    def _in_sync_followers(self, key: PartitionKey) -> list[Host]:
        leader = self._leader_of(key)
        up = [host for host in self._hosts if host.is_up and not host.is_paused and host is not leader]
        return [host for host in up if leader is not None and self._is_in_sync(host, key)]

    def _seconds(self, bounds: tuple[float, float]) -> float:
        least, most = bounds
        return least + self._random.random() * (most - least)
