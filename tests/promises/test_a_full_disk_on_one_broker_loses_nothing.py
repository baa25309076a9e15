"""Promises 1 to 5 and 9, with real processes, when one broker's disk is full under load.

Others lead its partitions, clients continue, and the operator is told in one sentence what is wrong and what to do.
Once there is room it is in sync as before. Where only its logs were on that disk, that happens by itself; where its
metadata was too, once the broker was restarted.

The disk is a volume of its own that a file fills up. A broker whose logs alone are on it goes on without them. Where
its metadata is on it too, it stops by itself.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.changes import create
from tests.promises.support.records import Records, patient_options, under_records
from tests.promises.support.volumes import Volume, are_permitted, volume_at
from tools.servers.broker_cluster import BrokerCluster

BROKERS: Final = (1, 2, 3)
BEFORE_EACH: Final = 500
"""Acknowledgements that each producer waits for, so that a full disk meets a busy cluster."""
WHILE_FULL: Final = 250
OF_LOGS: Final = (
    "free space (delete topics, shorten retention) or make the volume larger, and writes go on by themselves"
)
OF_METADATA: Final = "No space left on device): check the disk, then start again."
STOPPED: Final = 1
"""The exit code of a broker that had to."""
WITH_LOGS: Final = 1
"""The broker whose logs have a volume of their own."""
WITH_ALL: Final = 2
"""The broker whose whole directory has."""


async def the_logs_are_full(records: Records, volume: Volume) -> None:
    before = times_told(records.cluster, WITH_LOGS, OF_LOGS)
    volume.fill()
    await goes_on_without(records, WITH_LOGS)
    assert times_told(records.cluster, WITH_LOGS, OF_LOGS) > before
    volume.make_room()
    await records.acknowledged(WHILE_FULL)


async def all_is_full(records: Records, volume: Volume) -> None:
    before = times_told(records.cluster, WITH_ALL, OF_METADATA)
    volume.fill()
    async with changes_of_metadata(records.cluster, WITH_LOGS):
        assert await records.cluster.over(WITH_ALL) == STOPPED
    await goes_on_without(records, WITH_ALL)
    assert times_told(records.cluster, WITH_ALL, OF_METADATA) > before
    volume.make_room()
    await records.cluster.start(WITH_ALL)


async def goes_on_without(records: Records, broker: int) -> None:
    await records.led_by_others(broker, broker % len(BROKERS) + 1)
    await records.acknowledged(WHILE_FULL)


@asynccontextmanager
async def changes_of_metadata(cluster: BrokerCluster, through: int) -> AsyncIterator[None]:
    """The last page of the volume may still take some of these changes, but not all."""

    async def make_topics() -> None:
        async with RawClient(str(cluster.address(through))) as client:
            while True:
                await create(client, f"topic-{uuid.uuid4()}")

    task = asyncio.ensure_future(make_topics())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def times_told(cluster: BrokerCluster, broker: int, sentence: str) -> int:
    """How often its operator was told so."""
    lines = cluster.log(broker).read_text().splitlines()
    told = (str(json.loads(line)["event"]) if line.startswith("{") else line for line in lines)
    return sum(line.endswith(sentence) for line in told)


def test_a_full_disk_on_one_broker_loses_nothing_and_is_told_in_one_sentence(tmp_path: Path, few_rounds: int) -> None:
    if not are_permitted(tmp_path / "trial"):
        pytest.skip("a volume of its own takes root on Linux")

    async def work(cluster: BrokerCluster, volumes: ExitStack) -> None:
        of_all = volumes.enter_context(volume_at(cluster.nodes[WITH_ALL].data))
        async with cluster, under_records(cluster) as records:
            assert await cluster.stop(WITH_LOGS) == [0]
            of_logs = volumes.enter_context(volume_at(cluster.nodes[WITH_LOGS].data / "logs"))
            await cluster.start(WITH_LOGS)
            for number in range(2 * few_rounds):
                await records.in_sync()
                await records.led_by_first(3)
                await records.acknowledged(BEFORE_EACH)
                happens, volume = ((the_logs_are_full, of_logs), (all_is_full, of_all))[number % 2]
                print(f"round {number + 1} of {2 * few_rounds}: {happens.__name__}", flush=True)
                await happens(records, volume)
            await records.in_sync()

    with ExitStack() as volumes:
        loops.run(work(BrokerCluster(tmp_path, len(BROKERS), *patient_options()), volumes))
