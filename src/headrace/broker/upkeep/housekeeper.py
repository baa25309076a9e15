"""Regular upkeep: deletes old segments, and forgets producers that have been silent for too long.

Promises: nothing is deleted that the durable store still lacks, where it is to have it. It never blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.ports import Clock
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.partitions import Partitions


class Housekeeper:
    """One per broker."""

    def __init__(
        self,
        *,
        interval_ms: int,
        expiration_ms: Callable[[], int],
        partitions: Partitions,
        clock: Clock,
        on_bug: OnBug,
    ) -> None:
        """`interval_ms`: between two looks at all partitions. `expiration_ms` returns how long silent producers are
        remembered."""
        self._partitions = partitions
        self._clock = clock
        self._interval_ms = interval_ms
        self._expiration_ms = expiration_ms
        self._on_bug = on_bug
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._work)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _work(self) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._expiration_ms()
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
