"""Promises 1, 3 and 6 where logs are discarded for durable history, with real processes.

Exported records are never lost, and none of their offsets is given again, whichever broker leads. A replica that began
behind history, killed at any step of that, leads like any other. The brokers share one directory for a store. The
oracle is what librdkafka was told.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.ids import PartitionIndex
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.replicas.reassignments import reassign
from headrace.storage.tier.reader import Store
from headrace.wire.errors import ErrorCode
from tests import loops
from tests.promises.support.load import QUIET
from tools.servers.broker_cluster import BrokerCluster

DEADLINE_S: Final = 150.0
LOOK_EVERY_S: Final = 0.02
RECORDS: Final = 1_500
MORE: Final = 300
TOPIC: Final = "history"
STEPS: Final = (".snapshot", "checkpoint.json")
"""Files that appear in a new replica's directory, one after the other; it is killed once it has one of them."""


class Sender:
    """One idempotent producer; what it was told, by partition and offset."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, dict[int, bytes]] = {}
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "batch.size": 8192,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.interval.ms": 500,
                **QUIET,
            }
        )

    def send(self, partition: int, first: int, count: int) -> None:
        """Blocking, until all of it is acknowledged."""

        def on_delivery(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            assert error is None, error
            known = self.acknowledged.setdefault(partition, {})
            assert message.offset() not in known, "an offset is given once"
            known[message.offset()] = message.value()

        for number in range(first, first + count):
            self._client.produce(TOPIC, b"%d " % number + b"v" * 200, partition=partition, on_delivery=on_delivery)
        assert self._client.flush(DEADLINE_S) == 0


def read(bootstrap: str, partition: int, end: int) -> dict[int, bytes]:
    """From offset 0 to `end`, in order, without a gap."""
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "error"}
        | dict(QUIET)
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0)])
    found: dict[int, bytes] = {}
    while len(found) < end:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"nothing came behind {len(found)}"
        error = message.error()
        assert error is None or error.retriable(), error
        if error is None:
            assert message.offset() == len(found)
            found[message.offset()] = message.value()
    consumer.close()
    return found


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *args))


@pytest.fixture(autouse=True)
def _no_clients_are_left() -> Iterator[None]:
    yield
    admin_of.cache_clear()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await in_thread(true):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(LOOK_EVERY_S)


@functools.cache
def admin_of(bootstrap: str) -> Any:
    """Made once: each is a client with threads of its own."""
    return AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200, **QUIET})


def state(bootstrap: str, partition: int) -> tuple[int, set[int]]:
    """Leader and ISR; (-1, nobody) while nobody answers, or who is asked has not heard of it."""
    admin = admin_of(bootstrap)
    admin.poll(0.02)
    try:
        known = admin.list_topics(TOPIC, timeout=1.0).topics[TOPIC].partitions.get(partition)
    except confluent_kafka.KafkaException:
        return -1, set()
    return (-1, set()) if known is None else (known.leader, set(known.isrs))


def exported_end(store: Path, partition: int) -> int:
    """As its mirror says."""
    opened = Store.open(f"file://{store}")
    names = {topic.name: topic for topic in opened.topics()}
    return opened.catalog(names[TOPIC], PartitionIndex(partition)).next_offset if TOPIC in names else 0


async def make(bootstrap: str, partitions: int, replicas: int, **config: str) -> None:
    known = {"segment.bytes": "65536", "durable.export.max.lag.ms": "200", "min.insync.replicas": "1"}
    topic = NewTopic(TOPIC, partitions, replicas, config={**known, **config})
    await in_thread(admin_of(bootstrap).create_topics([topic])[TOPIC].result, DEADLINE_S)


def options(directory: Path) -> tuple[str, ...]:
    rest = ("broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=200", "replica.lag.time.max.ms=2000")
    return (
        "--json",
        "--durable",
        f"file://{directory / 'store'}",
        *(part for each in rest for part in ("--config", each)),
    )


def test_an_unclean_election_below_the_frontier_loses_nothing_that_was_exported(tmp_path: Path) -> None:
    async def work() -> None:
        async with BrokerCluster(tmp_path, 3, *options(tmp_path)) as cluster:
            await cluster.start(*cluster.nodes)
            everybody = cluster.bootstrap
            await make(everybody, 1, 2, **{"unclean.leader.election.enable": "true"})
            sender = Sender(everybody)
            await in_thread(sender.send, 0, 0, MORE)
            leader, isr = await in_thread(state, everybody, 0)
            (behind,) = isr - {leader}
            await cluster.kill(behind)
            await in_thread(sender.send, 0, MORE, RECORDS)
            whole = MORE + RECORDS
            await until(lambda: exported_end(tmp_path / "store", 0) == whole)
            await cluster.kill(leader)
            await cluster.start(behind)
            await until(lambda: state(str(cluster.address(behind)), 0)[0] == behind)
            again = Sender(str(cluster.address(behind)))
            await in_thread(again.send, 0, whole, MORE)
            assert sorted(again.acknowledged[0]) == list(range(whole, whole + MORE)), "no offset is given again"
            known = sender.acknowledged[0] | again.acknowledged[0]
            assert await in_thread(read, str(cluster.address(behind)), 0, whole + MORE) == known
            await cluster.start(leader)
            await until(lambda: state(everybody, 0)[1] == {leader, behind})
            await cluster.kill(behind)
            await until(lambda: state(str(cluster.address(leader)), 0)[0] == leader)
            assert await in_thread(read, str(cluster.address(leader)), 0, whole + MORE) == known

    loops.run(work())


def test_a_replica_that_is_killed_while_it_begins_behind_history_leads_like_any_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with BrokerCluster(tmp_path, 3, *options(tmp_path)) as cluster:
            await cluster.start(*cluster.nodes)
            everybody = cluster.bootstrap
            await make(everybody, len(STEPS), 1)
            sender = Sender(everybody)
            for partition in range(len(STEPS)):
                await in_thread(sender.send, partition, 0, RECORDS)
                await until(lambda partition=partition: exported_end(tmp_path / "store", partition) == RECORDS)  # type: ignore[misc]
                await in_thread(sender.send, partition, RECORDS, 5)
            for partition, step in enumerate(STEPS):
                first = (await in_thread(state, everybody, partition))[0]
                new = next(each for each in cluster.nodes if each != first)
                directory = cluster.nodes[new].data / "logs" / f"{TOPIC}-{partition}"
                async with Client(everybody) as client:
                    (done,) = await reassign(client, TOPIC, {partition: (first, new)})
                assert done.error is ErrorCode.NONE
                await until(lambda d=directory, s=step: any(path.name.endswith(s) for path in d.glob("*")))  # type: ignore[misc]
                await cluster.kill(new)
                await cluster.start(new)
                await until(lambda p=partition, f=first, n=new: state(everybody, p)[1] == {f, n})  # type: ignore[misc]
                sizes = [
                    sum(path.stat().st_size for path in directory.glob("*.log"))
                    for directory in (
                        cluster.nodes[each].data / "logs" / f"{TOPIC}-{partition}" for each in (first, new)
                    )
                ]
                assert sizes[1] * 20 <= sizes[0], f"{sizes[1]} bytes of {sizes[0]} were copied"
                await cluster.kill(first)
                await until(lambda p=partition, n=new: state(str(cluster.address(n)), p)[0] == n)  # type: ignore[misc]
                await in_thread(sender.send, partition, RECORDS + 5, MORE)
                known = sender.acknowledged[partition]
                assert sorted(known) == list(range(RECORDS + 5 + MORE))
                assert await in_thread(read, str(cluster.address(new)), partition, len(known)) == known
                if partition + 1 < len(STEPS):
                    await cluster.start(first)

    loops.run(work())
