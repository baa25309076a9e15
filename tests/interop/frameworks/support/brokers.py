"""A cluster of three brokers, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
from typing import Final

from tools.servers.broker_cluster import BrokerCluster

CONFIGS: Final = (
    "group.initial.rebalance.delay.ms=0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
)
OPTIONS: Final = tuple(part for config in CONFIGS for part in ("--config", config))


class Brokers:
    """See the module."""

    def __init__(self, cluster: BrokerCluster, runner: asyncio.Runner) -> None:
        self._cluster = cluster
        self._runner = runner

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def replace(self, *brokers: int) -> None:
        """SIGKILL, and start them again."""
        self._runner.run(self._cluster.kill(*brokers))
        self._runner.run(self._cluster.start(*brokers))
