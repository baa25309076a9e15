"""Group state against disks that fail and tools that nobody here wrote: what is acknowledged is in Kafka's records."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path

import pytest

from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.group_broker import RawClient, running
from tests.broker.groups.test_wire import commit, committed, find, join, join_request, sync
from tests.promises.test_a_failed_disk_never_acknowledges import brittle_broker
from tools import kafka_jars


async def test_a_commit_that_the_disk_did_not_take_is_never_acknowledged(tmp_path: Path) -> None:
    async with brittle_broker(tmp_path) as (_, disk, client), asyncio.timeout(150):
        await client.create_topic("t")
        await find(client)
        assert await commit(client, {0: 10}) == [0]
        disk.sync_fails = lambda path: "__consumer_offsets" in str(path)
        assert await commit(client, {0: 20}) == [ErrorCode.NOT_COORDINATOR]
        assert await commit(client, {0: 30}) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert (await client.ask(9, join_request())).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.sync_fails = lambda _: False
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        assert (await committed(client, (0,)))[0] in (10, 20), "what was not acknowledged may be there, what was, is"


async def test_members_that_wait_hear_of_it_when_the_disk_fails(tmp_path: Path) -> None:
    async with brittle_broker(tmp_path) as (_, disk, client), asyncio.timeout(150):
        await client.create_topic("t")
        await find(client)
        joined = await join(client)
        disk.sync_fails = lambda path: "__consumer_offsets" in str(path)
        assert (await sync(client, joined)).error_code == ErrorCode.NOT_COORDINATOR


async def test_a_coordinator_that_cannot_be_made_is_not_available(tmp_path: Path) -> None:
    async with brittle_broker(tmp_path) as (_, disk, client), asyncio.timeout(150):
        disk.sync_fails = lambda path: "metadata" in str(path)
        response = await client.ask(2, FindCoordinatorRequest(key="g"))
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
async def test_kafkas_own_tool_reads_the_groups(tmp_path: Path) -> None:
    async with running(tmp_path, {"offsets.topic.num.partitions": "1"}) as bootstrap, RawClient(bootstrap) as client:
        await client.create_topic("t", 3)
        await find(client)
        joined = await join(client)
        await sync(client, joined)
        mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
        assert await commit(client, {0: 10, 2: 30}, **mine) == [0, 0]
    (log,) = (tmp_path / "logs" / "__consumer_offsets-0").glob("*.log")
    command = [*kafka_jars.QUICK_JAVA, "-cp", kafka_jars.class_path(), "kafka.tools.DumpLogSegments"]
    command += ["--offsets-decoder", "--files", str(log)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=150, check=True)
    said = "".join(done.stdout.split())
    for index, offset in ((0, 10), (2, 30)):
        key = f'{{"type":"1","data":{{"group":"g","topic":"t","partition":{index}}}}}'
        assert f'{key}payload:{{"version":"4","data":{{"offset":{offset},' in said
    assert '{"type":"2","data":{"group":"g"}}payload:{"version":"3","data":{"protocolType":"consumer"' in said
    assert f'"memberId":"{joined.member_id}"' in said


async def test_a_commit_that_takes_too_long_is_to_be_asked_again_and_counts_once_it_is_durable(tmp_path: Path) -> None:
    let_go = threading.Event()

    def slow(_: Path) -> bool:
        let_go.wait()
        return False

    async with (
        brittle_broker(tmp_path, {"offsets.commit.timeout.ms": "1"}) as (_, disk, client),
        asyncio.timeout(150),
    ):
        await client.create_topic("t")
        await find(client)
        try:
            disk.sync_fails = slow
            assert await commit(client, {0: 10}) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            assert await committed(client, (0,)) == {0: -1}, "what is not durable is not told"
        finally:
            let_go.set()
        while await committed(client, (0,)) != {0: 10}:
            pass
