"""Configs of single groups: they hold from the next heartbeat on, over restarts, and for groups of both protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.coordinators.groups.model import Group
from headrace.storage.disk import LocalDisk
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.broker.group_broker import QUICK, RawClient, until
from tests.broker.groups.test_consumer_groups_wire import beating, joining
from tests.broker.groups.test_wire import find

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
BOUNDS = {"group.consumer.max.session.timeout.ms": "9000000", "group.consumer.min.heartbeat.interval.ms": "100"}


def broker(data: Path) -> Broker:
    config = BrokerConfig(data=data, port=0, configs={**QUICK, **BOUNDS})
    return Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk())


async def alter(client: RawClient, group: str, **values: str | None) -> int:
    names = {"session": SESSION, "interval": INTERVAL}
    configs = tuple(AlterableConfig(names[name], int(value is None), value) for name, value in values.items())
    request = IncrementalAlterConfigsRequest((AlterConfigsResource(32, group, configs),))
    return int((await client.ask(1, request)).responses[0].error_code)


def session_ms(running: Broker, group_id: str) -> int:
    """How long member m may be silent from now on, to within what this test takes."""
    group = running.parts.requests.services.groups.group(group_id)
    assert isinstance(group, Group)
    assert group.consumer is not None
    return group.consumer.sessions["m"] - int(asyncio.get_running_loop().time() * 1000)


async def test_they_hold_from_the_next_heartbeat_on_and_over_a_restart(tmp_path: Path) -> None:
    async with asyncio.timeout(150), broker(tmp_path) as running, RawClient(str(running.address)) as client:
        await client.create_topic("t", 3)
        await find(client)
        assert (await client.ask(1, joining())).heartbeat_interval_ms == 5_000
        assert session_ms(running, "g") <= 45_000
        assert await alter(client, "g", session="9000000", interval="100") == 0
        assert (await client.ask(1, beating(1))).heartbeat_interval_ms == 100
        assert session_ms(running, "g") > 8_000_000
        assert (await client.ask(1, joining(group="other"))).heartbeat_interval_ms == 5_000, "another's are its own"
    async with asyncio.timeout(150), broker(tmp_path) as running, RawClient(str(running.address)) as client:
        await until(lambda: isinstance(running.parts.requests.services.groups.group("g"), Group))
        assert session_ms(running, "g") > 8_000_000, "read with the group"
        assert (await client.ask(1, beating(1))).heartbeat_interval_ms == 100
        assert await alter(client, "g", session=None, interval=None) == 0
        assert (await client.ask(1, beating(1))).heartbeat_interval_ms == 5_000
        assert session_ms(running, "g") <= 45_000
        listed = await client.ask(1, ListConfigResourcesRequest(resource_types=(32,)))
        assert listed.config_resources == (), "a group without any of its own is not listed"
