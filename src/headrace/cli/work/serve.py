"""The work of `headrace up` and `headrace broker`: one broker in this process, from start to stop.

Promises: it prints exactly one line on standard output, once it serves. A second signal ends the process at once. It
imports the broker, so only the command that needs it loads it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.base.addresses import parse_address, parse_bootstrap
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import BrokerId
from headrace.base.ports import Objects
from headrace.broker.boot import Broker, load_ahead
from headrace.broker.config import FIRST_BROKER, BrokerConfig
from headrace.broker.home.nodes import FILE_NAME as NODES
from headrace.broker.listeners import check_still_secured
from headrace.broker.system import SystemClock, descriptors, system_random, tune_interpreter
from headrace.broker.watchdog import Watchdog
from headrace.cli.logs import configure_logs
from headrace.cli.options import DEFAULT_BOOTSTRAP
from headrace.cli.work.parent import Parent
from headrace.cli.work.ready import OnceReady
from headrace.net.loops import run
from headrace.storage.disk import LocalDisk
from headrace.storage.log.compaction.runners import run_in_child
from headrace.storage.objects import open_objects
from headrace.storage.redis.links.address import parse_redis_address

DURABLE_URL = "durable.url"


def serve(
    *,
    data: Path,
    listen: str | None,
    advertise: str | None,
    configs: Mapping[str, str],
    json_logs: bool,
    broker_id: int = FIRST_BROKER,
    join: str | None = None,
    rack: str | None = None,
    with_parent: bool = False,
    log_level: str = "info",
    redis: str | None = None,
    once_ready: OnceReady | None = None,
    read_again: Callable[[], Mapping[str, str]] | None = None,
) -> None:
    """Run until a signal. `listen`: None: the usual address, or as the configs say. `redis`: the URL of the Redis that
    has the logs; None: the disk has them. `once_ready`: done before the line is printed. `read_again`: see
    `BrokerConfig`. Raises HeadraceError where the broker cannot start, or has to stop by itself."""
    configure_logs(json_logs=json_logs, level=log_level)
    if listen is not None and "listeners" in configs:
        raise UsageError("--listen and the config listeners say the same thing: leave one of them out.")
    address = parse_address(listen or DEFAULT_BOOTSTRAP)
    advertised = parse_address(advertise, default_port=0) if advertise is not None else None
    config = BrokerConfig(
        data=data,
        host=address.host,
        port=address.port,
        advertised_host=advertised.host if advertised is not None else None,
        advertised_port=advertised.port if advertised is not None else None,
        broker_id=BrokerId(broker_id),
        join=parse_bootstrap(join) if join is not None else (),
        rack=rack,
        redis=None if redis is None else parse_redis_address(redis, os.environ),
        report_metadata=log_level.lower() == "debug",
        configs=configs,
        read_again=read_again,
    )
    check_still_secured(data, config.listeners(), configs)
    if (data.parent / NODES).exists():
        check_still_secured(data.parent, config.listeners(), configs)
    run(_serve(config, with_parent=with_parent, once_ready=once_ready))


def _objects(configs: Mapping[str, str], disk: LocalDisk) -> Objects | None:
    url = configs.get(DURABLE_URL)
    return open_objects(url, disk) if url else None


async def _serve(config: BrokerConfig, *, with_parent: bool, once_ready: OnceReady | None) -> None:
    _allow_many_files()
    load_ahead()
    disk = LocalDisk()
    broker = Broker(
        config,
        clock=SystemClock(),
        random=system_random(),
        disk=disk,
        objects=_objects(config.configs, disk),
        cleaning=run_in_child,
        descriptors=descriptors,
    )
    asked = _on_stop_signal()
    parent = Parent(asked) if with_parent else None
    gc.disable()  # thousands of logs are opened, and stay
    if not await _started(broker, asked):
        return
    tune_interpreter()
    try:
        if once_ready is not None:
            await once_ready([broker.address])
        sys.stdout.write(f"ready {broker.address}\n")
        sys.stdout.flush()
        ends = [asyncio.ensure_future(broker.over())]
        if parent is not None:
            ends.append(asyncio.ensure_future(parent.answer(broker)))
        with Watchdog():
            await asyncio.wait((*ends, asked), return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
    finally:
        await broker.stop()
    if broker.failure is not None:
        raise HeadraceError(f"The broker had to stop: {broker.failure}")


async def _started(broker: Broker, asked: asyncio.Future[None]) -> bool:
    """Start the broker. Returns False where a stop was requested before it was ready, for example while it waits for a
    cluster to join.
    """
    start = asyncio.ensure_future(broker.start())
    await asyncio.wait((start, asked), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start
        return False
    await start
    return True


def _allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit. Segments and connections each take a descriptor, and the
    usual limit (1,024) is soon reached.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _on_stop_signal() -> asyncio.Future[None]:
    """A future that is done at the first SIGTERM or SIGINT. The next signal then has its usual effect."""
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
