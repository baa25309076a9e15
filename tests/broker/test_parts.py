"""The order in which a broker's rooms begin and end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.requests.building import Requests
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from tests.broker.group_broker import QUICK


def broker_on(directory: Path, **configs: str) -> Broker:
    config = BrokerConfig(data=directory, port=0, configs={**QUICK, **configs})
    return Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk())


def noting(order: list[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which also notes when it is called."""

    def noted(*arguments: Any, **more: Any) -> Any:
        order.append(name)
        return method(*arguments, **more)

    return noted


async def test_a_taken_address_of_the_metrics_is_told_before_any_work_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(DiskRoom, "start", noting(begun, "room", DiskRoom.start))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises((HeadraceError, OSError), match=r"metrics|in use"):
            await broker_on(tmp_path, **{"metrics.listen": address}).start()
    assert begun == []
    async with broker_on(tmp_path):
        assert begun == ["room"]


async def test_a_stop_looks_at_the_disk_no_more_before_it_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room that is found meanwhile would open logs again, which the stop then closes under them."""
    ended: list[str] = []
    monkeypatch.setattr(DiskRoom, "stop", noting(ended, "room", DiskRoom.stop))
    monkeypatch.setattr(Requests, "stop", noting(ended, "requests", Requests.stop))
    async with broker_on(tmp_path):
        pass
    assert ended == ["room", "requests"]
