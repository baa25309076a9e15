"""Faults of a cluster: everything that can go wrong does, with weights that change, so that each run has its own
mixture.

The faults are:
- kills, power cuts, crashes in the middle of a disk operation, pauses and clean stops;
- one-way and two-way cuts of the network, slow links, and broken connections;
- slow disks, and clocks that jump;
- sometimes a power cut for all hosts at once.

A byte stream does not lose, duplicate or reorder, so messages themselves are not changed here (tests/raft does that).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headrace.raft.membership import Peer
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.links import Link

MOOD_SECONDS_MAX: Final = 4.0
DOWN_SECONDS_MAX: Final = 2.5
PAUSE_SECONDS_MAX: Final = 4.0
CUT_SECONDS_MAX: Final = 5.0
JUMP_MS_MAX: Final = 3_600_000
SLOW_DISK_FACTOR_MAX: Final = 60.0
SLOW_ROAD_FACTOR_MAX: Final = 200.0
OPERATIONS_TO_CRASH_MAX: Final = 60
BOUNCE_PROBABILITY: Final = 0.4
"""Share of the dead that return at once, before anybody has missed them."""
BOUNCE_SECONDS: Final = 0.01
STRIKE_SECONDS_MAX: Final = 0.06
"""Time from a vote or an election to the fault that follows it."""
LEADER_PROBABILITY: Final = 0.4
"""Share of the faults of one host that hit the leader."""

Act = Callable[[], Awaitable[None] | None]


class Nemesis:
    """The nemesis, as the module says. `hosts` is the run's own list, which may grow. `tempo` multiplies its times."""

    def __init__(self, world: ClusterWorld, hosts: Sequence[Host], judge: Judge, *, tempo: float = 1.0) -> None:
        self._world = world
        self._hosts = hosts
        self._tempo = tempo
        self._judge = judge
        self._random = world.chance("nemesis")
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_over = True
        self.acts = 0
        self._at_votes = self._at_leaders = 0.0
        judge.on_vote, judge.on_leader = self._on_vote, self._on_leader

    async def run(self, seconds: float) -> None:
        """Cause faults for this time. At the end, hosts may be dead and the network cut."""
        self.is_over = False
        end = self._world.loop.time() + seconds
        while self._world.loop.time() < end:
            mood = self._mood()
            pause = self._tempo * (0.05 + self._random.random() * self._random.choice((0.3, 1.0, 2.0)))
            mood_end = self._world.loop.time() + self._within(MOOD_SECONDS_MAX)
            while self._world.loop.time() < min(mood_end, end):
                [act] = self._random.choices([act for act, _ in mood], [weight for _, weight in mood])
                self.acts += 1
                done = act()
                if done is not None:
                    await done
                await asyncio.sleep(self._random.random() * pause)

    def _mood(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        self._at_votes = pick((0.0, 0.0, 0.2, 0.6))
        self._at_leaders = pick((0.0, 0.0, 0.3, 0.7))
        return [
            (self.kill, pick((0.0, 1.0, 4.0))),
            (self.power_cut, pick((0.0, 1.0, 4.0))),
            (self.crash_in_an_operation, pick((0.0, 2.0, 4.0))),
            (self.all_power_cut, pick((0.0, 0.0, 0.0, 0.5))),
            (self.stop, pick((0.0, 0.0, 1.0))),
            (self.pause, pick((0.0, 1.0, 3.0))),
            (self.isolate, pick((0.0, 1.0, 4.0))),
            (self.partition, pick((0.0, 1.0, 3.0))),
            (self.heal, pick((1.0, 3.0))),
            (self.slow_road, pick((0.0, 1.0))),
            (self.slow_disk, pick((0.0, 1.0))),
            (self.jump, pick((0.0, 1.0))),
            (self.reset, pick((0.0, 2.0))),
        ]

    def calm(self) -> None:
        """End all faults and let what was begun finish; `keep_up` does the rest."""
        self.is_over = True
        network = self._world.loop.network
        self._world.tell("calm")
        network.links.set_cut([])
        network.links.set_slow({})
        for host in self._hosts:
            host.disk.heal()
            host.disk.slowness = 1.0
            host.resume()

    async def keep_up(self) -> None:
        """Boot every host that is down, for ever."""
        while True:
            for host in self._hosts:
                if not host.is_up:
                    host.boot()
            await asyncio.sleep(0.1)

    # one host

    def _leader(self) -> Host | None:
        if not self._judge.leaders:
            return None
        node = self._judge.leaders[max(self._judge.leaders)].node
        return next((host for host in self._hosts if host.node == node and host.is_up), None)

    def _some(self) -> Host | None:
        """A host that is up, and not paused."""
        leader = self._leader()
        if leader is not None and not leader.is_paused and self._random.random() < LEADER_PROBABILITY:
            return leader
        up = [host for host in self._hosts if host.is_up and not host.is_paused]
        return self._random.choice(up) if up else None

    def kill(self) -> None:
        if (host := self._some()) is not None:
            host.kill()
            self._boot_later(host)

    def power_cut(self) -> None:
        if (host := self._some()) is not None:
            host.power_cut()
            self._boot_later(host)

    def crash_in_an_operation(self) -> None:
        """Crash at one of the next disk operations, so that it is torn, or only one of two is done."""
        if (host := self._some()) is None:
            return
        lose_power = self._random.random() < 0.7

        def crash() -> None:
            (host.power_cut if lose_power else host.kill)()
            self._boot_later(host)

        host.disk.trigger(self._random.randrange(1, OPERATIONS_TO_CRASH_MAX), crash)

    def all_power_cut(self) -> None:
        self._world.tell("all power is lost")
        for host in self._hosts:
            if host.is_up:
                host.power_cut()
                self._boot_later(host)

    async def stop(self) -> None:
        if (host := self._some()) is not None:
            self._later(0.0, host.stop)
            self._boot_later(host)

    def _on_vote(self, voter: Peer) -> None:
        """Kill its process as soon as it has voted, and restart it before the election is over."""
        if not self.is_over and self._random.random() < self._at_votes:
            self._strike(voter, self._random.choice((Host.kill, Host.power_cut)))

    def _on_leader(self, leader: Peer) -> None:
        """Kill it, or cut it off with a few hosts, with its latest entries in few logs or none."""
        if not self.is_over and self._random.random() < self._at_leaders:
            self._strike(leader, self._random.choice((Host.kill, Host.power_cut, self._cut_off)))

    def _strike(self, peer: Peer, act: Callable[[Host], object]) -> None:
        host = next((each for each in self._hosts if each.node == peer.node), None)

        def strike() -> None:
            if host is not None and host.is_up and not host.is_paused:
                self.acts += 1
                act(host)
                self._later(BOUNCE_SECONDS, lambda: self._boot(host))

        self._later(self._within(STRIKE_SECONDS_MAX), strike)

    def _cut_off(self, host: Host) -> None:
        others = [each.address for each in self._hosts if each is not host]
        friends = set(self._random.sample(others, min(len(others), self._random.choice((0, 1, 1)))))
        far = [other for other in others if other not in friends]
        self._cut({link for other in far for link in ((host.address, other), (other, host.address))})

    def pause(self) -> None:
        if (host := self._some()) is not None:
            host.pause()
            self._later(self._within(PAUSE_SECONDS_MAX), host.resume)

    def _boot_later(self, host: Host) -> None:
        bounces = self._random.random() < BOUNCE_PROBABILITY
        self._later(BOUNCE_SECONDS if bounces else self._within(DOWN_SECONDS_MAX), lambda: self._boot(host))

    def _boot(self, host: Host) -> None:
        if not host.is_up:
            host.boot()
        elif not host.serves and not host.is_starting:
            self._later(self._tempo * DOWN_SECONDS_MAX, lambda: self._boot(host))

    def _within(self, seconds: float) -> float:
        """A random time up to that, at this run's tempo."""
        return self._tempo * self._random.random() * seconds

    def _later(self, seconds: float, act: Act) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            done = act() if not self.is_over else None
            if done is not None:
                await done

        task = self._world.loop.create_task(wait(), context=self._world.loop.no_process.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # the network

    def isolate(self) -> None:
        """Cut one host off from some or all others, in one direction or both."""
        if (host := self._some()) is None:
            return
        ways = self._random.choice((1, 2, 3))
        others = [each.address for each in self._hosts if each is not host and self._random.random() < 0.8]
        cut = {(host.address, other) for other in others if ways & 1}
        cut |= {(other, host.address) for other in others if ways & 2}
        self._cut(cut)

    def partition(self) -> None:
        """Cut two sides apart, in both directions or one."""
        addresses = [host.address for host in self._hosts]
        side = {address for address in addresses if self._random.random() < 0.5}
        one_way = self._random.random() < 0.3
        self._cut(
            {
                (one, other)
                for one in addresses
                for other in addresses
                if (one in side and other not in side) or (one not in side and other in side and not one_way)
            }
        )

    def _cut(self, cut: set[Link]) -> None:
        self._world.tell(f"cut: {', '.join(f'{one[7:]}>{other[7:]}' for one, other in sorted(cut))}")
        self._world.loop.network.links.set_cut(cut)
        self._later(self._within(CUT_SECONDS_MAX), self.heal)

    def heal(self) -> None:
        if self._world.loop.network.links.cut:
            self._world.tell("the network is whole")
            self._world.loop.network.links.set_cut([])

    def slow_road(self) -> None:
        addresses = [host.address for host in self._hosts]
        slow = {
            (one, other): 1 + self._random.random() * SLOW_ROAD_FACTOR_MAX
            for one in addresses
            for other in addresses
            if one != other and self._random.random() < 0.3
        }
        self._world.loop.network.links.set_slow(slow)
        self._later(self._within(CUT_SECONDS_MAX), lambda: self._world.loop.network.links.set_slow({}))

    def reset(self) -> None:
        ends = list(self._world.loop.network.transports)
        if ends:
            self._world.tell("a connection is reset")
            self._world.loop.network.reset(self._random.choice(ends))

    # disks and clocks

    def slow_disk(self) -> None:
        if (host := self._some()) is not None:
            host.disk.slowness = 1 + self._random.random() * SLOW_DISK_FACTOR_MAX
            self._world.tell(f"the disk of broker {host.node} is {host.disk.slowness:.0f} times slower")
            self._later(self._within(CUT_SECONDS_MAX), lambda: setattr(host.disk, "slowness", 1.0))

    def jump(self) -> None:
        if (host := self._some()) is not None:
            by = int((2 * self._random.random() - 1) * JUMP_MS_MAX)
            self._world.tell(f"the clock of broker {host.node} jumps by {by} ms")
            host.clock.jump_ms(by)
