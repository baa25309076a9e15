"""Regular upkeep: deletes old segments, and forgets producers that have been silent for too long.

Promises: nothing is deleted that the durable store still lacks, where it is to have it. It never blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.base.ids import BrokerId
from headrace.base.ports import Clock
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.partitions import Partitions
from headrace.metadata.configs import broker_value


class Housekeeper:
    """One per broker."""

    def __init__(
        self,
        *,
        node: BrokerId,
        configs: Mapping[str, str],
        partitions: Partitions,
        metadata: MetadataDriver,
        clock: Clock,
        on_bug: OnBug,
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._clock = clock
        self._node = node
        self._configs = configs
        self._interval_ms = self._config("log.retention.check.interval.ms")
        self._on_bug = on_bug
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._work)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _config(self, key: str) -> int:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).number()

    def _work(self) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._config("producer.id.expiration.ms")
        try:
            for partition in self._partitions.replicas:
                partition.keep_house(
                    now_ms,
                    producers_since_ms=now_ms - expiration_ms,
                )
        except Exception as error:  # the partition handles its disk's failure, so this is a bug of ours
            self._on_bug(error)
        else:
            self.start()
