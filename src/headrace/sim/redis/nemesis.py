"""Faults of brokers on a Redis: those of hosts and of the network, and those of Redis itself.

A broker is paused for longer than its session and its lease, so that it comes back as a stale leader or controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.metadata.events import BrokerRegistered, MetadataEvent
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.nemesis import Act, Nemesis
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.redis.judge import RedisJudge
from headrace.sim.redis.service import HOST, Service

REDIS_PAUSE_SECONDS_MAX: Final = 1.5
BROKER_FAILS_TOO_PROBABILITY: Final = 0.4
SERVES_ON_PROBABILITY: Final = 0.4
SERVES_ON_SECONDS_MAX: Final = 1.5
LOSES_CHANGE_SECONDS_MAX: Final = 0.08
"""Time from a change of the metadata to the fault that may lose it."""
LOSES_SECONDS_MAX: Final = 1.0
LAG_SECONDS_MAX: Final = 0.5
PAUSE_SECONDS_MAX: Final = 3.0
CUT_OFF_SECONDS_MAX: Final = 3.0


class RedisNemesis(Nemesis):
    """See the module. `may_fail_over`: a replica may take over. `may_lose_changes`: Redis may lose entries of the
    commit log; then an old master may serve on, too."""

    def __init__(
        self,
        world: ClusterWorld,
        hosts: Sequence[Host],
        judge: RedisJudge,
        service: Service,
        *,
        may_fail_over: bool,
        may_lose_changes: bool,
    ) -> None:
        super().__init__(world, hosts, judge)
        self._service = service
        self._may_fail_over = may_fail_over
        self._may_lose_changes = may_lose_changes
        self._of_redis = judge
        if not may_lose_changes:
            service.may_lose = lambda kept: not judge.loses_changes(kept)

    def _mood(self) -> list[tuple[Act, float]]:
        pick = self._random.choice
        mood: list[tuple[Act, float]] = [
            (self.kill, pick((0.0, 1.0, 3.0))),
            (self.stop, pick((0.0, 0.0, 1.0))),
            (self.pause, pick((0.0, 1.0, 4.0))),
            (self.reset, pick((0.0, 2.0, 4.0))),
            (self.heal, pick((0.5, 1.0))),
            (self.isolate, pick((0.0, 1.0))),
            (self.cut_off_from_redis, pick((0.0, 1.0, 3.0))),
            (self.slow_way_to_redis, pick((0.0, 1.0, 2.0))),
            (self.lose_exchanges, pick((0.0, 1.0, 3.0))),
            (self._service.kill, pick((0.0, 0.0, 1.0))),
            (self._service.power_cut, pick((0.0, 0.0, 1.0))),
            (self.pause_redis, pick((0.0, 0.0, 1.0))),
        ]
        if self._may_fail_over:
            mood += [
                (self.fail_over, pick((0.0, 1.0, 2.0))),
                (self._service.lose_replica, pick((0.0, 1.0))),
                (self.slow_replica, pick((0.0, 1.0, 2.0))),
            ]
        if self._may_lose_changes:
            mood.append((self.lose_change, pick((1.0, 3.0))))
        return mood

    def calm(self) -> None:
        super().calm()
        self._of_redis.on_change = None
        self._service.calm()

    def lose_change(self) -> None:
        """Redis fails right after the next change of the metadata, or the next registration. Often a broker fails, too,
        which may have made it or may have seen it."""
        wanted = self._random.choice((BrokerRegistered, object))

        def strike(events: Sequence[MetadataEvent]) -> None:
            if any(isinstance(event, wanted) for event in events):
                self._of_redis.on_change = None
                self._later(self._within(LOSES_CHANGE_SECONDS_MAX), fail)

        def fail() -> None:
            fault = self._random.choice((self._service.power_cut, self.fail_over if self._may_fail_over else self.kill))
            self._world.tell("a change of the metadata is to be lost")
            fault()
            if self._random.random() < BROKER_FAILS_TOO_PROBABILITY:
                self._random.choice((self.kill, self.pause, self.cut_off_from_redis))()

        self._of_redis.on_change = strike
        if self._may_fail_over:
            self.slow_replica()
        if wanted is BrokerRegistered or self._random.random() < BROKER_FAILS_TOO_PROBABILITY:
            self.kill()

    def pause(self) -> None:
        """Pause a broker for longer than its session lasts."""
        if (host := self._some()) is not None:
            host.pause()
            self._later(self._within(PAUSE_SECONDS_MAX), host.resume)

    def pause_redis(self) -> None:
        self._service.pause()
        self._later(self._within(REDIS_PAUSE_SECONDS_MAX), self._service.resume)

    def fail_over(self) -> None:
        serves_on = 0.0
        if self._may_lose_changes and self._random.random() < SERVES_ON_PROBABILITY:
            serves_on = self._random.random() * SERVES_ON_SECONDS_MAX
        self._service.fail_over(serves_on_seconds=serves_on)

    def slow_replica(self) -> None:
        """The way to the replica takes long, so that a failover loses."""
        faults = self._service.faults
        faults.lag_seconds_max = self._random.random() * LAG_SECONDS_MAX
        self._world.tell(f"writes reach the replica within {faults.lag_seconds_max:.3f} s")

    def lose_exchanges(self) -> None:
        """Break connections to Redis before a command is executed, or before its answer leaves."""
        faults = self._service.faults
        faults.lost_requests = self._random.choice((0.0, 0.05, 0.2))
        faults.lost_answers = self._random.choice((0.0, 0.05, 0.2, 0.5))
        self._world.tell(f"Redis loses requests and answers: {faults.lost_requests}, {faults.lost_answers}")

        def over() -> None:
            faults.lost_requests = faults.lost_answers = 0.0

        self._later(self._within(LOSES_SECONDS_MAX), over)

    def cut_off_from_redis(self) -> None:
        """Cut the way of a broker to Redis, or the way back."""
        if (host := self._some()) is not None:
            ways = self._random.choice((1, 2, 3))
            cut = {(host.address, HOST)} if ways & 1 else set()
            cut |= {(HOST, host.address)} if ways & 2 else set()
            self._cut(cut)

    def slow_way_to_redis(self) -> None:
        if (host := self._some()) is not None:
            factor = 1 + self._random.random() * 200
            links = self._world.loop.network.links
            self._world.tell(f"the way of broker {host.node} to Redis is {factor:.0f} times slower")
            links.set_slow({(host.address, HOST): factor, (HOST, host.address): factor})
            self._later(self._within(CUT_OFF_SECONDS_MAX), lambda: links.set_slow({}))
