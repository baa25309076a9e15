"""The simulated Redis that brokers know by one address: its master, its replica, and how they fail.

- A kill loses what no file has; a power cut loses what was not synced.
- A failover goes on with what the replica had. The old master is dead, or serves its connections for a while.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.process import Process
from headrace.sim.redis.server import LAG_SECONDS_MAX, Executed, Faults, Replica, Server, ServerConnection
from headrace.sim.redis.timelines import ServerModel, Timeline

HOST: Final = "10.0.1.1"
PORT: Final = 6379
LOADS_SECONDS_MAX: Final = 0.3
DOWN_SECONDS_MAX: Final = 1.5
REPLICA_COMES_SECONDS_MAX: Final = 1.5

Replaced = Callable[[Server, Server], object]
"""Called with a server that is no master any more, and the one in its place."""


class Service:
    """See the module. `has_replica`: there is one, once it has copied everything. `is_always`: the file is synced
    before each answer."""

    def __init__(self, world: ClusterWorld, *, has_replica: bool, is_always: bool) -> None:
        self._world = world
        self._loop = world.loop
        self._chance = world.chance("redis")
        self._has_replica = has_replica
        self.is_always: Final = is_always
        self.faults: Final = Faults()
        self.on_executed: Executed = _nobody
        self.on_replaced: Replaced = _nobody
        self.may_lose: Callable[[int], bool] = lambda kept: True
        """Whether a fault may happen now that keeps so many writes."""
        self._process: Process | None = None
        self._lives = 0
        self._server: Server | None = None
        self.restarts = self.failovers = 0

    @property
    def server(self) -> Server:
        """The master, or the last one."""
        assert self._server is not None, "started"
        return self._server

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def is_paused(self) -> bool:
        return self._process is not None and self._process.held is not None

    def start(self) -> None:
        """The first start, with nothing."""
        base = ServerModel()
        self._boot(Timeline(1, base.copied()), base)

    # faults

    def kill(self) -> None:
        """kill -9. All that was written to the file is there, synced or not."""
        if not self.is_up:
            return
        server = self.server
        kept = (
            server.timeline.end if not server.is_always else self._chance.choice((server.synced, server.timeline.end))
        )
        if not self.may_lose(kept):
            return
        self._end("is killed")
        self._later(DOWN_SECONDS_MAX, partial(self._restart, kept))

    def power_cut(self) -> None:
        """Its machine loses power, and all that was not synced."""
        kept = self.server.synced
        if self.is_up and self.may_lose(kept):
            self._end("loses power")
            self._later(DOWN_SECONDS_MAX, partial(self._restart, kept))

    def fail_over(self, *, serves_on_seconds: float = 0.0) -> None:
        """Let the replica take its place, where there is one."""
        server = self.server
        if not self.is_up or server.replica is None or server.replica.has is None:
            return
        has = server.replica.has
        if not self.may_lose(has):
            return
        self.failovers += 1
        if not serves_on_seconds:
            self._end(f"dies, and its replica has {has} of {server.timeline.end} writes")
            self._later(DOWN_SECONDS_MAX, partial(self._succeed, has))
            return
        assert self._process is not None
        old, self._process = self._process, None
        self._world.tell(f"{old.name} is cut off, and its replica has {has} of {server.timeline.end} writes")
        for listening in [each for each in self._loop.network.servers.values() if each.address == (HOST, PORT)]:
            listening.close()
        self._loop.call_later(serves_on_seconds, self._demote, old, server, context=self._loop.no_process.copy())
        self._succeed(has)

    def _demote(self, old: Process, server: Server) -> None:
        if old.alive:
            self._world.tell(f"{old.name} is a replica from now on")
            self._loop.resume(old)
            old.context().run(server.demote)
            self._later(DOWN_SECONDS_MAX, partial(self._loop.kill, old))

    def pause(self) -> None:
        if self.is_up and not self.is_paused:
            assert self._process is not None
            self._world.tell(f"{self._process.name} is paused")
            self._loop.pause(self._process)

    def resume(self) -> None:
        if self.is_paused:
            assert self._process is not None
            self._world.tell(f"{self._process.name} goes on")
            self._loop.resume(self._process)

    def lose_replica(self) -> None:
        """It copies nothing more for a while."""
        replica = self.server.replica
        if replica is not None and replica.is_connected:
            self._world.tell("the replica is cut off")
            replica.is_connected = False
            self._later(REPLICA_COMES_SECONDS_MAX, partial(self._connect_replica, self.server))

    def calm(self) -> None:
        """End all faults."""
        self.faults.lost_answers = self.faults.lost_requests = 0.0
        self.faults.lag_seconds_max = LAG_SECONDS_MAX
        self.resume()

    # inner

    def _end(self, what: str) -> None:
        assert self._process is not None
        self._world.tell(f"{self._process.name} {what}")
        self._loop.kill(self._process)

    def _restart(self, kept: int) -> None:
        self.restarts += 1
        self._succeed(kept)

    def _succeed(self, kept: int) -> None:
        """Another life begins with so many writes of the last one."""
        old = self.server
        lost = old.timeline.end - kept
        self._boot(*old.timeline.forked(kept))
        self._world.tell(f"{lost} writes are lost")
        self.on_replaced(old, self.server)

    def _boot(self, timeline: Timeline, model: ServerModel) -> None:
        self._lives += 1
        self._process = process = Process(f"redis.{self._lives}", HOST)
        self._world.tell(f"{process.name} boots")
        process.context().run(self._begin, timeline, model)
        self._loop.spawn(process, self._listen(self.server))
        self._later(REPLICA_COMES_SECONDS_MAX, partial(self._connect_replica, self.server))

    def _begin(self, timeline: Timeline, model: ServerModel) -> None:
        self._server = Server(
            self._loop,
            timeline,
            model,
            is_always=self.is_always,
            replica=Replica() if self._has_replica else None,
            faults=self.faults,
            chance=random.Random(self._chance.getrandbits(64)),
            on_executed=lambda *args: self.on_executed(*args),
        )

    async def _listen(self, server: Server) -> None:
        server.is_loading = self._lives > 1
        await self._loop.create_server(lambda: ServerConnection(server, self._loop), HOST, PORT)
        await asyncio.sleep(self._chance.random() * LOADS_SECONDS_MAX)
        server.is_loading = False

    def _connect_replica(self, server: Server) -> None:
        if self._has_replica and server is self._server and self.is_up and server.replica is not None:
            server.replica.connect(server.timeline.end)
            self._world.tell("the replica has everything")

    def _later(self, seconds_max: float, act: Callable[[], object]) -> None:
        seconds = self._chance.random() * seconds_max
        self._loop.call_later(seconds, act, context=self._loop.no_process.copy())


def _nobody(*_: object) -> None:
    """The default callback, which does nothing."""
