"""Promises 1 to 4 and 6 over moves of partitions with two replicas and durable history, with real processes.

The new replica begins where history ends, while an idempotent producer sends. It, leaders and controllers are killed
meanwhile; then it leads. Acknowledged records are there, once, in order, at their offsets.

There are three brokers and one directory for a store. The oracle is what librdkafka was told. The files of the new
replica's log show that little was copied: none lies below the mirror's end at the time of the move's request.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.ids import PartitionIndex
from headrace.storage.log.names import LOG
from headrace.storage.tier.reader import Store
from headrace.wire.errors import ErrorCode
from tests import loops
from tests.promises.support.load import PARTITIONS, QUIET, Producer, Watcher, read_all
from tests.promises.support.records import IMPATIENT, OPTIONS
from tests.promises.test_a_move_keeps_every_record import DEADLINE_S, TOPIC, Operator
from tests.promises.test_an_acknowledged_write_is_never_lost import check_idempotent
from tools.servers.broker_cluster import BrokerCluster

BEFORE: Final = 6_000
BETWEEN: Final = 300
"""Acknowledgements."""
VICTIMS: Final = ("new", "leader", "controller", None)


def frontiers(store: Path) -> dict[int, int]:
    """Where history ends, as its mirror says."""
    opened = Store.open(f"file://{store}")
    topic = next(each for each in opened.topics() if each.name == TOPIC)
    return {number: opened.catalog(topic, PartitionIndex(number)).next_offset for number in range(PARTITIONS)}


class Moving:
    """Moves one partition after the other."""

    def __init__(self, cluster: BrokerCluster, store: Path) -> None:
        self.operator = Operator(cluster)
        self._cluster = cluster
        self._store = store
        self._chance = random.Random(9)
        self._replicas: dict[int, list[int]] = {}
        self.copied: list[tuple[int, int]] = []
        """Bytes in the new replica's log, and in one that was there before, at the end of each move."""

    async def places(self, index: int) -> list[int]:
        if index not in self._replicas:
            admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, **QUIET})
            known = await asyncio.to_thread(partial(admin.list_topics, TOPIC, timeout=DEADLINE_S))
            self._replicas[index] = list(known.topics[TOPIC].partitions[index].replicas)
        return self._replicas[index]

    def log_of(self, broker: int, index: int) -> Path:
        return self._cluster.nodes[broker].data / "logs" / f"{TOPIC}-{index}"

    async def once(self, index: int, victim: str | None) -> None:
        """To the third broker, which comes to lead, from one of the two that have it."""
        controller, leaders = await self.operator.told()
        before = await self.places(index)
        (new,) = set(self._cluster.nodes) - set(before)
        stays = self._chance.choice(before)
        frontier = (await asyncio.to_thread(frontiers, self._store))[index]
        assert frontier > 0
        code = await self.operator.move(index, new, stays)
        assert code in (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT), code
        if victim is not None:
            for _ in range(self._chance.randrange(8)):  # how far it comes is left to chance
                if not await self.operator.under_way():
                    break
            await self.kill({"new": new, "leader": leaders[index], "controller": controller}[victim])
        await self.operator.until_over()
        await self.operator.until_led()
        self._replicas[index] = [new, stays]
        assert min(await self.bases(new, index)) >= frontier, "what is in the store is not copied"
        self.copied.append((self.bytes_of(new, index), self.bytes_of(stays, index)))

    async def bases(self, broker: int, index: int) -> list[int]:
        """Of the files of its log, once there are any: where history has had all there was, the first comes with what
        is sent next."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := [int(path.stem) for path in self.log_of(broker, index).glob(f"*{LOG}")]):
                await self.operator.told()
        return found

    def bytes_of(self, broker: int, index: int) -> int:
        return sum(path.stat().st_size for path in self.log_of(broker, index).glob(f"*{LOG}"))

    async def kill(self, broker: int) -> None:
        self.operator.down.add(broker)
        await self._cluster.kill(broker)
        await self._cluster.start(broker)
        self.operator.down.discard(broker)

    async def until_leads(self, index: int) -> None:
        """The new replica, in whatever way: it is the first of the two."""
        async with asyncio.timeout(DEADLINE_S):
            while (await self.operator.told())[1][index] != self._replicas[index][0]:
                pass


def test_replicas_move_from_the_frontier_under_load_and_deaths_and_nothing_acknowledged_is_lost(
    tmp_path: Path, few_rounds: int
) -> None:
    async def work() -> None:
        store = tmp_path / "store"
        options = (*OPTIONS, "--durable", f"file://{store}")
        async with BrokerCluster(tmp_path, 3, *options) as cluster:
            await cluster.start(*cluster.nodes)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            config = {"segment.bytes": "65536", "durable.export.max.lag.ms": "200", "retention.ms": "-1"}
            topic = NewTopic(TOPIC, PARTITIONS, 2, config={**config, "min.insync.replicas": "1"})
            await asyncio.to_thread(partial(admin.create_topics([topic])[TOPIC].result, DEADLINE_S))
            moving = Moving(cluster, store)
            with ExitStack() as stack:
                watcher = stack.enter_context(Watcher(cluster.bootstrap, TOPIC, **{"socket.timeout.ms": 2_000}))
                producer = Producer(cluster.bootstrap, TOPIC, idempotent=True, burst=250, **IMPATIENT)
                stack.enter_context(producer)
                await asyncio.to_thread(producer.wait_for, BEFORE)
                for number in range(2 * few_rounds):
                    await moving.once(number % PARTITIONS, VICTIMS[number % len(VICTIMS)])
                    await moving.until_leads(number % PARTITIONS)
                    await asyncio.to_thread(producer.wait_for, BETWEEN)
                await asyncio.to_thread(producer.stop)
                found = await asyncio.to_thread(read_all, cluster.bootstrap, TOPIC)
            check_idempotent(found, producer, watcher)
            print("; ".join(f"{new} bytes copied, {whole} in the other replica's log" for new, whole in moving.copied))

    loops.run(work())
