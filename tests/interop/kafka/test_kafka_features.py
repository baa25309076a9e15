"""Kafka's `kafka-features.sh` raises the feature level of an upgraded cluster, and clients go on at each level."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from headrace.metadata.levels import METADATA_LEVEL
from tests.broker.clusters import Cluster
from tests.broker.older import of_0_1_0, upgrade
from tests.interop.kafka_tools import KafkaTools
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")


async def test_the_level_is_raised_by_kafka_s_own_tool(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(2)
    try:
        with of_0_1_0():
            await cluster.start(1, 2)
        await upgrade(cluster, 1)
        with KafkaTools(cluster.bootstrap) as tools:
            early = await asyncio.to_thread(tools.run, "FeatureCommand", "upgrade", "--feature", "headrace.version=2")
            assert early.status != 0
            assert "Broker 2 runs a release that does not know feature level 2: upgrade" in early.text
            await upgrade(cluster, 2)
            await cluster.agree()
            assert await level_told(tools) == ("0", str(METADATA_LEVEL), "0")
            await clients_go_on(cluster)
            dry = ("upgrade", "--dry-run", "--feature", "headrace.version=2")
            assert "can be upgraded to 2" in (await asyncio.to_thread(tools.did, "FeatureCommand", *dry)).text
            assert (await cluster.agree()).level == 0
            wet = ("upgrade", "--feature", "headrace.version=2")
            assert "was upgraded to 2" in (await asyncio.to_thread(tools.did, "FeatureCommand", *wet)).text
            assert (await cluster.agree()).level == METADATA_LEVEL
            assert await level_told(tools) == ("0", str(METADATA_LEVEL), str(METADATA_LEVEL))
            await clients_go_on(cluster)
            for down in ("downgrade --feature headrace.version=1", "downgrade --unsafe --feature headrace.version=1"):
                said = await asyncio.to_thread(tools.run, "FeatureCommand", *down.split())
                assert said.status != 0
                assert "a level never falls" in said.text
    finally:
        await cluster.stop(*cluster.brokers)


async def level_told(tools: KafkaTools) -> tuple[str, ...]:
    """The lowest and highest level that a broker supports, and the finalized one."""
    text = (await asyncio.to_thread(tools.did, "FeatureCommand", "describe")).text
    names = ("SupportedMinVersion", "SupportedMaxVersion", "FinalizedVersionLevel")
    form = r"\s+".join(("^Feature: headrace.version", *(rf"{name}: (\S+)" for name in names)))
    found = re.search(form, text, re.MULTILINE)
    assert found is not None, text
    return found.groups()


async def clients_go_on(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert len((await asyncio.to_thread(admin.list_topics, timeout=60)).brokers) == 2
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
    await producer.start()
    try:
        await producer.send_and_wait("t", b"from aiokafka")
    finally:
        await producer.stop()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    assert (await asyncio.to_thread(consumer.poll, 60)).value() == b"from aiokafka"
    await asyncio.to_thread(consumer.close)
