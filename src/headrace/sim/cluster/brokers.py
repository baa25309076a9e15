"""The shipped broker as the program of a simulated cluster's hosts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.ports import Objects
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.home.identity import FILE_NAME, born, encode
from headrace.broker.listeners import INSECURE
from headrace.sim.clock import SimClock
from headrace.sim.cluster.host import DATA, Host, Program
from headrace.sim.cluster.world import PORT, address_of
from headrace.sim.disk import Mount
from headrace.sim.journals import NONE
from headrace.storage.log.journal.journal import JournalSettings

CONFIGS: Final[Mapping[str, str]] = {"offsets.topic.num.partitions": "1"}


class BrokerProgram:
    """One process of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def start(self) -> None:
        await self._broker.start()

    async def over(self) -> Exception | None:
        await self._broker.over()
        return self._broker.failure

    async def stop(self) -> None:
        await self._broker.stop()


class BrokerPrograms:
    """Makes brokers. `known`: brokers whose addresses every broker gets, to find the others. `configs`: static configs.
    `journal`: returns the journal settings of one process."""

    def __init__(
        self,
        known: Sequence[int],
        configs: Mapping[str, str] = CONFIGS,
        *,
        journal: Callable[[], JournalSettings] = lambda: NONE,
    ) -> None:
        self._known = known
        self._configs = configs
        self._journal = journal

    @staticmethod
    def birth(hosts: Sequence[Host]) -> None:
        """Write one cluster with these hosts as voters, as `headrace up --nodes N` does before any of them starts."""
        identities = born(hosts[0].world.chance("birth"), {BrokerId(host.node): (host.address, PORT) for host in hosts})
        for host, identity in zip(hosts, identities, strict=True):
            host.disk.make_durable_file(DATA / FILE_NAME, json.dumps(encode(identity)).encode())

    def make(self, host: Host, *, clock: SimClock, disk: Mount, chance: random.Random) -> Program:
        config = BrokerConfig(
            data=DATA,
            host=host.address,
            port=PORT,
            broker_id=BrokerId(host.node),
            join=tuple(Address(address_of(node), PORT) for node in self._known if node != host.node),
            configs={INSECURE: "true", **self._configs},
            journal=self._journal(),
        )
        return BrokerProgram(Broker(config, clock=clock, random=chance, disk=disk, objects=self._objects(host)))

    def _objects(self, host: Host) -> Objects | None:
        """The durable store as this process reaches it; None: there is none."""
        return None
