"""The work of `headrace up`: one broker in this process, from its start to a clean stop on SIGTERM or SIGINT.

Promises: exactly one line on standard output, once it serves; a second signal ends the process at once. Imports the
broker, so it is loaded only by the command that needs it.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.base.errors import HeadraceError
from headrace.base.ports import Objects
from headrace.broker.boot import Broker
from headrace.broker.cleaner_child import run_in_child
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.broker.watchdog import Watchdog
from headrace.cli.logs import configure_logs
from headrace.net.client.address import parse_address
from headrace.net.loops import run
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import open_objects

DURABLE_URL = "durable.url"
GARBAGE_OBJECTS = 20_000
"""New objects after which the young ones are looked through for cycles (Python's default: 700)."""


def serve(*, data: Path, listen: str, advertise: str | None, configs: Mapping[str, str], json_logs: bool) -> None:
    """Run until a signal. Raises HeadraceError where the broker cannot start, or has to stop by itself."""
    configure_logs(json_logs=json_logs)
    address = parse_address(listen)
    told = parse_address(advertise) if advertise is not None else None
    config = BrokerConfig(
        data=data,
        host=address.host,
        port=address.port,
        advertised_host=told.host if told is not None else None,
        advertised_port=told.port if told is not None else None,
        configs=configs,
    )
    run(_serve(config))


def _collect_seldom() -> None:
    """What is there now stays; requests leave next to no cycles behind, so the collector need not come for each few."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 20, 20)


def _objects(configs: Mapping[str, str], disk: LocalDisk) -> Objects | None:
    url = configs.get(DURABLE_URL)
    return open_objects(url, disk) if url else None


async def _serve(config: BrokerConfig) -> None:
    _allow_many_files()
    disk = LocalDisk()
    broker = Broker(
        config,
        clock=SystemClock(),
        random=system_random(),
        disk=disk,
        objects=_objects(config.configs, disk),
        cleaning=run_in_child,
    )
    asked = _on_stop_signal()
    gc.disable()  # thousands of logs are opened, and stay
    await broker.start()
    _collect_seldom()
    try:
        sys.stdout.write(f"ready {broker.host}:{broker.port}\n")
        sys.stdout.flush()
        over = asyncio.ensure_future(broker.over())
        with Watchdog():
            await asyncio.wait((over, asked), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
    finally:
        await broker.stop()
    if broker.failure is not None:
        raise HeadraceError(f"The broker had to stop: {broker.failure}")


def _allow_many_files() -> None:
    """Segments and connections each take a descriptor, and the usual soft limit (1,024) is soon reached: take what the
    hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _on_stop_signal() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT; the next one then has its usual effect."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        if not asked.done():
            asked.set_result(None)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
    return asked
