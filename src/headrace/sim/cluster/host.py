"""A host of the cluster: its disk, its clock and its broker, which can be booted, killed, paused and left without
power.

The run's `Programs` make its program again at every boot. A new process has nothing of the old one except the disk.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from headrace.sim.clock import SimClock
from headrace.sim.cluster.world import ClusterWorld, address_of
from headrace.sim.disk import Mount, SimDisk
from headrace.sim.process import Process

T = TypeVar("T")

DATA: Final = Path("/srv/headrace")
STOP_SECONDS_MAX: Final = 60.0
REMOVED: Final = "was removed from the cluster"
"""The last words of a broker that an operator has removed."""
STILL_THERE: Final = "runs already, with another data directory"
"""The refusal of a broker with a new disk while the session of its former life may still last."""
NO_REDIS: Final = ("Redis does not serve this broker", "Redis cannot be used", "cannot be read from Redis")
"""Refusals of a broker that finds no Redis when it starts."""
SUPERSEDED: Final = "headrace quorum rejoin"
"""Part of the last words of a broker that ends because the quorum was recovered without it."""
PATIENCE_SECONDS: Final = 2.0
"""Delay after which its keeper starts it again."""
RATE_ERROR_MAX: Final = 0.03
"""Largest error of a clock's rate, far above that of a real clock."""
STARTED_AGO_SECONDS_MAX: Final = 1_000_000.0


class Program(Protocol):
    """The program of a host, in one life. All methods are called in its process."""

    async def start(self) -> None:
        """Returns once it serves. Raises where it cannot start."""

    async def over(self) -> Exception | None:
        """Wait until it has given up by itself; returns the cause."""

    async def stop(self) -> None:
        """Stop cleanly."""


class Programs(Protocol):
    """Makes programs."""

    def make(self, host: Host, *, clock: SimClock, disk: Mount, chance: random.Random) -> Program: ...


class Host:
    """The host, as the module says. `node` is the broker's id; `life` counts its disks."""

    def __init__(self, world: ClusterWorld, node: int, programs: Programs) -> None:
        self.world = world
        self.node = node
        self.address = address_of(node)
        self.life = 1
        self._programs = programs
        self._chance = world.chance(f"host {node}")
        self.process: Process | None = None
        self.program: Program | None = None
        """Set once it serves."""
        self.clock = self._new_clock()
        self.disk = self._new_disk()
        self.boots = 0
        self._served_boots = 0
        self._died = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether its process runs, serving or not."""
        return self.process is not None and self.process.alive

    @property
    def serves(self) -> bool:
        return self.is_up and self.program is not None

    @property
    def is_starting(self) -> bool:
        """Whether its process runs and has not served yet."""
        return self.is_up and self._served_boots < self.boots

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.held is not None

    def _new_clock(self) -> SimClock:
        error = (2 * self._chance.random() - 1) * RATE_ERROR_MAX
        ago = self._chance.random() * STARTED_AGO_SECONDS_MAX
        return SimClock(self.world.loop, rate=1 + error, started_ago=ago)

    def _new_disk(self) -> SimDisk:
        disk = SimDisk(self.world.loop, self.world.chance(f"disk {self.node} {self.life}"))
        disk.make_durable_directory(DATA.parent)
        return disk

    def boot(self) -> None:
        """Start the process. It serves some time later, or fails."""
        assert not self.is_up
        self.boots += 1
        self.world.lives[self.node] = self.boots
        self._died = asyncio.Event()
        self.world.loop.network.power_on(self.address)
        self.process = Process(f"broker-{self.node}.{self.boots}", self.address)
        self.world.tell(f"{self.process.name} boots")
        chance = random.Random(self._chance.getrandbits(64))
        program = self._programs.make(self, clock=self.clock, disk=Mount(self.disk, self.process), chance=chance)
        self._starting = self.world.loop.create_task(self._run(self.process, program))

    async def _run(self, process: Process, program: Program) -> None:
        """The life of one process, as seen from outside."""
        try:
            await self.within(process, program.start())
        except Gone:
            return
        except Exception as error:
            self.world.tell(f"{process.name} does not start: {error!r}")
            if self.is_of(process) and any(why in str(error) for why in (STILL_THERE, *NO_REDIS)):
                self.end()
                await asyncio.sleep(PATIENCE_SECONDS)
                if not self.is_up and self.process is process:
                    self.boot()
            elif self.is_of(process):
                if SUPERSEDED not in str(error):
                    self.world.problem("start-failed", f"{error!r}\n{_frames(error)}")
                self.end()
            return
        if not self.is_of(process):
            return
        self.world.tell(f"{process.name} serves")
        self.program, self._served_boots = program, self.boots
        try:
            failure = await self.within(process, program.over())
        except Gone:
            return
        if self.is_of(process) and failure is not None:
            if REMOVED in str(failure) or SUPERSEDED in str(failure):
                self.world.tell(f"{process.name} ends: {failure}")
            else:
                self.world.problem("gave-up", f"{process.name}: {failure!r}")
            self.end()

    async def by_hand(self, work: Callable[[Mount], T]) -> T:
        """Have an operator work on the disk, in a worker thread, while no broker runs there."""
        assert not self.is_up
        process = Process(f"operator on broker-{self.node}", self.address)

        async def done() -> T:
            return await asyncio.get_running_loop().run_in_executor(None, work, Mount(self.disk, process))

        return await self.world.loop.spawn(process, done())

    def is_of(self, process: Process) -> bool:
        """Whether this is its process, and alive."""
        return self.process is process and process.alive

    async def within(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        """Run the work in the process, and wait for it. Raises Gone where the process died meanwhile."""
        task, died = self.world.loop.spawn(process, work), self._died
        death = self.world.loop.create_task(died.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if not task.done() or died.is_set():
            raise Gone
        return task.result()

    async def stop(self) -> None:
        """Stop it cleanly if it serves, otherwise kill it."""
        process, program = self.process, self.program
        if process is None or program is None or not process.alive or self.is_paused:
            self.kill()
            return
        self.world.tell(f"{process.name} is asked to stop")
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self.within(process, program.stop())
        except Gone:
            return
        except TimeoutError:
            self.world.problem("stuck", f"{process.name} took over {STOP_SECONDS_MAX} s to stop")
        if self.is_of(process):
            self.end()

    def kill(self) -> None:
        """kill -9: the page cache stays."""
        if self.is_up:
            assert self.process is not None
            self.world.tell(f"{self.process.name} is killed at disk operation {self.disk.operations}")
            self.end()

    def power_cut(self) -> None:
        """End the process and lose all unsynced data, without notice to anybody."""
        if self.is_up:
            assert self.process is not None
            self.world.tell(f"{self.process.name} loses power at disk operation {self.disk.operations}")
            self.world.loop.network.power_off(self.address)
            self.end()
        self.disk.power_cut()

    def wipe(self) -> None:
        """Replace its disk by an empty one."""
        self.power_cut()
        self.world.tell(f"the disk of broker {self.node} is lost")
        self.life += 1
        self.disk = self._new_disk()

    def pause(self) -> None:
        if self.is_up and not self.is_paused:
            assert self.process is not None
            self.world.tell(f"{self.process.name} is paused")
            self.world.loop.pause(self.process)

    def resume(self) -> None:
        if self.is_paused and self.process is not None:
            self.world.tell(f"{self.process.name} goes on")
            self.world.loop.resume(self.process)

    def end(self) -> None:
        """End the process without notice."""
        self.disk.disarm()
        if self.process is not None:
            self.world.loop.kill(self.process)
        self.program = None
        self._died.set()


class Gone(Exception):  # noqa: N818 - a state of the process
    """The process died before the work was done."""


def _frames(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
