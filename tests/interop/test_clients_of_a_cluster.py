"""librdkafka and kafka-python on a cluster of three processes: topics by any broker, records to each, and a group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from tests import loops
from tests.interop.support.samples import described
from tools.servers.broker_cluster import BrokerCluster

DEADLINE_S = 150.0
RECORDS = 600
PARTITIONS = 6


def test_records_reach_every_broker_and_a_group_reads_them(tmp_path: Path) -> None:
    async def work() -> None:
        configs = ("group.initial.rebalance.delay.ms=0", "offsets.topic.replication.factor=1")
        options = [option for config in configs for option in ("--config", config)]
        async with BrokerCluster(tmp_path, 3, *options) as cluster:
            await cluster.start(1, 2, 3)
            await asyncio.to_thread(_produce_and_consume, cluster)
            assert await cluster.stop(1, 2, 3) == [0, 0, 0]

    loops.run(work())


def _produce_and_consume(cluster: BrokerCluster) -> None:
    admin = AdminClient({"bootstrap.servers": str(cluster.address(3))})
    admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(DEADLINE_S)
    assert {part.leader for part in described(admin, "orders", PARTITIONS)} == {1, 2, 3}
    failed: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": str(cluster.address(1)), "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(
            "orders", str(number), partition=number % PARTITIONS, on_delivery=lambda e, _: failed.append(e)
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failed == [None] * RECORDS
    assert _read_as_group(cluster, RECORDS) == [str(number).encode() for number in range(RECORDS)]
    python = KafkaAdminClient(bootstrap_servers=str(cluster.address(2)))
    try:
        while {broker["broker_id"] for broker in python.describe_cluster()["brokers"]} != {1, 2, 3}:
            pass  # it has not heard of all
    finally:
        python.close()


def _read_as_group(cluster: BrokerCluster, count: int) -> list[bytes]:
    """All values, in the order of their numbers; committed."""
    options = {"bootstrap.servers": str(cluster.address(2)), "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(options | {"enable.auto.commit": False})
    values: list[bytes] = []
    try:
        consumer.subscribe(["orders"])
        while len(values) < count:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{len(values)} of {count} came"
            assert message.error() is None, message.error()
            values.append(message.value())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return sorted(values, key=int)
