"""Faults of a single broker: rounds of load that end in a power cut, a kill or a clean stop; and broken connections.

Half of the crashes happen in the middle of a disk operation, also while the broker is starting.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.sim.machine import DATA, Machine
from headrace.sim.network import Transport
from headrace.sim.world import World

ROUNDS: Final = (3, 6)
ROUND_SECONDS_MAX: Final = 0.8
OPERATIONS_PER_ROUND: Final = 150
OPERATIONS_PER_BOOT: Final = 40
DOWN_SECONDS_MAX: Final = 0.3
RESET_SECONDS_MAX: Final = 0.6
BOOTS_MAX: Final = 30
DISK_FAULTS: Final = 0.15
"""Share of the rounds in which syncs fail, the disk is full, or the logs' volume alone is, apart from the journal's."""
LOGS: Final = DATA / "logs"
FILLED: Final = 0.25
"""Share of the rounds that begin with a full disk under the logs, and continue once that has room again."""
FULL_SECONDS_MAX: Final = 0.5
GOES_ON_SECONDS_MAX: Final = 30.0
"""Virtual seconds from the return of room until a producer must be acknowledged."""


class Operator:
    """The operator, as the module says."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world = world
        self._machine = machine

    async def rounds(self) -> None:
        """Run all crashes. At the end the broker is up, and there are no more faults."""
        resets = self._world.loop.create_task(self._reset_connections())
        for _ in range(self._world.random.randrange(*ROUNDS)):
            await self._boot_with_trouble()
            await self._one_round()
            await self._world.think(DOWN_SECONDS_MAX)
        resets.cancel()
        await self.boot_until_up()

    async def boot_until_up(self) -> None:
        """Start the broker, without faults."""
        self._machine.disk.heal()
        if not self._machine.is_up:
            await self._machine.boot()

    async def _boot_with_trouble(self) -> None:
        """Start it; sometimes crash in the middle of that, more than once."""
        world, machine = self._world, self._machine
        for _ in range(BOOTS_MAX):
            if world.random.random() < 0.3:
                action = machine.power_cut if world.random.random() < 0.7 else machine.kill
                machine.disk.trigger(world.random.randrange(1, OPERATIONS_PER_BOOT), action)
            up = await machine.boot()
            machine.disk.disarm()
            if up:
                return
            await world.think(DOWN_SECONDS_MAX)

    async def _fill(self) -> None:
        """Fill the disk. Nothing has failed: everything stays readable meanwhile, and writes resume by themselves
        afterwards."""
        world, machine = self._world, self._machine
        world.tell(f"there is no room in {LOGS} for a while")
        machine.disk.full, world.lacks_room = LOGS, True
        await world.think(FULL_SECONDS_MAX)
        machine.disk.full = None
        acknowledged, began = len(world.history.acked), world.loop.time()
        while machine.is_up and world.live_partitions and len(world.history.acked) == acknowledged:
            if world.loop.time() - began > GOES_ON_SECONDS_MAX:
                world.history.problem("stuck", "nothing is acknowledged though there is room again")
                break
            await world.think(FULL_SECONDS_MAX)
        world.tell("there is room again")
        world.lacks_room = False

    async def _one_round(self) -> None:
        """Load, until a fault ends it."""
        world, machine = self._world, self._machine
        if world.random.random() < FILLED:
            await self._fill()
        chance = world.random.random()
        crash = machine.kill if chance > 0.75 else machine.power_cut
        if world.random.random() < 0.6:
            machine.disk.trigger(world.random.randrange(1, OPERATIONS_PER_ROUND), crash)
        bad_disk = world.loop.create_task(self._spoil_disk()) if world.random.random() < DISK_FAULTS else None
        seconds = world.random.random() * ROUND_SECONDS_MAX
        try:
            async with asyncio.timeout(seconds):
                await machine.died()
        except TimeoutError:
            machine.disk.disarm()
            if chance < 0.12:
                await machine.stop()
            else:
                crash()
        if bad_disk is not None:
            bad_disk.cancel()
        machine.disk.heal()
        if machine.process is not None and world.random.random() < 0.2:
            await world.think(DOWN_SECONDS_MAX)
            machine.power_cut()

    async def _spoil_disk(self) -> None:
        """Let some syncs fail, or the disk be full for a while."""
        world, machine = self._world, self._machine
        await world.think(ROUND_SECONDS_MAX / 2)
        machine.expect_trouble()
        if world.random.random() < 0.7:
            count = world.random.randrange(1, 4)
            machine.disk.fail_syncs(count)
            world.tell(f"the next {count} syncs fail")
            return
        volume = world.random.choice((LOGS, DATA))
        world.tell(f"there is no room in {volume}")
        machine.disk.full = volume
        await world.think(ROUND_SECONDS_MAX / 2)
        machine.disk.full = None

    async def _reset_connections(self) -> None:
        """Break a connection from time to time."""
        network = self._world.loop.network
        while True:
            await self._world.think(RESET_SECONDS_MAX)
            near: list[Transport] = [end for end in network.transports if end.process is None]
            if near:
                self._world.tell("a connection is reset")
                network.reset(near[self._world.random.randrange(0, len(near))])
