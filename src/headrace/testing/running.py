"""A broker on the running event loop, for as long as a block runs. Imports the broker only when one is asked for."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

DURABLE_URL = "durable.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """Where a test finds its broker."""

    host: str
    port: int
    data: Path
    """Its data directory."""

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT`, as clients want it."""
        return f"{self.host}:{self.port}"


@asynccontextmanager
async def broker(
    *,
    configs: Mapping[str, str] | None = None,
    data: Path | None = None,
    port: int = 0,
    advertised_port: int | None = None,
) -> AsyncIterator[RunningBroker]:
    """A broker on loopback while the block runs, stopped cleanly after it.

    `configs` are broker configs, by Kafka's names; with `durable.url` it exports there. Without `data` it lives in a
    temporary directory that is removed; with it, what is there is kept, so that a test can start it again. Port 0
    takes a free one. Clients are told `advertised_port`, where one is given: a proxy's. Raises HeadraceError where it
    cannot start.
    """
    from headrace.broker.boot import Broker
    from headrace.broker.cleaner_child import run_in_child
    from headrace.broker.config import BrokerConfig
    from headrace.broker.system import SystemClock, system_random
    from headrace.storage.disk import LocalDisk
    from headrace.storage.objects import open_objects

    with tempfile.TemporaryDirectory(prefix="headrace-test-", ignore_cleanup_errors=True) as temporary:
        place = (data if data is not None else Path(temporary)).resolve()
        disk = LocalDisk()
        url = (configs or {}).get(DURABLE_URL)
        config = BrokerConfig(data=place, port=port, advertised_port=advertised_port, configs=dict(configs or {}))
        running = Broker(
            config,
            clock=SystemClock(),
            random=system_random(),
            disk=disk,
            objects=open_objects(url, disk) if url else None,
            cleaning=run_in_child,
        )
        async with running:
            yield RunningBroker(host=running.host, port=running.port, data=place)
