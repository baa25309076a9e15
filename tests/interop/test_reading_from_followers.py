"""librdkafka with `client.rack` reads from the follower in its rack, and goes on when that one dies: nothing is lost,
and nothing comes twice. The Java client reads there, too."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.metadata.config_table import RACK_AWARE
from tests import loops
from tests.interop import java_project
from tests.interop.support.samples import described
from tools.servers.broker_cluster import BrokerCluster

DEADLINE_S = 150.0
RACKS = {1: "a", 2: "b", 3: "c"}
RECORDS = 500
"""In each of three parts, the last of them once the follower is dead."""
VALUE_BYTES = 200


class Reader:
    """A consumer of one partition in a rack, and which brokers it has got records from."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self.values: list[int] = []
        self.offsets: list[int] = []
        self.reads_from = -1
        self.received: dict[int, int] = {}
        """Bytes in all, by broker."""
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.rack": rack,
                "group.id": "by-rack",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "statistics.interval.ms": 100,
                "stats_cb": self._on_statistics,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])

    def _on_statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        partition = json.loads(text)["topics"].get("orders", {}).get("partitions", {}).get("0")
        if partition is not None:
            self.reads_from = partition["broker"]
        self.received = {broker["nodeid"]: broker["rxbytes"] for broker in brokers if broker["nodeid"] >= 0}

    def read(self, count: int) -> None:
        """Until so many have come in all."""
        while len(self.values) < count:
            message = self._consumer.poll(DEADLINE_S)
            assert message is not None, f"{len(self.values)} of {count} came"
            assert message.error() is None, message.error()
            self.values.append(int(message.value()))
            self.offsets.append(message.offset())

    def until(self, holds: Callable[[], bool]) -> None:
        """Until the statistics say so."""
        for _ in range(int(DEADLINE_S / 0.1)):
            if holds():
                return
            assert self._consumer.poll(0.1) is None, "there is nothing to come"
        raise AssertionError(f"it reads from {self.reads_from}, and has received {self.received}")

    def until_it_reads_from(self, broker: int) -> None:
        self.until(lambda: self.reads_from == broker)

    def close(self) -> None:
        self._consumer.close()


def test_a_consumer_reads_in_its_rack_and_goes_on_when_that_replica_dies(tmp_path: Path) -> None:
    async def work() -> None:
        configs = (f"replica.selector.class={RACK_AWARE}", "broker.session.timeout.ms=2000")
        options = [option for config in configs for option in ("--config", config)]
        async with BrokerCluster(tmp_path, 3, *options, racks=RACKS) as cluster:
            await cluster.start(1, 2, 3)
            _, follower = await asyncio.to_thread(_make, cluster)
            reader = Reader(cluster.bootstrap, RACKS[follower])
            try:
                await asyncio.to_thread(_produce, cluster, 0)
                await asyncio.to_thread(reader.read, RECORDS)
                await asyncio.to_thread(reader.until_it_reads_from, follower)
                before = reader.received[follower]
                await asyncio.to_thread(_produce, cluster, 1)
                await asyncio.to_thread(reader.read, 2 * RECORDS)
                await asyncio.to_thread(reader.until_it_reads_from, follower)
                await asyncio.to_thread(reader.until, lambda: reader.received[follower] - before > 100 * RECORDS)
                await cluster.kill(follower)
                await asyncio.to_thread(_produce, cluster, 2)
                await asyncio.to_thread(reader.read, 3 * RECORDS)
                await asyncio.to_thread(reader.until, lambda: reader.reads_from not in (-1, follower))
            finally:
                reader.close()
            assert reader.values == list(range(3 * RECORDS))
            assert reader.offsets == list(range(3 * RECORDS))

    loops.run(work())


@pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)
def test_the_java_client_reads_in_its_rack(tmp_path: Path) -> None:
    async def work() -> None:
        command = await asyncio.to_thread(java_project.built)
        options = ("--config", f"replica.selector.class={RACK_AWARE}")
        async with BrokerCluster(tmp_path, 3, *options, racks=RACKS) as cluster:
            await cluster.start(1, 2, 3)
            _, follower = await asyncio.to_thread(_make, cluster)
            await asyncio.to_thread(_produce, cluster, 0)
            case = f"reads_in_its_rack orders {RACKS[follower]} {follower} {RECORDS} {VALUE_BYTES}\n"
            answer = await asyncio.to_thread(
                subprocess.run,
                [*command, "headrace.interop.Main", cluster.bootstrap],
                input=case,
                capture_output=True,
                check=True,
                text=True,
                timeout=DEADLINE_S,
            )
            assert answer.stdout.strip() == "ok"

    loops.run(work())


def _make(cluster: BrokerCluster) -> tuple[int, int]:
    """The topic's leader, and a follower."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(DEADLINE_S)
    (partition,) = described(admin, "orders", 1)
    return partition.leader, next(each for each in partition.replicas if each != partition.leader)


def _produce(cluster: BrokerCluster, part: int) -> None:
    failed: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(part * RECORDS, (part + 1) * RECORDS):
        value = str(number).rjust(VALUE_BYTES, "0")
        producer.produce("orders", value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert failed == [None] * RECORDS
