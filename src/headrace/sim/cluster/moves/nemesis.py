"""Faults for moves: those of the records' nemesis, faults of the durable store, and plots at a move's own moments.

It does only what networks, disks, stores and operators do, and chooses the moment. The owner, the target or the
controller dies just after a step of the move has become known. An owner that is about to propose its seal is cut off
from the controller, while the move is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from headrace.metadata.values import PartitionImage
from headrace.sim.cluster.host import DATA, Host
from headrace.sim.cluster.moves.judge import MovesJudge
from headrace.sim.cluster.moves.operator import Mover
from headrace.sim.cluster.moves.store import SimStore
from headrace.sim.cluster.nemesis import Act
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.history import PartitionKey

TROUBLE_SECONDS_MAX: Final = 3.0
STORE_SLOWNESS: Final = (5.0, 30.0, 200.0)
STRIKE_SECONDS: Final = (0.002, 0.02, 0.1)
"""Longest time from a step of a move to the fault; one of these."""
PLOT_SECONDS_MAX: Final = 2.0
GATHERED_SECONDS_MAX: Final = 2.0
UNASKED: Final = 0.3
"""Share of the delayed seals during which no other request is made."""
HELD_UP_SECONDS: Final = (0.5, 1.2)
"""A session may last longer than this."""
PROVEN_SECONDS_MAX: Final = 0.3
RESENT_SECONDS_MAX: Final = 0.02
"""Time from the end of a short cut to the next try."""
DELIBERATION: Final = 50.0
"""Factor by which the controller's links to others are slower while it decides."""
DECIDED_SECONDS_MAX: Final = 0.05
"""Approximate time from a seal's proposal to its commit."""
SLUGGISH: Final = (30.0, 300.0)
"""Factor by which a disk's syncs are slower while it must delete."""


class _Cast(NamedTuple):
    key: PartitionKey
    owner: Host
    target: Host
    controller: Host


class MovesNemesis(RecordsNemesis):
    """The nemesis, as the module says."""

    def __init__(
        self,
        world: ClusterWorld,
        hosts: Sequence[Host],
        judge: MovesJudge,
        partitions: dict[PartitionKey, str],
        store: SimStore,
        mover: Mover,
    ) -> None:
        self._moves = judge
        self._store = store
        self._mover = mover
        self._at_steps = 0.0
        self._strike_seconds = 0.0
        super().__init__(world, hosts, judge, partitions)
        judge.on_step = self._on_step

    def _mood(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        self._at_steps = pick((0.0, 0.1, 0.4))
        self._strike_seconds = pick(STRIKE_SECONDS)
        return [
            *super()._mood(),
            (self.store_refuses, pick((0.0, 1.0, 3.0))),
            (self.store_loses_answers, pick((0.0, 1.0, 3.0))),
            (self.store_hangs, pick((0.0, 0.0, 1.0))),
            (self.store_is_slow, pick((0.0, 1.0, 2.0))),
            *self._plots(),
        ]

    def _plots(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        return [
            (self.late_seal, pick((0.0, 4.0, 16.0))),
            (self.change_of_mind, pick((0.0, 3.0, 8.0))),
            (self.hasty_return, pick((0.0, 2.0, 8.0))),
        ]

    def calm(self) -> None:
        super().calm()
        self._store.heal()

    # the store

    def store_refuses(self) -> None:
        self._trouble("refuses requests", refused=self._random.choice((0.2, 0.7, 1.0)))

    def store_loses_answers(self) -> None:
        self._trouble("loses answers", lost=self._random.choice((0.1, 0.5, 1.0)))

    def store_hangs(self) -> None:
        self._trouble("hangs", hangs=self._random.choice((0.05, 0.3)))

    def store_is_slow(self) -> None:
        self._trouble("is slow", slowness=self._random.choice(STORE_SLOWNESS))

    def _trouble(self, what: str, **trouble: float) -> None:
        self._world.tell(f"the store {what}: {trouble}")
        self._store.worsen(**trouble)
        self._later(self._within(TROUBLE_SECONDS_MAX), self._store.heal)

    # the moments of a move

    def _on_step(self, key: PartitionKey, state: PartitionImage) -> None:
        """Kill a broker that takes part."""
        if self.is_over or self._random.random() >= self._at_steps:
            return
        move = state.move
        heroes: set[int] = {state.leader} if move is None else {move.source, move.target}
        if (controller := super(RecordsNemesis, self)._leader()) is not None:
            heroes.add(controller.node)
        node = self._random.choice(sorted(heroes))
        act = self._random.choice((Host.kill, Host.power_cut, Host.power_cut))

        def strike() -> None:
            host = self._host(node)
            if host is not None and host.is_up and not host.is_paused:
                self.acts += 1
                act(host)
                self._boot_later(host)

        self._later(self._random.random() * self._strike_seconds, strike)

    def _host(self, node: int) -> Host | None:
        return next((host for host in self._hosts if host.node == node), None)

    async def late_seal(self) -> None:
        """Delay everything that an owner sends to the controller from the moment when it proposes its seal. Meanwhile
        the move is cancelled and requested again, or nothing happens for longer than the owner's patience. Then the
        seal arrives. Nothing else happens meanwhile."""
        if (cast := await self._cast(controls=False)) is None:
            return
        links = self._world.loop.network.links
        patience, links.resend_seconds_max = links.resend_seconds_max, RESENT_SECONDS_MAX
        await self._played(self._late_seal(cast))
        self._moves.on_proposal = _ignored
        self.heal()
        links.resend_seconds_max = patience

    async def _played(self, plot: Coroutine[Any, Any, None], seconds: float = 3 * PLOT_SECONDS_MAX) -> None:
        """Run the plot, which may come to nothing."""
        self._mover.rests = True
        playing = self._world.loop.create_task(plot)
        await asyncio.wait({playing}, timeout=seconds)
        playing.cancel()
        self._mover.rests = False

    async def _gathered(self) -> bool:
        """Whether all hosts soon serve and hear each other; operators wait for that before they move anything."""
        self.heal()
        self._world.loop.network.links.set_slow({})
        end = self._world.loop.time() + GATHERED_SECONDS_MAX
        for host in self._hosts:
            host.resume()
            self._boot(host)
        while not all(host.serves for host in self._hosts) or self._controller() is None:
            if self._world.loop.time() > end:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _cast(self, *, controls: bool = True) -> _Cast | None:
        """The roles of a plot; None: one is missing. `controls`: the owner may be the controller."""
        if not await self._gathered():
            return None
        controller = self._controller()
        assert controller is not None
        single = [key for key in self._partitions if self._moves.is_single(key) and self._moves.history(key)]
        owners = {key: self._leader_of(key) for key in single}
        keys = [key for key, owner in owners.items() if owner is not None and (controls or owner is not controller)]
        if not keys:
            return None
        key = self._random.choice(keys)
        owner = owners[key]
        assert owner is not None
        return _Cast(key, owner, self._random.choice([host for host in self._hosts if host is not owner]), controller)

    async def _late_seal(self, cast: _Cast) -> None:
        chance, key, controller = self._random, cast.key, cast.controller.node
        cut = (cast.owner.address, cast.controller.address)
        if not await self._until_proposed(cast, lambda: self._cut({cut})):
            return
        if chance.random() < UNASKED:
            await asyncio.sleep(self._seconds(HELD_UP_SECONDS))
            return
        await self._mover.alter(key, None, through=controller)
        await asyncio.sleep(chance.random() * chance.choice((0.0, 0.1)))
        await self._mover.alter(key, cast.target.node, through=controller)
        end = self._world.loop.time() + PROVEN_SECONDS_MAX
        while not self._is_proven(key) and self._world.loop.time() < end:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.002)
        await asyncio.sleep(chance.random() * 0.1)

    def _is_proven(self, key: PartitionKey) -> bool:
        state = self._moves.state(key)
        return state is not None and state.move is not None and state.move.proven_by is not None

    async def _until_proposed(self, cast: _Cast, at_once: Callable[[], object]) -> bool:
        """Move the partition; returns whether its owner soon proposes the seal. `at_once` is called before the proposal
        leaves."""
        proposed = asyncio.Event()

        def on_proposal(key: PartitionKey) -> None:
            if key == cast.key and not proposed.is_set():
                proposed.set()
                at_once()

        self.heal()
        self._moves.on_proposal = on_proposal
        if not await self._mover.alter(cast.key, cast.target.node, through=cast.controller.node):
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(proposed.wait(), PLOT_SECONDS_MAX)
        self._moves.on_proposal = _ignored
        return proposed.is_set()

    async def change_of_mind(self) -> None:
        """Cancel the move, or change its target, at the moment when the seal is decided. The controller's links to
        others are slow, so that nothing is committed at once."""
        if (cast := await self._cast()) is not None:
            await self._played(self._change_mind(cast))
            self._moves.on_proposal = _ignored
            self._world.loop.network.links.set_slow({})

    async def _change_mind(self, cast: _Cast) -> None:
        controller = cast.controller.address
        slow = {(controller, host.address): DELIBERATION for host in self._hosts if host is not cast.controller}
        links = self._world.loop.network.links
        if not await self._until_proposed(cast, lambda: links.set_slow(slow)):
            return
        await asyncio.sleep(self._random.random() * DECIDED_SECONDS_MAX)
        others = [host.node for host in self._hosts if host not in (cast.owner, cast.target)]
        to = self._random.choice((None, *others))
        await self._mover.alter(cast.key, to, through=cast.controller.node)

    async def hasty_return(self) -> None:
        """Move a partition away and back before its old owner has deleted its log, with a slow or failing disk. Then
        that owner's power is lost, and unsynced names are back. Nothing else happens meanwhile."""
        if (cast := await self._cast()) is not None:
            await self._played(self._return(cast))
            cast.owner.disk.slowness, cast.owner.disk.stuck = 1.0, None

    async def _return(self, cast: _Cast) -> None:
        key, owner = cast.key, cast.owner
        if not await self._mover.alter(key, cast.target.node, through=cast.controller.node):
            return
        if not await self._until_led(key, cast.target.node, sealed=True):
            return
        if self._random.random() < 0.5:
            owner.disk.slowness = self._random.choice(SLUGGISH)
        else:
            owner.disk.stuck = DATA / "logs"
        if not await self._until_led(key, cast.target.node, sealed=False):
            return
        await asyncio.sleep(self._random.random() * self._random.choice((0.01, 0.1)))
        if not await self._mover.alter(key, owner.node, through=cast.controller.node):
            return
        if not await self._until_led(key, owner.node, sealed=True):
            return
        await asyncio.sleep(self._random.random() * self._random.choice((0.03, 0.5)))
        if self._random.random() < 0.7 and owner.is_up and not owner.is_paused:
            self.acts += 1
            owner.power_cut()
            self._boot_later(owner)

    async def _until_led(self, key: PartitionKey, node: int, *, sealed: bool) -> bool:
        """Whether the broker soon leads it."""
        end = self._world.loop.time() + PLOT_SECONDS_MAX
        while (state := self._moves.state(key)) is not None and self._world.loop.time() < end:
            if state.leader == node and (state.is_sealed if sealed else state.move is None):
                return True
            await asyncio.sleep(0.001)
        return False

    def _controller(self) -> Host | None:
        host = super(RecordsNemesis, self)._leader()
        return host if host is not None and not host.is_paused else None


def _ignored(key: PartitionKey) -> None:
    """The callback while there is no plot."""
