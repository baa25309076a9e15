"""Faults for a quorum: those of the nemesis ten times as fast, and plots against leaders and elections.

Each plot is a short sequence of faults that a network, a disk or an operator can cause. Chance alone seldom puts them
in this order. A plot covers the moments in which a consensus protocol must be right. The plots know leaders and voters
from the judge, and nothing of what may be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final

from headrace.broker.cluster.driver import MetadataDriver
from headrace.raft.membership import AddLearner, Change, Demote, Membership, Peer, Promote, Remove
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.nemesis import BOUNCE_SECONDS, Act, Nemesis
from headrace.sim.cluster.quorums import asked, driver_of, peer_of
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.links import Link

TEMPO: Final = 0.1
ELECTION_SECONDS: Final = 0.1
"""About the time for which voters wait for a silent leader."""
REIGN_SECONDS_MAX: Final = 0.02
"""Reign of a leader that is about to be cut off."""
SLOW_DISK_FACTOR: Final = 60.0
TRIES_MAX: Final = 4
"""Attempts to get the target of a leadership transfer elected."""
CHANGES_AT_ONCE: Final = 3
CHANGE_SECONDS_MAX: Final = 1.0
VOTERS_MIN: Final = 3
"""Below this number of voters, only plots remove any."""


class Intriguer(Nemesis):
    """The nemesis with plots, as the module says."""

    def __init__(self, world: ClusterWorld, hosts: Sequence[Host], judge: Judge) -> None:
        super().__init__(world, hosts, judge, tempo=TEMPO)
        judge.on_commit = self._on_commit
        self._at_commits = self._at_crowns = 0.0
        self._crowned = asyncio.Event()
        """Set when a leader is elected."""
        self._ambush: Callable[[Host], bool] | None = None
        """The condition for a new leader that a plot cuts off at its election."""
        self._marked: Host | None = None
        """The host that is cut off when it next commits something."""
        self._plotting = False
        """Set during a plot: no other fault hits leaders then."""

    def _mood(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        common = [(act, weight / 4) for act, weight in super()._mood()]
        self._at_crowns = pick((0.0, 0.0, 0.5, 0.9))
        self._at_commits = pick((0.0, 0.0, 0.05, 0.2))
        return [
            *common,
            (self.storm, pick((0.0, 1.0, 4.0))),
            *((self._played(plot), pick((0.0, 2.0, 6.0))) for plot in self.plots),
            (self.change, pick((0.0, 1.0, 4.0))),
        ]

    @property
    def plots(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return self.duel, self.late_word, self.figure_eight, self.purge

    def _played(self, plot: Callable[[], Awaitable[None]]) -> Act:
        async def play() -> None:
            self._world.tell(f"a plot: {plot.__name__}")
            self._plotting = True
            await plot()
            self._plotting = False

        return play

    # at the moments of an election

    def _on_leader(self, leader: Peer) -> None:
        """Sometimes cut the new leader off, with its first entry in few logs or none. Formerly cut-off hosts are
        connected again."""
        self._crowned.set()
        self._crowned = asyncio.Event()
        host = self._host(leader)
        if self.is_over:
            return
        if self._ambush is not None and self._ambush(host):
            self._cut_apart([host], self._but(host))
        elif not self._plotting and self._random.random() < self._at_crowns:
            self._depose(host, self._random.choice((0.0, REIGN_SECONDS_MAX * self._random.random())))
        elif not self._plotting:
            super()._on_leader(leader)

    def _on_commit(self, leader: Peer) -> None:
        """Sometimes cut the leader off, so that members that do not know of the commit hear no more from it."""
        host = self._host(leader)
        if self.is_over:
            return
        if host is self._marked:
            self._marked = None
            self._cut_apart([host], self._but(host))
        elif not self._plotting and self._random.random() < self._at_commits:
            self._depose(host, 0.0)

    def _depose(self, host: Host, seconds: float) -> None:
        """Cut the host off after this time; if that is 0, before it has sent anything."""
        if seconds:
            self._later(seconds, lambda: self._part(host))
        else:
            self._part(host)

    # plots

    def storm(self) -> None:
        """The leader is believed dead, and several members stand at once."""
        self._world.tell("the leader is said to be dead")
        for host in self._hosts:
            if self._random.random() < 0.8:
                self._stand(host)

    async def duel(self) -> None:
        """Two members that cannot hear each other stand. A third has answered the first. It restarts before the second,
        whose disk is slow, asks it."""
        able = [host for host in self._hosts if driver_of(host) is not None]
        if len(able) < 3:
            return
        one, other, swing = self._random.sample(able, 3)
        self._world.tell(f"a duel of {one.node} and {other.node} for the vote of {swing.node}")
        self._cut_apart([one], [other])
        other.disk.slowness = 1 + self._random.random() * SLOW_DISK_FACTOR
        votes, self._at_votes = self._at_votes, 0.9
        leader = self._leader()
        if leader is not None and leader is not swing and self._random.random() < 0.5:
            leader.kill()
            self._later(self._random.random() * ELECTION_SECONDS, lambda: self._boot(leader))
        for host in (one, other):
            self._stand(host)
        await asyncio.sleep(2 * ELECTION_SECONDS)
        self._at_votes = votes
        other.disk.slowness = 1.0
        self.heal()

    async def late_word(self) -> None:
        """A leader is cut off with a few members whose acknowledgements are delayed. Another leader overwrites their
        entries. Then the first is elected again, and has few members to count when the acknowledgements arrive."""
        first = self._leader()
        friends = self._friends(first, (1, 1, 2)) if first is not None else []
        if first is None or not self._can_do_without(first, *friends):
            return
        held = {(friend.address, first.address) for friend in friends}
        self._cut_apart([first, *friends], self._but(first, *friends), more=held)
        second = await self._until(lambda leader: leader is not first)
        if second is None:
            self.heal()
            return
        self._set_cut(held)
        await asyncio.sleep(self._random.random() * ELECTION_SECONDS / 2)
        self._set_cut({*held, *((other, one) for one, other in held)})
        if await self._succeeds(first, second):
            await asyncio.sleep(self._random.choice((0.0, REIGN_SECONDS_MAX * self._random.random())))
            far = self._but(first, *self._random.sample(self._but(first, *friends), 1))
            self._set_cut({(first.address, host.address) for host in far})
            await asyncio.sleep(ELECTION_SECONDS)
        self.heal()

    async def _succeeds(self, heir: Host, leader: Host) -> bool:
        """Whether the heir is elected after the leader dies or hands over to it."""
        if self._random.random() < 0.5:
            leader.kill()
            self._later(2 * ELECTION_SECONDS, lambda: self._boot(leader))
            return await self._until(lambda other: other is heir) is not None
        for _ in range(TRIES_MAX):
            await asked(leader, lambda driver: driver.transfer(peer_of(heir.node)), ELECTION_SECONDS)
            if await self._until(lambda other: other is heir, ELECTION_SECONDS / 2) is not None:
                return True
        return False

    async def figure_eight(self) -> None:
        """Figure 8 of the Raft paper. A leader is cut off with entries that nobody else has, and so is the next one.
        The first is elected again and replicates its entries. As soon as it commits, it is cut off, and the second one
        is back."""
        first = self._leader()
        if first is None:
            return
        self._cut_apart([first], self._but(first))
        second = await self._ambushed(lambda leader: leader is not first)
        if second is not None:
            if self._random.random() < 0.5:
                first.kill()
                self._later(BOUNCE_SECONDS, lambda: self._boot(first))
            if await self._until(lambda leader: leader is first) is not None:
                self._marked = first
                await asyncio.sleep(2 * ELECTION_SECONDS)
                self._marked = None
        self.heal()

    async def purge(self) -> None:
        """A cut-off leader is asked to reduce the membership to the members that it can reach. It gets several requests
        at once, while the others elect another leader."""
        leader = self._leader()
        driver = driver_of(leader) if leader is not None else None
        if leader is None or driver is None:
            return
        friends = self._friends(leader, (0, 0, 1, 1, 2))
        side = {peer_of(host.node) for host in (leader, *friends)}
        far = sorted(driver.membership.voters - side)
        self._random.shuffle(far)
        changes: list[Change] = [Promote(peer) for peer in sorted(driver.membership.learners & side)]
        changes += [self._random.choice((Demote, Remove))(peer) for peer in far]
        self._cut_apart([leader, *friends], self._but(leader, *friends))
        for change in changes[:CHANGES_AT_ONCE]:
            self._propose(leader, change)
        await asyncio.sleep(self._random.random() * 3 * ELECTION_SECONDS)
        self.heal()

    def change(self) -> None:
        """Ask a present or presumed leader to change the membership."""
        leaders = [host for host in self._hosts if (driver := driver_of(host)) is not None and driver.is_controller]
        if leaders:
            leader = self._random.choice(leaders)
            driver = driver_of(leader)
            assert driver is not None
            self._propose(leader, self._some_change(driver.membership))

    def _some_change(self, membership: Membership) -> Change:
        """A change, more often one towards more voters."""
        everybody = [peer_of(host.node) for host in self._hosts]
        strangers = [peer for peer in everybody if peer not in membership.members]
        learners = sorted(membership.learners)
        roll = self._random.random()
        if strangers and roll < 0.6:
            return AddLearner(self._random.choice(strangers))
        if learners and (roll < 0.9 or len(membership.voters) <= VOTERS_MIN):
            return Promote(self._random.choice(learners))
        return self._random.choice((Demote, Remove))(self._random.choice(sorted(membership.voters)))

    # parts of plots

    def _host(self, peer: Peer) -> Host:
        return next(host for host in self._hosts if host.node == peer.node)

    def _but(self, *some: Host) -> list[Host]:
        return [host for host in self._hosts if host not in some]

    def _friends(self, host: Host, counts: Sequence[int]) -> list[Host]:
        others = self._but(host)
        return self._random.sample(others, min(len(others), self._random.choice(counts)))

    def _part(self, host: Host) -> None:
        """Cut the host off, alone or with one other."""
        self.acts += 1
        friends = self._friends(host, (0, 0, 1, 2))
        self._cut_apart([host, *friends], self._but(host, *friends))

    def _cut_apart(self, some: Iterable[Host], others: Collection[Host], *, more: Iterable[Link] = ()) -> None:
        pairs = [(one.address, other.address) for one in some for other in others]
        self._set_cut({*pairs, *((other, one) for one, other in pairs), *more})

    def _set_cut(self, cut: set[Link]) -> None:
        """Cut these links until others are cut, or all are healed."""
        self._world.tell(f"cut: {', '.join(f'{one[7:]}>{other[7:]}' for one, other in sorted(cut))}")
        self._world.loop.network.links.set_cut(cut)

    def _stand(self, host: Host) -> None:
        """Make the host believe that its leader is dead, so that it stands for election."""
        driver, process = driver_of(host), host.process
        voters = None if driver is None else driver.voters
        leader = None if voters is None else voters.leader
        if driver is not None and process is not None and leader is not None:
            term = driver.term
            self._world.loop.call_soon(lambda: driver.leader_died(leader, term), context=process.context())

    def _ask(self, host: Host, work: Callable[[MetadataDriver], Coroutine[Any, Any, None]]) -> None:
        """Ask without waiting for the outcome."""

        async def ask() -> None:
            await asked(host, work, CHANGE_SECONDS_MAX)

        self._later(0.0, ask)

    def _propose(self, leader: Host, change: Change) -> None:
        self._world.tell(f"operator: {type(change).__name__} {change.peer.node} through {leader.node}")
        self._ask(leader, lambda driver: driver.change(change))

    async def _ambushed(self, holds: Callable[[Host], bool]) -> Host | None:
        """Like `_until`, but cut the new leader off alone at its election, before it has announced it."""
        self._ambush = holds
        try:
            return await self._until(holds)
        finally:
            self._ambush = None

    async def _until(self, holds: Callable[[Host], bool], seconds_max: float = 4 * ELECTION_SECONDS) -> Host | None:
        """Wait until a matching host leads."""
        try:
            async with asyncio.timeout(seconds_max):
                while (leader := self._leader()) is None or not holds(leader):
                    await self._crowned.wait()
        except TimeoutError:
            return None
        return leader

    def _can_do_without(self, *hosts: Host) -> bool:
        """Whether the other hosts can elect a leader, as the first of these sees it."""
        driver = driver_of(hosts[0])
        if driver is None:
            return False
        voters = driver.membership.voters
        return driver.membership.is_quorum(voters - {peer_of(host.node) for host in hosts})
