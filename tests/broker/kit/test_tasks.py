"""Background work may only fail visibly: a mistake of ours stops the broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.durable.exporter import Exporter
from headrace.broker.groups.service import GroupService
from headrace.broker.groups.shard import GroupShard
from headrace.broker.kit.tasks import started, wait_for_event
from headrace.broker.partitions.logs.opening import Opener
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.taking_up import TakingUp
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.group_broker import QUICK, RawClient


async def test_what_a_task_raises_is_told_and_a_cancelled_one_is_not() -> None:
    told: list[BaseException] = []

    async def broken() -> None:
        raise ValueError("planted")

    await asyncio.wait([started(broken(), "broken", told.append)])
    await asyncio.sleep(0)
    assert [str(error) for error in told] == ["planted"]
    task = started(asyncio.sleep(3600), "sleeping", told.append)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Exporter, "_pass"),
        (GroupService, "_keep_shards"),
        (GroupShard, "expire"),
        (TakingUp, "_take_up"),
        (Partition, "keep_house"),
    ],
)
async def test_a_mistake_in_the_background_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: type, name: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("planted")

    quick = {"log.retention.check.interval.ms": "10", "offsets.retention.check.interval.ms": "10"}
    disk = LocalDisk()
    broker = Broker(
        BrokerConfig(data=tmp_path / "data", port=0, configs={**QUICK, **quick}),
        clock=SystemClock(),
        random=system_random(),
        disk=disk,
        objects=DirectoryObjects(disk, tmp_path / "store"),
    )
    async with asyncio.timeout(150), broker, RawClient(f"{broker.host}:{broker.port}") as client:
        monkeypatch.setattr(place, name, broken)
        asking = asyncio.ensure_future(_stir(client))
        await broker.over()
        assert str(broker.failure) == "planted"
        asking.cancel()
        await asyncio.wait([asking])


async def _stir(client: RawClient) -> None:
    await client.create_topic("t")
    await client.ask(2, FindCoordinatorRequest(key="g"))


async def test_a_configuration_that_changes_while_a_log_is_being_opened_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(data=tmp_path, port=0, configs=QUICK)
    async with (
        asyncio.timeout(150),
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as one,
        RawClient(f"{broker.host}:{broker.port}") as other,
    ):
        opening, altered, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        open_all = Opener.open_all

        async def slowly(self: Opener, wanted: Any) -> Any:
            opening.set()
            await go_on.wait()
            return await open_all(self, wanted)

        def look(_: object) -> None:
            if any(topic.configs for topic in broker.image.topics.values()):
                altered.set()

        broker.observe(look)
        monkeypatch.setattr(Opener, "open_all", slowly)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        creating = asyncio.ensure_future(one.ask(7, CreateTopicsRequest(topics=(topic,), timeout_ms=10_000)))
        await opening.wait()
        change = AlterableConfig(name="max.message.bytes", config_operation=0, value="1234")
        altering = asyncio.ensure_future(
            other.ask(
                1,
                IncrementalAlterConfigsRequest(
                    resources=(AlterConfigsResource(resource_type=2, resource_name="t", configs=(change,)),)
                ),
            )
        )
        await altered.wait()
        go_on.set()
        await creating
        await altering
        assert broker._parts is not None
        (partition,) = broker._parts.partitions
        assert partition.settings.max_message_bytes == 1234


@pytest.mark.parametrize("turns", range(5))
async def test_a_loop_that_waits_for_an_event_ends_where_it_is_cancelled_as_the_event_comes(turns: int) -> None:
    event = asyncio.Event()

    async def rest() -> None:
        while True:
            event.clear()
            await wait_for_event(event, 3600)

    resting = asyncio.get_running_loop().create_task(rest())
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    resting.cancel()
    await asyncio.wait([resting])
    assert resting.cancelled()
