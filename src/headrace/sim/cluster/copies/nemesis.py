"""Faults for copies behind durable history: those of moves, and a store that lacks objects for a while.

Where leaders may be elected uncleanly, one plot makes an unexpected broker the leader. Another destroys the only copy,
so that another broker continues behind history alone, as an operator orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from headrace.base.ids import NO_LEADER
from headrace.sim.cluster.asking import asked
from headrace.sim.cluster.copies.judge import CopiesJudge
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.moves.nemesis import MovesNemesis
from headrace.sim.cluster.nemesis import Act
from headrace.sim.cluster.world import address_of
from headrace.sim.history import PartitionKey
from headrace.sim.links import Link
from headrace.wire.durable import RECOVER, decode_answer, encode_request

LACKING_SECONDS_MAX: Final = 1.5
USURPED_SECONDS_MAX: Final = 14.0
"""Longest duration of one such plot."""
OUT_SECONDS_MAX: Final = 4.0
"""Time in which a cut-off broker must leave the ISR, or the plot ends."""
EXPORTED_SECONDS_MAX: Final = 2.0
ELECTED_SECONDS_MAX: Final = 4.0
COPIED_SECONDS_MAX: Final = 2.0
DETHRONED: Final = 0.6
"""Share of the unclean leaders that have led before and written records that nobody copied."""
BEREAVES: Final = (0.0, 0.0, 4.0, 12.0)
"""Relative frequency of the plot that destroys the only copy, in a run that may lose records."""
BEREAVED_SECONDS_MAX: Final = 20.0
ALONE_SECONDS_MAX: Final = 3.0
RECOVERED_SECONDS_MAX: Final = 3.0
A_COPY_AGAIN: Final = 0.7
"""Share of the lost brokers that are assigned a copy again before they are back."""
TARGET_DIES: Final = 0.6
WIDENED_SECONDS_MAX: Final = 6.0


class CopiesNemesis(MovesNemesis):
    """The nemesis, as the module says. Its last argument tells whether leaders may be elected uncleanly."""

    _moves: CopiesJudge
    may_bereave: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        *others, self._may_lose = args
        super().__init__(*others)
        bereaves = self._world.chance("bereavements").choice(BEREAVES)
        self._bereaves = bereaves if self._may_lose and self.may_bereave else 0.0
        self.recoveries_asked = 0

    def _plots(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        lacks, usurps = pick((0.0, 1.0, 2.0)), pick((0.0, 4.0, 12.0))
        losing = [(self.usurp, usurps if self._may_lose else 0.0), (self.bereave, self._bereaves)]
        return [(self.store_lacks, lacks), *losing]

    def strike(self, node: int, seconds: float) -> None:
        """Kill that broker soon."""
        host = self._host(node)
        if host is None or self.is_over:
            return

        def die() -> None:
            if host.is_up and not host.is_paused:
                self.acts += 1
                self._random.choice((Host.kill, Host.power_cut))(host)
                self._boot_later(host)

        self._later(seconds, die)

    def store_lacks(self) -> None:
        """Make some or all objects invisible for a while."""
        objects = sorted(self._store.objects)
        count = len(objects) if self._random.random() < 0.3 else self._random.randrange(1 + min(3, len(objects)))
        self._store.lacking = frozenset(self._random.sample(objects, count))
        self._world.tell(f"the store lacks {count} of {len(objects)} objects")
        self._later(self._within(LACKING_SECONDS_MAX), self._store.heal)

    async def usurp(self) -> None:
        """Make an out-of-sync broker the leader. It is cut off until it leaves the ISR. Others go on writing without
        it, and export. Then those die, and it leads: a follower that lacks records of history, or a former leader with
        different ones. A new replica copies from it and may become leader. Then the dead brokers return. Nothing else
        happens meanwhile."""
        await self._usurp_one(self._partitions)

    async def _usurp_one(self, partitions: Iterable[PartitionKey]) -> None:
        if not await self._gathered():
            return
        keys = [key for key in partitions if self._in_sync_followers(key)]
        if keys:
            await self._played(self._usurp(self._random.choice(keys)), USURPED_SECONDS_MAX)
            self.heal()
            for host in self._hosts:
                self._boot(host)

    async def _usurp(self, key: PartitionKey) -> None:
        chance, leader = self._random, self._leader_of(key)
        if leader is None or not (followers := self._in_sync_followers(key)):
            return
        usurper = leader if chance.random() < DETHRONED else chance.choice(followers)
        apart = [leader] if usurper is not leader else [host for host in self._hosts if host is not usurper]
        cut = {link for other in apart for link in _between(usurper, other)}
        if not await self._while_cut(cut, lambda: self._is_out(usurper, key), OUT_SECONDS_MAX):
            return
        frontier = self._moves.frontier(key)
        await self._while_cut(cut, lambda: self._moves.frontier(key) > frontier, EXPORTED_SECONDS_MAX)
        owners = [host for host in self._hosts if self._is_in_sync(host, key)]
        self._world.tell(f"broker {usurper.node} is to lead partition {key.number}")
        for owner in owners:
            if owner.is_up and not owner.is_paused:
                self.acts += 1
                chance.choice((Host.kill, Host.power_cut))(owner)
        if not await self._while_cut(set(), lambda: self._leader_of(key) is usurper, ELECTED_SECONDS_MAX):
            return
        await asyncio.sleep(chance.random() * chance.choice((0.05, 0.5)))
        await self._follow_up(key, usurper, [host for host in self._hosts if host not in (usurper, *owners)])

    async def _follow_up(self, key: PartitionKey, usurper: Host, others: list[Host]) -> None:
        """Make a new broker copy from it; that broker may lead next."""
        chance = self._random
        if not others:
            return
        newcomer = chance.choice(others)
        replicas = chance.choice(((usurper.node, newcomer.node), (newcomer.node, usurper.node)))
        if not await self._place(key, replicas, usurper.node):
            return
        if not await self._while_cut(set(), lambda: self._is_in_sync(newcomer, key), COPIED_SECONDS_MAX):
            return
        await asyncio.sleep(chance.random() * chance.choice((0.05, 1.0)))
        if chance.random() < 0.4 and usurper.is_up and not usurper.is_paused:
            self.acts += 1
            usurper.kill()
            self._boot_later(usurper)

    async def _place(self, key: PartitionKey, replicas: tuple[int, ...], through: int) -> bool:
        return await self._mover.place(key, replicas, through=through)

    async def bereave(self) -> None:
        """Make a partition with one copy lose its broker, with records that are not in history yet. Then another broker
        continues behind history. The first broker returns when the other leads, or has died in its turn. It returns as
        a stranger, or as a copy that may become leader. Nothing else happens meanwhile."""
        if not await self._gathered():
            return
        if keys := [key for key in self._partitions if self._leader_of(key) is not None]:
            key = self._random.choice(keys)
            await self._played(self._bereave(key), BEREAVED_SECONDS_MAX)
            self.heal()
            for host in self._hosts:
                self._boot(host)
            await self._played(self._widen(key), WIDENED_SECONDS_MAX)

    async def _bereave(self, key: PartitionKey) -> None:
        chance, owner = self._random, self._leader_of(key)
        if owner is None or not await self._place(key, (owner.node,), owner.node):
            return
        if not await self._while_cut(set(), lambda: self._replicas(key) == (owner.node,), ALONE_SECONDS_MAX):
            return
        await asyncio.sleep(chance.random() * chance.choice((0.05, 0.5)))
        self._die(owner)
        if not await self._while_cut(set(), lambda: self._is_lost(key), ELECTED_SECONDS_MAX):
            return
        target = chance.choice([host for host in self._hosts if host is not owner])
        if not await self._recover(key, target):
            return
        await asyncio.sleep(chance.random() * chance.choice((0.02, 0.2, 1.0)))
        if chance.random() < A_COPY_AGAIN:
            pair = chance.choice(((owner.node, target.node), (target.node, owner.node)))
            await self._place(key, pair, target.node)
            await asyncio.sleep(chance.random() * chance.choice((0.02, 0.5)))
        if chance.random() < TARGET_DIES and target.is_up:
            self._die(target)
        self._boot(owner)
        await self._while_cut(set(), lambda: self._leader_of(key) not in (None, target), ELECTED_SECONDS_MAX)

    def _die(self, host: Host) -> None:
        self.acts += 1
        self._random.choice((Host.kill, Host.power_cut))(host)

    def _replicas(self, key: PartitionKey) -> tuple[int, ...]:
        state = self._moves.state(key)
        return () if state is None or state.is_reassigned else state.replicas

    def _is_lost(self, key: PartitionKey) -> bool:
        state = self._moves.state(key)
        return state is not None and state.leader == NO_LEADER

    async def _recover(self, key: PartitionKey, target: Host) -> bool:
        """Ask as `headrace durable recover` does. Returns whether it is done; a refused request is repeated."""
        wish = {"op": RECOVER, "topic": self._partitions[key], "partition": key.number, "to": target.node}
        end = self._world.loop.time() + RECOVERED_SECONDS_MAX
        while self._world.loop.time() < end:
            self.recoveries_asked += 1
            named = encode_request({**wish, "execute": True, "id": str(self.recoveries_asked)})
            while (frame := await asked(address_of(target.node), named)) is not None:
                answered = decode_answer(frame)
                if answered["done"]:
                    self._world.tell(f"recovery {self.recoveries_asked} of partition {key.number}: {answered}")
                    if any(not one["refusal"] for one in answered.get("partitions", ())):
                        return True
                    break
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
        return False

    async def _widen(self, key: PartitionKey) -> None:
        """Give it two copies again."""
        while len(self._replicas(key)) < 2:
            if (leader := self._leader_of(key)) is not None:
                other = self._random.choice([host for host in self._hosts if host is not leader])
                await self._place(key, (leader.node, other.node), leader.node)
            await asyncio.sleep(0.2)

    def _is_out(self, host: Host, key: PartitionKey) -> bool:
        state = self._moves.state(key)
        return state is not None and host.node not in state.isr

    async def _while_cut(self, cut: set[Link], holds: Callable[[], bool], seconds: float) -> bool:
        """Cut these links until the condition holds or time runs out, even if they are healed meanwhile. Returns
        whether it holds."""
        links = self._world.loop.network.links
        end = self._world.loop.time() + seconds
        while not holds():
            if self._world.loop.time() > end:
                return False
            if links.cut != cut:
                self._world.tell(f"cut: {', '.join(f'{one[7:]}>{other[7:]}' for one, other in sorted(cut))}")
                links.set_cut(cut)
            await asyncio.sleep(0.01)
        return True


def _between(one: Host, other: Host) -> tuple[Link, Link]:
    return (one.address, other.address), (other.address, one.address)
