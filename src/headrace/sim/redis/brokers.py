"""The shipped broker, with its records and metadata in the simulated Redis."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.foundation import redis as foundation
from headrace.broker.listeners import INSECURE
from headrace.sim.clock import SimClock
from headrace.sim.cluster.brokers import BrokerProgram
from headrace.sim.cluster.host import DATA, REMOVED, Host, Program
from headrace.sim.cluster.world import PORT
from headrace.sim.disk import Mount
from headrace.sim.redis.service import HOST
from headrace.sim.redis.service import PORT as REDIS_PORT
from headrace.storage.redis import flushing
from headrace.storage.redis.links.address import RedisAddress
from headrace.storage.redis.metadata import commit_log
from headrace.storage.redis.metadata.lease import LeaseTimes

ADDRESS: Final = RedisAddress(hosts=(Address(HOST, REDIS_PORT),))
assert foundation, "it is imported before any simulated process begins"


@dataclass(frozen=True, slots=True)
class Times:
    """So short that a run has many controllers and snapshots. `lease_ms` is 6,000 as shipped, `wait_ms` 3,000."""

    lease_ms: int
    events_per_snapshot: int
    kept_entries: int
    wait_ms: int


class RedisPrograms:
    """Makes brokers. `configs`: their static configs."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        self._configs = configs

    def make(self, host: Host, *, clock: SimClock, disk: Mount, chance: random.Random) -> Program:
        config = BrokerConfig(
            data=DATA,
            host=host.address,
            port=PORT,
            broker_id=BrokerId(host.node),
            redis=ADDRESS,
            configs={INSECURE: "true", **self._configs},
        )
        return StayingProgram(Broker(config, clock=clock, random=chance, disk=disk))


class StayingProgram(BrokerProgram):
    """A broker that nobody removes."""

    async def over(self) -> Exception | None:
        failure = await super().over()
        return (
            failure if failure is None else NobodyAskedIt(type(failure).__name__, *map(_not_as_removed, failure.args))
        )


class NobodyAskedIt(Exception):  # noqa: N818 - as the host tells it
    """A broker stopped by itself."""


def _not_as_removed(text: object) -> str:
    return str(text).replace(REMOVED, "takes itself for removed")


@contextmanager
def shortened(times: Times) -> Iterator[None]:
    """While it lasts, brokers have these times."""
    lease = LeaseTimes(times.lease_ms, times.lease_ms // 6)
    with (
        patch.object(commit_log, "LeaseTimes", lambda: lease),
        patch.object(commit_log, "METADATA_EVENTS_PER_SNAPSHOT", times.events_per_snapshot),
        patch.object(commit_log, "REDIS_METADATA_KEPT_ENTRIES", times.kept_entries),
        patch.object(flushing, "REDIS_WAIT_MS", times.wait_ms),
    ):
        yield
