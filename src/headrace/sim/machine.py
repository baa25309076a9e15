"""The machine of the simulated broker: boots it, kills it, cuts its power, and knows whether it is up.

The broker is the shipped one, `headrace.broker.boot.Broker`, made again at every boot with the machine's clock, disk
and randomness. A new process has nothing of the old one except the disk.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.listeners import INSECURE
from headrace.sim.clock import SimClock
from headrace.sim.disk import Mount, SimDisk
from headrace.sim.journals import Journals
from headrace.sim.process import Process
from headrace.sim.world import BROKER, RunOver, World

T = TypeVar("T")

DATA: Final = Path("/srv/headrace")
CONFIGS: Final = {
    INSECURE: "true",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "1024",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.backoff.ms": "200",
    "log.scrub.interval.ms": "150",
    "log.scrub.io.max.bytes.per.second": "50000000",
}
"""These let the offsets topic be compacted within a run."""
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0


class Machine:
    """One machine, one disk, one broker at a time."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = random.Random(f"broker {seed}")
        self.disk = SimDisk(world.loop, random.Random(f"disk {seed}"))
        self.disk.make_durable_directory(DATA.parent)
        self.clock = SimClock(world.loop)
        self.process: Process | None = None
        self.broker: Broker | None = None
        self._died = asyncio.Event()
        self._boots = 0
        self._journals = Journals(random.Random(f"journal {seed}"))

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    async def boot(self) -> bool:
        """Start the broker; False where it died on the way. Raises RunOver where it refuses to start."""
        self._boots += 1
        self._died.clear()
        if self._world.in_trouble:
            self._world.in_trouble = False
            self._world.history.era += 1
        self.process = Process(f"broker-{self._boots}")
        self._world.tell(f"boot {self._boots}")
        started = await self._in_process(self._start(self.process), START_SECONDS_MAX, "start")
        if started is not None:
            self.broker = started
            self._world.tell("ready")
            self._world.loop.spawn(self.process, self._watch(started))
        return self.is_up

    async def _watch(self, broker: Broker) -> None:
        """Report a broker that gives up by itself on a disk that did not fail."""
        await broker.over()
        if broker.failure is not None and not self._world.in_trouble:
            self._world.history.problem("broker-error", f"the broker gave up: {broker.failure!r}")
        if broker.failure is not None:
            self._world.tell(f"the broker gave up: {broker.failure!r}")
            await broker.stop()
            self.end()

    def expect_trouble(self) -> None:
        """The disk is about to fail: until the next boot the broker may complain, refuse and give up."""
        self._world.in_trouble = True
        self._world.history.era += 1

    async def _start(self, process: Process) -> Broker:
        config = BrokerConfig(
            data=DATA,
            host=BROKER[0],
            port=BROKER[1],
            configs=CONFIGS,
            journal=self._journals.of_a_life(),
        )
        chance = random.Random(self._chance.getrandbits(64))
        broker = Broker(config, clock=self.clock, random=chance, disk=Mount(self.disk, process))
        await broker.start()
        return broker

    async def stop(self) -> None:
        """Stop cleanly and end the process."""
        assert self.broker is not None
        self._world.tell("clean stop")
        await self._in_process(self.broker.stop(), STOP_SECONDS_MAX, "stop")
        self.end()

    def end(self) -> None:
        """End the process; the page cache stays."""
        assert self.process is not None
        self._world.loop.kill(self.process)
        self._died.set()

    def kill(self) -> None:
        """kill -9; a power cut if the disk is failing.

        A failed sync leaves bytes in the page cache that look clean. The broker cuts them off its files as soon as it
        learns of the failure. If it were killed before that and started again on the same page cache, it would believe
        them.
        """
        if self._world.in_trouble:
            self.power_cut()
            return
        self._world.tell(f"kill -9 at disk operation {self.disk.operations}")
        self._world.history.kills += 1
        self.end()

    def power_cut(self) -> None:
        """End the process and lose all unsynced data."""
        self._world.tell(f"power cut at disk operation {self.disk.operations}")
        self._world.history.cuts += 1
        self._world.history.era += 1
        self.end()
        self.disk.power_cut()

    async def died(self) -> None:
        """Wait for the end of the process."""
        await self._died.wait()

    async def _in_process(self, work: Coroutine[Any, Any, T], seconds_max: float, what: str) -> T | None:
        """Run the work in the broker's process; None where the broker died meanwhile. Raises RunOver where it
        failed."""
        assert self.process is not None
        world = self._world
        task = world.loop.spawn(self.process, work)
        death = world.loop.create_task(self.died())
        await asyncio.wait({task, death}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if self._died.is_set():
            return None
        if not task.done():
            world.history.problem("stuck", f"the broker's {what} took over {seconds_max} s")
        elif (error := task.exception()) is not None and world.in_trouble:
            world.tell(f"the broker's {what} failed: {error!r}")
            self.end()
            return None
        elif error is not None:
            world.history.problem(f"{what}-failed", "".join(traceback.format_exception(error)))
        else:
            return task.result()
        self.end()
        raise RunOver(f"the broker's {what} failed")
