"""The shipped broker as what runs on the hosts of a simulated cluster."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from headrace.base.ids import BrokerId
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.sim.clock import SimClock
from headrace.sim.cluster.host import DATA, Host, Program
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.world import PORT
from headrace.sim.disk import Mount
from headrace.sim.process import Process
from headrace.storage.log.journal import JournalSettings

CONFIGS: Final[Mapping[str, str]] = {"offsets.topic.num.partitions": "1"}


class BrokerProgram:
    """One life of a broker."""

    def __init__(self, broker: Broker, judge: Judge, process: Process) -> None:
        self._broker = broker
        self._judge = judge
        self._process = process

    async def start(self) -> None:
        await self._broker.start()
        self._broker.observe(lambda delta: self._judge.on_image(self._process, delta.after))

    async def over(self) -> Exception | None:
        await self._broker.over()
        return self._broker.failure

    async def stop(self) -> None:
        await self._broker.stop()


class BrokerPrograms:
    """Makes them."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def make(self, host: Host, *, clock: SimClock, disk: Mount, chance: random.Random) -> Program:
        config = BrokerConfig(
            data=DATA,
            host=host.address,
            port=PORT,
            broker_id=BrokerId(host.node),
            configs=CONFIGS,
            journal=JournalSettings(files_max=0),
        )
        return BrokerProgram(Broker(config, clock=clock, random=chance, disk=disk), self._judge, disk.process)
