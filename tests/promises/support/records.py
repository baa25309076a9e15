"""A cluster of processes under load and faults, and the judge of its acknowledgements.

Four kinds of clients run at once through all of it. One is librdkafka with idempotence, followed by a reader; another
is that without idempotence. At each broker are some that ask only that one (`tests.promises.support.insiders`).

The oracle is what they were told, and at the end the data on every replica's disk (`tests.promises.support.replicas`).
Nothing acknowledged may be lost, repeated or reordered. Offsets have no gap, and no shown record is taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponsePartition
from tests.broker.group_broker import RawClient
from tests.promises.support import insiders
from tests.promises.support.insiders import Insider
from tests.promises.support.load import PARTITIONS, QUIET, PartitionLogs, Producer, Sender, Watcher, read_all
from tests.promises.support.replicas import check_replicas
from tests.promises.support.streams import check_streams
from tests.promises.test_an_acknowledged_write_is_never_lost import (
    check_kept,
    check_once_and_in_order,
    check_seen,
    check_somewhere,
)
from tools.servers.broker_cluster import BrokerCluster

IDEMPOTENT: Final = "idempotent"
PLAIN: Final = "plain"
DEADLINE_S: Final = 150.0
BURST_MESSAGES: Final = 250
"""Little enough that all of it is soon read at the end."""
ASKED_EVERY_S: Final = 0.05
"""Pause between two questions while waiting for a leader."""
IMPATIENT: Final[Mapping[str, Any]] = {"socket.timeout.ms": 2_000, "request.timeout.ms": 1_500}
"""For librdkafka, which else waits a minute for the answer of a broker that is stopped or cut off."""
QUICK: Final = (
    "broker.session.timeout.ms=1500",
    "broker.heartbeat.interval.ms=300",
    "replica.lag.time.max.ms=1000",
    "leader.imbalance.check.interval.seconds=1",
)
"""Brokers that are silent are missed soon, and lead again soon once they are back."""
OPTIONS: Final = ("--json", *(option for config in QUICK for option in ("--config", config)))


def patient_options(lag_max_ms: int = 600_000) -> tuple[str, ...]:
    """OPTIONS, where followers stay in sync though they are slow. Else a leader on a busy machine may be alone in
    the ISR, and nobody can replace it. Brokers that die, stand still or are full leave the ISR all the same."""
    return (*OPTIONS, "--config", f"replica.lag.time.max.ms={lag_max_ms}")


class Shape(NamedTuple):
    """Of a topic."""

    replicas: int = 3
    in_sync: int = 2
    """min.insync.replicas."""


USUAL: Final[Mapping[str, Shape]] = {IDEMPOTENT: Shape(), PLAIN: Shape(in_sync=1), insiders.TOPIC: Shape(in_sync=1)}
"""With one, a leader is tempted to go on alone."""


@dataclass(slots=True, kw_only=True)
class Records:
    """See the module. Ends with `settle`, while all brokers run, and `check`."""

    cluster: BrokerCluster
    shapes: Mapping[str, Shape]
    senders: Sequence[Sender]
    watcher: Watcher
    insiders: Mapping[int, Insider]

    async def acknowledged(self, more: int, *topics: str) -> None:
        """So many more of each sender's; `topics`: of those that send to these."""
        senders = [sender for sender in self.senders if not topics or sender.topic in topics]
        await asyncio.gather(*(asyncio.to_thread(sender.wait_for, more) for sender in senders))

    async def told(self, through: int) -> MetadataResponse:
        """That broker's view of the cluster."""
        async with RawClient(str(self.cluster.address(through))) as client:
            answer: MetadataResponse = await client.ask(12, MetadataRequest(topics=None))
            return answer

    async def controller(self) -> int:
        """Once all brokers tell the same."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                told = {(await self.told(broker)).controller_id for broker in self.cluster.nodes}
                if len(told) == 1:
                    return told.pop()
                await asyncio.sleep(ASKED_EVERY_S)

    async def partition(self, topic: str, index: int, through: int) -> MetadataResponsePartition:
        return next(part for part in self._partitions(await self.told(through), topic) if part.partition_index == index)

    async def in_sync(self) -> None:
        """Until every replica of every partition is, as every broker tells: who was cut off may not know better yet."""
        for broker in self.cluster.nodes:
            await self._until(lambda part: set(part.isr_nodes) == set(part.replica_nodes), broker)

    async def led_by_first(self, through: int) -> None:
        """Until every partition is led by its first replica, so that every broker leads some."""
        await self._until(lambda part: part.leader_id == part.replica_nodes[0], through)

    async def led_by_others(self, than: int, through: int) -> None:
        """Until that broker leads nothing, and is in no ISR."""
        await self._until(lambda part: part.leader_id != -1 and than not in (part.leader_id, *part.isr_nodes), through)

    async def _until(self, holds: Callable[[MetadataResponsePartition], bool], through: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                told = await self.told(through)
                is_known = self.shapes.keys() <= {topic.name for topic in told.topics}
                if is_known and all(map(holds, self._partitions(told, *self.shapes))):
                    return
                await asyncio.sleep(ASKED_EVERY_S)

    @staticmethod
    def _partitions(told: MetadataResponse, *topics: str) -> list[MetadataResponsePartition]:
        return [part for topic in told.topics if topic.name in topics for part in topic.partitions]

    async def settle(self) -> None:
        """All goes on, all is answered, and all replicas are in sync."""
        await self.acknowledged(1)
        for sender in self.senders:
            await asyncio.to_thread(sender.stop)
        for insider in self.insiders.values():
            await insider.stop()
        await self.in_sync()

    async def check(self) -> None:
        """Check the data, for clients and on each disk. Stops the brokers."""
        brokers = tuple(self.cluster.nodes)
        found = await asyncio.to_thread(self._found)
        if self.cluster.redis is not None:
            for topic, logs in found.items():
                await asyncio.to_thread(check_streams, self.cluster.redis, topic, logs)
            assert await self.cluster.stop(*brokers) == [0] * len(brokers)
            print(f"judged: {', '.join(self._counted(found))}", flush=True)
            return
        majority = len(brokers) // 2 + 1
        assert await self.cluster.stop(*brokers[:majority]) == [0] * majority
        await self.cluster.kill(*brokers[majority:])  # they would wait for a controller, in vain
        for topic, logs in found.items():
            await asyncio.to_thread(
                partial(check_replicas, self.cluster, topic, logs, replicas=self.shapes[topic].replicas)
            )
        print(f"judged: {', '.join(self._counted(found))}", flush=True)

    def _counted(self, found: Mapping[str, PartitionLogs]) -> Iterator[str]:
        for sender in self.senders:
            there = sum(map(len, found[sender.topic].values()))
            yield f"{sender.acknowledged.count} acknowledged and {there} there of {sender.topic}"
        for broker, insider in self.insiders.items():
            told = sum(map(len, insider.acknowledged.values()))
            yield f"{told} acknowledged and {insider.refusals.total()} refused by broker {broker} alone"

    def _found(self) -> Mapping[str, PartitionLogs]:
        """The records that clients read of each topic, judged."""
        found = {topic: read_all(self.cluster.bootstrap, topic) for topic in self.shapes}
        for sender in self.senders:
            told = sender.acknowledged
            assert not told.failures, f"{sender.topic}: {told.failures[:3]}"
            assert not told.twice, f"{sender.topic}: acknowledged at the same place twice: {told.twice[:3]}"
            check_kept(found[sender.topic], sender.snapshot())
            check_somewhere(found[sender.topic], told.unplaced)
            if sender.topic != PLAIN:
                assert sender.acknowledged.count == sender.sent
                check_once_and_in_order(found[sender.topic], sender.sent)
        check_seen(self.watcher, found[IDEMPOTENT])
        if self.insiders:
            insiders.check_sent_once(found[insiders.TOPIC])
            for insider in self.insiders.values():
                insider.check(found[insiders.TOPIC])
        return found


@asynccontextmanager
async def under_records(
    cluster: BrokerCluster, shapes: Mapping[str, Shape] = USUAL, *, others: Sequence[Sender] = ()
) -> AsyncIterator[Records]:
    """Starts the brokers, and all of the load; judges at the end. `others` send to topics of their own, in `shapes`."""
    brokers = tuple(cluster.nodes)
    await cluster.start(*brokers)
    bootstrap = cluster.bootstrap
    await asyncio.to_thread(make_topics, bootstrap, shapes)
    plain = Producer(bootstrap, PLAIN, idempotent=False, burst=BURST_MESSAGES, **IMPATIENT)
    idempotent = Producer(bootstrap, IDEMPOTENT, idempotent=True, burst=BURST_MESSAGES, **IMPATIENT)
    watcher = Watcher(bootstrap, IDEMPOTENT, **{"socket.timeout.ms": IMPATIENT["socket.timeout.ms"]})
    with ExitStack() as stack:
        stack.enter_context(watcher)
        senders: tuple[Sender, ...] = (plain, idempotent, *others)
        for sender in senders:
            stack.enter_context(sender)
        asked = brokers if insiders.TOPIC in shapes else ()
        directly = {broker: Insider(str(cluster.address(broker)), broker) for broker in asked}
        records = Records(cluster=cluster, shapes=shapes, senders=senders, watcher=watcher, insiders=directly)
        try:
            yield records
            await records.settle()
        finally:
            for insider in directly.values():
                await insider.give_up()
    await records.check()


def make_topics(bootstrap: str, shapes: Mapping[str, Shape]) -> None:
    """Of small segments, so that what is done meets rolls too."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    wanted = [
        NewTopic(
            name,
            PARTITIONS,
            shape.replicas,
            config={
                "min.insync.replicas": str(shape.in_sync),
                "segment.bytes": str(1024 * 1024),
                "retention.ms": "-1",
            },
        )
        for name, shape in shapes.items()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(150)
