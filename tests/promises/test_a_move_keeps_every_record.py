"""Promises 1 to 4 over moves, with real processes.

Partitions with one replica are handed over from broker to broker under load, while owners, targets and controllers are
killed. Acknowledged records are there, once, in order, at their offsets. An idempotent producer gets no error, and
readers see no gap.

There are three brokers and one directory for a store. The oracle is what librdkafka was told.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests import loops
from tests.broker.group_broker import LATE, RawClient
from tests.promises.support.load import PARTITIONS, QUIET, Producer, Watcher, read_all
from tests.promises.support.records import IMPATIENT, OPTIONS
from tests.promises.test_an_acknowledged_write_is_never_lost import check_idempotent
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "moved"
DEADLINE_S: Final = 150.0
LOOK_EVERY_S: Final = 0.02
BETWEEN_MOVES: Final = 200
"""Acknowledgements, so that a move meets a busy partition."""
TAKEN_OVER: Final = "partition taken over"


class Operator:
    """Asks any broker that answers."""

    def __init__(self, cluster: BrokerCluster, topic: str = TOPIC) -> None:
        self.cluster = cluster
        self.topic = topic
        self.down: set[int] = set()

    async def ask(self, version: int, request: Any) -> Any:
        """Of the first broker that is not down."""
        broker = next(one for one in self.cluster.nodes if one not in self.down)
        async with RawClient(str(self.cluster.address(broker))) as client:
            return await client.ask(version, request)

    async def told(self) -> tuple[int, dict[int, int]]:
        """The controller, and who leads each partition."""
        answer = await self.ask(12, MetadataRequest(topics=None))
        (topic,) = [one for one in answer.topics if one.name == self.topic]
        return int(answer.controller_id), {one.partition_index: one.leader_id for one in topic.partitions}

    async def move(self, partition: int, *to: int) -> ErrorCode:
        """Ask for it. It is asked for again where the controller did not answer in time, as nobody knows what was done.
        A second move to the same place does nothing."""
        wish = ReassignableTopic(self.topic, (ReassignablePartition(partition, to),))
        request = AlterPartitionReassignmentsRequest(timeout_ms=int(DEADLINE_S * 1_000), topics=(wish,))
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self.ask(1, request)
                code = error_of(answer.error_code or answer.responses[0].partitions[0].error_code)
                if code not in LATE:
                    return code

    async def under_way(self) -> bool:
        answer = await self.ask(0, ListPartitionReassignmentsRequest(timeout_ms=120_000, topics=None))
        return bool(answer.topics)

    async def until_over(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.under_way():  # noqa: ASYNC110 - another process tells nobody
                await asyncio.sleep(LOOK_EVERY_S)

    async def until_led(self) -> None:
        """Every partition, by somebody, as every broker tells: one may hear of the topic a little later."""
        async with asyncio.timeout(DEADLINE_S):
            for broker in self.cluster.nodes.keys() - self.down:
                async with RawClient(str(self.cluster.address(broker))) as client:
                    while not self._is_led(await client.ask(12, MetadataRequest(topics=None))):  # noqa: ASYNC110
                        await asyncio.sleep(LOOK_EVERY_S)

    def _is_led(self, told: MetadataResponse) -> bool:
        leaders = [one.leader_id for topic in told.topics if topic.name == self.topic for one in topic.partitions]
        return bool(leaders) and -1 not in leaders


def pauses(cluster: BrokerCluster) -> list[int]:
    """Milliseconds from the last accepted record to the first that could be, as new owners tell."""
    lines = [line for broker in cluster.nodes for line in cluster.log(broker).read_text().splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return sorted(one["pause_ms"] for one in told if one["event"] == TAKEN_OVER)


async def move_once(operator: Operator, chance: random.Random, victim: str | None) -> None:
    """One partition to another broker; `victim` is killed at some time of it, and started again."""
    controller, leaders = await operator.told()
    index = chance.randrange(PARTITIONS)
    source = leaders[index]
    target = chance.choice([one for one in operator.cluster.nodes if one != source])
    code = await operator.move(index, target)
    assert code in (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT), code
    if victim is not None:
        for _ in range(chance.randrange(12)):  # how far it comes is left to chance
            if not await operator.under_way():
                break
        killed = {"source": source, "target": target, "controller": controller}[victim]
        operator.down.add(killed)
        await operator.cluster.kill(killed)
        await operator.cluster.start(killed)
        operator.down.discard(killed)
    await operator.until_over()
    await operator.until_led()


def test_partitions_move_under_load_and_deaths_and_nothing_acknowledged_is_lost_repeated_or_reordered(
    tmp_path: Path, rounds: int
) -> None:
    async def work() -> None:
        chance = random.Random(8)
        options = (*OPTIONS, "--durable", f"file://{tmp_path / 'store'}", "--config", "default.replication.factor=1")
        async with BrokerCluster(tmp_path, 3, *options) as cluster:
            await cluster.start(*cluster.nodes)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            topic = NewTopic(TOPIC, PARTITIONS, 1, config={"segment.bytes": "65536", "retention.ms": "-1"})
            await asyncio.to_thread(partial(admin.create_topics([topic])[TOPIC].result, DEADLINE_S))
            operator = Operator(cluster)
            with ExitStack() as stack:
                watcher = stack.enter_context(Watcher(cluster.bootstrap, TOPIC, **{"socket.timeout.ms": 2_000}))
                producer = Producer(cluster.bootstrap, TOPIC, idempotent=True, burst=250, **IMPATIENT)
                stack.enter_context(producer)
                await asyncio.to_thread(producer.wait_for, BETWEEN_MOVES)
                for number in range(3 * rounds):
                    victim = (None, "source", None, "target", None, "controller")[number % 6]
                    await move_once(operator, chance, victim)
                    await asyncio.to_thread(producer.wait_for, BETWEEN_MOVES)
                await asyncio.to_thread(producer.stop)
                found = await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC)
            check_idempotent(found, producer, watcher)
            waited = pauses(cluster)
            print(f"{len(waited)} moves; pauses of {median(waited):g} ms (median), {waited[-1]} ms (longest)")

    loops.run(work())
