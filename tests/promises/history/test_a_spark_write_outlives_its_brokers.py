"""Promises 1 and 2 for Spark's writer, with real processes.

A task that writes while brokers are killed ends with every row there once, in order, in its partition. There are three
brokers with three replicas, two of which must be in sync. The leader of a partition is killed (kill -9) while the
task's batches are under way; in more rounds, one after the other. The oracle is librdkafka, which reads all of it
afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.spark.write import rows
from headrace.spark.write.sink import parse_write_options
from headrace.spark.write.writing import TaskWriter
from tests import loops
from tests.promises.support.records import OPTIONS
from tests.spark.world import consumed
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "written"
PARTITIONS: Final = 3
BATCHES: Final = 40
ROWS: Final = 20
KILLED_AT: Final = 10
"""The number of the Arrow batch, the first of each round."""
BACK_AT: Final = 30


async def leader(bootstrap: str, partition: int) -> int:
    async with Cluster(bootstrap) as cluster:
        view = await cluster.retried(lambda: cluster.partition(TOPIC, partition), (TOPIC,))
        return int(view.leader)


async def created(bootstrap: str) -> None:
    async with Cluster(bootstrap) as cluster:
        configs = {"min.insync.replicas": "2"}
        await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs)


async def reached_by(task: asyncio.Task[Any], reached: asyncio.Queue[int]) -> int:
    """The next batch that the task asks for; raises what ended it before."""
    following = asyncio.create_task(reached.get())
    await asyncio.wait((task, following), return_when=asyncio.FIRST_COMPLETED)
    if not following.done() and reached.empty():
        following.cancel()
        raise AssertionError(f"it ended as {await task}")
    return await following


def test_kill_9_of_leaders_while_a_task_writes_loses_and_repeats_nothing(
    tmp_path: Path, few_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SPARK_CHUNK_BYTES_MAX", 1)  # each batch is a chunk, so that few are under way

    async def work() -> None:
        cluster = BrokerCluster(tmp_path, 3, *OPTIONS)
        async with cluster:
            await cluster.start(*cluster.nodes)
            await created(cluster.bootstrap)
            loop, reached = asyncio.get_running_loop(), asyncio.Queue[int]()

            def batches() -> Iterator[Any]:
                for at in range(few_rounds * BATCHES):
                    loop.call_soon_threadsafe(reached.put_nowait, at)
                    numbers = range(at * ROWS, (at + 1) * ROWS)
                    yield pa.RecordBatch.from_pydict(
                        {
                            "value": [b"%d" % number for number in numbers],
                            "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
                        }
                    )

            options = parse_write_options({"bootstrap": cluster.bootstrap, "topic": TOPIC}, streaming=False)
            task = asyncio.create_task(asyncio.to_thread(TaskWriter(options, {}, None).write, batches()))
            killed = 0
            for expected in range(few_rounds * BATCHES):
                assert await reached_by(task, reached) == expected
                if expected % BATCHES == KILLED_AT:
                    killed = await leader(cluster.bootstrap, expected // BATCHES % PARTITIONS)
                    await cluster.kill(killed)
                if expected % BATCHES == BACK_AT and expected + BATCHES < few_rounds * BATCHES:  # for the next round
                    await cluster.start(killed)
            assert (await task).records == few_rounds * BATCHES * ROWS
            found = await asyncio.to_thread(consumed, cluster.bootstrap, [TOPIC])
            for partition in range(PARTITIONS):
                values = [int(row[6] or b"") for row in found if row[1] == partition]
                assert values == list(range(partition, few_rounds * BATCHES * ROWS, PARTITIONS))

    loops.run(work())
