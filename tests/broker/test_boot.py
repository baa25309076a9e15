"""A start that fails lets go of everything: the same process can try again on the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.boot import Broker
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.net.server.listener import Listener
from headrace.storage.disk import LocalDisk
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.redis.engine import RedisEngine
from tests.broker.group_broker import QUICK
from tools.engine_under_test import is_redis


def broker_on(directory: Path) -> Broker:
    config = BrokerConfig(data=directory, port=0, configs=QUICK)
    return Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk())


async def refuse_later(*_: Any) -> None:
    raise OSError(5, "scripted")


def refuse(*_: Any) -> None:
    raise OSError(5, "scripted")


async def test_a_start_that_cannot_accept_can_be_tried_again(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Listener, "accept", refuse_later)
        with pytest.raises(OSError, match="scripted"):
            await broker_on(tmp_path).start()
    async with broker_on(tmp_path):
        pass


async def test_a_start_whose_logs_cannot_be_used_closes_the_metadata(tmp_path: Path) -> None:
    stopped: list[MetadataDriver] = []
    stop = MetadataDriver.stop

    async def noted(self: MetadataDriver) -> None:
        await stop(self)
        stopped.append(self)

    with pytest.MonkeyPatch.context() as patch:
        for engine in (LocalLogEngine, RedisEngine):
            patch.setattr(engine, "start", refuse)
        patch.setattr(MetadataDriver, "stop", noted)
        with pytest.raises(OSError, match="scripted"):
            await broker_on(tmp_path).start()
    assert len(stopped) == (0 if is_redis() else 1), "there, Redis is looked at first"
    async with broker_on(tmp_path):
        pass


async def test_a_stop_that_fails_still_gives_the_directory_back(tmp_path: Path) -> None:
    broker = broker_on(tmp_path)
    await broker.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetadataDriver, "stop", refuse_later)
        with pytest.raises(OSError, match="scripted"):
            await broker.stop()
    await broker.over()
    async with broker_on(tmp_path):
        pass
