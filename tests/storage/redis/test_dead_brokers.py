"""A broker on Redis whose process is dead is not waited for, however long its session is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.support.samples import described
from tests.promises.support.load import QUIET
from tests.storage.redis.conftest import Start
from tests.storage.redis.redis_world import SAFE
from tools.servers.broker_cluster import BrokerCluster

OPTIONS: Final = ("--json", "--config", "broker.session.timeout.ms=3600000")
PARTITIONS: Final = 6
DEADLINE_S: Final = 150.0


@pytest.mark.parametrize("is_controller", [True, False])
async def test_partitions_of_a_dead_broker_are_led_by_others_long_before_its_session_ends(
    tmp_path: Path, start: Start, is_controller: bool
) -> None:
    server = start(*SAFE)
    async with BrokerCluster(tmp_path, 3, *OPTIONS, redis=server.url) as cluster:
        await cluster.start(*cluster.nodes)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        made = admin.create_topics([NewTopic("t", PARTITIONS, -1)])["t"]
        await asyncio.to_thread(made.result, DEADLINE_S)
        controller = (await asyncio.to_thread(admin.list_topics, timeout=DEADLINE_S)).controller_id
        victim = controller if is_controller else next(each for each in cluster.nodes if each != controller)
        told = await asyncio.to_thread(described, admin, "t", PARTITIONS)
        assert {part.leader for part in told} == set(cluster.nodes)
        await cluster.kill(victim)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 50_000, **QUIET})
        outcomes: list[object] = []

        def noted(error: object, _: object) -> None:
            outcomes.append(error)

        for partition in range(PARTITIONS):
            producer.produce("t", b"a", partition=partition, on_delivery=noted)
        assert await asyncio.to_thread(producer.flush, DEADLINE_S) == 0
        assert outcomes == [None] * PARTITIONS
