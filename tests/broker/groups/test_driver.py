"""The coordinator's driver: loading, losing its partition, and keeping house."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.groups.shard import GroupShard
from headrace.broker.shards.timers import elapsed_ms
from headrace.broker.system import SystemClock, system_random
from headrace.coordinators.groups.events import WriteRefused
from headrace.storage.disk import LocalDisk
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.sync_group import SyncGroupRequest
from headrace.wire.records import Record
from tests.broker.group_broker import QUICK, RawClient, running
from tests.broker.groups.test_wire import commit, committed, find, join, join_request, sync

DEADLINE_S = 150


async def test_what_is_not_loaded_yet_is_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        await client.create_topic("t")
        await find(client)
        await commit(client, {0: 10})
    read_on = asyncio.Event()
    load = GroupShard.load

    async def load_later(shard: GroupShard) -> None:
        await read_on.wait()
        await load(shard)

    monkeypatch.setattr(GroupShard, "load", load_later)
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await find(client)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(client, {0: 11}) == [loading]
        assert (await client.ask(9, join_request())).error_code == loading
        assert (await client.ask(6, DescribeGroupsRequest(groups=("g",)))).groups[0].error_code == loading
        assert (await client.ask(5, ListGroupsRequest())).error_code == loading
        assert (await client.ask(4, HeartbeatRequest(group_id="g", member_id="m"))).error_code == 0
        syncing = SyncGroupRequest(group_id="g", member_id="m", protocol_type="consumer", protocol_name="range")
        rebalance = await client.ask(5, syncing)
        assert rebalance.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        read_on.set()
        assert await committed(client, (0,)) == {0: 10}


def test_an_alarm_is_not_early_for_what_it_is_set_for() -> None:
    """It would be set again for the same moment, and the loop spin until the clock moves on."""
    assert all(elapsed_ms(at_ms / 1000) == at_ms for at_ms in range(100_000))
    assert elapsed_ms(8.1105) == 8110


async def test_a_coordinator_that_loses_its_partition_sends_its_members_away(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as bootstrap,
        RawClient(bootstrap) as client,
        RawClient(bootstrap) as other,
        asyncio.timeout(DEADLINE_S),
    ):
        await client.create_topic("t")
        await find(client)
        await sync(client, await join(client))
        told = await other.ask(9, join_request())
        waiting = asyncio.ensure_future(other.ask(9, join_request(member_id=told.member_id)))
        offsets_topic = DeleteTopicState(name="__consumer_offsets")
        await client.ask(6, DeleteTopicsRequest(topics=(offsets_topic,), timeout_ms=5_000))
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        assert await commit(client, {0: 1}) == [ErrorCode.NOT_COORDINATOR]
        await find(client)
        assert await commit(client, {0: 1}) == [0]


async def test_the_offsets_topic_is_compacted(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        await find(client)
        topic = DescribeConfigsResource(resource_type=2, resource_name="__consumer_offsets", configuration_keys=None)
        (result,) = (await client.ask(4, DescribeConfigsRequest(resources=(topic,)))).results
        configs = {config.name: config.value for config in result.configs}
        assert configs["cleanup.policy"] == "compact"
        assert configs["segment.bytes"] == "104857600"


async def test_nobody_else_writes_into_the_offsets_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        await find(client)
        batch = memoryview(encode_batch([Record(0, 0, b"forged", b"forged")]))
        data = TopicProduceData(
            name="__consumer_offsets", partition_data=(PartitionProduceData(index=0, records=batch),)
        )
        response = await client.ask(9, ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=(data,)))
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


class ShiftedClock(SystemClock):
    """The real clock, some time ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_what_has_outlived_its_retention_is_swept(tmp_path: Path) -> None:
    configs = {**QUICK, "offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "10"}
    clock = ShiftedClock()
    config = BrokerConfig(data=tmp_path, port=0, configs=configs)
    async with (
        Broker(config, clock=clock, random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await client.create_topic("t")
        await find(client)
        await commit(client, {0: 10}, group="old")
        clock.ahead_ms = 59_000
        await commit(client, {0: 10}, group="new")
        clock.ahead_ms = 61_000
        while len((await client.ask(5, ListGroupsRequest())).groups) == 2:
            pass
        assert [group.group_id for group in (await client.ask(5, ListGroupsRequest())).groups] == ["new"]
        assert await committed(client, (0,), group="old") == {0: -1}


async def test_nobody_waits_for_the_answer_of_a_step_that_raised(tmp_path: Path) -> None:
    """A bug of ours is told to the one who asked, and leaves nothing behind for the shard to answer ever after."""
    config = BrokerConfig(data=tmp_path, port=0, configs=QUICK)
    async with (
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await client.create_topic("t")
        await find(client)
        await commit(client, {0: 10})
        assert broker._parts is not None
        (shard,) = (shard for shard in broker._parts.requests.services.groups.shards if "g" in shard.groups)
        with pytest.raises(KeyError):
            shard.ask("g", lambda _: WriteRefused(write=1_000, error=ErrorCode.UNKNOWN_SERVER_ERROR))
        assert not shard._waiters
        await commit(client, {0: 11})
        assert await committed(client, (0,)) == {0: 11}
