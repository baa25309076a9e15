"""Promise 7 over moves, for histories that are drawn: Spark's rows equal a consumer's rows for the same offsets, though
the partitions went from broker to broker while the records came.

Three brokers as processes, and one directory for a store. The consumer is librdkafka.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.batches import check_batches
from headrace.wire.errors import ErrorCode, error_of
from tests.broker import data_path
from tests.broker.group_broker import RawClient
from tests.promises.support.load import QUIET
from tests.promises.support.records import OPTIONS
from tests.promises.test_a_move_keeps_every_record import Operator
from tests.spark.world import World, consumed, random_batch, read
from tests.threads import joined
from tools.servers.broker_cluster import BrokerCluster

T = TypeVar("T")
pytestmark = pytest.mark.timeout(300)
EXAMPLES: Final = 3 * int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "2"))
PARTITIONS: Final = 2
BROKERS: Final = 3
DEADLINE_S: Final = 150.0


class Batch(NamedTuple):
    """One that a producer sends."""

    partition: int
    seed: int
    """Of what is in it."""


class Move(NamedTuple):
    """A partition goes to another broker."""

    partition: int
    by: int
    """So many brokers further."""


class Range(NamedTuple):
    """Of one partition, as parts of its length."""

    low: float
    high: float


partitions = st.integers(0, PARTITIONS - 1)
batches = st.builds(Batch, partitions, st.integers(0, 1 << 16))
moves = st.builds(Move, partitions, st.integers(1, BROKERS - 1))
plans = st.lists(st.one_of(batches, batches, batches, moves), min_size=1, max_size=40)
ranges = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda both: Range(min(both), max(both))),
    min_size=PARTITIONS,
    max_size=PARTITIONS,
)


class Cluster:
    """Three brokers, on a loop in a thread of its own."""

    def __init__(self, root: Path) -> None:
        self.store = f"file://{root / 'store'}"
        options = (*OPTIONS, "--durable", self.store, "--config", "default.replication.factor=1")
        self.brokers = BrokerCluster(root, BROKERS, *options)
        self._loop = asyncio.new_event_loop()
        self._numbers = count()

    def serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def new_topic(self) -> str:
        topic = f"drawn-{next(self._numbers)}"
        admin = AdminClient({"bootstrap.servers": self.brokers.bootstrap, **QUIET})
        wanted = NewTopic(topic, PARTITIONS, 1, config={"segment.bytes": "2048", "retention.ms": "-1"})
        admin.create_topics([wanted])[topic].result(DEADLINE_S)
        return topic


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("moved"))
    thread = Thread(target=made.serve, name="brokers", daemon=True)
    thread.start()
    try:
        made.ask(made.brokers.start(*made.brokers.nodes))
        yield made
        made.ask(made.brokers.stop(*made.brokers.nodes))
    finally:
        made.stop()
        joined(thread)


async def carry_out(brokers: BrokerCluster, topic: str, plan: list[Batch | Move]) -> None:
    operator = Operator(brokers, topic)
    await operator.until_led()
    for step in plan:
        if isinstance(step, Batch):
            await produce(operator, step)
            continue
        _, leaders = await operator.told()
        target = (leaders[step.partition] - 1 + step.by) % BROKERS + 1
        assert await operator.move(step.partition, target) is ErrorCode.NONE
        await operator.until_over()


async def produce(operator: Operator, step: Batch) -> None:
    """To whoever leads: it may not know yet, and then takes nothing."""
    batch, code = random_batch(Random(step.seed)), ErrorCode.NOT_LEADER_OR_FOLLOWER
    while code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        await operator.until_led()
        _, leaders = await operator.told()
        async with RawClient(str(operator.cluster.address(leaders[step.partition]))) as client:
            answer = await data_path.produce(client, operator.topic, batch, partition=step.partition)
        code = error_of(answer.error_code)
    assert code is ErrorCode.NONE, answer


@given(plan=plans, wanted=ranges, task_bytes=st.sampled_from([500, 5_000, 1 << 24]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_went_from_broker_to_broker_is_read_as_a_consumer_reads_it(
    cluster: Cluster, plan: list[Batch | Move], wanted: list[Range], task_bytes: int
) -> None:
    topic = cluster.new_topic()
    cluster.ask(carry_out(cluster.brokers, topic, plan))
    rows = consumed(cluster.brokers.bootstrap, [topic])
    assert len(rows) == sum(records_in(step.seed) for step in plan if isinstance(step, Batch))
    world = World(cluster.brokers.bootstrap, cluster.store)
    for partition in range(PARTITIONS):
        if handed_over := records_before_the_last_move(plan, partition):
            world.exported(topic, handed_over, partition)  # these are read from the store
    assert read(world.options(topic)) == rows
    ends = [sum(row[1] == each for row in rows) for each in range(PARTITIONS)]
    starting = [round(end * each.low) for end, each in zip(ends, wanted, strict=True)]
    ending = [round(end * each.high) for end, each in zip(ends, wanted, strict=True)]
    limits = {"startingOffsets": bounds(topic, starting), "endingOffsets": bounds(topic, ending)}
    options = world.options(topic, maxBytesPerPartition=str(task_bytes), **limits)
    assert read(options) == [row for row in rows if starting[row[1]] <= row[2] < ending[row[1]]]


def records_before_the_last_move(plan: list[Batch | Move], partition: int) -> int:
    own = [step for step in plan if step.partition == partition]
    last = max((at for at, step in enumerate(own) if isinstance(step, Move)), default=0)
    return sum(records_in(step.seed) for step in own[:last] if isinstance(step, Batch))


def records_in(seed: int) -> int:
    """Of that batch."""
    ((_, header),) = check_batches(random_batch(Random(seed)))
    return header.count


def bounds(topic: str, offsets: list[int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(offsets)}})
