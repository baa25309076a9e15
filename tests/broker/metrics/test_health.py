"""/livez, /readyz and /healthz tell what a broker's state is, to those who may see its metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.base.ports import Space
from tests.broker.clusters import BY_HAND, running
from tests.broker.metrics.exposition import ask
from tests.broker.metrics.test_access import basic
from tests.broker.metrics.test_metrics import LISTEN, port_of
from tests.broker.metrics.test_metrics import running as alone

OK, NOT = "HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable"


async def told(port: int, path: str) -> tuple[str, str]:
    return await ask(port, f"GET {path} HTTP/1.1\r\n\r\n".encode())


async def test_a_broker_that_serves_is_live_ready_and_well(tmp_path: Path) -> None:
    async with alone(tmp_path, **LISTEN) as (broker, _):
        await broker.parts.partitions.settled()
        for path in ("/livez", "/readyz", "/healthz", "/readyz?verbose"):
            assert await told(port_of(broker), path) == (OK, "ok\n")
        assert (await told(port_of(broker), "/ready"))[0] == "HTTP/1.1 404 Not Found"


async def test_a_broker_that_is_fenced_lives_and_is_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path, 3, {**BY_HAND, **LISTEN}) as cluster:
        port = port_of(cluster.brokers[3])
        assert (await told(port, "/readyz"))[0] == OK
        await cluster.fence(3)
        await cluster.until(3, lambda image: any(each.id == 3 and each.fenced for each in image.brokers.values()))
        status, body = await told(port, "/readyz")
        assert status == NOT
        assert "fenced" in body
        assert (await told(port, "/livez"))[0] == OK
        await cluster.unfence(3)
        await cluster.until(3, lambda image: all(not each.fenced for each in image.brokers.values()))
        await cluster.settled(3)
        assert (await told(port, "/readyz"))[0] == OK


async def test_a_broker_that_opens_partitions_or_hears_no_controller_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alone(tmp_path, **LISTEN) as (broker, _):
        await broker.parts.partitions.settled()
        opened = asyncio.Event()

        async def opening() -> None:
            await opened.wait()

        broker.parts.partitions.work.add(opening, "an opening that takes long")
        assert "opening" in (await told(port_of(broker), "/readyz"))[1]
        opened.set()
        await broker.parts.partitions.settled()
        assert (await told(port_of(broker), "/readyz"))[0] == OK
        monkeypatch.setattr(broker.parts.membership, "_session_s", 0.0)
        status, body = await told(port_of(broker), "/readyz")
        assert (status, "headrace quorum" in body) == (NOT, True)


async def test_a_broker_with_a_full_disk_is_ready_and_not_well(tmp_path: Path) -> None:
    async with alone(tmp_path, **LISTEN) as (broker, _):
        parts = broker.parts
        parts.logs.room.stop()
        parts.condition.stop()
        parts.logs.room._space = lambda: Space(1000, 10)
        await parts.logs.room.look()
        await parts.condition.look()
        assert (await told(port_of(broker), "/readyz"))[0] == OK
        status, body = await told(port_of(broker), "/healthz")
        assert status == NOT
        assert "free space" in body


async def test_who_may_not_see_metrics_is_told_nothing_of_health(tmp_path: Path) -> None:
    async with alone(tmp_path, **LISTEN, **{"metrics.credentials": "me:secret"}) as (broker, _):
        assert (await told(port_of(broker), "/livez"))[0] == "HTTP/1.1 401 Unauthorized"
        request = f"GET /livez HTTP/1.1\r\nAuthorization: {basic('me:secret')}\r\n\r\n".encode()
        assert (await ask(port_of(broker), request))[0] == OK
